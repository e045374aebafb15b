package storetest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

var (
	linearizableFor  = flag.Duration("linearizable.for", 2*time.Second, "how long the Linearizable test of a store runs")
	linearizableSeed = flag.Uint64("linearizable.seed", 0, "seed of the Linearizable test; 0 draws one")
)

// testLinearizable calls the store from several clients at once, and looks for
// an order in which the reference would have given the same replies: each call
// at some moment between its start and its return. If there is none, two calls
// did not behave as if one came after the other.
//
// # Calls without a reply
//
// Some calls have a deadline that may end while the store is at work, and some
// go through Fixture.Lossy. One that fails may have been carried out, or may
// still be: it can have its place anywhere from its start to the end of the
// history. The end is also the place of a call that was never carried out,
// because nothing comes after it. A call that failed with ErrNotApplied has no
// place at all.
//
// # Time
//
// Leases end by the store's clock, and each reply says what it was. The
// reference decides by that, and the clock must not go back from one call to
// the next in the order that is found. The moment of a call without a reply is
// not known, but it matters only whether it was before or after the end of the
// lease that is running: both are tried, and such a call never asks for
// anything (a lease, a NotAfter) that ends within the test. So no reply is
// believed that contradicts the contract, and none is doubted because a machine
// is slow.
//
// The seed decides what the clients do; how their calls meet is up to the
// machine.
func testLinearizable(t *testing.T, f Fixture) {
	seed := *linearizableSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("to repeat what the clients do: -run '%s' -linearizable.seed %d", t.Name(), seed)
	h, count := findViolation(t, f, seed, *linearizableFor)
	t.Logf("%d histories with %d calls, of which %d have no reply and %d were not applied",
		count.histories, count.calls, count.unknown, count.notApplied)
	if h != nil {
		path := filepath.Join(t.ArtifactDir(), "history.html")
		if err := porcupine.VisualizePath(h.model, h.info, path); err != nil {
			t.Error(err)
		}
		t.Fatalf("the calls for one record have no order that the contract allows; go test -artifacts keeps a picture of them, %s:\n%s", path, h)
	}
	if count.unknown == 0 {
		t.Error("no call lost its reply")
	}
}

// counts says what a search has looked at.
type counts struct{ histories, calls, unknown, notApplied int }

// violation is what happened to one record and cannot be explained.
type violation struct {
	model      porcupine.Model
	info       porcupine.LinearizationInfo
	operations []porcupine.Operation
}

// String lists the calls by their start.
func (v *violation) String() string {
	var b strings.Builder
	for _, o := range v.operations {
		fmt.Fprintf(&b, "%10s to %10s  client %d: %s\n",
			time.Duration(o.Call), time.Duration(o.Return), o.ClientId, v.model.DescribeOperation(o.Input, o.Output))
	}
	return b.String()
}

// findViolation makes histories until one violates the contract, or the time is
// over.
func findViolation(t *testing.T, f Fixture, seed uint64, atMost time.Duration) (*violation, counts) {
	t.Helper()
	var count counts
	for began := time.Now(); time.Since(began) < atMost; {
		now, err := f.Store.Now(testContext(t))
		if err != nil {
			t.Fatalf("Now: %v", err)
		}
		m := contract(now)
		h := newHistory(f, seed, count.histories)
		h.run(t)
		count.histories++
		count.notApplied += h.notApplied
		for _, operations := range h.operations {
			count.calls += len(operations)
			for _, o := range operations {
				if o.Output.(outcome).unknown {
					count.unknown++
				}
			}
			result, info := porcupine.CheckOperationsVerbose(m, operations, time.Minute)
			switch result {
			case porcupine.Ok:
			case porcupine.Illegal:
				return &violation{m, info, operations}, count
			case porcupine.Unknown:
				t.Fatalf("%d calls cannot be checked within a minute", len(operations))
			}
		}
	}
	return nil, count
}

// call is what a client asks of one record. apply is what the reference answers
// at a moment of the store's clock.
type call struct {
	text  string
	apply func(m model, now int64) (after model, result any)
}

// outcome is what came of a call.
type outcome struct {
	unknown bool
	now     int64 // the store's clock; 0 if the reply has none
	result  any   // of the type that call.apply gives
}

// claimed is the result of a claim.
type claimed struct {
	verdict  idempotency.Verdict
	tookOver bool
	record   model // that stood in the way
}

func (c claimed) String() string {
	names := map[idempotency.Verdict]string{
		idempotency.Claimed: "claimed", idempotency.AlreadyCompleted: "completed", idempotency.StillInProgress: "in progress",
		idempotency.AlreadyUncertain: "uncertain", idempotency.OtherRequest: "other request", idempotency.TooLate: "too late",
	}
	if c.tookOver {
		return "taken over"
	}
	if c.record.state == 0 {
		return names[c.verdict]
	}
	return fmt.Sprintf("%s (%s)", names[c.verdict], c.record)
}

// moment is a record, and the earliest time that it can be.
type moment struct {
	record model
	now    int64
}

// contract is the reference in the form that the checker needs, for a record
// that is absent at the given time.
func contract(now time.Time) porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{moment{now: now.UnixMilli()}} },
		Step: func(state, input, output any) []any {
			at, in, out := state.(moment), input.(call), output.(outcome)
			if out.unknown {
				after, _ := in.apply(at.record, at.now)
				next := []any{moment{after, at.now}}
				if end := at.record.leaseUntil; end > at.now {
					after, _ := in.apply(at.record, end)
					next = append(next, moment{after, end})
				}
				return next
			}
			now := at.now
			if out.now != 0 {
				now = out.now
			}
			after, result := in.apply(at.record, now)
			if now < at.now || result != out.result {
				return nil
			}
			return []any{moment{after, now}}
		},
		DescribeOperation: func(input, output any) string {
			in, out := input.(call), output.(outcome)
			if out.unknown {
				return in.text + ": no reply"
			}
			return fmt.Sprintf("%s: at %d %v", in.text, out.now, out.result)
		},
		DescribeState: func(state any) string {
			at := state.(moment)
			return fmt.Sprintf("at %d %s, lease until %d", at.now, at.record, at.record.leaseUntil)
		},
	}
	return nondeterministic.ToModel()
}

const (
	historyClients = 5
	historyCalls   = 12 // of each client
	historyRecords = 2
	historyTokens  = 3
)

// history is what several clients do to a few records.
type history struct {
	fixture Fixture
	seed    uint64
	number  int
	began   time.Time
	ids     []idempotency.RecordID

	mu         sync.Mutex
	operations map[idempotency.RecordID][]porcupine.Operation
	typical    time.Duration // of a call with a reply
	notApplied int
}

func newHistory(f Fixture, seed uint64, number int) *history {
	h := &history{
		fixture: f, seed: seed, number: number, began: time.Now(),
		operations: make(map[idempotency.RecordID][]porcupine.Operation),
	}
	for i := range historyRecords {
		h.ids = append(h.ids, idempotency.NewRecordID("history", nil, idempotency.Key(fmt.Sprint(seed, "-", number, "-", i))))
	}
	return h
}

// run lets the clients do their calls.
func (h *history) run(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range historyClients {
		wg.Go(func() {
			c := &client{
				history: h, number: i,
				random: rand.New(rand.NewPCG(h.seed, uint64(h.number*historyClients+i))),
			}
			for range historyCalls {
				if err := c.call(); err != nil {
					t.Errorf("a call that nothing disturbs: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	end := int64(time.Since(h.began)) + 1
	for _, operations := range h.operations {
		slices.SortFunc(operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		for i := range operations {
			if operations[i].Output.(outcome).unknown {
				operations[i].Return = end
			}
		}
	}
}

// client does random calls, one after the other.
type client struct {
	*history
	number int
	random *rand.Rand
	step   int
}

func (c *client) oneIn(n int) bool { return c.random.IntN(n) == 0 }

func (c *client) id() idempotency.RecordID { return c.ids[c.random.IntN(len(c.ids))] }

func (c *client) token() idempotency.Token {
	return idempotency.Token{byte(1 + c.random.IntN(historyTokens))}
}

func (c *client) payload() []byte {
	c.step++
	return fmt.Appendf(nil, "%d.%d", c.number, c.step)
}

// lease is over at once, or not within the test; if the call's reply is sure
// to come, it may also end in between.
func (c *client) lease(sure bool) time.Duration {
	switch n := c.random.IntN(6); {
	case n == 0:
		return 0
	case n < 3 && sure:
		return time.Duration(1+c.random.IntN(10)) * time.Millisecond
	default:
		return time.Hour
	}
}

func (c *client) notAfter(now time.Time, sure bool) time.Time {
	switch n := c.random.IntN(10); {
	case n == 0:
		return now.Add(-time.Hour)
	case n == 1 && sure:
		return now.Add(time.Duration(c.random.IntN(3)) * time.Millisecond)
	default:
		return now.Add(time.Hour)
	}
}

// call does one call and notes it. It returns the error of a call that had no
// reason to fail.
func (c *client) call() error {
	store, sure, deadline := c.fixture.Store, true, time.Minute
	switch c.random.IntN(6) {
	case 0:
		c.mu.Lock()
		typical := c.typical
		c.mu.Unlock()
		sure, deadline = false, time.Duration(c.random.Float64()*2*float64(typical))
	case 1, 2:
		if c.fixture.Lossy != nil {
			store, sure = c.fixture.Lossy, false
		}
	}
	now, err := c.fixture.Store.Now(context.Background())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()

	began := time.Since(c.began)
	note := func(err error, operations ...noted) error {
		c.note(began, err, operations)
		if err != nil && sure {
			return err
		}
		return nil
	}
	switch n := c.random.IntN(20); {
	case n < 7:
		claim := idempotency.Claim{
			ID: c.id(), Token: c.token(), Lease: c.lease(sure), Retention: 24 * time.Hour,
			TakeOver: c.oneIn(2), NotAfter: c.notAfter(now, sure), Payload: c.payload(),
		}
		if c.oneIn(8) {
			claim.Fingerprint[0] = 1
		}
		reply, err := store.Claim(ctx, claim)
		return note(err, noted{claim.ID, claimCall(claim), outcome{
			now: reply.Now.UnixMilli(), result: claimed{reply.Verdict, reply.TookOver, seen(reply.Record)},
		}})
	case n < 10:
		var renewals []idempotency.Renewal
		for _, id := range c.ids {
			if len(renewals) == 0 || c.oneIn(2) {
				renewals = append(renewals, idempotency.Renewal{ID: id, Token: c.token(), Lease: c.lease(sure)})
			}
		}
		replies, err := store.Renew(ctx, renewals)
		operations := make([]noted, len(renewals))
		for i, r := range renewals {
			operations[i] = noted{id: r.ID, call: renewCall(r)}
			if err == nil {
				operations[i].outcome = outcome{now: replies[i].Now.UnixMilli(), result: replies[i].Applied}
			}
		}
		return note(err, operations...)
	case n < 12:
		e := idempotency.Ending{ID: c.id(), Token: c.token(), Payload: c.payload()}
		reply, err := store.Complete(ctx, e)
		return note(err, noted{e.ID, endCall("complete", e, idempotency.Completed), outcome{now: reply.Now.UnixMilli(), result: reply.Applied}})
	case n < 14:
		e := idempotency.Ending{ID: c.id(), Token: c.token(), Payload: c.payload()}
		reply, err := store.MarkUncertain(ctx, e)
		return note(err, noted{e.ID, endCall("mark uncertain", e, idempotency.Uncertain), outcome{now: reply.Now.UnixMilli(), result: reply.Applied}})
	case n < 17:
		id, token := c.id(), c.token()
		reply, err := store.Release(ctx, id, token)
		return note(err, noted{id, releaseCall(token), outcome{now: reply.Now.UnixMilli(), result: reply.Applied}})
	default:
		id := c.id()
		record, _, err := store.Get(ctx, id)
		if err != nil {
			return note(err) // it has told nothing and done nothing
		}
		return note(err, noted{id, getCall, outcome{result: seen(record)}})
	}
}

// noted is a call for one record and its outcome, if there was a reply.
type noted struct {
	id      idempotency.RecordID
	call    call
	outcome outcome
}

func (c *client) note(began time.Duration, err error, operations []noted) {
	ended := time.Since(c.began)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.typical = (c.typical + ended - began) / 2
	}
	if errors.Is(err, idempotency.ErrNotApplied) {
		c.notApplied += len(operations)
		return
	}
	for _, o := range operations {
		if err != nil {
			o.outcome = outcome{unknown: true}
		}
		c.operations[o.id] = append(c.operations[o.id], porcupine.Operation{
			ClientId: c.number, Input: o.call, Call: int64(began), Output: o.outcome, Return: int64(ended),
		})
	}
}

func claimCall(c idempotency.Claim) call {
	return call{
		fmt.Sprintf("claim with token %d, request %d, lease %s, take over %t, not after %d, payload %s",
			c.Token[0], c.Fingerprint[0], c.Lease, c.TakeOver, c.NotAfter.UnixMilli(), c.Payload),
		func(m model, now int64) (model, any) {
			after, verdict := m.claim(c, now)
			switch verdict {
			case idempotency.AlreadyCompleted, idempotency.StillInProgress, idempotency.AlreadyUncertain, idempotency.OtherRequest:
				return after, claimed{verdict: verdict, record: m.shown()}
			case idempotency.Claimed, idempotency.TooLate:
			}
			return after, claimed{verdict: verdict, tookOver: verdict == idempotency.Claimed && after.resubmitted}
		},
	}
}

func renewCall(r idempotency.Renewal) call {
	return call{
		fmt.Sprintf("renew with token %d, lease %s", r.Token[0], r.Lease),
		func(m model, now int64) (model, any) {
			after, applied := m.renew(r, now)
			return after, applied
		},
	}
}

func endCall(name string, e idempotency.Ending, to idempotency.State) call {
	return call{
		fmt.Sprintf("%s with token %d, payload %s", name, e.Token[0], e.Payload),
		func(m model, _ int64) (model, any) {
			after, applied := m.end(e, to)
			return after, applied
		},
	}
}

func releaseCall(token idempotency.Token) call {
	return call{
		fmt.Sprintf("release with token %d", token[0]),
		func(m model, _ int64) (model, any) {
			after, applied := m.release(token)
			return after, applied
		},
	}
}

var getCall = call{"get", func(m model, _ int64) (model, any) { return m, m.shown() }}

package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// Random sequences of submits, outcomes, troubles with the store, deaths and
// time, over two gateways that share a store. After each step, and when
// everything has settled, the records agree with what the provider saw:
//
//   - a submit is sent again only if all attempts before it were refused or
//     never sent, or by a decision (on_uncertain resubmit), and never while
//     another one is believed alive or when an acceptance is stored;
//   - what is completed stays so, and every replay is that one acceptance;
//   - a key is free only if nothing that was sent for it may have been accepted;
//   - an attempt that nothing disturbs stays in progress, and nothing stays so
//     for longer than a lease without an attempt;
//   - an acceptance is stored, or reported as late, and not both;
//   - without decisions the record ends as its last attempt did.
//
// The store may also lose a record, or all. Then only what each gateway knows by
// itself is left of this:
//
//   - a gateway never sends a submit while it works on its key or owes the store
//     the outcome, except to take over an outcome that is unknown;
//   - nothing stays in progress for longer than a lease without an attempt;
//   - an acceptance that comes while nothing is wrong is stored, or reported.
//
// Each run has a clock of its own, which stands still while anything happens.
// Which of several requests at once comes first is up to the machine: a sequence
// with a race may need some tries to fail again. No run takes as long as records
// live: expiry is the stores' business.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failure any // a panic, which rapid has to see outside the bubble
		synctest.Test(t, func(t *testing.T) {
			defer func() { failure = recover() }()
			w := newWorld(t, rt)
			defer w.end()
			rt.Repeat(map[string]func(*rapid.T){
				"begin":       w.begin,
				"conclude":    w.conclude,
				"trouble":     w.trouble,
				"heal":        w.heal,
				"late":        w.lateCalls,
				"stand still": w.standStill,
				"die":         w.die,
				"lose":        w.lose,
				"pass":        w.pass,
				"":            w.check,
			})
			w.settle(rt)
		})
		// Rapid tells panics by the place they come from.
		if rt.Failed() {
			panic(failure)
		}
		if failure != nil {
			panic(failure) // a shortened sequence that says too little
		}
	})
}

const worldLease = 30 * time.Second

var storeOperations = []string{"now", "claim", "renew", "complete", "uncertain", "release"}

// world is what one run is about: a store, two gateways, and a few keys.
type world struct {
	t        *testing.T
	store    *losingStore
	gateways []*gateway // those that are dead included
	jobs     []*job
	late     delayed
	bodies   int
}

type gateway struct {
	engine   *idempotency.Engine
	store    *faultyStore
	observed observations
	troubled bool // its calls may go wrong
	dead     bool
}

// job is one key and what was sent for it.
type job struct {
	submit   idempotency.Submit
	attempts []*sent
	// asked are the gateways that had to do with the key.
	asked []*gateway
	// mayDecide: repeats may be allowed to take over; decided: one was.
	mayDecide, decided bool
	// lost: the store has lost the record once, which was with its losses.
	lost   bool
	losses int64
	// completed is the record's payload since it is completed.
	completed []byte
	// alive is when an attempt, or a claim that may have been granted, was last
	// heard of.
	alive time.Time
}

// sent is an attempt: the provider has the submit.
type sent struct {
	attempt    *idempotency.Attempt
	gateway    *gateway
	conclusion idempotency.Conclusion // 0 while it runs
	body       string                 // of its acceptance
	disturbed  bool
}

// notKept stands for the body of an acceptance that cannot be replayed. Its
// status tells it from others.
func notKept(status int) string { return fmt.Sprint("not kept: ", status) }

func (s *sent) running() bool { return s.conclusion == 0 && !s.gateway.dead }

// refused: the provider certainly has no job of this attempt.
func (s *sent) refused() bool {
	switch s.conclusion {
	case idempotency.ConcludedRefused, idempotency.ConcludedNotAccepted, idempotency.ConcludedNeverSent:
		return true
	case idempotency.ConcludedAccepted, idempotency.ConcludedUnknown:
	}
	return false
}

func newWorld(t *testing.T, rt *rapid.T) *world {
	t.Helper()
	w := &world{t: t, store: newLosingStore(t)}
	for i := range rapid.IntRange(1, 3).Draw(rt, "keys") {
		w.jobs = append(w.jobs, &job{
			submit: submitOf(fmt.Sprint(i)), alive: time.Now(), mayDecide: rapid.Bool().Draw(rt, "repeats may take over"),
		})
	}
	for range 2 {
		w.start()
	}
	return w
}

// start starts a gateway.
func (w *world) start() {
	g := &gateway{store: &faultyStore{
		Store: w.store, t: w.t, calls: make(map[string]int), faults: make(map[string]func(int) fault), outcomes: tally{},
	}}
	g.engine = idempotency.NewEngine(idempotency.EngineConfig{Store: g.store, Observer: &g.observed})
	w.gateways = append(w.gateways, g)
}

// aGateway draws one that lives.
func (w *world) aGateway(rt *rapid.T) *gateway {
	alive := slices.DeleteFunc(slices.Clone(w.gateways), func(g *gateway) bool { return g.dead })
	return alive[rapid.IntRange(0, len(alive)-1).Draw(rt, "gateway")]
}

func (w *world) aJob(rt *rapid.T) *job {
	return w.jobs[rapid.IntRange(0, len(w.jobs)-1).Draw(rt, "key")]
}

func (w *world) record(rt *rapid.T, j *job) (idempotency.Record, idempotency.State) {
	rt.Helper()
	synctest.Wait() // for what the engines do at this moment
	if losses := w.store.losses.Load(); losses != j.losses {
		j.lost, j.losses, j.completed = true, losses, nil
	}
	r, found, err := w.store.Get(context.Background(), j.submit.ID)
	if err != nil {
		rt.Fatalf("Get: %v", err)
	}
	if !found {
		return r, absent
	}
	return r, r.StateAt(time.Now())
}

// storedBody is the acceptance in a completed record.
func storedBody(rt *rapid.T, payload []byte) string {
	rt.Helper()
	d, err := idempotency.DecodeDetails(payload)
	if err != nil || d.Answer == nil {
		rt.Fatalf("a completed record has details %+v, error %v", d, err)
	}
	if d.Answer.Unavailable {
		return notKept(d.Answer.Status)
	}
	return string(d.Answer.Body)
}

func unavailable(rt *rapid.T, payload []byte) bool {
	return strings.HasPrefix(storedBody(rt, payload), "not kept")
}

// begin is a request, or several equal ones at once.
func (w *world) begin(rt *rapid.T) {
	j := w.aJob(rt)
	gateways := make([]*gateway, rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(rt, "requests"))
	for i := range gateways {
		gateways[i] = w.aGateway(rt)
	}
	w.request(rt, j, j.mayDecide && rapid.Bool().Draw(rt, "resubmit"), gateways)
}

func (w *world) request(rt *rapid.T, j *job, resubmits bool, gateways []*gateway) {
	p := policy(leaseOf(worldLease))
	p.StoreStatus = []idempotency.StatusRange{{First: 201, Last: 299}}
	if resubmits {
		resubmit(&p)
	}
	r, before := w.record(rt, j)
	knows := map[*gateway]string{}
	for _, g := range gateways {
		knows[g] = j.knownBy(g)
	}
	mend, losses := w.spoil(rt, gateways[0], "claim"), w.store.losses.Load()
	began := time.Now()
	admissions, failures := make([]idempotency.Admission, len(gateways)), make([]error, len(gateways))
	var wg sync.WaitGroup
	for i, g := range gateways {
		wg.Go(func() { admissions[i], failures[i] = g.engine.Begin(context.Background(), p, j.submit) })
	}
	wg.Wait()
	j.alive = time.Now()
	j.decided = j.decided || resubmits
	j.asked = append(j.asked, gateways...)
	certain := time.Now().Equal(began) && !slices.ContainsFunc(gateways, func(g *gateway) bool { return g.troubled })
	earlier := len(j.attempts)
	for i, a := range admissions { // before anything fails: they have to be concluded
		if a.Attempt != nil {
			j.attempts = append(j.attempts, &sent{attempt: a.Attempt, gateway: gateways[i], disturbed: gateways[i].troubled})
		}
	}

	// What has to come out if nothing goes wrong.
	isFree := before == absent || before == idempotency.Uncertain && resubmits
	wantOf := func(g *gateway) string {
		switch known := knows[g]; {
		case isFree && known != "" && (known != string(idempotency.CodeOutcomeUnknown) || before == absent):
			return known
		case isFree:
			return "attempt"
		case before == idempotency.Completed && unavailable(rt, r.Payload):
			return string(idempotency.CodeResultUnavailable)
		}
		return map[idempotency.State]string{
			idempotency.InProgress: string(idempotency.CodeInProgress),
			idempotency.Uncertain:  string(idempotency.CodeOutcomeUnknown),
			idempotency.Completed:  "replay",
		}[before]
	}
	oneGateway := !slices.ContainsFunc(gateways, func(g *gateway) bool { return g != gateways[0] })
	for i, a := range admissions {
		got, want := w.admitted(rt, j, a, failures[i], gateways[i]), wantOf(gateways[i])
		behindAnother := isFree && len(gateways) > 1 && (got == string(idempotency.CodeInProgress) ||
			slices.ContainsFunc(gateways, func(g *gateway) bool { return knows[g] == got }))
		// The engine may have stored that an outcome is unknown just before.
		tookOver := resubmits && knows[gateways[i]] == string(idempotency.CodeOutcomeUnknown) && got == "attempt"
		if certain && got != want && !behindAnother && !tookOver {
			rt.Fatalf("a request for a record that is %s gets %s, want %s", before, got, want)
		}
	}
	w.record(rt, j) // which may have been lost
	granted := len(j.attempts) - earlier
	for _, s := range j.attempts[earlier:] {
		known := knows[s.gateway]
		// What it owed may have been stored while the claim was on its way, and have
		// been lost then.
		since := known != string(idempotency.CodeInProgress) && !time.Now().Equal(began) && w.store.losses.Load() > losses
		if known != "" && !since && (known != string(idempotency.CodeOutcomeUnknown) || !resubmits) {
			rt.Fatalf("a gateway sends a submit again of which it knows itself: %s", known)
		}
	}
	switch {
	case oneGateway && granted > 1, granted > 1 && !j.lost, certain && oneGateway && wantOf(gateways[0]) == "attempt" && granted != 1:
		rt.Fatalf("%d of %d requests at once may be sent", granted, len(gateways))
	case j.lost: // the gateways do not know of one another
	case granted == 1 && j.completed != nil:
		rt.Fatalf("a submit may be sent that was accepted")
	case granted == 1 && !resubmits:
		for _, s := range j.attempts[:earlier] {
			if !s.refused() {
				rt.Fatalf("a submit may be sent again after an attempt with conclusion %d, and nobody decided so", s.conclusion)
			}
		}
	}
	mend()
}

// admitted checks one admission by itself, and says what it is.
func (w *world) admitted(rt *rapid.T, j *job, a idempotency.Admission, err error, g *gateway) string {
	rt.Helper()
	switch {
	case err != nil:
		if !errors.Is(err, idempotency.ErrStoreUnavailable) || set(a) != 0 || !g.troubled {
			rt.Fatalf("Begin gave %+v, %v from a gateway whose store is away %t", a, err, g.troubled)
		}
		return "error"
	case set(a) != 1:
		rt.Fatalf("the admission has %d fields set, want one: %+v", set(a), a)
	case a.Attempt != nil:
		return "attempt"
	case a.Replay != nil:
		r, state := w.record(rt, j)
		if j.lost && state != idempotency.Completed {
			if !slices.ContainsFunc(j.attempts, func(s *sent) bool { return s.body == string(a.Replay.Body) }) {
				rt.Fatalf("a replay has body %q, which the provider did not answer", a.Replay.Body)
			}
			return "replay"
		}
		if want := storedBody(rt, r.Payload); string(a.Replay.Body) != want {
			rt.Fatalf("a replay has body %q, and the record %q", a.Replay.Body, want)
		}
		return "replay"
	}
	return string(a.Problem.Code)
}

// results are what can come of a submit.
var results = map[string]struct {
	result idempotency.Result
	want   idempotency.Conclusion
}{
	"accepted":       {idempotency.Result{Status: 202, Whole: true}, idempotency.ConcludedAccepted},
	"refused":        {refusal, idempotency.ConcludedRefused},
	"unavailable":    {idempotency.Result{Status: 503, Whole: true}, idempotency.ConcludedRefused},
	"no acceptance":  {idempotency.Result{Status: 200, Whole: true}, idempotency.ConcludedNotAccepted},
	"never sent":     {idempotency.Result{Sent: idempotency.NeverSent}, idempotency.ConcludedNeverSent},
	"broken":         {broken, idempotency.ConcludedUnknown},
	"cut acceptance": {idempotency.Result{Status: 202}, idempotency.ConcludedUnknown},
	"cut refusal":    {idempotency.Result{Status: 429}, idempotency.ConcludedUnknown},
	"server error":   {idempotency.Result{Status: 500, Whole: true}, idempotency.ConcludedUnknown},
	"timed out":      {idempotency.Result{TimedOut: true}, idempotency.ConcludedUnknown},
}

// conclude ends an attempt.
func (w *world) conclude(rt *rapid.T) {
	j := w.aJob(rt)
	running := slices.DeleteFunc(slices.Clone(j.attempts), func(s *sent) bool { return !s.running() })
	if len(running) == 0 {
		rt.Skip("no attempt is running")
	}
	s := running[rapid.IntRange(0, len(running)-1).Draw(rt, "attempt")]
	// Refusals are the most: a key is over when it is anything else.
	want := rapid.SampledFrom([]idempotency.Conclusion{
		idempotency.ConcludedRefused, idempotency.ConcludedRefused, idempotency.ConcludedNotAccepted,
		idempotency.ConcludedNeverSent, idempotency.ConcludedAccepted, idempotency.ConcludedUnknown,
	}).Draw(rt, "conclusion")
	var names []string
	for name, r := range results {
		if r.want == want {
			names = append(names, name)
		}
	}
	if want == idempotency.ConcludedAccepted {
		names = append(names, "stream")
	}
	slices.Sort(names)
	name := rapid.SampledFrom(names).Draw(rt, "result")
	late := w.lateOf(j)
	defer w.spoil(rt, s.gateway, "complete", "uncertain", "release")()
	if name == "stream" {
		w.bodies++
		status := 201 + w.bodies%99
		s.body = notKept(status)
		c, _, concluded := s.attempt.ConcludeStream(idempotency.Result{Status: status, Header: http.Header{"Content-Type": {"text/event-stream"}}})
		s.conclusion = c
		if c != idempotency.ConcludedAccepted || !concluded {
			rt.Fatalf("a stream comes to conclusion %d, concluded %t", c, concluded)
		}
	} else {
		w.concludeWith(rt, s, name)
	}
	j.alive = time.Now()
	if s.gateway.troubled {
		return
	}
	if idempotency.Owed(s.gateway.engine, j.submit.ID) != "" && j.lost {
		return // the record may be a claim's that is to be taken back first
	}

	// Nothing went wrong, so it is stored before the caller has its answer.
	r, state := w.record(rt, j)
	switch {
	case s.conclusion == idempotency.ConcludedAccepted:
		stored := state == idempotency.Completed && storedBody(rt, r.Payload) == s.body
		if reported := w.lateOf(j) > late; stored == reported {
			rt.Fatalf("after an acceptance the record is %s; it is the acceptance %t, and reported as late %t", state, stored, reported)
		}
		if !stored && !j.decided && !j.lost {
			rt.Fatalf("an acceptance is not stored")
		}
	case j.lost:
	case s.refused() && !j.decided && state != absent:
		rt.Fatalf("after a refusal the record is %s", state)
	case s.conclusion == idempotency.ConcludedUnknown && !j.decided && state != idempotency.Uncertain:
		rt.Fatalf("after an outcome that is unknown the record is %s", state)
	}
}

func (w *world) concludeWith(rt *rapid.T, s *sent, name string) {
	rt.Helper()
	result, want := results[name].result, results[name].want
	if want == idempotency.ConcludedAccepted {
		w.bodies++
		s.body = fmt.Sprint("job ", w.bodies)
		result.Body = []byte(s.body)
	}
	s.conclusion, _ = s.attempt.Conclude(result)
	if s.conclusion != want {
		rt.Fatalf("%s comes to conclusion %d, want %d", name, s.conclusion, want)
	}
}

// lateOf returns how many late acceptances of a key were reported.
func (w *world) lateOf(j *job) (n int) {
	for _, g := range w.gateways {
		for _, id := range g.observed.so().late {
			if id == j.submit.ID {
				n++
			}
		}
	}
	return n
}

func (w *world) disturb(g *gateway) {
	g.troubled = true
	for _, j := range w.jobs {
		for _, s := range j.attempts {
			s.disturbed = s.disturbed || s.gateway == g
		}
	}
}

func (w *world) aFault(rt *rapid.T) fault {
	faults := map[string]fault{
		"refused": refused, "request lost": requestLost, "reply lost": replyLost, "hangs": hangs, "delayed": w.late.fault,
		"store flushed": w.store.flushedBefore,
	}
	return faults[rapid.SampledFrom([]string{
		"delayed", "delayed", "hangs", "refused", "reply lost", "request lost", "store flushed",
	}).Draw(rt, "fault")]
}

// lose lets the store lose a record, or all.
func (w *world) lose(rt *rapid.T) {
	if rapid.Bool().Draw(rt, "all") {
		w.store.flush()
		return
	}
	j := w.aJob(rt)
	r, state := w.record(rt, j)
	if state == absent || state == idempotency.Completed {
		rt.Skip("a record that is there, and not completed, can be removed")
	}
	// Of a record that was taken over the first removal leaves an uncertain one.
	for range 2 {
		if _, err := w.store.Release(context.Background(), j.submit.ID, r.Token); err != nil {
			rt.Fatalf("Release: %v", err)
		}
		if r, state = w.record(rt, j); state == absent {
			break
		}
	}
	j.lost = true
}

// spoil lets the next calls of a gateway go wrong, or not, until they are
// mended. It does not touch the renewal of leases.
func (w *world) spoil(rt *rapid.T, g *gateway, ops ...string) (mend func()) {
	if g.troubled || rapid.Bool().Draw(rt, "all goes well") {
		return func() {}
	}
	calls := map[int]fault{1: w.aFault(rt)}
	if rapid.Bool().Draw(rt, "twice") {
		calls[2] = w.aFault(rt)
	}
	for _, op := range ops {
		g.store.spoil(op, func(call int) fault { return calls[call] })
	}
	g.troubled = true
	return g.heal
}

// trouble lets calls of a gateway go wrong until it is healed, or takes the
// store away from it.
func (w *world) trouble(rt *rapid.T) {
	g := w.aGateway(rt)
	if op := rapid.SampledFrom(append([]string{"all"}, storeOperations...)).Draw(rt, "operation"); op == "all" {
		for _, op := range storeOperations {
			g.store.spoil(op, first(-1, hangs))
		}
	} else {
		n := rapid.SampledFrom([]int{1, 2, 3, -1}).Draw(rt, "calls")
		g.store.spoil(op, first(n, w.aFault(rt)))
	}
	w.disturb(g)
}

// standStill is a gateway that is not heard of for longer than a lease.
func (w *world) standStill(rt *rapid.T) {
	g := w.aGateway(rt)
	for _, op := range storeOperations {
		g.store.spoil(op, first(-1, requestLost))
	}
	w.disturb(g)
	time.Sleep(worldLease + time.Second)
	g.heal()
}

func (w *world) heal(rt *rapid.T) { w.aGateway(rt).heal() }

func (g *gateway) heal() {
	for _, op := range storeOperations {
		g.store.spoil(op, nil)
	}
	g.troubled = false
}

// lateCalls carries out the calls that were delayed.
func (w *world) lateCalls(rt *rapid.T) {
	if !w.late.any() {
		rt.Skip("no call was delayed")
	}
	// While the engine takes back what it does not know about.
	time.Sleep(rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond}).Draw(rt, "after"))
	w.late.run(w.t)
	for _, j := range w.jobs {
		j.alive = time.Now()
	}
}

// die ends a gateway; another one takes its place.
func (w *world) die(rt *rapid.T) {
	if len(w.gateways) >= 5 {
		rt.Skip("enough have died")
	}
	g := w.aGateway(rt)
	for _, op := range storeOperations {
		g.store.spoil(op, first(-1, requestLost))
	}
	g.troubled, g.dead = true, true
	w.start()
}

func (w *world) pass(rt *rapid.T) {
	time.Sleep(rapid.SampledFrom([]time.Duration{
		100 * time.Millisecond, time.Second, worldLease/3 + time.Millisecond, worldLease + time.Second, 3 * worldLease,
	}).Draw(rt, "time"))
}

// check holds after every step.
func (w *world) check(rt *rapid.T) {
	for i, j := range w.jobs {
		r, state := w.record(rt, j)
		now := time.Now()
		acceptances := 0
		for _, s := range j.attempts {
			if s.conclusion == idempotency.ConcludedAccepted {
				acceptances++
			}
			if s.running() {
				j.alive = now
			}
			if s.running() && !s.disturbed && !j.lost && state != idempotency.InProgress {
				rt.Fatalf("key %d: the record is %s while an attempt lives that nothing disturbs", i, state)
			}
			if idempotency.Owed(s.gateway.engine, j.submit.ID) != "" {
				j.alive = now // its record may be made anew
			}
			if state == absent && !s.refused() && !j.lost {
				rt.Fatalf("key %d: the key is free after an attempt with conclusion %d", i, s.conclusion)
			}
		}
		switch {
		case j.completed != nil && (state != idempotency.Completed || string(r.Payload) != string(j.completed)):
			rt.Fatalf("key %d: a completed record has changed, and is %s", i, state)
		case state == idempotency.Completed:
			j.completed = r.Payload
			body := storedBody(rt, r.Payload)
			if !slices.ContainsFunc(j.attempts, func(s *sent) bool {
				return s.conclusion == idempotency.ConcludedAccepted && s.body == body
			}) {
				rt.Fatalf("key %d: %q is stored, which the provider did not answer", i, body)
			}
		case r.State == idempotency.InProgress && r.LeaseUntil.After(j.alive.Add(worldLease)):
			rt.Fatalf("key %d: the record is in progress until %s, and no attempt lives since %s", i, r.LeaseUntil, j.alive)
		}
		if late := w.lateOf(j); late > acceptances {
			rt.Fatalf("key %d: %d of %d acceptances were reported as late", i, late, acceptances)
		}
	}
}

// settle lets the store recover and everything come to its end.
func (w *world) settle(rt *rapid.T) {
	for _, g := range w.gateways {
		if !g.dead {
			g.heal()
		}
	}
	if w.late.any() && rapid.Bool().Draw(rt, "the late calls arrive") {
		w.lateCalls(rt)
	}
	for _, j := range w.jobs {
		for _, s := range j.attempts {
			if s.running() {
				w.concludeWith(rt, s, "broken")
			}
		}
	}
	time.Sleep(2 * worldLease)
	for _, g := range w.gateways {
		if g.dead {
			continue
		}
		if n := g.drain(); n > 0 {
			rt.Fatalf("%d attempts and outcomes are left", n)
		}
	}
	w.check(rt)
	for i, j := range w.jobs {
		r, state := w.record(rt, j)
		if state == idempotency.InProgress {
			rt.Fatalf("key %d: the record is in progress in the end", i)
		}
		if j.lost {
			continue
		}
		orphaned := slices.ContainsFunc(j.asked, func(g *gateway) bool { return g.dead })
		stored, owed := 0, 0
		for _, s := range j.attempts {
			switch {
			case s.conclusion != idempotency.ConcludedAccepted:
			case state == idempotency.Completed && storedBody(rt, r.Payload) == s.body:
				stored = 1
			case s.gateway.dead: // and could not report it
			default:
				owed++
			}
		}
		if late := w.lateOf(j); late < owed || !orphaned && late != owed {
			rt.Fatalf("key %d: %d acceptances are not stored, and %d were reported as late", i, owed, late)
		}
		if j.decided {
			continue
		}
		want := absent
		if len(j.attempts) > 0 {
			switch last := j.attempts[len(j.attempts)-1]; {
			case last.refused():
			case last.conclusion == idempotency.ConcludedAccepted:
				want = idempotency.Completed
			default:
				want = idempotency.Uncertain
			}
		}
		// What a gateway owed the store when it died is unknown.
		if state != want && (!orphaned || state != idempotency.Uncertain) || want == idempotency.Completed && !orphaned && stored != 1 {
			rt.Fatalf("key %d: the record is %s in the end, want %s", i, state, want)
		}
	}
}

// drain waits until the engine is idle, and returns how much is left if it
// does not become so.
func (g *gateway) drain() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	alive, unstored := g.engine.Drain(ctx)
	return len(alive) + len(unstored)
}

// end lets all goroutines end, whatever the test has come to.
func (w *world) end() {
	for _, g := range w.gateways {
		g.heal()
	}
	for _, j := range w.jobs {
		for _, s := range j.attempts {
			if s.conclusion == 0 {
				s.attempt.Conclude(broken)
			}
		}
	}
	for _, g := range w.gateways {
		if n := g.drain(); n > 0 {
			w.t.Errorf("%d attempts and outcomes are left by a gateway", n)
		}
	}
	if err := w.store.Close(); err != nil {
		w.t.Errorf("Close: %v", err)
	}
}

// knownBy is what a gateway tells repeats by itself, if the store does not know
// the key: it runs an attempt, or owes the store an outcome. Empty if it has
// neither.
func (j *job) knownBy(g *gateway) string {
	for _, s := range j.attempts {
		if s.gateway == g && s.running() {
			return string(idempotency.CodeInProgress)
		}
	}
	switch idempotency.Owed(g.engine, j.submit.ID) {
	case "uncertain":
		return string(idempotency.CodeOutcomeUnknown)
	case "complete":
		for _, s := range slices.Backward(j.attempts) {
			switch {
			case s.gateway != g || s.conclusion != idempotency.ConcludedAccepted:
			case strings.HasPrefix(s.body, "not kept"):
				return string(idempotency.CodeResultUnavailable)
			default:
				return "replay"
			}
		}
	}
	return ""
}

// losingStore is a store that can lose all that it has.
type losingStore struct {
	t      *testing.T
	losses atomic.Int64
	mu     sync.RWMutex
	idempotency.Store
}

func newLosingStore(t *testing.T) *losingStore {
	s := &losingStore{t: t}
	s.open()
	return s
}

func (s *losingStore) open() {
	s.Store = embedded.New(embedded.Config{
		Path:          filepath.Join(s.t.TempDir(), "idempotency.db"),
		SweepInterval: 365 * 24 * time.Hour, // there is nothing to sweep
	})
}

func (s *losingStore) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Close(); err != nil {
		s.t.Error(err)
	}
	s.open()
	s.losses.Add(1)
}

// flushedBefore: the store has lost everything when the call comes.
func (s *losingStore) flushedBefore(ctx context.Context, apply func(context.Context) error) error {
	s.flush()
	return apply(ctx)
}

func ask[T any](s *losingStore, call func(idempotency.Store) (T, error)) (T, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return call(s.Store)
}

func (s *losingStore) Now(ctx context.Context) (time.Time, error) {
	return ask(s, func(s idempotency.Store) (time.Time, error) { return s.Now(ctx) })
}

func (s *losingStore) Claim(ctx context.Context, c idempotency.Claim) (idempotency.ClaimReply, error) {
	return ask(s, func(s idempotency.Store) (idempotency.ClaimReply, error) { return s.Claim(ctx, c) })
}

func (s *losingStore) Renew(ctx context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	return ask(s, func(s idempotency.Store) ([]idempotency.Reply, error) { return s.Renew(ctx, renewals) })
}

func (s *losingStore) Complete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return ask(s, func(s idempotency.Store) (idempotency.Reply, error) { return s.Complete(ctx, e) })
}

func (s *losingStore) MarkUncertain(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return ask(s, func(s idempotency.Store) (idempotency.Reply, error) { return s.MarkUncertain(ctx, e) })
}

func (s *losingStore) Release(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return ask(s, func(s idempotency.Store) (idempotency.Reply, error) { return s.Release(ctx, id, token) })
}

func (s *losingStore) Get(ctx context.Context, id idempotency.RecordID) (record idempotency.Record, found bool, err error) {
	record, err = ask(s, func(s idempotency.Store) (record idempotency.Record, err error) {
		record, found, err = s.Get(ctx, id)
		return record, err
	})
	return record, found, err
}

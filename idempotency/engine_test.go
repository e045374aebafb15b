package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// Of many equal submits at once, over two gateways, one may be sent.
func TestConcurrentBegin(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	other := idempotency.NewEngine(idempotency.EngineConfig{Store: h.store, StoreTimeout: patience, Observer: h.observed})
	s := submitOf("k")
	const callers = 64
	admissions := make([]idempotency.Admission, callers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			engine := h.engine
			if i%2 == 1 {
				engine = other
			}
			<-start
			var err error
			if admissions[i], err = engine.Begin(context.Background(), policy(), s); err != nil {
				t.Errorf("Begin: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
	var attempts []*idempotency.Attempt
	for _, a := range admissions {
		switch {
		case set(a) != 1:
			t.Errorf("the admission has %d fields set, want one: %+v", set(a), a)
		case a.Attempt != nil:
			attempts = append(attempts, a.Attempt)
		case a.Problem == nil || a.Problem.Code != idempotency.CodeInProgress:
			t.Errorf("a duplicate gets %+v, want problem %s", a, idempotency.CodeInProgress)
		}
	}
	if len(attempts) != 1 || h.engine.InFlight()+other.InFlight() != 1 {
		t.Errorf("%d attempts, %d in flight; want one", len(attempts), h.engine.InFlight()+other.InFlight())
	}
	if n := h.store.count("claim"); n != callers {
		t.Errorf("%d submits cost %d claims", callers, n)
	}
	for _, a := range attempts {
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	}
	h.wantReplay(s, 202, "answer")
	if n := h.store.count("complete"); n != 1 {
		t.Errorf("one submit cost %d completions", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if alive, unstored := other.Drain(ctx); len(alive)+len(unstored) > 0 {
		t.Error("the other gateway is not idle")
	}
}

// A first submit costs a claim and a completion, a replay a claim.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	if !a.Stored() {
		t.Error("the attempt does not count as stored")
	}
	h.wantReplay(s, 202, "answer")
	h.idle()
	want := map[string]int{"now": 1, "claim": 2, "complete": 1, "release": 0, "uncertain": 0, "renew": 0}
	for op, n := range want {
		if got := h.store.count(op); got != n {
			t.Errorf("%d calls of %s, want %d", got, op, n)
		}
	}
}

// A caller that has hung up does not disturb the claim.
func TestBeginOutlivesCaller(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a, err := h.engine.Begin(ctx, policy(), submitOf("k"))
	if err != nil || a.Attempt == nil {
		t.Fatalf("Begin gave %+v, %v; want an attempt", a, err)
	}
	h.conclude(a.Attempt, accepted("answer"), idempotency.ConcludedAccepted)
}

func TestOtherRequest(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	other := s
	other.Fingerprint[0]++
	reuse := func(state idempotency.State) {
		t.Helper()
		before, _ := h.get(s)
		h.wantProblem(policy(), other, idempotency.CodeReuse)
		h.wantProblem(policy(resubmit), other, idempotency.CodeReuse)
		h.wantState(s, state)
		if after, _ := h.get(s); after.Token != before.Token || string(after.Payload) != string(before.Payload) {
			t.Error("another request disturbed the record")
		}
	}
	a := h.attempt(policy(), s)
	reuse(idempotency.InProgress)
	h.conclude(a, broken, idempotency.ConcludedUnknown)
	reuse(idempotency.Uncertain)
	h.conclude(h.attempt(policy(resubmit), s), accepted("answer"), idempotency.ConcludedAccepted)
	reuse(idempotency.Completed)
	h.wantReplay(s, 202, "answer")
}

// A duplicate is told to come back after as long as the attempt has run, within
// its lease, in 1 to 60 seconds.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name       string
		age, lease time.Duration
		want       time.Duration
	}{
		{"just begun", 0, 100 * time.Second, time.Second},
		{"half a second", 500 * time.Millisecond, 100 * time.Second, time.Second},
		{"ten seconds", 10 * time.Second, 100 * time.Second, 10 * time.Second},
		{"lease nearly over", 95 * time.Second, 100 * time.Second, 5 * time.Second},
		{"lease over in a moment", 100*time.Second - time.Millisecond, 100 * time.Second, time.Second},
		{"long", 200 * time.Second, time.Hour, time.Minute},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			p := policy(leaseOf(test.lease))
			a := h.attempt(p, s)
			h.clock.advance(test.age)
			if got := h.wantProblem(p, s, idempotency.CodeInProgress).RetryAfter; got != test.want {
				t.Errorf("RetryAfter is %s, want %s", got, test.want)
			}
			h.conclude(a, refusal, idempotency.ConcludedRefused)
		})
	}
}

// A claim whose reply was lost recognises itself: the submit is sent, once.
func TestClaimReplyLost(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	h.store.spoil("claim", first(1, replyLost))
	a := h.attempt(policy(), s)
	if n := h.store.count("claim"); n != 2 {
		t.Errorf("%d claims, want 2", n)
	}
	h.wantProblem(policy(), s, idempotency.CodeInProgress)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "answer")
	h.idle()
	if n := h.store.count("release"); n != 0 {
		t.Errorf("%d releases of a claim that was used", n)
	}
}

// A claim that did not arrive is sent once more.
func TestClaimRequestLost(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.spoil("claim", first(1, requestLost))
	a := h.attempt(policy(), submitOf("k"))
	if n := h.store.count("claim"); n != 2 {
		t.Errorf("%d claims, want 2", n)
	}
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
}

// After a certain refusal there is nothing to try again and nothing to take
// back.
func TestClaimNotApplied(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"claim", "now"} {
		t.Run(op, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("s3cret")
			h.store.spoil(op, first(1, refused))
			a, err := h.engine.Begin(context.Background(), policy(), s)
			if !errors.Is(err, idempotency.ErrStoreUnavailable) || !errors.Is(err, idempotency.ErrNotApplied) || set(a) != 0 {
				t.Fatalf("Begin gave %+v, %v; want ErrStoreUnavailable and ErrNotApplied", a, err)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error shows the key: %v", err)
			}
			if n := h.store.count(op); n != 1 {
				t.Errorf("%d calls of %s, want 1", n, op)
			}
			if n := h.held.Load(); n != 0 {
				t.Error("the engine is at work")
			}
			h.idle()
			if n := h.store.count("release"); n != 0 {
				t.Errorf("%d releases of a claim that was not made", n)
			}
			if o := h.observed.so(); !slices.Equal(o.storeErrors, []string{"claim"}) {
				t.Errorf("observed store errors %v, want one of claim", o.storeErrors)
			}
			h.conclude(h.attempt(policy(), s), accepted("answer"), idempotency.ConcludedAccepted)
		})
	}
}

// A second try that is certain to have failed says nothing about the first.
func TestClaimReplyLostThenRefused(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	h.store.spoil("claim", func(call int) fault { return map[int]fault{1: replyLost, 2: refused}[call] })
	if _, err := h.engine.Begin(context.Background(), policy(), s); !errors.Is(err, idempotency.ErrStoreUnavailable) {
		t.Fatalf("Begin gave %v, want ErrStoreUnavailable", err)
	}
	h.awaitState(s, absent)
	h.clock.advance(time.Hour)
}

// A claim that may have been granted is taken back, and the key is free.
func TestClaimRepliesLost(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	h.store.spoil("claim", first(2, replyLost))
	h.store.spoil("release", first(2, requestLost))
	a, err := h.engine.Begin(context.Background(), policy(), s)
	if !errors.Is(err, idempotency.ErrStoreUnavailable) || set(a) != 0 {
		t.Fatalf("Begin gave %+v, %v; want ErrStoreUnavailable", a, err)
	}
	if n := h.store.count("claim"); n != 2 {
		t.Errorf("%d claims, want 2", n)
	}
	h.awaitState(s, absent)
	b := h.attempt(policy(), s)
	h.clock.advance(time.Hour) // the first claims' time is over
	await(t, "the lost claims to be forgotten", func() bool {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_, unstored := h.engine.Drain(ended)
		return len(unstored) == 0
	})
	// Taking back the one attempt's claim has not harmed the other.
	h.conclude(b, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "answer")
}

// A claim that the store sees after it was given up does not come true.
func TestLateClaim(t *testing.T) {
	t.Parallel()
	lost := func(t *testing.T) (*harness, idempotency.Submit, *delayed) {
		h := newHarness(t)
		s := submitOf("k")
		late := &delayed{}
		h.store.spoil("claim", first(2, late.fault))
		if _, err := h.engine.Begin(context.Background(), policy(), s); !errors.Is(err, idempotency.ErrStoreUnavailable) {
			t.Fatalf("Begin gave %v, want ErrStoreUnavailable", err)
		}
		h.wantState(s, absent)
		await(t, "the claim to be taken back", func() bool { return h.store.count("release") >= 1 })
		return h, s, late
	}
	t.Run("while it is taken back", func(t *testing.T) {
		h, s, late := lost(t)
		late.run(t)
		h.awaitState(s, absent)
		if n := h.held.Load(); n != 1 {
			t.Error("the engine does not wait for a claim that may still come")
		}
		h.clock.advance(time.Hour)
	})
	t.Run("after it was taken back", func(t *testing.T) {
		h, s, late := lost(t)
		h.clock.advance(time.Hour)
		h.idle()
		late.run(t)
		h.wantState(s, absent)
	})
}

// A store that does not answer costs a submit no more than its timeouts, and a
// claim that cannot have arrived is still taken back.
func TestClaimHangs(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	h := newHarness(t, storeTimeout(timeout), realTime)
	s := submitOf("k")
	h.store.spoil("claim", first(-1, hangs))
	if _, err := h.engine.Begin(context.Background(), policy(), s); !errors.Is(err, idempotency.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Begin gave %v, want ErrStoreUnavailable and DeadlineExceeded", err)
	}
	if n := h.store.count("claim"); n > 2 {
		t.Errorf("%d claims, want at most 2", n)
	}
	if d := h.store.longestCall(); d > timeout {
		t.Errorf("a call was given %s, want at most %s", d, timeout)
	}
	h.idle()
	if n := h.store.count("release"); n < 1 {
		t.Error("the claim was not taken back")
	}
}

// The gateway's idea of the store's clock may be wrong; one more try corrects
// it.
func TestStoreClockMoves(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.conclude(h.attempt(policy(), submitOf("first")), accepted("answer"), idempotency.ConcludedAccepted)
	for name, step := range map[string]time.Duration{"forward": time.Hour, "back": -2 * time.Hour} {
		h.clock.advance(step)
		s := submitOf(name)
		h.store.spoil("claim", nil)
		h.conclude(h.attempt(policy(), s), accepted("answer"), idempotency.ConcludedAccepted)
		if n := h.store.count("claim"); n > 2 {
			t.Errorf("%s: %d claims, want at most 2", name, n)
		}
	}
	h.idle()
	if n := h.store.count("release"); n != 0 {
		t.Errorf("%d releases of claims that were used", n)
	}
}

// An outcome that the store did not take is stored when it takes it.
func TestOutcomeIsStoredLater(t *testing.T) {
	t.Parallel()
	outcomes := []struct {
		op     string
		result idempotency.Result
		want   idempotency.Conclusion
		state  idempotency.State
	}{
		{"complete", accepted("answer"), idempotency.ConcludedAccepted, idempotency.Completed},
		{"uncertain", broken, idempotency.ConcludedUnknown, idempotency.Uncertain},
		{"release", refusal, idempotency.ConcludedRefused, absent},
		{"release", idempotency.Result{Sent: idempotency.NeverSent}, idempotency.ConcludedNeverSent, absent},
	}
	for _, o := range outcomes {
		for name, f := range map[string]fault{"refused": refused, "request lost": requestLost, "reply lost": replyLost} {
			t.Run(fmt.Sprintf("%s %d %s", o.op, o.want, name), func(t *testing.T) {
				h := newHarness(t)
				s := submitOf("s3cret-key")
				a := h.attempt(policy(), s)
				const failures = 3
				h.store.spoil(o.op, first(failures, f))
				h.conclude(a, o.result, o.want)
				if h.engine.InFlight() != 0 {
					t.Error("a concluded attempt is in flight")
				}
				if a.Stored() {
					t.Error("the attempt counts as stored, and the store has failed")
				}
				h.idle()
				h.wantState(s, o.state)
				if n := h.store.count(o.op); n != failures+1 {
					t.Errorf("%d calls of %s, want %d", n, o.op, failures+1)
				}
				seen := h.observed.so()
				if want := slices.Repeat([]string{o.op}, failures); !slices.Equal(seen.storeErrors, want) {
					t.Errorf("observed store errors %v, want %v", seen.storeErrors, want)
				}
				if strings.Contains(fmt.Sprint(seen.texts), "s3cret") {
					t.Errorf("an error shows the key: %v", seen.texts)
				}
				if len(seen.late)+len(seen.lost)+len(seen.gaveUp) > 0 {
					t.Errorf("observed %+v", seen)
				}
				if o.state == idempotency.Completed {
					h.wantReplay(s, 202, "answer")
				}
			})
		}
	}
}

// The caller does not wait for a store that hangs longer than its timeout, and
// no acceptance is released.
func TestConcludeDoesNotWait(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	h := newHarness(t, storeTimeout(timeout))
	s := submitOf("k")
	// A slow disk must not spoil the test: only the completion hangs.
	var a *idempotency.Attempt
	await(t, "an attempt", func() bool {
		admission, err := h.engine.Begin(context.Background(), policy(leaseOf(time.Hour)), s)
		a = admission.Attempt
		if err != nil {
			h.clock.advance(time.Second)
		}
		return err == nil && a != nil
	})
	back := make(chan struct{})
	h.store.spoil("complete", func(int) fault {
		select {
		case <-back:
			return nil
		default:
			return hangs
		}
	})
	concluded := make(chan idempotency.Conclusion)
	go func() {
		c, _ := a.Conclude(accepted("answer"))
		concluded <- c
	}()
	select {
	case c := <-concluded:
		if c != idempotency.ConcludedAccepted {
			t.Errorf("the conclusion is %d, want accepted", c)
		}
	case <-time.After(patience):
		t.Fatal("Conclude waits for a store that hangs")
	}
	if d := h.store.longestCall(); d > timeout {
		t.Errorf("a call was given %s, want at most %s", d, timeout)
	}
	await(t, "another try", func() bool { return h.store.count("complete") >= 3 })
	h.wantState(s, idempotency.InProgress)
	h.clock.advance(2 * time.Hour) // the lease is over
	h.wantState(s, idempotency.Uncertain)
	close(back)
	h.awaitState(s, idempotency.Completed)
	if n := h.store.count("release"); n != 0 {
		t.Errorf("%d releases", n)
	}
}

// An outcome counts as unstored also while the store is being asked to take it,
// and a process that ends then names it.
func TestUnstoredWhileUnderWay(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(leaseOf(time.Hour)), s)
	gate := make(chan struct{})
	h.store.spoil("complete", func(call int) fault {
		if call == 1 {
			return refused
		}
		return heldBy(gate)
	})
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	await(t, "the second try", func() bool { return h.store.count("complete") == 2 })
	if n := h.engine.Unstored(); n != 1 {
		t.Errorf("%d outcomes are unstored, want 1", n)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if alive, unstored := h.engine.Drain(ended); len(alive) != 0 || !slices.Equal(unstored, []idempotency.RecordID{s.ID}) {
		t.Errorf("%v alive and %v unstored, want the record unstored", alive, unstored)
	}
	close(gate)
	h.awaitState(s, idempotency.Completed)
	await(t, "nothing to be left", func() bool { return h.engine.Unstored() == 0 })
}

// After an outage all outcomes are stored, whatever their number.
func TestOutcomesOfAnOutage(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const submits = 150
	attempts := make([]*idempotency.Attempt, submits)
	var wg sync.WaitGroup
	for i := range submits {
		wg.Go(func() {
			a, err := h.engine.Begin(context.Background(), policy(leaseOf(time.Hour)), submitOf(fmt.Sprint(i)))
			if err != nil || a.Attempt == nil {
				t.Errorf("Begin gave %+v, %v", a, err)
				return
			}
			attempts[i] = a.Attempt
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if n := h.engine.InFlight(); n != submits {
		t.Errorf("%d attempts are in flight, want %d", n, submits)
	}
	back := make(chan struct{})
	outage := func(int) fault {
		select {
		case <-back:
			return nil
		default:
			return refused
		}
	}
	h.store.spoil("complete", outage)
	h.store.spoil("uncertain", outage)
	h.store.spoil("release", outage)
	for i, a := range attempts {
		wg.Go(func() { a.Conclude([]idempotency.Result{accepted("answer"), broken, refusal}[i%3]) })
	}
	wg.Wait()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if alive, unstored := h.engine.Drain(ended); len(alive) != 0 || len(unstored) != submits {
		t.Errorf("in the outage %d attempts are alive and %d outcomes wait", len(alive), len(unstored))
	}
	if n := h.engine.Unstored(); n != submits {
		t.Errorf("%d outcomes wait, want %d, those under way included", n, submits)
	}
	for i := range submits {
		h.wantState(submitOf(fmt.Sprint(i)), idempotency.InProgress)
	}
	close(back)
	h.idle()
	if n := h.engine.Unstored(); n != 0 {
		t.Errorf("%d outcomes wait in the end", n)
	}
	for i := range submits {
		h.wantState(submitOf(fmt.Sprint(i)), []idempotency.State{idempotency.Completed, idempotency.Uncertain, absent}[i%3])
	}
}

// A long queue of outcomes does not cost running attempts their leases: they
// are renewed between its batches.
func TestLeasesComeBeforeTheQueue(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const queued, batch = 150, 32
	queueBuilt := make(chan struct{})
	var mu sync.Mutex
	storedAt := map[int]int{} // outcomes stored, by the renewals before
	h.store.spoil("complete", func(call int) fault {
		switch {
		case call == 2: // the keeper's first
			return heldBy(queueBuilt)
		case call <= queued+1:
			return refused
		}
		return func(ctx context.Context, apply func(context.Context) error) error {
			mu.Lock()
			storedAt[h.store.count("renew")]++
			mu.Unlock()
			return apply(ctx)
		}
	})
	for i := range queued {
		a := h.attempt(policy(leaseOf(time.Hour)), submitOf(fmt.Sprint(i)))
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
		await(t, "the keeper to be held", func() bool { return h.store.count("complete") >= 2 })
	}
	// A lease of no length whose renewals fail is due at any time.
	h.store.spoil("renew", first(-1, requestLost))
	alive := h.attempt(policy(leaseOf(time.Nanosecond)), submitOf("alive"))
	allDue := time.Now().Add(100 * time.Millisecond)
	await(t, "all of the queue to be due", func() bool { return time.Now().After(allDue) })
	close(queueBuilt)
	await(t, "the queue to be empty", func() bool { return h.store.count("complete") == 2*queued })
	h.conclude(alive, accepted("answer"), idempotency.ConcludedAccepted)
	h.idle()
	mu.Lock()
	defer mu.Unlock()
	for renewals, n := range storedAt {
		if n > batch {
			t.Errorf("%d outcomes were stored between renewals %d and %d, want at most %d", n, renewals, renewals+1, batch)
		}
	}
}

// What cannot be stored as long as the record lives is given up, and said so.
func TestGaveUp(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(leaseOf(100*time.Millisecond), retentionOf(100*time.Millisecond)), s)
	h.store.spoil("complete", first(-1, requestLost))
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	h.idle()
	if o := h.observed.so(); !slices.Equal(o.gaveUp, []string{"complete"}) {
		t.Errorf("observed %v given up, want complete", o.gaveUp)
	}
	if n := h.store.count("release"); n != 0 {
		t.Errorf("%d releases of an acceptance", n)
	}
	h.wantState(s, idempotency.InProgress)
}

// A lease is renewed for as long as the attempt lives, and no longer.
func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	h := newHarness(t, realTime)
	const lease = 1500 * time.Millisecond
	p := policy(leaseOf(lease))
	s := submitOf("k")
	a := h.attempt(p, s)
	r, _ := h.get(s)
	until := r.LeaseUntil.Add(2 * lease)
	await(t, "three leases to pass", func() bool {
		if state := h.state(s); state != idempotency.InProgress {
			t.Fatalf("the record is %s while the attempt lives", state)
		}
		return time.Now().After(until)
	})
	if n := h.store.count("renew"); n < 3 {
		t.Errorf("%d renewals in three leases", n)
	}
	h.wantProblem(p, s, idempotency.CodeInProgress)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	if o := h.observed.so(); len(o.lost)+len(o.late)+len(o.storeErrors) > 0 {
		t.Errorf("observed %+v", o)
	}
}

func TestRenewalEndsWithAttempt(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := policy(leaseOf(100 * time.Millisecond))
	ended, other := submitOf("ended"), submitOf("other")
	a, b := h.attempt(p, ended), h.attempt(p, other)
	has := func(s idempotency.Submit, renewals []idempotency.Renewal) bool {
		return slices.ContainsFunc(renewals, func(r idempotency.Renewal) bool { return r.ID == s.ID })
	}
	renewed := func(s idempotency.Submit, after, times int) {
		t.Helper()
		await(t, fmt.Sprintf("%d renewals", times), func() bool {
			n := 0
			for _, call := range h.store.renewed()[after:] {
				if has(s, call) {
					n++
				}
			}
			return n >= times
		})
	}
	renewed(ended, 0, 2)
	h.conclude(a, broken, idempotency.ConcludedUnknown)
	// One renewal may have been on its way.
	calls := len(h.store.renewed())
	renewed(other, calls, 1)
	calls = len(h.store.renewed())
	renewed(other, calls, 5)
	for _, call := range h.store.renewed()[calls:] {
		if has(ended, call) {
			t.Fatal("the lease of an attempt that has ended is renewed")
		}
	}
	h.conclude(b, broken, idempotency.ConcludedUnknown)
	h.idle()
	calls = len(h.store.renewed())
	h.conclude(h.attempt(policy(), submitOf("third")), broken, idempotency.ConcludedUnknown)
	h.idle()
	if n := len(h.store.renewed()); n != calls {
		t.Errorf("%d renewals after all attempts had ended", n-calls)
	}
}

// Many attempts share their renewals.
func TestRenewalsAreShared(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const (
		submits  = 500
		lease    = 3 * time.Second
		perCall  = 256 // at most, so that a call stays short
		rounds   = 2
		together = lease / 10 // what is due within it is renewed along
	)
	began := time.Now()
	attempts := make([]*idempotency.Attempt, submits)
	var wg sync.WaitGroup
	for i := range submits {
		wg.Go(func() {
			a, err := h.engine.Begin(context.Background(), policy(leaseOf(lease)), submitOf(fmt.Sprint(i)))
			if err != nil || a.Attempt == nil {
				t.Errorf("Begin gave %+v, %v", a, err)
				return
			}
			attempts[i] = a.Attempt
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	renewals := func() (each map[idempotency.RecordID]int) {
		each = make(map[idempotency.RecordID]int)
		for _, call := range h.store.renewed() {
			for _, r := range call {
				each[r.ID]++
			}
		}
		return each
	}
	await(t, "all leases to be renewed twice", func() bool {
		each := renewals()
		if len(each) < submits {
			return false
		}
		for _, n := range each {
			if n < rounds {
				return false
			}
		}
		return true
	})
	calls := h.store.renewed()
	bound := (submits/perCall + 1) * (int(time.Since(began)/together) + 2)
	if len(calls) > bound {
		t.Errorf("%d attempts cost %d renewals in %s, want at most %d", submits, len(calls), time.Since(began), bound)
	}
	for _, call := range calls {
		if len(call) == 0 || len(call) > perCall {
			t.Errorf("a call renews %d leases, want 1 to %d", len(call), perCall)
		}
	}
	for _, a := range attempts {
		wg.Go(func() { a.Conclude(refusal) })
	}
	wg.Wait()
}

// A renewal that fails is tried again within the lease.
func TestRenewalFails(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.spoil("renew", first(3, refused))
	s := submitOf("k")
	a := h.attempt(policy(leaseOf(300*time.Millisecond)), s)
	before, _ := h.get(s)
	h.clock.advance(100 * time.Millisecond)
	await(t, "the lease to be renewed", func() bool {
		r, _ := h.get(s)
		return r.LeaseUntil.Equal(before.LeaseUntil.Add(100 * time.Millisecond))
	})
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	o := h.observed.so()
	if !slices.Equal(o.storeErrors, []string{"renew", "renew", "renew"}) || len(o.lost) > 0 {
		t.Errorf("observed %+v, want three store errors of renew and no lease lost", o)
	}
}

// A lease that was lost is reported once and not renewed any more. The attempt
// goes on, and its late truth is welcome.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := policy(leaseOf(200 * time.Millisecond))
	s, other := submitOf("k"), submitOf("other")
	a := h.attempt(p, s)
	h.clock.advance(time.Hour)
	b := h.attempt(p, other)
	await(t, "the lost lease to be reported", func() bool { return len(h.observed.so().lost) > 0 })
	h.wantState(s, idempotency.Uncertain)
	h.wantProblem(p, s, idempotency.CodeOutcomeUnknown)
	calls := len(h.store.renewed())
	await(t, "other leases to be renewed", func() bool { return len(h.store.renewed()) >= calls+3 })
	for _, call := range h.store.renewed()[calls:] {
		if slices.ContainsFunc(call, func(r idempotency.Renewal) bool { return r.ID == s.ID }) {
			t.Fatal("a lost lease is renewed")
		}
	}
	if n := h.engine.InFlight(); n != 2 {
		t.Errorf("%d attempts are in flight, want 2", n)
	}
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	h.conclude(b, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "answer")
	if o := h.observed.so(); !slices.Equal(o.lost, []idempotency.RecordID{s.ID}) || len(o.late) > 0 {
		t.Errorf("observed %+v, want one lease lost", o)
	}
}

// An acceptance that arrives when its record is another's changes nothing and
// is reported.
func TestLateAcceptance(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := policy(leaseOf(time.Minute), resubmit)
	s := submitOf("k")
	a := h.attempt(p, s)
	h.wantProblem(p, s, idempotency.CodeInProgress) // no taking over while it is alive
	h.clock.advance(time.Hour)
	h.wantProblem(policy(), s, idempotency.CodeOutcomeUnknown)
	other := h.gateway()
	b := other.attempt(p, s)
	h.conclude(a, accepted("late"), idempotency.ConcludedAccepted)
	o := h.observed.so()
	if !slices.Equal(o.late, []idempotency.RecordID{s.ID}) || o.lateStatus != 202 {
		t.Errorf("observed late acceptances %v with status %d, want one with 202", o.late, o.lateStatus)
	}
	h.wantState(s, idempotency.InProgress)
	h.conclude(b, accepted("second"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "second")

	// Neither can the first attempt harm it in another way.
	s = submitOf("k2")
	a = h.attempt(p, s)
	c := h.attempt(p, submitOf("k3"))
	h.clock.advance(time.Hour)
	b = other.attempt(p, s)
	h.conclude(a, refusal, idempotency.ConcludedRefused)
	h.wantState(s, idempotency.InProgress)
	h.conclude(b, accepted("second"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "second")
	h.conclude(c, broken, idempotency.ConcludedUnknown)
	if o := h.observed.so(); len(o.late) != 1 {
		t.Errorf("observed %d late acceptances, want 1", len(o.late))
	}
}

// What cannot be read is an error, not a free key, and stays as it is.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	s := submitOf("k")
	valid := idempotency.Record{
		State: idempotency.Completed, Fingerprint: s.Fingerprint,
		CreatedAt: time.Now(), ChangedAt: time.Now(), LeaseUntil: time.Now(), Retention: 24 * time.Hour,
	}
	binary := func(payload []byte) []byte {
		r := valid
		r.Payload = payload
		return marshal(t, r)
	}
	later := binary(nil)
	later[0]++
	tests := []struct {
		name  string
		value []byte
	}{
		{"no record", []byte("s3cret")},
		{"later version", later},
		{"completed, payload empty", binary(nil)},
		{"completed, payload is text", binary([]byte("s3cret"))},
		{"completed, no answer", binary(encodeCBOR(t, idempotency.Details{Key: "s3cret"}))},
		{"completed, no status", binary(encodeCBOR(t, idempotency.Details{Key: "s3cret", Answer: &idempotency.Answer{}}))},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "idempotency.db")
			h := newHarness(t, func(_ *idempotency.EngineConfig, c *embedded.Config) { c.Path = path })
			putValue(t, path, s.ID, test.value)
			for range 2 {
				a, err := h.engine.Begin(context.Background(), policy(resubmit), s)
				if !errors.Is(err, idempotency.ErrStoreUnavailable) || !errors.Is(err, idempotency.ErrUnreadable) || set(a) != 0 {
					t.Fatalf("Begin gave %+v, %v; want ErrStoreUnavailable and ErrUnreadable", a, err)
				}
				if strings.Contains(err.Error(), "s3cret") {
					t.Errorf("the error shows the record: %v", err)
				}
			}
			h.idle()
			if n := h.store.count("claim"); n != 2 {
				t.Errorf("two submits cost %d claims", n)
			}
			if n := h.store.count("release"); n != 0 {
				t.Errorf("%d releases of an unreadable record", n)
			}
			if o := h.observed.so(); !slices.Equal(o.storeErrors, []string{"claim", "claim"}) {
				t.Errorf("observed store errors %v, want two of claim", o.storeErrors)
			}
		})
	}
}

// putValue writes under a record's name into the file of an embedded store that
// is not open yet.
func putValue(t *testing.T, path string, id idempotency.RecordID, value []byte) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte("records"))
		if err != nil {
			return err
		}
		return bucket.Put([]byte(id), value)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestConcludeTwicePanics(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	defer func() {
		if recover() == nil {
			t.Error("a second conclusion does not panic")
		}
		h.wantReplay(s, 202, "answer")
	}()
	a.Conclude(refusal)
}

func TestDrain(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	want := func(wantAlive, wantUnstored []idempotency.RecordID) {
		t.Helper()
		alive, unstored := h.engine.Drain(ended)
		slices.Sort(alive)
		slices.Sort(wantAlive)
		if !slices.Equal(alive, wantAlive) || !slices.Equal(unstored, wantUnstored) {
			t.Errorf("Drain gave %v alive and %v unstored, want %v and %v", alive, unstored, wantAlive, wantUnstored)
		}
	}
	idle := func() {
		t.Helper()
		alive, unstored := h.engine.Drain(context.Background())
		if len(alive)+len(unstored) > 0 {
			t.Errorf("Drain gave %v alive and %v unstored, want none", alive, unstored)
		}
	}
	idle()

	one, two := submitOf("1"), submitOf("2")
	a, b := h.attempt(policy(), one), h.attempt(policy(), two)
	want([]idempotency.RecordID{one.ID, two.ID}, nil)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	want([]idempotency.RecordID{two.ID}, nil)

	gate := make(chan struct{})
	h.store.spoil("complete", func(call int) fault {
		if call == 1 {
			return requestLost
		}
		return heldBy(gate)
	})
	h.conclude(b, accepted("answer"), idempotency.ConcludedAccepted)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		idle()
	}()
	await(t, "the completion to be tried again", func() bool { return h.store.count("complete") == 2 })
	select {
	case <-drained:
		t.Error("Drain has ended before the outcome was stored")
	default:
	}
	close(gate)
	select {
	case <-drained:
	case <-time.After(patience):
		t.Fatal("Drain waits for an idle engine")
	}
	h.wantState(two, idempotency.Completed)
	idle()
	want(nil, nil)

	// Outcomes that wait are named.
	h.store.spoil("complete", first(2, requestLost))
	three := submitOf("3")
	h.conclude(h.attempt(policy(), three), accepted("answer"), idempotency.ConcludedAccepted)
	want(nil, []idempotency.RecordID{three.ID})
}

// What a process that ends leaves behind is unknown at once, and the truth of an
// attempt that comes to its end all the same is stored.
func TestAbandon(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := policy(leaseOf(time.Hour))
	one, two, three := submitOf("1"), submitOf("2"), submitOf("3")
	a, b := h.attempt(p, one), h.attempt(p, two)
	if left := h.engine.Abandon(context.Background()); len(left) > 0 {
		t.Errorf("Abandon left %v", left)
	}
	for _, s := range []idempotency.Submit{one, two} {
		h.wantState(s, idempotency.Uncertain)
		if got := h.details(s).Error; !strings.Contains(got, "stopped") {
			t.Errorf("the record says %q", got)
		}
	}
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantState(one, idempotency.Completed)
	h.conclude(b, refusal, idempotency.ConcludedRefused)
	h.wantState(two, absent)

	c := h.attempt(p, three)
	h.store.spoil("uncertain", first(1, requestLost))
	if left := h.engine.Abandon(context.Background()); !slices.Equal(left, []idempotency.RecordID{three.ID}) {
		t.Errorf("Abandon left %v, want the third", left)
	}
	h.wantState(three, idempotency.InProgress)
	if left := h.engine.Abandon(context.Background()); len(left) > 0 {
		t.Errorf("a second Abandon left %v", left)
	}
	h.conclude(c, accepted("answer"), idempotency.ConcludedAccepted)
}

// The store is held while the engine works by itself, and let go as often as
// it was held.
func TestHold(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	if h.held.Load() != 0 {
		t.Error("a new engine holds the store")
	}
	for i := range 20 {
		s := submitOf(fmt.Sprint(i))
		a := h.attempt(policy(), s)
		if h.held.Load() == 0 {
			t.Error("the store is not held while an attempt lives")
		}
		if i%2 == 0 {
			h.idleAfter(a)
			continue
		}
		h.store.spoil("release", first(1, requestLost))
		h.conclude(a, refusal, idempotency.ConcludedRefused)
		if h.held.Load() == 0 && h.state(s) != absent {
			t.Error("the store is not held while an outcome waits to be stored")
		}
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			a, err := h.engine.Begin(context.Background(), policy(), submitOf(fmt.Sprint("c", i)))
			if err != nil || a.Attempt == nil {
				t.Errorf("Begin gave %+v, %v", a, err)
				return
			}
			a.Attempt.Conclude(refusal)
		})
	}
	wg.Wait()
	h.idle()
}

// idleAfter concludes the last attempt and waits until the engine has let go.
func (h *harness) idleAfter(a *idempotency.Attempt) {
	h.t.Helper()
	h.conclude(a, refusal, idempotency.ConcludedRefused)
	h.idle()
}

// An engine without an observer and without a hold works the same.
func TestEngineDefaults(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(e *idempotency.EngineConfig, _ *embedded.Config) {
		e.Observer, e.Hold, e.StoreTimeout = nil, nil, 0
	})
	h.store.spoil("claim", first(1, refused))
	if _, err := h.engine.Begin(context.Background(), policy(), submitOf("k")); err == nil {
		t.Error("Begin gave no error")
	}
	if d := h.store.longestCall(); d > idempotency.DefaultStoreTimeout {
		t.Errorf("a call was given %s, want at most %s", d, idempotency.DefaultStoreTimeout)
	}
}

// No goroutine is left when everything has ended. The test runs before those
// that run in parallel.
func TestNoGoroutineRemains(t *testing.T) {
	before := runtime.NumGoroutine()
	h := newHarness(t)
	h.store.spoil("claim", func(call int) fault {
		return map[int]fault{2: replyLost, 3: replyLost}[call]
	})
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("a new engine has %d goroutines", n-before)
	}
	a := h.attempt(policy(leaseOf(30*time.Millisecond)), submitOf("1"))
	if _, err := h.engine.Begin(context.Background(), policy(), submitOf("2")); err == nil {
		t.Fatal("Begin gave no error")
	}
	await(t, "a renewal", func() bool { return h.store.count("renew") > 0 })
	h.store.spoil("complete", first(2, requestLost))
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	h.clock.advance(time.Hour)
	h.idle()
	if err := h.store.Close(); err != nil {
		t.Fatal(err)
	}
	h.store.Store = embedded.New(embedded.Config{Path: filepath.Join(t.TempDir(), "unused.db")})
	await(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	if stacks := allStacks(); strings.Contains(stacks, "idempotency.(*Engine)") {
		t.Errorf("an engine is at work:\n%s", stacks)
	}
}

func allStacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// TestMain fails if an engine is still at work after the last test.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && strings.Contains(allStacks(), "idempotency.(*Engine)") {
		fmt.Fprintf(os.Stderr, "an engine is at work after all tests:\n%s", allStacks())
		code = 1
	}
	os.Exit(code)
}

// A try of a claim may still come true after another try was answered by
// somebody else's record. It is taken back like any other.
func TestLateClaimBehindAnother(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	running := h.attempt(policy(), s)
	late := &delayed{}
	h.store.spoil("claim", first(1, late.fault))
	h.wantProblem(policy(), s, idempotency.CodeInProgress)
	h.conclude(running, refusal, idempotency.ConcludedRefused)
	h.wantState(s, absent)
	late.run(t) // within its time
	h.awaitState(s, absent)
	h.clock.advance(time.Hour)
}

// The same after the attempt itself: its other try comes when the key is free.
func TestLateClaimBehindItsOwnRefusal(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	late := &delayed{}
	h.store.spoil("claim", first(1, late.fault))
	a := h.attempt(policy(), s)
	h.conclude(a, refusal, idempotency.ConcludedRefused)
	if n := h.engine.Unstored(); n != 0 || !a.Stored() {
		t.Errorf("%d outcomes are unstored, and the refusal is stored %t; only a claim is left to be taken back", n, a.Stored())
	}
	h.wantState(s, absent)
	late.run(t) // within its time
	h.awaitState(s, absent)
	h.clock.advance(time.Hour)
}

// A take-over that was never sent does not make an unknown outcome known.
func TestWithdrawnTakeOver(t *testing.T) {
	t.Parallel()
	for name, giveUp := range map[string]func(h *harness, s idempotency.Submit){
		"replies lost": func(h *harness, s idempotency.Submit) {
			h.store.spoil("claim", first(2, replyLost))
			if _, err := h.engine.Begin(context.Background(), policy(resubmit), s); err == nil {
				t.Error("Begin gave no error")
			}
		},
		"never sent": func(h *harness, s idempotency.Submit) {
			h.conclude(h.attempt(policy(resubmit), s), idempotency.Result{Sent: idempotency.NeverSent}, idempotency.ConcludedNeverSent)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			h.conclude(h.attempt(policy(), s), broken, idempotency.ConcludedUnknown)
			giveUp(h, s)
			h.clock.advance(time.Hour)
			h.idle()
			h.wantState(s, idempotency.Uncertain)
		})
	}
}

// An outcome on its way to the store is not idleness.
func TestConclusionIsNotIdle(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	gate := make(chan struct{})
	h.store.spoil("complete", first(1, heldBy(gate)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Conclude(accepted("answer"))
	}()
	await(t, "the completion", func() bool { return h.store.count("complete") == 1 })
	// Give a keeper that thinks it is idle the time to end.
	b := h.attempt(policy(leaseOf(30*time.Millisecond)), submitOf("other"))
	await(t, "a renewal", func() bool { return h.store.count("renew") > 0 })
	h.conclude(b, refusal, idempotency.ConcludedRefused)
	ended, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	alive, unstored := h.engine.Drain(ended)
	if !slices.Equal(append(alive, unstored...), []idempotency.RecordID{s.ID}) {
		t.Errorf("Drain gave %v alive and %v unstored while an acceptance is being stored", alive, unstored)
	}
	if h.held.Load() == 0 {
		t.Error("the store is not held while an acceptance is being stored")
	}
	close(gate)
	<-done
	h.wantReplay(s, 202, "answer")
}

// Of two tries, the first may come true later than the second: the clock of one
// node was taken for that of another. Taking back goes on until neither can.
func TestStrayClaimOfTheClockAhead(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]fault{"second granted": nil, "second lost": requestLost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			learn := func(key string) { // the store's clock
				h.conclude(h.attempt(policy(), submitOf(key)), accepted("answer"), idempotency.ConcludedAccepted)
			}
			learn("ahead")
			h.clock.advance(-time.Hour)
			s := submitOf("k")
			late := &delayed{}
			h.store.spoil("claim", func(call int) fault {
				switch call {
				case 1:
					return func(ctx context.Context, apply func(context.Context) error) error {
						learn("behind")
						return late.fault(ctx, apply)
					}
				case 3:
					return again
				default:
					return nil
				}
			})
			admission, err := h.engine.Begin(context.Background(), policy(), s)
			if again == nil {
				h.conclude(admission.Attempt, refusal, idempotency.ConcludedRefused)
			} else if !errors.Is(err, idempotency.ErrStoreUnavailable) {
				t.Fatalf("Begin gave %v, want ErrStoreUnavailable", err)
			}
			h.clock.advance(30 * time.Minute) // the time of the second is over
			before := h.store.count("release")
			await(t, "the claim to be taken back again", func() bool { return h.store.count("release") > before || h.held.Load() == 0 })
			late.run(t)
			h.awaitState(s, absent)
			h.clock.advance(2 * time.Hour)
		})
	}
}

// A store that takes no write and does not say so leaves a claim to be taken
// back for each submit. They are bounded; what became of submits that were sent
// is not.
func TestWithdrawalsAreBounded(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	sent := submitOf("sent")
	a := h.attempt(policy(), sent)
	out := make(chan struct{})
	away := func(f fault) func(int) fault {
		return func(int) fault {
			select {
			case <-out:
				return nil
			default:
				return f
			}
		}
	}
	h.store.spoil("complete", away(refused))
	h.store.spoil("release", away(requestLost))
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)

	begin := func(key string) {
		t.Helper()
		if _, err := h.engine.Begin(context.Background(), policy(), submitOf(key)); !errors.Is(err, idempotency.ErrStoreUnavailable) {
			t.Fatalf("Begin gave %v, want ErrStoreUnavailable", err)
		}
	}
	h.store.spoil("claim", first(2, replyLost))
	begin("oldest")
	const more = 100
	h.store.spoil("claim", first(-1, requestLost))
	for i := range idempotency.MaxWithdrawals + more {
		begin(fmt.Sprint(i))
	}
	// With the oldest there is one more, and one may be under way.
	if n := len(h.observed.so().gaveUp); n < more || n > more+1 {
		t.Errorf("%d claims were given up, want %d or one more", n, more)
	}
	if n := h.engine.Unstored(); n != 1 {
		t.Errorf("%d outcomes are unstored, want the one of the submit that was sent", n)
	}
	close(out)
	h.store.spoil("claim", nil)
	h.clock.advance(time.Hour)
	h.idle()
	h.wantReplay(sent, 202, "answer")
	h.wantState(submitOf("oldest"), idempotency.Uncertain)
}

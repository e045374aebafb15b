package idempotency_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

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

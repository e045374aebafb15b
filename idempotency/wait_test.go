package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// poll is how often a waiter looks after another gateway's attempt.
const poll = 50 * time.Millisecond

func waitOf(d time.Duration) func(*idempotency.Policy) {
	return func(p *idempotency.Policy) { p.Wait = d }
}

// patient is the policy of a submit that waits, with a lease that does not end
// by itself.
func patient(change ...func(*idempotency.Policy)) idempotency.Policy {
	p := policy(leaseOf(time.Hour), waitOf(patience))
	for _, c := range change {
		c(&p)
	}
	return p
}

// gateway returns another engine on the same store.
func (h *harness) gateway() *harness {
	h.t.Helper()
	other := *h
	other.engine = idempotency.NewEngine(idempotency.EngineConfig{Store: h.store, StoreTimeout: patience, Observer: h.observed})
	h.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if alive, unstored := other.engine.Drain(ctx); len(alive)+len(unstored) > 0 {
			h.t.Error("the other gateway is not idle")
		}
		other.wantNoWaiters()
	})
	return &other
}

// wantNoWaiters waits until those who were answered have left.
func (h *harness) wantNoWaiters() {
	h.t.Helper()
	await(h.t, "all waiters to leave", func() bool {
		all, _, rooms := idempotency.Waiters(h.engine, "")
		return all == 0 && rooms == 0
	})
}

func (h *harness) awaitWaiters(s idempotency.Submit, n int) {
	h.t.Helper()
	await(h.t, fmt.Sprintf("%d waiters", n), func() bool {
		_, ofRecord, _ := idempotency.Waiters(h.engine, s.ID)
		return ofRecord == n
	})
}

// awaitPolls waits until a waiter would have looked several times.
func awaitPolls(t *testing.T) {
	t.Helper()
	over := time.Now().Add(4 * poll)
	await(t, "some polls", func() bool { return time.Now().After(over) })
}

// waiter is a submit that is on its way through Begin.
type waiter struct {
	t         *testing.T
	hangUp    context.CancelFunc
	done      chan struct{}
	admission idempotency.Admission
	err       error
}

func (h *harness) wait(p idempotency.Policy, s idempotency.Submit) *waiter {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiter{t: h.t, hangUp: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.admission, w.err = h.engine.Begin(ctx, p, s)
	}()
	h.t.Cleanup(func() {
		cancel()
		<-w.done
		if a := w.admission.Attempt; a != nil && h.t.Failed() {
			defer func() { _ = recover() }() // concluded already
			a.Conclude(refusal)              // or the engine is never idle
		}
	})
	return w
}

// waiters are n submits that wait.
func (h *harness) waiters(n int, p idempotency.Policy, s idempotency.Submit) []*waiter {
	h.t.Helper()
	_, before, _ := idempotency.Waiters(h.engine, s.ID)
	waiters := make([]*waiter, n)
	for i := range waiters {
		waiters[i] = h.wait(p, s)
	}
	h.awaitWaiters(s, before+n)
	return waiters
}

// end returns what Begin gave.
func (w *waiter) end() (idempotency.Admission, error) {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		w.t.Fatal("a submit waits for ever")
	}
	return w.admission, w.err
}

func (w *waiter) wantReplay(body string) {
	w.t.Helper()
	a, err := w.end()
	if err != nil || set(a) != 1 || a.Replay == nil || string(a.Replay.Body) != body {
		w.t.Errorf("a waiter gets %+v, %v; want the replay of %s", a, err, body)
	}
}

func (w *waiter) wantProblem(code idempotency.Code) {
	w.t.Helper()
	a, err := w.end()
	if err != nil || set(a) != 1 || a.Problem == nil || a.Problem.Code != code {
		w.t.Errorf("a waiter gets %+v, %v; want problem %s", a, err, code)
		return
	}
	if retry := a.Problem.RetryAfter; code == idempotency.CodeInProgress && (retry < time.Second || retry > time.Minute) {
		w.t.Errorf("a waiter is to come back after %s", retry)
	}
}

// Waiters get the replay as soon as the first is accepted, and ask the store
// once more for it.
func TestWaitForReplay(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(patient(), s)
	const n = 20
	waiters := h.waiters(n, patient(), s)
	awaitPolls(t)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	for _, w := range waiters {
		w.wantReplay("answer")
	}
	if n := h.store.count("get"); n != 0 {
		t.Errorf("the store was asked %d times for a record of this gateway", n)
	}
	if got := h.store.count("claim"); got != 1+2*n {
		t.Errorf("%d claims, want 1 and 2 of each waiter", got)
	}
	h.wantNoWaiters()
}

// Waiters notice what another gateway has done. One of them looks for all.
func TestWaitForOtherGateway(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		result idempotency.Result
		want   idempotency.Conclusion
		check  func(w *waiter)
	}{
		{"accepted", accepted("answer"), idempotency.ConcludedAccepted, func(w *waiter) { w.wantReplay("answer") }},
		{"unknown", broken, idempotency.ConcludedUnknown, func(w *waiter) { w.wantProblem(idempotency.CodeOutcomeUnknown) }},
		{"result not kept", idempotency.Result{Status: 202, BodyNotKept: true}, idempotency.ConcludedAccepted,
			func(w *waiter) { w.wantProblem(idempotency.CodeResultUnavailable) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t)
			other := h.gateway()
			s := submitOf("k")
			a := h.attempt(patient(), s)
			began := time.Now()
			waiters := other.waiters(20, patient(), s)
			await(t, "a few looks", func() bool { return h.store.count("get") >= 3 })
			if looks, most := h.store.count("get"), int(time.Since(began)/poll)+1; looks > most {
				t.Errorf("%d looks in %s, want %d at most", looks, time.Since(began), most)
			}
			h.conclude(a, test.result, test.want)
			for _, w := range waiters {
				test.check(w)
			}
			other.wantNoWaiters()
		})
	}
}

// After a refusal one waiter submits, and the others go on waiting for it.
func TestWaitAfterRefusal(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"this gateway", "other gateway"} {
		t.Run(where, func(t *testing.T) {
			h := newHarness(t)
			waiting := h
			if where == "other gateway" {
				waiting = h.gateway()
			}
			s := submitOf("k")
			a := h.attempt(patient(), s)
			left := waiting.waiters(20, patient(), s)
			for round := 0; len(left) > 0; round++ {
				result, want := refusal, idempotency.ConcludedRefused
				if round == 3 {
					result, want = accepted("answer"), idempotency.ConcludedAccepted
				}
				h.conclude(a, result, want)
				if round == 3 {
					break
				}
				var next []*waiter
				a = nil
				await(t, "one waiter to submit", func() bool {
					next = nil
					for _, w := range left {
						select {
						case <-w.done:
							if a != nil && a != w.admission.Attempt {
								t.Fatalf("a second waiter gets %+v, %v", w.admission, w.err)
							}
							if a = w.admission.Attempt; a == nil {
								t.Fatalf("a waiter gets %+v, %v; want to submit or to wait", w.admission, w.err)
							}
						default:
							next = append(next, w)
						}
					}
					return a != nil
				})
				left = next
				waiting.awaitWaiters(s, len(left))
			}
			for _, w := range left {
				w.wantReplay("answer")
			}
			if len(left) != 17 {
				t.Errorf("%d waiters get the replay, want 17", len(left))
			}
			waiting.wantNoWaiters()
		})
	}
}

func TestWaitForUnknownOutcome(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(patient(), s)
	waiters := h.waiters(20, patient(), s)
	h.conclude(a, broken, idempotency.ConcludedUnknown)
	for _, w := range waiters {
		w.wantProblem(idempotency.CodeOutcomeUnknown)
	}
	h.wantNoWaiters()
}

// With on_uncertain resubmit one of the waiters takes over.
func TestWaitAndTakeOver(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(patient(), s)
	waiters := h.waiters(20, patient(resubmit), s)
	h.conclude(a, broken, idempotency.ConcludedUnknown)
	h.awaitWaiters(s, len(waiters)-1)
	for _, w := range waiters {
		select {
		case <-w.done:
			if w.admission.Attempt == nil {
				t.Fatalf("a waiter gets %+v, %v; want to submit or to wait", w.admission, w.err)
			}
			h.conclude(w.admission.Attempt, accepted("answer"), idempotency.ConcludedAccepted)
		default:
		}
	}
	attempts := 0
	for _, w := range waiters {
		if a, _ := w.end(); a.Attempt != nil {
			attempts++
			continue
		}
		w.wantReplay("answer")
	}
	if attempts != 1 {
		t.Errorf("%d waiters submitted, want one", attempts)
	}
}

// When the time is over a waiter is told that the first is still running.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"this gateway", "other gateway"} {
		t.Run(where, func(t *testing.T) {
			h := newHarness(t)
			waiting := h
			if where == "other gateway" {
				waiting = h.gateway()
			}
			s := submitOf("k")
			a := h.attempt(patient(), s)
			const long = 4 * poll
			began := time.Now()
			w := waiting.wait(patient(waitOf(long)), s)
			w.wantProblem(idempotency.CodeInProgress)
			if waited := time.Since(began); waited < long {
				t.Errorf("it waited %s, want %s", waited, long)
			}
			waiting.wantNoWaiters()
			h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
			waiting.wantReplay(s, 202, "answer")
		})
	}
}

// A caller that hangs up leaves at once, even if the store hangs, and makes
// room.
func TestWaiterHangsUp(t *testing.T) {
	t.Parallel()
	t.Run("this gateway", func(t *testing.T) {
		h := newHarness(t)
		s := submitOf("k")
		a := h.attempt(patient(), s)
		waiters := h.waiters(2, patient(), s)
		waiters[0].hangUp()
		waiters[0].wantProblem(idempotency.CodeInProgress)
		h.awaitWaiters(s, 1)
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
		waiters[1].wantReplay("answer")
		h.wantNoWaiters()
	})
	t.Run("the one that looks", func(t *testing.T) {
		h := newHarness(t)
		other := h.gateway()
		s := submitOf("k")
		a := h.attempt(patient(), s)
		looks := other.waiters(1, patient(), s)[0]
		await(t, "a look", func() bool { return h.store.count("get") > 0 })
		left := other.waiters(5, patient(), s)
		looks.hangUp()
		looks.wantProblem(idempotency.CodeInProgress)
		other.awaitWaiters(s, len(left))
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
		for _, w := range left {
			w.wantReplay("answer")
		}
		other.wantNoWaiters()
	})
	t.Run("while the store hangs", func(t *testing.T) {
		h := newHarness(t)
		other := h.gateway()
		s := submitOf("k")
		a := h.attempt(patient(), s)
		h.store.spoil("get", first(-1, hangs)) // until its context ends
		w := other.waiters(1, patient(), s)[0]
		await(t, "a look", func() bool { return h.store.count("get") > 0 })
		began := time.Now()
		w.hangUp()
		w.wantProblem(idempotency.CodeInProgress)
		if d := time.Since(began); d > patience/2 {
			t.Errorf("a caller that has hung up held its place for %s", d)
		}
		other.wantNoWaiters()
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	})
	t.Run("before it begins", func(t *testing.T) {
		h := newHarness(t)
		s := submitOf("k")
		a := h.attempt(patient(), s)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		b, err := h.engine.Begin(ctx, patient(), s)
		if err != nil || b.Problem == nil || b.Problem.Code != idempotency.CodeInProgress {
			t.Errorf("Begin gave %+v, %v; want problem %s", b, err, idempotency.CodeInProgress)
		}
		h.wantNoWaiters()
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	})
}

// A caller that hung up before the first came to its end does not submit in
// its place.
func TestHungUpWaiterDoesNotSubmit(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	other := h.gateway()
	for i := range 20 { // which of the two it sees first is left to chance
		s := submitOf(fmt.Sprint(i))
		a := other.attempt(patient(), s)
		gate := make(chan struct{})
		h.store.spoil("get", first(1, func(_ context.Context, apply func(context.Context) error) error {
			<-gate
			return apply(context.Background())
		}))
		w := h.wait(patient(), s)
		await(t, "a look", func() bool { return h.store.count("get") == 1 })
		w.hangUp()
		other.conclude(a, refusal, idempotency.ConcludedRefused)
		close(gate)
		w.wantProblem(idempotency.CodeInProgress)
		if t.Failed() {
			break
		}
	}
	h.wantNoWaiters()
}

// One waiter more than there are places is answered at once.
func TestWaitersPerKey(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s, other := submitOf("k"), submitOf("other")
	a, b := h.attempt(patient(), s), h.attempt(patient(), other)
	waiters := h.waiters(idempotency.MaxWaitersPerKey, patient(), s)
	h.wait(patient(), s).wantProblem(idempotency.CodeInProgress)
	h.waiters(1, patient(), other)[0].hangUp()

	// A place that becomes free is given again.
	waiters[0].hangUp()
	waiters[0].wantProblem(idempotency.CodeInProgress)
	h.awaitWaiters(s, idempotency.MaxWaitersPerKey-1)
	waiters[0] = h.waiters(1, patient(), s)[0]
	h.wait(patient(), s).wantProblem(idempotency.CodeInProgress)

	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	for _, w := range waiters {
		w.wantReplay("answer")
	}
	h.conclude(b, refusal, idempotency.ConcludedRefused)
	h.wantNoWaiters()
}

func TestMaxWaiters(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const keys = idempotency.MaxWaiters/idempotency.MaxWaitersPerKey + 1
	submits := make([]idempotency.Submit, keys)
	attempts := make([]*idempotency.Attempt, keys)
	for i := range keys {
		submits[i] = submitOf(fmt.Sprint(i))
		attempts[i] = h.attempt(patient(), submits[i])
	}
	var waiters []*waiter
	for _, s := range submits[:keys-1] {
		waiters = append(waiters, h.waiters(idempotency.MaxWaitersPerKey, patient(), s)...)
	}
	if all, _, rooms := idempotency.Waiters(h.engine, ""); all != idempotency.MaxWaiters || rooms != keys-1 {
		t.Fatalf("%d waiters in %d rooms, want %d in %d", all, rooms, idempotency.MaxWaiters, keys-1)
	}
	last := submits[keys-1]
	h.wait(patient(), last).wantProblem(idempotency.CodeInProgress)
	if _, _, rooms := idempotency.Waiters(h.engine, ""); rooms != keys-1 {
		t.Error("a submit that finds no place leaves a room behind")
	}
	waiters[0].hangUp()
	waiters[0].wantProblem(idempotency.CodeInProgress)
	waiters[0] = h.waiters(1, patient(), last)[0]
	for _, a := range attempts {
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	}
	for _, w := range waiters {
		w.wantReplay("answer")
	}
	h.wantNoWaiters()
}

// A store that fails does not end the wait while the first runs, and what comes
// after it is an error as for everybody.
func TestWaitWhileStoreFails(t *testing.T) {
	t.Parallel()
	t.Run("and comes back", func(t *testing.T) {
		h := newHarness(t)
		other := h.gateway()
		s := submitOf("k")
		a := h.attempt(patient(), s)
		back := make(chan struct{})
		h.store.spoil("get", func(int) fault {
			select {
			case <-back:
				return nil
			default:
				return requestLost
			}
		})
		w := other.waiters(1, patient(), s)[0]
		await(t, "failed looks", func() bool { return h.store.count("get") >= 3 })
		if n := h.store.count("claim"); n != 2 {
			t.Errorf("%d claims while nothing has changed, want 2", n)
		}
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
		other.awaitWaiters(s, 1)
		close(back)
		w.wantReplay("answer")
	})
	t.Run("until the time is over", func(t *testing.T) {
		h := newHarness(t)
		other := h.gateway()
		s := submitOf("k")
		a := h.attempt(patient(), s)
		h.store.spoil("get", first(-1, requestLost))
		other.wait(patient(waitOf(4*poll)), s).wantProblem(idempotency.CodeInProgress)
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
		other.wantNoWaiters()
	})
	t.Run("when it is asked again", func(t *testing.T) {
		h := newHarness(t)
		s := submitOf("k")
		a := h.attempt(patient(), s)
		w := h.waiters(1, patient(), s)[0]
		h.store.spoil("claim", first(-1, refused))
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
		if b, err := w.end(); !errors.Is(err, idempotency.ErrStoreUnavailable) || !errors.Is(err, idempotency.ErrClaimedBefore) || set(b) != 0 {
			t.Errorf("a waiter gets %+v, %v; want ErrStoreUnavailable and ErrClaimedBefore", b, err)
		}
		if _, err := h.engine.Begin(context.Background(), patient(), s); err == nil || errors.Is(err, idempotency.ErrClaimedBefore) {
			t.Errorf("who has not waited gets %v, want another error", err)
		}
		h.wantNoWaiters()
		h.store.spoil("claim", nil)
		h.wantReplay(s, 202, "answer")
	})
	t.Run("when the first ends", func(t *testing.T) {
		h := newHarness(t)
		s := submitOf("k")
		a := h.attempt(patient(), s)
		w := h.waiters(1, patient(), s)[0]
		h.store.spoil("complete", first(3, requestLost))
		h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
		w.wantReplay("answer") // when the acceptance is stored
		h.wantNoWaiters()
	})
}

// A gateway that dies leaves its waiters on others with an unknown outcome when
// its lease is over, and not before.
func TestWaitForDeadGateway(t *testing.T) {
	t.Parallel()
	claim := func(t *testing.T, h *harness, s idempotency.Submit) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		now, err := h.store.Store.Now(ctx)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := h.store.Store.Claim(ctx, idempotency.Claim{
			ID: s.ID, Token: idempotency.NewToken(), Fingerprint: s.Fingerprint, Lease: time.Hour, Retention: 24 * time.Hour,
			NotAfter: now.Add(patience), Payload: encodeCBOR(t, s.Details),
		})
		if err != nil || reply.Verdict != idempotency.Claimed {
			t.Fatalf("Claim gave %+v, %v", reply, err)
		}
	}
	// pass lets the lease end. The engine learns the store's clock from its
	// replies.
	pass := func(t *testing.T, h *harness) {
		t.Helper()
		h.clock.advance(2 * time.Hour)
		h.conclude(h.attempt(policy(), submitOf("another")), refusal, idempotency.ConcludedRefused)
	}
	t.Run("reject", func(t *testing.T) {
		h := newHarness(t)
		s := submitOf("k")
		claim(t, h, s)
		waiters := h.waiters(20, patient(), s)
		awaitPolls(t)
		h.awaitWaiters(s, len(waiters))
		pass(t, h)
		for _, w := range waiters {
			w.wantProblem(idempotency.CodeOutcomeUnknown)
		}
		h.wantNoWaiters()
	})
	t.Run("resubmit", func(t *testing.T) {
		h := newHarness(t)
		s := submitOf("k")
		claim(t, h, s)
		waiters := h.waiters(20, patient(resubmit), s)
		pass(t, h)
		await(t, "one to take over", func() bool { return h.engine.InFlight() == 1 })
		h.awaitWaiters(s, len(waiters)-1)
		attempts := 0
		for _, w := range waiters {
			select {
			case <-w.done:
				attempts++
				h.conclude(w.admission.Attempt, accepted("answer"), idempotency.ConcludedAccepted)
			default:
			}
		}
		for _, w := range waiters {
			if a, _ := w.end(); a.Attempt == nil {
				w.wantReplay("answer")
			}
		}
		if attempts != 1 {
			t.Errorf("%d waiters submitted, want one", attempts)
		}
	})
}

// Waiters learn that the attempt of their own gateway has lost its lease, while
// it still runs.
func TestWaitForLostLease(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	const lease = time.Second
	a := h.attempt(policy(leaseOf(lease)), s)
	waiters := h.waiters(5, patient(), s)
	h.clock.advance(time.Hour)
	for _, w := range waiters {
		w.wantProblem(idempotency.CodeOutcomeUnknown)
	}
	if n := h.engine.InFlight(); n != 1 {
		t.Errorf("%d attempts are in flight, want one", n)
	}
	if n := h.store.count("get"); n != 0 {
		t.Errorf("the store was asked %d times for a record of this gateway", n)
	}
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "answer")
}

// What is not a duplicate does not wait.
func TestOtherRequestDoesNotWait(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	other := s
	other.Fingerprint[0]++
	a := h.attempt(patient(), s)
	h.wantProblem(patient(), other, idempotency.CodeReuse)

	// Nor one that waited, when the key has become another's.
	w := h.waiters(1, patient(), s)[0]
	gate := make(chan struct{})
	h.store.spoil("claim", first(1, heldBy(gate)))
	h.conclude(a, refusal, idempotency.ConcludedRefused)
	await(t, "the waiter to ask again", func() bool { return h.store.count("claim") == 1 })
	b := h.attempt(patient(), other)
	close(gate)
	w.wantProblem(idempotency.CodeReuse)
	h.conclude(b, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantNoWaiters()
}

// Without a wait nobody waits.
func TestNoWait(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(patient(), s)
	h.wantProblem(policy(), s, idempotency.CodeInProgress)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
}

// The first may come to its end between the reply that says that it runs and
// the waiter's arrival in its room.
func TestWaitBeginsTooLate(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(patient(), s)
	replied, gate := make(chan struct{}), make(chan struct{})
	h.store.spoil("claim", first(1, func(ctx context.Context, apply func(context.Context) error) error {
		err := apply(ctx)
		close(replied)
		<-gate
		return err
	}))
	w := h.wait(patient(), s)
	<-replied
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	close(gate)
	w.wantReplay("answer")
	h.wantNoWaiters()
}

// A look that comes back late does not disturb those who wait for the next
// attempt.
func TestLateLook(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	other := h.gateway()
	s := submitOf("k")
	a := other.attempt(patient(), s)
	released, looked, gate := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h.store.spoil("get", first(1, func(ctx context.Context, apply func(context.Context) error) error {
		<-released
		err := apply(ctx)
		close(looked)
		<-gate
		return err
	}))
	looks := h.waiters(1, patient(), s)[0]
	await(t, "a look", func() bool { return h.store.count("get") == 1 })
	other.conclude(a, refusal, idempotency.ConcludedRefused)
	close(released)
	<-looked // and found nothing

	// The next attempt is this gateway's, and its end wakes the room.
	b := h.attempt(patient(), s)
	h.conclude(b, refusal, idempotency.ConcludedRefused)
	c := h.attempt(patient(), s)
	next := h.waiters(5, patient(), s)
	h.conclude(c, refusal, idempotency.ConcludedRefused)
	await(t, "one waiter to submit", func() bool { return h.engine.InFlight() == 1 })
	h.awaitWaiters(s, len(next)-1)
	h.store.spoil("claim", nil)
	close(gate)
	h.awaitWaiters(s, len(next)) // with the one that looked
	awaitPolls(t)
	if n := h.store.count("claim"); n != 1 {
		t.Errorf("%d claims after a late look, want one of the waiter that looked", n)
	}
	for _, w := range next {
		select {
		case <-w.done:
			h.conclude(w.admission.Attempt, accepted("answer"), idempotency.ConcludedAccepted)
		default:
		}
	}
	looks.wantReplay("answer")
	h.wantNoWaiters()
}

// Whatever the order of arrivals, ends and hanging up, nobody misses the end of
// the first, one submits at a time, and nothing is left behind.
func TestWaitersUnderStress(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	engines := []*harness{h, h, h.gateway()}
	const rounds, callers = 40, 12
	for round := range rounds {
		s := submitOf(fmt.Sprint(round))
		var (
			mu       sync.Mutex
			sending  int
			submits  int
			replays  int
			hungUp   int
			released = make(chan struct{})
			wg       sync.WaitGroup
		)
		for i := range callers {
			wg.Go(func() {
				<-released
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				hangsUp := i%6 == 5
				if hangsUp {
					time.AfterFunc(time.Duration(round)*time.Millisecond/4, cancel)
				}
				a, err := engines[i%len(engines)].engine.Begin(ctx, patient(), s)
				switch {
				case err != nil:
					t.Errorf("Begin: %v", err)
				case a.Attempt != nil:
					mu.Lock()
					sending++
					submits++
					last := submits == 3
					if sending != 1 {
						t.Errorf("%d submits at a time", sending)
					}
					mu.Unlock()
					result := refusal
					if last {
						result = accepted("answer")
					}
					mu.Lock()
					sending-- // before the key is free
					mu.Unlock()
					a.Attempt.Conclude(result)
				case a.Replay != nil:
					mu.Lock()
					replays++
					mu.Unlock()
				case hangsUp && a.Problem.Code == idempotency.CodeInProgress:
					mu.Lock()
					hungUp++
					mu.Unlock()
				default:
					t.Errorf("a waiter gets %+v", *a.Problem)
				}
			})
		}
		close(released)
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(patience / 2):
			t.Fatal("a waiter has missed the end of the first")
		}
		if submits != 3 || submits+replays+hungUp != callers {
			t.Errorf("%d submits, %d replays, %d hung up; want 3 submits of %d callers", submits, replays, hungUp, callers)
		}
		for _, e := range engines {
			e.wantNoWaiters()
		}
	}
}

package idempotency_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// lose removes a record from the store, as FLUSHALL would.
func (h *harness) lose(s idempotency.Submit) {
	h.t.Helper()
	r, found := h.get(s)
	if !found {
		h.t.Fatal("there is no record to be lost")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := h.store.Store.Release(ctx, s.ID, r.Token); err != nil {
		h.t.Fatal(err)
	}
	h.wantState(s, absent)
}

func (h *harness) wantRecordsLost(n int) {
	h.t.Helper()
	h.observed.mu.Lock()
	defer h.observed.mu.Unlock()
	if got := len(h.observed.recordsLost); got != n {
		h.t.Errorf("%d lost records were reported, want %d", got, n)
	}
}

// The store loses the record of a submit that this engine works on: a repeat is
// not sent, and what comes of the first is stored all the same.
func TestRecordLostWhileAttemptRuns(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]struct {
		result idempotency.Result
		want   idempotency.Conclusion
		state  idempotency.State
	}{
		"accepted": {accepted("answer"), idempotency.ConcludedAccepted, idempotency.Completed},
		"unknown":  {broken, idempotency.ConcludedUnknown, idempotency.Uncertain},
		"refused":  {refusal, idempotency.ConcludedRefused, absent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, repeated := range []bool{true, false} {
				h := newHarness(t)
				s := submitOf("k")
				a := h.attempt(policy(), s)
				h.lose(s)
				lost := 0
				if repeated {
					h.wantProblem(policy(), s, idempotency.CodeInProgress)
					h.wantProblem(policy(), s, idempotency.CodeInProgress)
					h.wantState(s, idempotency.InProgress)
					lost++
				}
				if outcome.state != absent && !repeated {
					lost++
				}
				h.conclude(a, outcome.result, outcome.want)
				if !a.Stored() {
					t.Error("the outcome is not stored")
				}
				h.wantState(s, outcome.state)
				if outcome.state == idempotency.Completed {
					h.wantReplay(s, 202, "answer")
				}
				h.wantRecordsLost(lost)
				if o := h.observed.so(); len(o.late)+len(o.lost) > 0 {
					t.Errorf("observed %+v", o)
				}
			}
		})
	}
}

// Under other keys and with another lease the repeat's record is as good.
func TestLostRecordUnderAnotherKey(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	before, after := policy(), policy(leaseOf(time.Hour))
	older, newer := bytes.Repeat([]byte{'a'}, idempotency.EncryptionKeySize), bytes.Repeat([]byte{'b'}, idempotency.EncryptionKeySize)
	for p, keys := range map[*idempotency.Policy][][]byte{&before: {older}, &after: {newer, older}} {
		ring, err := idempotency.NewKeyring(keys...)
		if err != nil {
			t.Fatal(err)
		}
		p.Keyring = ring
	}
	a := h.attempt(before, s)
	h.lose(s)
	h.wantProblem(after, s, idempotency.CodeInProgress)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	admission := h.begin(after, s)
	if admission.Replay == nil || string(admission.Replay.Body) != "answer" {
		t.Errorf("a repeat gets %+v", admission)
	}
}

// A repeat with another body has reused the key, and leaves nothing behind.
func TestOtherRequestForLostRecord(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	h.lose(s)
	other := s
	other.Fingerprint = idempotency.Fingerprint{2}
	h.wantProblem(policy(), other, idempotency.CodeReuse)
	h.wantState(s, absent)
	h.wantProblem(policy(), s, idempotency.CodeInProgress)
	h.wantProblem(policy(), other, idempotency.CodeReuse)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "answer")
}

// The store loses the record while it is away, and comes back before the engine
// has tried again: what waits to be stored is what the repeat gets.
func TestRecordLostWhileOutcomeWaits(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]struct {
		op     string
		result idempotency.Result
		want   idempotency.Conclusion
		tell   func(h *harness, s idempotency.Submit)
		state  idempotency.State
	}{
		"accepted": {"complete", accepted("answer"), idempotency.ConcludedAccepted,
			func(h *harness, s idempotency.Submit) { h.wantReplay(s, 202, "answer") }, idempotency.Completed},
		"not kept": {"complete", idempotency.Result{Status: 202, Whole: true, BodyNotKept: true}, idempotency.ConcludedAccepted,
			func(h *harness, s idempotency.Submit) {
				h.wantProblem(policy(), s, idempotency.CodeResultUnavailable)
			}, idempotency.Completed},
		"unknown": {"uncertain", broken, idempotency.ConcludedUnknown,
			func(h *harness, s idempotency.Submit) {
				h.wantProblem(policy(resubmit), s, idempotency.CodeOutcomeUnknown)
			}, idempotency.Uncertain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			s := submitOf("k")
			a := h.attempt(policy(), s)
			back := make(chan struct{})
			h.store.spoil(outcome.op, func(int) fault {
				select {
				case <-back:
					return nil
				default:
					return refused
				}
			})
			h.conclude(a, outcome.result, outcome.want)
			h.lose(s)
			outcome.tell(h, s)
			h.wantState(s, idempotency.InProgress) // of the repeat, and not sent
			close(back)
			h.awaitState(s, outcome.state)
			h.idle()
			if n := h.store.count("claim"); n != 2 {
				t.Errorf("%d claims, want that of the submit and that of the repeat", n)
			}
			h.wantRecordsLost(1)
		})
	}
}

// A refusal that waits to be stored has freed the key: the repeat is sent, and
// the release does not touch its record.
func TestRecordLostWhileRefusalWaits(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	h.store.spoil("release", first(1, refused))
	h.conclude(a, refusal, idempotency.ConcludedRefused)
	h.lose(s)
	b := h.attempt(policy(), s)
	await(t, "the release", func() bool { return h.store.count("release") >= 2 })
	h.wantState(s, idempotency.InProgress)
	h.conclude(b, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "answer")
	h.wantRecordsLost(0)
}

// A completion finds the record of a repeat whose claim this engine does not know
// to be granted yet: it waits for that, and nobody submits.
func TestRecordLostWhileClaimIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(gate chan struct{}) fault{
		"reply late": func(gate chan struct{}) fault {
			return func(ctx context.Context, apply func(context.Context) error) error {
				err := apply(ctx)
				<-gate
				return err
			}
		},
		"reply lost": func(gate chan struct{}) fault {
			return func(ctx context.Context, apply func(context.Context) error) error {
				err := apply(ctx)
				<-gate
				if err != nil {
					return err
				}
				return errInjected
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			s := submitOf("k")
			a := h.attempt(policy(), s)
			h.lose(s)
			gate := make(chan struct{})
			h.store.spoil("claim", first(2, f(gate)))
			repeat := make(chan idempotency.Admission)
			go func() {
				admission, _ := h.engine.Begin(context.Background(), policy(), s)
				repeat <- admission
			}()
			await(t, "the repeat's record", func() bool { return h.state(s) == idempotency.InProgress })
			h.store.spoil("claim", nil)
			h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
			if a.Stored() {
				t.Error("the acceptance is stored in a record that is not its own")
			}
			close(gate)
			if got := <-repeat; got.Attempt != nil {
				t.Fatal("the repeat is sent")
			}
			h.awaitState(s, idempotency.Completed)
			h.idle()
			h.wantReplay(s, 202, "answer")
			if o := h.observed.so(); len(o.late) > 0 {
				t.Errorf("observed %+v", o)
			}
		})
	}
}

// A renewal that finds no record makes it anew, so that other gateways know of
// the attempt, too.
func TestRenewalRestoresLostRecord(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(leaseOf(100*time.Millisecond)), s)
	h.lose(s)
	h.awaitState(s, idempotency.InProgress)
	h.gateway().wantProblem(policy(), s, idempotency.CodeInProgress)
	before := h.store.count("renew")
	await(t, "renewals of the new record", func() bool { return h.store.count("renew") > before+2 })
	h.wantRecordsLost(1)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "answer")
	if o := h.observed.so(); len(o.lost) > 0 {
		t.Errorf("observed %+v", o)
	}
}

// A claim that could not be granted is no reason to think that the lease is lost.
func TestRenewalRestoresWhenStoreIsBack(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(leaseOf(100*time.Millisecond)), s)
	h.store.spoil("claim", first(3, refused))
	h.lose(s)
	h.awaitState(s, idempotency.InProgress)
	if n := h.store.count("claim"); n != 4 {
		t.Errorf("%d claims, want 4", n)
	}
	h.conclude(a, refusal, idempotency.ConcludedRefused)
	h.awaitState(s, absent) // the claim is taken back if its reply was on its way
}

// An operator's release through this engine is a decision about its own attempt,
// too: the repeat is sent while that still runs.
func TestReleasedAttemptIsDisowned(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	late := h.attempt(policy(), s)
	h.clock.advance(time.Hour)
	if err := h.decide(s, nil); err != nil {
		t.Fatal(err)
	}
	b := h.attempt(policy(), s)
	h.conclude(b, refusal, idempotency.ConcludedRefused)
	h.wantState(s, absent)
	h.conclude(late, accepted("late"), idempotency.ConcludedAccepted)
	h.wantState(s, absent)
	if o := h.observed.so(); len(o.late) != 1 {
		t.Errorf("observed %+v, want the late acceptance", o)
	}
	h.wantRecordsLost(0)
}

// With on_uncertain resubmit a repeat takes an unknown outcome over, and not an
// attempt that this engine knows to be running, whatever its lease.
func TestNoTakeOverOfOwnAttempt(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	h.clock.advance(time.Hour)
	h.wantState(s, idempotency.Uncertain)
	h.wantProblem(policy(resubmit), s, idempotency.CodeInProgress)
	waiters := h.waiters(5, patient(resubmit), s)
	h.awaitWaiters(s, 5)
	claims := h.store.count("claim")
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	for _, w := range waiters {
		w.wantReplay("answer")
	}
	if n := h.store.count("claim") - claims; n > len(waiters) {
		t.Errorf("%d waiters asked %d times", len(waiters), n)
	}

	s = submitOf("k2")
	h.conclude(h.attempt(policy(), s), broken, idempotency.ConcludedUnknown)
	h.conclude(h.attempt(policy(resubmit), s), accepted("second"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "second")
	h.wantRecordsLost(0)
}

// An unknown outcome that waits to be stored may be taken over; it does not come
// back.
func TestTakeOverOfOwedOutcome(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	h.store.spoil("uncertain", first(1, refused))
	h.conclude(a, broken, idempotency.ConcludedUnknown)
	h.clock.advance(time.Hour) // its lease is over
	b := h.attempt(policy(resubmit), s)
	await(t, "the outcome to be tried again", func() bool { return h.store.count("uncertain") >= 2 })
	h.wantState(s, idempotency.InProgress)
	h.conclude(b, accepted("answer"), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, "answer")
}

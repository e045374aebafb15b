package idempotency_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

func (h *harness) forget(f idempotency.Forgetting) (idempotency.State, error) {
	return h.engine.Forget(context.Background(), f)
}

// What an operator has forgotten is submitted again, whatever the record said. A
// record whose attempt is alive stays.
func TestForget(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	if _, err := h.forget(idempotency.Forgetting{ID: s.ID}); !errors.Is(err, idempotency.ErrNoRecord) {
		t.Errorf("without a record Forget gave %v", err)
	}
	a := h.attempt(policy(), s)
	_, err := h.forget(idempotency.Forgetting{ID: s.ID})
	wantStateError(t, err, idempotency.InProgress)
	h.wantState(s, idempotency.InProgress)
	h.conclude(a, accepted(`{"error":"no"}`), idempotency.ConcludedAccepted)
	if state, err := h.forget(idempotency.Forgetting{ID: s.ID}); err != nil || state != idempotency.Completed {
		t.Fatalf("Forget gave %s, %v", state, err)
	}
	h.wantState(s, absent)

	// Unknown, and after the end of a lease. An acceptance that comes late is
	// reported, and changes nothing.
	h.conclude(h.attempt(policy(), s), broken, idempotency.ConcludedUnknown)
	if state, err := h.forget(idempotency.Forgetting{ID: s.ID}); err != nil || state != idempotency.Uncertain {
		t.Fatalf("Forget gave %s, %v", state, err)
	}
	late := h.attempt(policy(), s)
	h.clock.advance(time.Hour)
	if state, err := h.forget(idempotency.Forgetting{ID: s.ID}); err != nil || state != idempotency.Uncertain {
		t.Fatalf("Forget gave %s, %v", state, err)
	}
	h.conclude(late, accepted("late"), idempotency.ConcludedAccepted)
	h.wantState(s, absent)
	if o := h.observed.so(); !slices.Equal(o.late, []idempotency.RecordID{s.ID}) {
		t.Errorf("observed %+v, want the late acceptance", o)
	}
}

// What the operator has seen is what is forgotten, and nothing that it has become.
func TestForgetWhatWasSeen(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	h.clock.advance(time.Hour)
	seen := h.lookup(s).Record.Token
	// The acceptance of the same attempt comes after the look.
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	_, err := h.forget(idempotency.Forgetting{ID: s.ID, Attempt: &seen, State: idempotency.Uncertain})
	wantStateError(t, err, idempotency.Completed)
	other := idempotency.NewToken()
	digest := idempotency.DigestOf([]byte("x"))
	for name, f := range map[string]idempotency.Forgetting{
		"another attempt": {ID: s.ID, Attempt: &other},
		"unreadable":      {ID: s.ID, Unreadable: true},
		"another value":   {ID: s.ID, Seen: &digest},
	} {
		if _, err := h.forget(f); !errors.Is(err, idempotency.ErrAnotherAttempt) && !errors.Is(err, idempotency.ErrChanged) {
			t.Errorf("%s: Forget gave %v", name, err)
		}
	}
	h.wantReplay(s, 202, "answer")
	if _, err := h.forget(idempotency.Forgetting{ID: s.ID, Attempt: &seen, State: idempotency.Completed}); err != nil {
		t.Fatal(err)
	}
	h.wantState(s, absent)
}

// It becomes something else between the look and the removal.
func TestForgetOvertaken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		by    func(h *harness, s idempotency.Submit, first *idempotency.Attempt)
		check func(t *testing.T, err error)
		after idempotency.State
	}{
		{"by a new attempt", func(h *harness, s idempotency.Submit, _ *idempotency.Attempt) {
			other := h.gateway()
			other.conclude(other.attempt(policy(resubmit), s), broken, idempotency.ConcludedUnknown)
		}, func(t *testing.T, err error) {
			if !errors.Is(err, idempotency.ErrChanged) {
				t.Errorf("Forget gave %v", err)
			}
		}, idempotency.Uncertain},
		{"by late truth", func(h *harness, _ idempotency.Submit, first *idempotency.Attempt) {
			h.conclude(first, accepted("late"), idempotency.ConcludedAccepted)
		}, func(t *testing.T, err error) {
			if !errors.Is(err, idempotency.ErrChanged) {
				t.Errorf("Forget gave %v", err)
			}
		}, idempotency.Completed},
		{"by another operator", func(h *harness, s idempotency.Submit, _ *idempotency.Attempt) {
			if err := h.decide(s, nil); err != nil {
				t.Error(err)
			}
		}, func(t *testing.T, err error) {
			if !errors.Is(err, idempotency.ErrNoRecord) {
				t.Errorf("Forget gave %v", err)
			}
		}, absent},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			attempt := h.attempt(policy(), s)
			h.clock.advance(time.Hour)
			h.store.spoil("forget", first(1, func(ctx context.Context, apply func(context.Context) error) error {
				test.by(h, s, attempt)
				return apply(ctx)
			}))
			_, err := h.forget(idempotency.Forgetting{ID: s.ID})
			test.check(t, err)
			h.wantState(s, test.after)
			if test.after != idempotency.Completed {
				h.conclude(attempt, broken, idempotency.ConcludedUnknown)
			}
		})
	}
}

// What nobody can read is forgotten: what the store does not understand, and
// details that are no details or under a key that is gone. A running attempt's
// lease protects its record there, too.
func TestForgetUnreadable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "idempotency.db")
	h := newHarness(t, func(_ *idempotency.EngineConfig, c *embedded.Config) { c.Path = path })
	record := func(state idempotency.State, lease time.Duration) []byte {
		now := h.clock.Now()
		return marshal(t, idempotency.Record{
			State: state, CreatedAt: now, ChangedAt: now, LeaseUntil: now.Add(lease), Retention: time.Hour, Payload: []byte("s3cret"),
		})
	}
	for key, value := range map[string][]byte{
		"header": []byte("x"), "completed": record(idempotency.Completed, 0), "over": record(idempotency.InProgress, 0),
		"running": record(idempotency.InProgress, time.Hour),
	} {
		putValue(t, path, submitOf(key).ID, value)
	}
	for _, key := range []string{"header", "completed", "over", "running"} {
		s := submitOf(key)
		_, err := h.engine.Lookup(context.Background(), nil, s.ID)
		var unreadable *idempotency.UnreadableError
		if !errors.As(err, &unreadable) {
			t.Fatalf("%s: Lookup gave %v", key, err)
		}
		another := idempotency.DigestOf([]byte("another"))
		if _, err := h.forget(idempotency.Forgetting{ID: s.ID, Seen: &another}); !errors.Is(err, idempotency.ErrChanged) {
			t.Errorf("%s: with another value in mind Forget gave %v", key, err)
		}
		if _, err := h.forget(idempotency.Forgetting{ID: s.ID, State: idempotency.Completed}); !errors.Is(err, idempotency.ErrChanged) {
			t.Errorf("%s: with a state in mind Forget gave %v", key, err)
		}
		state, err := h.forget(idempotency.Forgetting{ID: s.ID, Unreadable: true, Seen: &unreadable.Seen})
		if key == "running" {
			wantStateError(t, err, idempotency.InProgress)
			continue
		}
		if err != nil || state != 0 {
			t.Fatalf("%s: Forget gave %s, %v", key, state, err)
		}
		h.conclude(h.attempt(policy(), s), accepted("answer"), idempotency.ConcludedAccepted)
		h.wantReplay(s, 202, "answer")
	}
}

// A record under a key that is gone.
func TestForgetWithoutItsKey(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	h.conclude(h.attempt(policy(under(ringOf(t, 1))), s), accepted("answer"), idempotency.ConcludedAccepted)
	if state, err := h.forget(idempotency.Forgetting{ID: s.ID, Keyring: ringOf(t, 2)}); err != nil || state != 0 {
		t.Fatalf("Forget gave %s, %v", state, err)
	}
	h.wantState(s, absent)
	h.conclude(h.attempt(policy(under(ringOf(t, 1))), s), accepted("answer"), idempotency.ConcludedAccepted)
	if state, err := h.forget(idempotency.Forgetting{ID: s.ID, Keyring: ringOf(t, 1)}); err != nil || state != idempotency.Completed {
		t.Fatalf("Forget gave %s, %v", state, err)
	}
}

func TestForgetStoreErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault     fault
		after     idempotency.State
		isRefused bool
	}{
		"refused":      {refused, idempotency.Uncertain, true},
		"request lost": {requestLost, idempotency.Uncertain, false},
		"reply lost":   {replyLost, absent, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			h.conclude(h.attempt(policy(), s), broken, idempotency.ConcludedUnknown)
			h.store.spoil("forget", first(1, test.fault))
			_, err := h.forget(idempotency.Forgetting{ID: s.ID})
			if !errors.Is(err, idempotency.ErrStoreUnavailable) || errors.Is(err, idempotency.ErrNotApplied) != test.isRefused {
				t.Errorf("Forget gave %v", err)
			}
			if n := h.store.count("forget"); n != 1 {
				t.Errorf("it was sent %d times", n)
			}
			h.wantState(s, test.after)
			h.store.spoil("get", first(1, test.fault))
			if _, err := h.forget(idempotency.Forgetting{ID: s.ID}); !errors.Is(err, idempotency.ErrStoreUnavailable) || !errors.Is(err, idempotency.ErrNotApplied) {
				t.Errorf("a record that could not be looked up gave %v", err)
			}
		})
	}
}

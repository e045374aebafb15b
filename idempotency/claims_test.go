package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

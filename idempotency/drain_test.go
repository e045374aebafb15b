package idempotency_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

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

package redis_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// countedStore counts the calls of Renew, each of which is one pipeline, and
// the renewals in them.
type countedStore struct {
	*redis.Store
	calls, renewals atomic.Int64
}

func (s *countedStore) Renew(ctx context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	s.calls.Add(1)
	s.renewals.Add(int64(len(renewals)))
	return s.Store.Renew(ctx, renewals)
}

// lostLeases is an Observer that counts what must not happen.
type lostLeases struct{ lost, errors atomic.Int64 }

func (*lostLeases) StoreCall(string, time.Duration, error)           {}
func (l *lostLeases) StoreError(string, idempotency.RecordID, error) { l.errors.Add(1) }
func (l *lostLeases) LeaseLost(idempotency.RecordID)                 { l.lost.Add(1) }
func (*lostLeases) LateAcceptance(idempotency.RecordID, int)         {}
func (*lostLeases) RecordLost(idempotency.RecordID)                  {}
func (*lostLeases) GaveUp(string, idempotency.RecordID)              {}

// scriptCalls returns how many scripts the server has run.
func scriptCalls(t *testing.T, server *redistest.Server) (n int64) {
	t.Helper()
	info, err := server.Client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		for _, command := range []string{"eval", "evalsha"} {
			var calls int64
			if _, err := fmt.Sscanf(line, "cmdstat_"+command+":calls=%d,", &calls); err == nil {
				n += calls
			}
		}
	}
	return n
}

// 1,000 attempts keep their leases in a few round trips per lease, and cost
// nothing when they have ended.
func TestThousandAttempts(t *testing.T) {
	server := redistest.Start(t)
	store := &countedStore{Store: newStore(t, redis.Config{Addresses: []string{server.Address}, Timeout: 30 * time.Second})}
	observer := &lostLeases{}
	engine := idempotency.NewEngine(idempotency.EngineConfig{Store: store, StoreTimeout: 30 * time.Second, Observer: observer})
	const (
		attempts = 1000
		lease    = 1500 * time.Millisecond
		leases   = 2
		perCall  = 256        // renewals in one round trip, at most
		together = lease / 10 // what is due within it is renewed along
		apart    = lease/3 - together
	)
	policy := idempotency.DefaultPolicy()
	policy.Lease = lease

	// They begin at different moments of a lease, like real ones.
	began := time.Now()
	tick := time.NewTicker(lease / attempts)
	defer tick.Stop()
	running := make(chan *idempotency.Attempt, attempts)
	var next atomic.Int64
	var wg sync.WaitGroup
	const callers = 50
	for range callers {
		wg.Go(func() {
			for n := next.Add(1); n <= attempts; n = next.Add(1) {
				<-tick.C
				a, err := engine.Begin(context.Background(), policy, idempotency.Submit{
					ID: idempotency.NewRecordID("", nil, idempotency.Key(fmt.Sprint(n))),
				})
				if err != nil || a.Attempt == nil {
					t.Errorf("Begin gave %+v, %v", a, err)
					return
				}
				running <- a.Attempt
			}
		})
	}
	wg.Wait()
	close(running)
	if t.Failed() {
		t.FailNow()
	}
	allRun := time.Now()
	await(t, "some leases to pass", func() bool { return time.Since(allRun) > leases*lease })
	calls, renewals, elapsed := store.calls.Load(), store.renewals.Load(), time.Since(began)
	t.Logf("%d attempts in %s: %d renewals in %d round trips, %.0f round trips per second",
		attempts, elapsed, renewals, calls, float64(calls)/elapsed.Seconds())
	if n := engine.InFlight(); n != attempts {
		t.Errorf("%d attempts are in flight, want %d", n, attempts)
	}
	if lost, failed := observer.lost.Load(), observer.errors.Load(); lost != 0 || failed != 0 {
		t.Errorf("%d leases were lost, and %d calls failed", lost, failed)
	}
	if atLeast := int64(2 * attempts * leases); renewals < atLeast {
		t.Errorf("%d renewals in %d leases of %d attempts", renewals, leases, attempts)
	}
	if bound := int64(attempts * (elapsed/apart + 1)); renewals > bound {
		t.Errorf("%d renewals in %s, want at most %d", renewals, elapsed, bound)
	}
	if bound := int64((attempts/perCall + 1) * (elapsed/together + 2)); calls > bound {
		t.Errorf("%d round trips in %s, want at most %d", calls, elapsed, bound)
	}

	for range callers {
		wg.Go(func() {
			for a := range running {
				a.Conclude(idempotency.Result{Status: 202, Whole: true})
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if alive, unstored := engine.Drain(ctx); len(alive)+len(unstored) > 0 {
		t.Fatalf("%d attempts and %d outcomes are left", len(alive), len(unstored))
	}

	// A claim and a completion for each, the renewals, and nothing sent twice.
	// A script that the server does not know yet is sent again by its source:
	// each of the callers may meet that once for each of the two.
	scripts := scriptCalls(t, server)
	want := 2*attempts + store.renewals.Load()
	if scripts < want || scripts > want+2*callers+perCall {
		t.Errorf("the server ran %d scripts, want %d", scripts, want)
	}
	ended := time.Now()
	await(t, "a lease to pass", func() bool { return time.Since(ended) > lease })
	if more := scriptCalls(t, server) - scripts; more != 0 {
		t.Errorf("%d scripts were run after all attempts had ended", more)
	}
}

// await polls until the condition holds, for at most a minute.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

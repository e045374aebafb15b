package idempotency_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// A census is taken when somebody asks, at most once a minute, and nobody waits
// for it.
func TestCensus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		scans := 0
		var gate chan struct{}
		store := &counted{scan: func(ctx context.Context) (idempotency.ScanPage, error) {
			scans++
			if gate != nil {
				select {
				case <-gate:
				case <-ctx.Done():
					return idempotency.ScanPage{}, ctx.Err()
				}
			}
			return idempotency.ScanPage{Headers: []idempotency.Header{
				{ID: "a", Record: idempotency.Record{State: idempotency.Uncertain}},
				{ID: "b", Record: idempotency.Record{State: idempotency.Completed}},
				{ID: "c", Record: idempotency.Record{State: idempotency.InProgress}}, // its lease is over
				{ID: "d", Record: idempotency.Record{State: idempotency.InProgress, LeaseUntil: time.Now().Add(24 * time.Hour)}},
			}[:min(4, scans*2)]}, nil
		}}
		engine := idempotency.NewEngine(idempotency.EngineConfig{Store: store})
		want := func(when string, n int, counts map[idempotency.State]int) {
			t.Helper()
			if got := engine.Census(); !maps.Equal(got, counts) {
				t.Errorf("%s: the census is %v, want %v", when, got, counts)
			}
			synctest.Wait()
			if scans != n {
				t.Errorf("%s: %d scans, want %d", when, scans, n)
			}
		}
		first := map[idempotency.State]int{idempotency.InProgress: 0, idempotency.Completed: 1, idempotency.Uncertain: 1}
		second := map[idempotency.State]int{idempotency.InProgress: 1, idempotency.Completed: 1, idempotency.Uncertain: 2}
		synctest.Wait()
		if scans != 0 {
			t.Error("a census is taken of which nobody has asked")
		}
		want("at first", 1, nil)
		want("soon", 1, first)
		time.Sleep(59 * time.Second)
		want("before the minute", 1, first)
		time.Sleep(time.Second)
		want("after the minute", 2, first)
		want("then", 2, second)

		// One that takes long delays the next, and is not begun twice.
		gate = make(chan struct{})
		time.Sleep(time.Minute)
		want("slow", 3, second)
		time.Sleep(400 * time.Millisecond)
		want("while it is taken", 3, second)
		close(gate)
		synctest.Wait()
		want("when it is there", 3, second)

		// A store that fails keeps the last one, for an hour.
		gate = make(chan struct{}) // each scan times out
		time.Sleep(time.Minute)
		want("failing", 4, second)
		time.Sleep(50 * time.Minute)
		want("failing for long", 5, second)
		time.Sleep(10 * time.Minute)
		want("too old", 6, nil)

		// The end does not wait for the store, and no census comes after it.
		time.Sleep(time.Minute)
		want("at the end", 7, nil)
		engine.Close()
		if store.closed {
			t.Error("the store is closed, and others may work on it")
		}
		time.Sleep(time.Hour)
		want("after the end", 7, nil)
	})
}

// counted is a store that can only be counted.
type counted struct {
	idempotency.Store
	scan   func(context.Context) (idempotency.ScanPage, error)
	closed bool
}

func (*counted) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (s *counted) Scan(ctx context.Context, _ string) (idempotency.ScanPage, error) {
	return s.scan(ctx)
}

func (s *counted) Close() error {
	s.closed = true
	return nil
}

// A store is at work with counting for a tenth of the time at most.
func TestCensusLeavesTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pages, each = 50, 400 * time.Millisecond
		scans := 0
		engine := idempotency.NewEngine(idempotency.EngineConfig{Store: &counted{scan: func(context.Context) (idempotency.ScanPage, error) {
			time.Sleep(each)
			scans++
			page := idempotency.ScanPage{Headers: []idempotency.Header{{ID: "a", Record: idempotency.Record{State: idempotency.Completed}}}}
			if scans%pages != 0 {
				page.Next = "more"
			}
			return page, nil
		}}})
		began := time.Now()
		engine.Census()
		time.Sleep(pages * each)
		synctest.Wait()
		if n := engine.Census()[idempotency.Completed]; n != pages {
			t.Errorf("the census has %d records, want %d", n, pages)
		}
		for time.Since(began) < 10*pages*each-time.Second {
			time.Sleep(time.Second)
			engine.Census()
		}
		synctest.Wait()
		if scans != pages {
			t.Errorf("after %s another census has begun", time.Since(began))
		}
		time.Sleep(time.Second)
		engine.Census()
		time.Sleep(pages * each)
		synctest.Wait()
		if scans != 2*pages {
			t.Errorf("%d scans, want %d", scans, 2*pages)
		}
		engine.Close()
	})
}

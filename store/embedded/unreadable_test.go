package embedded_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// A record that cannot be read ends when its retention must be over, whenever it
// last changed, and its key is free again then. Until then it is in the way.
func TestUnreadableRecordEnds(t *testing.T) {
	for name, test := range map[string]struct {
		strip bool
		keep  time.Duration // after the first look
	}{
		"with its retention":        {false, time.Minute + time.Second},
		"of a version without keep": {true, 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &clock{now: time.Now()}
			store := embedded.New(embedded.Config{
				Path: filepath.Join(t.TempDir(), "idempotency.db"), Now: clock.Now, SweepInterval: time.Hour,
			})
			t.Cleanup(func() { _ = store.Close() })
			ctx := context.Background()
			c := claimOf("k")
			c.Lease, c.Retention, c.NotAfter = time.Second, time.Minute, clock.Now().Add(100*time.Hour)
			if _, err := store.Claim(ctx, c); err != nil {
				t.Fatal(err)
			}
			if test.strip {
				must(t, embedded.StripExpiry(store))
			}
			must(t, embedded.Corrupt(store, c.ID, []byte("no record")))
			wantUnreadable := func() {
				t.Helper()
				embedded.Sweep(store)
				if _, err := store.Claim(ctx, c); !errors.Is(err, idempotency.ErrUnreadable) {
					t.Errorf("a claim gave %v, want ErrUnreadable", err)
				}
				if got := embedded.Stored(store); got != [2]int{1, 1} {
					t.Errorf("the file has %v records and expiry entries, want one of each", got)
				}
			}
			clock.Advance(time.Minute - time.Millisecond)
			wantUnreadable()
			clock.Advance(time.Millisecond)
			wantUnreadable() // it may have been completed until now
			clock.Advance(test.keep - time.Millisecond)
			wantUnreadable()
			clock.Advance(time.Millisecond)
			embedded.Sweep(store)
			if got := embedded.Stored(store); got != [2]int{0, 0} {
				t.Errorf("the file has %v records and expiry entries, want none", got)
			}
			if reply, err := store.Claim(ctx, c); err != nil || reply.Verdict != idempotency.Claimed {
				t.Errorf("a claim gave %+v, %v", reply, err)
			}
		})
	}
}

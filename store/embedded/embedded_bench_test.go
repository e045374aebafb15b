package embedded_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// What a submit costs: the claim of a new key, alone and among others, and the
// replay of a completed one.
func BenchmarkClaim(b *testing.B) {
	open := func(b *testing.B) *embedded.Store {
		store := embedded.New(embedded.Config{Path: filepath.Join(b.TempDir(), "idempotency.db")})
		b.Cleanup(func() { _ = store.Close() })
		return store
	}
	ctx := context.Background()
	var n atomic.Int64
	claim := func(b *testing.B, store *embedded.Store) {
		if _, err := store.Claim(ctx, claimOf(fmt.Sprint(n.Add(1)))); err != nil {
			b.Error(err)
		}
	}
	b.Run("new", func(b *testing.B) {
		store := open(b)
		for b.Loop() {
			claim(b, store)
		}
	})
	b.Run("new, 64 at a time", func(b *testing.B) {
		store := open(b)
		b.SetParallelism(32)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				claim(b, store)
			}
		})
	})
	b.Run("completed", func(b *testing.B) {
		store := open(b)
		c := claimOf("k")
		if _, err := store.Claim(ctx, c); err != nil {
			b.Fatal(err)
		}
		if _, err := store.Complete(ctx, idempotency.Ending{ID: c.ID, Token: c.Token, Payload: make([]byte, 1<<10)}); err != nil {
			b.Fatal(err)
		}
		c.Token = idempotency.NewToken()
		for b.Loop() {
			reply, err := store.Claim(ctx, c)
			if err != nil || reply.Verdict != idempotency.AlreadyCompleted {
				b.Fatalf("Claim: %+v, %v", reply, err)
			}
		}
	})
}

package idempotency_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// replayStore answers every claim with one record, so that what is measured is
// the engine alone.
type replayStore struct {
	idempotency.Store
	record idempotency.Record
}

func (s replayStore) Claim(context.Context, idempotency.Claim) (idempotency.ClaimReply, error) {
	r := s.record
	r.Payload = bytes.Clone(r.Payload) // as a store does
	return idempotency.ClaimReply{Verdict: idempotency.AlreadyCompleted, Record: r, Now: r.ChangedAt}, nil
}

// What a replay costs the engine, with and without encryption.
func BenchmarkReplay(b *testing.B) {
	for _, size := range []int{200, 16 << 10, 256 << 10} {
		for _, ring := range []struct {
			name string
			ring *idempotency.Keyring
		}{{"plain", nil}, {"encrypted", ringOf(b, 1)}} {
			b.Run(fmt.Sprintf("%d/%s", size, ring.name), func(b *testing.B) {
				store := embedded.New(embedded.Config{Path: filepath.Join(b.TempDir(), "idempotency.db")})
				p, s := policy(under(ring.ring)), submitOf("k")
				engine := idempotency.NewEngine(idempotency.EngineConfig{Store: store, StoreTimeout: patience})
				a, err := engine.Begin(b.Context(), p, s)
				if err != nil {
					b.Fatal(err)
				}
				a.Attempt.Conclude(accepted(strings.Repeat("x", size)))
				r, _, err := store.Get(b.Context(), s.ID)
				if err != nil {
					b.Fatal(err)
				}
				engine = idempotency.NewEngine(idempotency.EngineConfig{Store: replayStore{store, r}, StoreTimeout: patience})
				b.Cleanup(func() { _ = store.Close() })
				b.ReportAllocs()
				for b.Loop() {
					a, err := engine.Begin(b.Context(), p, s)
					if err != nil || a.Replay == nil {
						b.Fatal(a, err)
					}
				}
			})
		}
	}
}

package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A server that evicts, without strict: what a gateway works on it does not
// submit twice, and what comes of it is stored.
func TestEvictionDuringSubmits(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--maxmemory", "16mb", "--maxmemory-policy", "allkeys-lru")
	hold := newGate()
	p := startProvider(t, nil)
	p.now(p.holdUntil(hold))
	g := startGateway(t, p.url, options{store: "redis " + redis.Address, idempotency: "lease 1h"})
	const submits = 20
	key := func(i int) request { return request{key: fmt.Sprint("k", i), body: "x"} }
	var first [submits]<-chan answer
	for i := range submits {
		first[i] = g.sendLater(t, key(i))
	}
	p.awaitSubmits(t, submits)
	ctx := context.Background()
	junk := 0
	redistest.Await(t, "all records to be evicted", func() bool {
		for range 100 {
			junk++
			if err := redis.Client.Set(ctx, fmt.Sprint("junk", junk), strings.Repeat("x", 20_000), 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return len(redis.Client.Keys(ctx, "idempotency:*").Val()) == 0
	})
	for i := range junk {
		redis.Client.Del(ctx, fmt.Sprint("junk", i+1))
	}
	for i := range submits {
		if got := g.send(t, key(i)); got.code() != "idempotency_key_in_progress" {
			p.want(t, submits)
			t.Errorf("repeat %d got %v", i, got)
		}
	}
	p.want(t, submits)
	hold.open()
	for i := range submits {
		want := <-first[i]
		if got := g.send(t, key(i)); !got.replayed() || got.body != want.body {
			t.Errorf("repeat %d got %v, want %v", i, got, want)
		}
	}
	p.want(t, submits)
}

package integration

import (
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// B10: clocks that are an hour apart make no difference. Gateways know each
// other only through the store, so it is the store's clock that is moved: were
// any gateway's own clock to decide about a lease, it would be an hour off.
func TestClocksApart(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			redis := redistest.StartApart(t, by)
			now, err := redis.Client.Time(t.Context()).Result()
			if off := time.Until(now); err != nil || (off-by).Abs() > time.Minute {
				t.Fatalf("the clock of Redis is %s off, %v", off, err)
			}
			hold := newGate()
			p := startProvider(t, nil)
			o := options{store: "redis " + redis.Address, idempotency: "lease 1s"}
			dies, lives := startGateway(t, p.url, o), startGateway(t, p.url, o)
			first := dies.send(t, request{key: "stored", body: "x"})
			p.want(t, 1)
			if got := lives.send(t, request{key: "stored", body: "x"}); first.status != 202 || !got.replayed() || got.body != first.body {
				t.Errorf("first: %v, again: %v", first, got)
			}
			// A gateway that reckoned by its own clock would be told that it is late.
			lives.send(t, request{key: "another", body: "x"})
			p.want(t, 2)
			if n := lives.scrape(t)[storeCalls("claim")]; n != 2 {
				t.Errorf("two claims took %v calls of the store", n)
			}
			p.now(p.holdUntil(hold))
			dies.sendLater(t, request{key: "k", body: "x"})
			p.awaitSubmits(t, 3)
			over := time.Now().Add(1500 * time.Millisecond)
			await(t, "more than a lease", func() bool {
				if got := lives.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_key_in_progress" || got.header.Get("Retry-After") != "1" {
					t.Fatalf("while the attempt is alive: %v", got)
				}
				return time.Now().After(over)
			})
			dies.kill(t)
			var got answer
			await(t, "the end of the lease", func() bool {
				got = lives.send(t, request{key: "k", body: "x"})
				return got.code() != "idempotency_key_in_progress"
			})
			p.want(t, 3)
			if got.code() != "idempotency_outcome_unknown" {
				t.Errorf("after the lease: %v", got)
			}
		})
	}
}

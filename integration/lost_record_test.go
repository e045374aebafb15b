package integration

import (
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A Redis server whose clock leaps takes what it has acknowledged for expired. A
// gateway that is working on such a submit does not send it again, and what came
// of it is in the store afterwards, also if nobody repeats it meanwhile.
func TestLostRecordOfAnotherTime(t *testing.T) {
	t.Parallel()
	for name, repeated := range map[string]bool{"repeated": true, "nobody repeats": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--appendfsync", "always")
			p, hold := startHolding(t)
			o := options{store: "redis " + redis.Address}
			g, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
			r := request{key: "k", body: "x"}
			first := g.sendLater(t, r)
			p.awaitSubmits(t, 1)
			redis.Kill(t)
			redis.MoveClock(t, 25*time.Hour)
			redis.Run(t)
			if repeated {
				awaitStore(t, g, r, "idempotency_key_in_progress")
				p.want(t, 1)
			}
			hold.open()
			accepted := <-first
			// The outcome may wait for the next try of a store that was away.
			await(t, "the outcome to be stored", func() bool { return g.scrape(t)[unstored] == 0 })
			for _, gateway := range []*gateway{g, other} {
				if got := awaitStore(t, gateway, r, ""); got.body != accepted.body || !got.replayed() {
					t.Errorf("in the end %v, and the first got %v", got, accepted)
				}
			}
			p.want(t, 1)
		})
	}
}

// awaitStore repeats a submit until its answer is not that the store is away,
// and checks the code.
func awaitStore(t *testing.T, g *gateway, r request, code string) (got answer) {
	t.Helper()
	await(t, "the store", func() bool {
		got = g.send(t, r)
		return got.code() != "idempotency_store_unavailable"
	})
	if got.err != nil || got.code() != code {
		t.Errorf("the repeat got %v, want the code %q", got, code)
	}
	return got
}

// Another request under the key of a submit that is running is told so, also when
// the store has lost the record.
func TestLostRecordReuse(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	hold := newGate()
	p := startProvider(t, nil)
	p.now(p.holdUntil(hold))
	g := startGateway(t, p.url, options{store: "redis " + redis.Address})
	first := g.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	if err := redis.Client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if got := g.send(t, request{key: "k", body: "y"}); got.code() != "idempotency_key_reuse" {
		t.Errorf("another body got %v", got)
	}
	p.want(t, 1)
	hold.open()
	accepted := <-first
	await(t, "the replay", func() bool {
		got := g.send(t, request{key: "k", body: "x"})
		return got.replayed() && got.body == accepted.body
	})
	p.want(t, 1)
}

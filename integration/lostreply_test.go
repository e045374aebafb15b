package integration

import (
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// C2: a claim that was executed and whose reply is lost goes on, or leaves the
// key free; a completion whose reply is lost is stored.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	network := startNetwork(t, redis.Address)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + network.address, idempotency: "lease 1m"})
	g.send(t, request{key: "warm", body: "x"}) // the clock is asked for, the scripts are loaded
	p.want(t, 1)

	network.loseReplies(1)
	first := g.send(t, request{key: "one", body: "x"})
	p.want(t, 2)
	if first.status != 202 {
		t.Errorf("one reply lost: %v", first)
	}

	network.loseReplies(2)
	got := g.send(t, request{key: "two", body: "x"})
	p.want(t, 2)
	if got.status != 503 || got.code() != "idempotency_store_unavailable" {
		t.Errorf("two replies lost: %v", got)
	}
	// Not a long in-progress: the lease is a minute, and the key is free long
	// before await gives up.
	await(t, "the key to be free", func() bool {
		got = g.send(t, request{key: "two", body: "x"})
		return got.code() == ""
	})
	p.want(t, 3)
	if got.status != 202 {
		t.Errorf("again: %v", got)
	}

	hold := newGate()
	p.now(p.holdUntil(hold))
	later := g.sendLater(t, request{key: "three", body: "x"})
	p.awaitSubmits(t, 4)
	network.loseReplies(1)
	hold.open()
	completed := <-later
	if completed.status != 202 {
		t.Errorf("the completion's reply lost: %v", completed)
	}
	if again := g.send(t, request{key: "three", body: "x"}); again.body != completed.body || !again.replayed() {
		t.Errorf("again: %v", again)
	}
	p.want(t, 4)
}

package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

const recordLost = "the store had lost the record of a submit that this gateway works on"

// losses are ways in which a Redis server forgets what it has.
var losses = map[string]func(t *testing.T, redis *redistest.Server){
	"flushed": func(t *testing.T, redis *redistest.Server) {
		if err := redis.Client.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	},
	"restarted empty": func(t *testing.T, redis *redistest.Server) {
		redis.Kill(t)
		redis.Run(t)
	},
	// As when the server's clock is a day ahead at once.
	"expired": func(t *testing.T, redis *redistest.Server) {
		ctx := context.Background()
		keys, err := redis.Client.Keys(ctx, "idempotency:*").Result()
		if err != nil || len(keys) == 0 {
			t.Fatalf("records %v, %v", keys, err)
		}
		for _, key := range keys {
			if err := redis.Client.PExpire(ctx, key, time.Millisecond).Err(); err != nil {
				t.Fatal(err)
			}
		}
		await(t, "the records to expire", func() bool { return redis.Client.Exists(ctx, keys...).Val() == 0 })
	},
}

// startForgetful runs a Redis server that keeps nothing over a restart.
func startForgetful(t *testing.T) *redistest.Server {
	return redistest.Start(t, "--appendonly", "no")
}

// E4: the store forgets a submit while its gateway waits for the answer. The
// repeat is not sent, and gets the answer in the end.
func TestStoreForgetsRunningSubmit(t *testing.T) {
	t.Parallel()
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := startForgetful(t)
			hold := newGate()
			p := startProvider(t, nil)
			p.now(p.holdUntil(hold))
			o := options{store: "redis " + redis.Address}
			g, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
			r := request{key: "k", body: "x"}
			done := g.sendLater(t, r)
			p.awaitSubmits(t, 1)
			lose(t, redis)
			var again answer
			await(t, "the store to answer", func() bool { again = g.send(t, r); return again.status != 503 })
			p.want(t, 1)
			if again.code() != "idempotency_key_in_progress" {
				t.Errorf("the repeat got %v", again)
			}
			if got := other.send(t, r); got.code() != "idempotency_key_in_progress" {
				t.Errorf("then a repeat at another gateway got %v", got)
			}
			if got := g.send(t, request{key: "k", body: "y"}); got.code() != "idempotency_key_reuse" {
				t.Errorf("another body got %v", got)
			}
			g.awaitLog(t, recordLost)
			hold.open()
			first := <-done
			if first.status != 202 {
				t.Errorf("the first caller got %v", first)
			}
			for _, g := range []*gateway{g, other} {
				if got := g.send(t, r); !got.replayed() || got.body != first.body {
					t.Errorf("in the end: %v, want %v", got, first)
				}
			}
			p.want(t, 1)
		})
	}
}

// The same for a duplicate that is held until the first is answered.
func TestStoreForgetsWhileDuplicatesWait(t *testing.T) {
	t.Parallel()
	redis := startForgetful(t)
	hold := newGate()
	p := startProvider(t, nil)
	p.now(p.holdUntil(hold))
	g := startGateway(t, p.url, options{store: "redis " + redis.Address, idempotency: "in_progress wait 25s"})
	r := request{key: "k", body: "x"}
	first := g.sendLater(t, r)
	p.awaitSubmits(t, 1)
	before := g.sendLater(t, r)
	losses["flushed"](t, redis)
	after := g.sendLater(t, r)
	await(t, "the second duplicate to be dealt with", func() bool {
		return p.count() > 1 || strings.Contains(g.log.String(), recordLost)
	})
	p.want(t, 1)
	hold.open()
	want := <-first
	for _, duplicate := range []<-chan answer{before, after} {
		if got := <-duplicate; got.status != 202 || got.body != want.body {
			t.Errorf("a duplicate got %v, want %v", got, want)
		}
	}
	p.want(t, 1)
}

// Nobody repeats while the store is empty: the acceptance makes its record anew,
// and a renewal does so before it, for other gateways.
func TestForgottenSubmitIsPutBack(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]string{"by its acceptance": "lease 1h", "by a renewal": "lease 600ms"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := startForgetful(t)
			hold := newGate()
			p := startProvider(t, nil)
			p.now(p.holdUntil(hold))
			o := options{store: "redis " + redis.Address, idempotency: lease}
			g, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
			r := request{key: "k", body: "x"}
			done := g.sendLater(t, r)
			p.awaitSubmits(t, 1)
			losses["flushed"](t, redis)
			if name == "by a renewal" {
				g.awaitLog(t, recordLost)
				if got := other.send(t, r); got.code() != "idempotency_key_in_progress" {
					t.Errorf("a repeat at another gateway got %v", got)
				}
				p.want(t, 1)
			}
			hold.open()
			first := <-done
			if got := other.send(t, r); !got.replayed() || got.body != first.body {
				t.Errorf("again at another gateway: %v, want %v", got, first)
			}
			p.want(t, 1)
		})
	}
}

// C4, and the server that comes back has forgotten everything: the acceptance
// waits in the gateway, which tells it to the repeat.
func TestStoreForgetsWhileAcceptanceWaits(t *testing.T) {
	t.Parallel()
	redis := startForgetful(t)
	hold := newGate()
	p := startProvider(t, nil)
	p.now(p.holdUntil(hold))
	o := options{store: "redis " + redis.Address}
	g, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
	r := request{key: "k", body: "x"}
	done := g.sendLater(t, r)
	p.awaitSubmits(t, 1)
	redis.Kill(t)
	hold.open()
	first := <-done
	if first.status != 202 {
		t.Fatalf("the caller got %v", first)
	}
	for range 5 { // the pauses between tries grow
		if got := g.send(t, r); got.status != 503 {
			t.Errorf("without the store: %v", got)
		}
	}
	redis.Run(t)
	var again answer
	await(t, "the replay", func() bool { // in progress, while the record is made anew
		again = g.send(t, r)
		return again.status != 503 && again.code() != "idempotency_key_in_progress"
	})
	p.want(t, 1)
	if !again.replayed() || again.body != first.body {
		t.Errorf("again: %v, want %v", again, first)
	}
	await(t, "the outcome to be stored", func() bool { return g.scrape(t)[unstored] == 0 })
	if got := other.send(t, r); !got.replayed() || got.body != first.body {
		t.Errorf("again at another gateway: %v, want %v", got, first)
	}
	p.want(t, 1)
}

package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// waysToLoseAll are how a Redis server comes to know nothing of what it has
// acknowledged, or to take it for expired.
var waysToLoseAll = map[string]struct {
	options []string
	lose    func(t *testing.T, redis *redistest.Server)
}{
	"flushed": {nil, func(t *testing.T, redis *redistest.Server) {
		if err := redis.Client.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}},
	"restarted empty": {[]string{"--appendonly", "no"}, func(t *testing.T, redis *redistest.Server) {
		redis.Kill(t)
		redis.Run(t)
	}},
	"clock 25 hours ahead": {[]string{"--appendfsync", "always"}, func(t *testing.T, redis *redistest.Server) {
		redis.Kill(t)
		redis.MoveClock(t, 25*time.Hour)
		redis.Run(t)
	}},
}

// A gateway that is working on a submit does not send it again because its store
// has lost the record; and what came of it is in the store afterwards.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	for name, way := range waysToLoseAll {
		for _, repeated := range []bool{true, false} {
			test := name + ", nobody repeats"
			if repeated {
				test = name + ", repeated"
			}
			t.Run(test, func(t *testing.T) {
				t.Parallel()
				redis := redistest.Start(t, way.options...)
				hold := newGate()
				p := startProvider(t, nil)
				p.now(p.holdUntil(hold))
				o := options{store: "redis " + redis.Address}
				g, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
				r := request{key: "k", body: "x"}
				first := g.sendLater(t, r)
				p.awaitSubmits(t, 1)
				way.lose(t, redis)
				if repeated {
					for _, repeat := range []request{r, r} {
						awaitStore(t, g, repeat, "idempotency_key_in_progress")
					}
					p.want(t, 1)
					g.awaitLog(t, "the store had lost the record of a submit that this gateway ")
				}
				hold.open()
				accepted := <-first
				for _, gateway := range []*gateway{g, other} {
					// The outcome may wait for the next try of a store that was away.
					await(t, "the outcome to be stored", func() bool { return g.scrape(t)[unstored] == 0 })
					if got := awaitStore(t, gateway, r, ""); got.body != accepted.body || !got.replayed() {
						t.Errorf("in the end %v, and the first got %v", got, accepted)
					}
				}
				p.want(t, 1)
			})
		}
	}
}

// awaitAnswer repeats a submit until its answer is not that the store is away,
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

// An outcome that waits for a store, which comes back empty, is what repeats are
// told: an acceptance is replayed, and what is unknown stays unknown.
func TestLostRecordOfWaitingOutcome(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		behave behaviour
		code   string
	}{
		"an acceptance": {nil, ""},
		"unknown":       {hangUp("", true), "idempotency_outcome_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--appendonly", "no")
			p := startProvider(t, test.behave)
			g := startGateway(t, p.url, options{store: "redis " + redis.Address})
			hold := newGate()
			if test.behave == nil {
				p.now(p.holdUntil(hold))
			}
			r := request{key: "k", body: "x"}
			var first answer
			if test.behave == nil {
				later := g.sendLater(t, r)
				p.awaitSubmits(t, 1)
				redis.Kill(t)
				hold.open()
				first = <-later
			} else {
				first = g.send(t, r)
				redis.Kill(t)
			}
			p.want(t, 1)
			redis.Run(t)
			if test.behave == nil {
				if got := awaitStore(t, g, r, test.code); got.body != first.body || !got.replayed() {
					t.Errorf("the repeat got %v, and the first %v", got, first)
				}
				await(t, "the record", func() bool {
					records := g.list(t, "?state=completed").Records
					return len(records) == 1 && strings.Contains(first.body, records[0].JobID)
				})
				p.want(t, 1)
			}
		})
	}
}

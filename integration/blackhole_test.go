package integration

import (
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

var blackHoleFor = flag.Duration("blackhole.for", 30*time.Second, "how long Redis is silent in TestRedisBlackHole")

// Redis falls silent for half a minute under 200 submits per second. Nothing
// is sent, nothing piles up in the gateway, and afterwards everything is as it
// was: the keys that were turned away are free.
func TestRedisBlackHole(t *testing.T) {
	t.Parallel()
	const perSecond = 200
	redis := redistest.Start(t)
	toRedis := startNetwork(t, redis.Address)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + toRedis.address, proxy: "transport http {\nkeepalive 1s\n}"})

	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[string]int{}
	sent := 0
	var most usage
	// load sends at a fixed rate, whether or not answers come, and makes up for
	// what it missed.
	load := func(d time.Duration) {
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		began := time.Now()
		for n := range int(d.Seconds() * perSecond) {
			for due := began.Add(time.Duration(n) * time.Second / perSecond); time.Now().Before(due); {
				<-tick.C
			}
			key := fmt.Sprint("key-", sent)
			sent++
			wg.Go(func() {
				got := g.send(t, request{key: key, body: key})
				mu.Lock()
				defer mu.Unlock()
				if got.err != nil {
					t.Errorf("%s: %v", key, got.err)
				}
				codes[fmt.Sprint(got.status, " ", got.code())]++
			})
			if sent%perSecond == 0 {
				now := g.usage(t)
				most.goroutines, most.files = max(most.goroutines, now.goroutines), max(most.files, now.files)
			}
		}
	}
	// A busy machine may turn some away at any time, but never sends one of them.
	const accepted, turnedAway = "202 ", "503 idempotency_store_unavailable"
	check := func(alreadySent int) {
		t.Helper()
		wg.Wait()
		p.want(t, alreadySent+codes[accepted])
		for code := range codes {
			if code != accepted && code != turnedAway {
				t.Errorf("answers: %v", codes)
			}
		}
	}
	load(time.Second)
	check(0)
	before, acceptedBefore := g.usage(t), codes[accepted]

	toRedis.swallow()
	load(*blackHoleFor)
	check(0)
	t.Logf("%d submits, answered with %v; %+v before, at most %+v", sent, codes, before, most)
	if codes[accepted] != acceptedBefore {
		t.Errorf("%d submits were accepted meanwhile", codes[accepted]-acceptedBefore)
	}
	// What waits for a store time-out, twice, at a few goroutines each.
	if bound := before.goroutines + 5*2*perSecond; most.goroutines > bound {
		t.Errorf("%d goroutines, want at most %d", most.goroutines, bound)
	}

	toRedis.heal()
	probes := 0
	await(t, "a submit to go through", func() bool {
		probes++
		return g.send(t, request{key: fmt.Sprint("probe-", probes), body: "x"}).status == 202
	})
	g.awaitUsage(t, before)
	for _, n := range []int{perSecond + 1, sent / 2, sent - 1} {
		key := fmt.Sprint("key-", n)
		if got := g.send(t, request{key: key, body: key}); got.status != 202 || got.replayed() {
			t.Errorf("%s, which was turned away: %v", key, got)
		}
	}
	await(t, "a second without a submit that is turned away", func() bool {
		clear(codes)
		already := p.count()
		load(time.Second)
		check(already)
		return codes[turnedAway] == 0
	})
	p.checkAcceptances(t)
}

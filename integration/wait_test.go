package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// Duplicates are held and get the first's answer: on its gateway, where nothing
// is read meanwhile, and on another.
func TestWait(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p, hold := startHolding(t)
	o := options{store: "redis " + redis.Address, idempotency: "in_progress wait 20s\nlease 1m"}
	same, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
	r := request{key: "k", body: "x"}
	first := same.sendLater(t, r)
	p.awaitSubmits(t, 1)

	const duplicates = 10
	var waiting []<-chan answer
	for range duplicates {
		waiting = append(waiting, same.sendLater(t, r))
	}
	awaitWaiting(t, same, duplicates)
	reads := scriptsThatOnlyRead(t, redis)
	// A third of the lease goes by before anything is asked of Redis.
	quiet := time.Now().Add(500 * time.Millisecond)
	await(t, "half a second", func() bool { return time.Now().After(quiet) })
	if n := scriptsThatOnlyRead(t, redis) - reads; n != 0 {
		t.Errorf("%d reads while duplicates wait on the gateway of the first", n)
	}
	for range duplicates {
		waiting = append(waiting, other.sendLater(t, r))
	}
	awaitWaiting(t, other, duplicates)
	if got := other.send(t, request{key: "k", body: "y"}); got.code() != "idempotency_key_reuse" {
		t.Errorf("another body while the first runs: %v", got)
	}
	p.want(t, 1)
	hold.open()
	job := <-first
	for _, w := range waiting {
		if got := <-w; got.body != job.body || !got.replayed() {
			t.Errorf("a duplicate got %v, want the replay of %v", got, job)
		}
	}
	p.want(t, 1)
}

// When the first is refused one of those who wait submits, and the others go on
// waiting.
func TestWaitForRefused(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			refuse, accept := newGate(), newGate()
			p := startProvider(t, nil)
			p.now(func(w http.ResponseWriter, r *http.Request, n int, job func() string) {
				if n == 1 {
					refuse.wait(p)
					answerWith(429, nil, "slow down")(w, r, n, job)
					return
				}
				p.holdUntil(accept)(w, r, n, job)
			})
			g := startGateway(t, p.url, options{store: store.directive(t), idempotency: "in_progress wait 20s"})
			r := request{key: "k", body: "x"}
			first := g.sendLater(t, r)
			p.awaitSubmits(t, 1)
			const duplicates = 5
			answers := make(chan answer, duplicates)
			for range duplicates {
				go func() { answers <- g.send(t, r) }()
			}
			awaitWaiting(t, g, duplicates)
			refuse.open()
			if got := <-first; got.status != 429 {
				t.Errorf("the first: %v", got)
			}
			p.awaitSubmits(t, 2)
			awaitWaiting(t, g, duplicates-1)
			accept.open()
			replays := 0
			var bodies = map[string]bool{}
			for range duplicates {
				got := <-answers
				bodies[got.body] = true
				if got.replayed() {
					replays++
				}
			}
			p.want(t, 2)
			if replays != duplicates-1 || len(bodies) != 1 {
				t.Errorf("%d replays, answers %v", replays, bodies)
			}
		})
	}
}

// When the outcome of the first is unknown, all who wait are told so.
func TestWaitForUnknown(t *testing.T) {
	t.Parallel()
	hangs := newGate()
	p := startProvider(t, nil)
	p.now(func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
		hangs.wait(p)
		hangUp("", true)(w, r, n, accept)
	})
	o := options{store: "redis " + redistest.Start(t).Address, idempotency: "in_progress wait 20s"}
	same, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
	first := same.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	var waiting []<-chan answer
	for _, g := range []*gateway{same, same, other, other} {
		waiting = append(waiting, g.sendLater(t, request{key: "k", body: "x"}))
	}
	awaitWaiting(t, same, 2)
	awaitWaiting(t, other, 2)
	hangs.open()
	for _, w := range append(waiting, first) {
		if got := <-w; got.code() != "idempotency_outcome_unknown" {
			t.Errorf("got %v", got)
		}
	}
	p.want(t, 1)
}

// A gateway that dies while others wait for its answer leaves them with
// "unknown" when its lease is over.
func TestWaitForTheDead(t *testing.T) {
	t.Parallel()
	p, _ := startHolding(t)
	o := options{store: "redis " + redistest.Start(t).Address, idempotency: "in_progress wait 20s\nlease 1s"}
	dies, lives := startGateway(t, p.url, o), startGateway(t, p.url, o)
	dies.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	waiting := lives.sendLater(t, request{key: "k", body: "x"})
	awaitWaiting(t, lives, 1)
	dies.kill(t)
	if got := <-waiting; got.code() != "idempotency_outcome_unknown" {
		t.Errorf("got %v", got)
	}
	p.want(t, 1)
}

// Waiting ends with its time, and with the caller.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	p, hold := startHolding(t)
	g := startGateway(t, p.url, options{idempotency: "in_progress wait 300ms"})
	first := g.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 400 || got.code() != "idempotency_key_in_progress" || got.header.Get("Retry-After") == "" {
		t.Errorf("past the time: %v", got)
	}
	g.write(t, p.url, options{idempotency: "in_progress wait 1m"})
	g.reload(t)
	ctx, hangUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/videos", strings.NewReader("x"))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Idempotency-Key", "k")
			req.Header.Set("Authorization", "Bearer caller")
			req.Header.Set("Content-Type", "application/json")
			if res, err := http.DefaultTransport.RoundTrip(req); err == nil {
				_ = res.Body.Close()
				t.Errorf("a duplicate got %d", res.StatusCode)
			}
		})
	}
	awaitWaiting(t, g, 20)
	hangUp()
	wg.Wait()
	awaitWaiting(t, g, 0)
	hold.open()
	if got := <-first; got.status != 202 {
		t.Errorf("the first: %v", got)
	}
	p.want(t, 1)
}

// awaitWaiting waits until that many requests are held, by the stacks of the
// gateway's goroutines.
func awaitWaiting(t testing.TB, g *gateway, n int) {
	t.Helper()
	await(t, fmt.Sprint(n, " requests to be held"), func() bool {
		return g.stacksIn(t, "idempotency.(*Engine).awaitChange") == n
	})
}

// scriptsThatOnlyRead counts them: claims that were not granted, and reads.
func scriptsThatOnlyRead(t testing.TB, redis *redistest.Server) int {
	t.Helper()
	calls := commandCalls(t, redis)
	return calls["evalsha"] - calls["set"]
}

// A duplicate that has waited is known to be one: on_store_error forward does
// not send it when the store fails afterwards.
func TestWaitIsNotForwarded(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p, hold := startHolding(t)
	g := startGateway(t, p.url, options{store: "redis " + redis.Address, idempotency: "in_progress wait 20s\non_store_error forward"})
	r := request{key: "k", body: "x"}
	first := g.sendLater(t, r)
	p.awaitSubmits(t, 1)
	const duplicates = 5
	var waiting []<-chan answer
	for range duplicates {
		waiting = append(waiting, g.sendLater(t, r))
	}
	awaitWaiting(t, g, duplicates)
	redis.Kill(t)
	hold.open()
	if got := <-first; got.status != 202 {
		t.Errorf("the first got %v", got)
	}
	for _, w := range waiting {
		if got := <-w; got.code() != "idempotency_store_unavailable" {
			t.Errorf("a duplicate got %v", got)
		}
	}
	p.want(t, 1)
	if got := g.send(t, request{key: "l", body: "x"}); got.status != 202 || got.code() != "" {
		t.Errorf("one that has not waited got %v", got)
	}
	p.want(t, 2)
}

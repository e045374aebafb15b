package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// C1: without its store the gateway sends nothing that has a key, and passes
// on what has none.
func TestRedisDown(t *testing.T) {
	// What was acknowledged survives the kill.
	redis := redistest.Start(t, "--appendfsync", "always")
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + redis.Address})
	stored := g.send(t, request{key: "stored", body: "x"})
	p.want(t, 1)

	down := func(t *testing.T, how string) {
		t.Helper()
		before := p.count()
		for _, key := range []string{"stored", "new-" + how} {
			began := time.Now()
			got := g.send(t, request{key: key, body: "x"})
			p.want(t, before)
			if got.status != 503 || got.code() != "idempotency_store_unavailable" || got.header.Get("Retry-After") != "1" {
				t.Errorf("%s, key %s: %v", how, key, got)
			}
			// At most two timeouts of 500ms, or three for a process that has not
			// talked to Redis before; C1 says two seconds.
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s: the answer took %s, and C1 says 2s", how, took)
			}
		}
		if got := g.send(t, request{body: "x"}); got.status != 202 {
			t.Errorf("%s, without a key: %v", how, got)
		}
		p.want(t, before+1)
	}
	up := func(t *testing.T, how string) {
		t.Helper()
		before := p.count()
		var got answer
		await(t, "recovery", func() bool { got = g.send(t, request{key: "after-" + how, body: "x"}); return got.status != 503 })
		p.want(t, before+1)
		if got.status != 202 {
			t.Errorf("%s, recovered: %v", how, got)
		}
		if got := g.send(t, request{key: "stored", body: "x"}); got.body != stored.body || !got.replayed() {
			t.Errorf("%s, the stored answer: %v", how, got)
		}
		// What was turned away is not stuck.
		await(t, "the key that was turned away", func() bool {
			got = g.send(t, request{key: "new-" + how, body: "x"})
			return got.status == 202
		})
		p.want(t, before+2)
	}

	redis.Kill(t)
	down(t, "killed")
	redis.Run(t)
	up(t, "killed")
	// Stopped in the middle of its work, it executes later what had arrived.
	redis.Freeze(t)
	down(t, "frozen")
	redis.Thaw(t)
	up(t, "frozen")
}

// A gateway that starts before its Redis works as soon as Redis does.
func TestRedisComesLater(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Stop(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + redis.Address})
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 503 {
		t.Errorf("got %v", got)
	}
	p.want(t, 0)
	redis.Run(t)
	await(t, "recovery", func() bool { return g.send(t, request{key: "k", body: "x"}).status == 202 })
	p.want(t, 1)
}

// C4: Redis dies between acceptance and completion, and comes back.
func TestRedisDiesBeforeCompletion(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendfsync", "always")
	p, hold := startHolding(t)
	g := startGateway(t, p.url, options{store: "redis " + redis.Address, idempotency: "lease 1s"})
	done := g.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	redis.Kill(t)
	hold.open()
	first := <-done
	p.want(t, 1)
	if first.status != 202 || first.code() != "" {
		t.Fatalf("the caller got %v", first)
	}
	redis.Run(t)
	var again answer
	await(t, "the replay", func() bool { again = g.send(t, request{key: "k", body: "x"}); return again.replayed() })
	p.want(t, 1)
	if again.body != first.body {
		t.Errorf("again: %v, want %v", again, first)
	}
}

func TestOnStoreErrorForward(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + freeAddress(t), idempotency: "on_store_error forward"})
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 202 || got.code() != "" {
		t.Errorf("got %v", got)
	}
	p.want(t, 1)
	if got := p.submit(0); got.body != "x" || got.key != "k" {
		t.Errorf("the provider got %+v", got)
	}
	g.awaitLog(t, `"idempotency_outcome":"store_error"`)

	// An answer is passed on as it comes, without the words that are not the
	// provider's.
	seen := newGate()
	p.now(func(w http.ResponseWriter, _ *http.Request, _ int, _ func() string) {
		w.Header().Set("Idempotency-Replayed", "true")
		w.Header().Set("Idempotency-Error", "x")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		<-seen.opened
		_, _ = io.WriteString(w, " two")
	})
	req, err := http.NewRequest(http.MethodPost, g.url+"/v1/videos", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	part := make([]byte, len("one"))
	if _, err := io.ReadFull(res.Body, part); err != nil || string(part) != "one" {
		t.Errorf("the first part is %q, %v", part, err)
	}
	if h := res.Header; res.StatusCode != 201 || h.Get("Idempotency-Replayed") != "" || h.Get("Idempotency-Error") != "" {
		t.Errorf("the answer is %d %v", res.StatusCode, h)
	}
	seen.open()
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != " two" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
	p.want(t, 2)

	// What the caller is told of an outcome that nobody knows is the same.
	p.now(func(http.ResponseWriter, *http.Request, int, func() string) { panic(http.ErrAbortHandler) })
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 502 || got.code() != "idempotency_outcome_unknown" {
		t.Errorf("a broken connection: %v", got)
	}
	for _, body := range []string{"", "sorry"} {
		p.now(answerWith(500, nil, body))
		if got := g.send(t, request{key: "k", body: "x"}); got.status != 500 || got.code() != "idempotency_outcome_unknown" || got.body != body {
			t.Errorf("a 500 with %d bytes: %v", len(body), got)
		}
	}
	p.now(answerWith(429, nil, "slow down"))
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 429 || got.code() != "" {
		t.Errorf("a refusal: %v", got)
	}
	hold := newGate()
	p.now(p.holdUntil(hold))
	g = startGateway(t, p.url, options{store: "redis " + freeAddress(t), idempotency: "on_store_error forward\nupstream_timeout 100ms"})
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 504 || got.code() != "idempotency_outcome_unknown" {
		t.Errorf("no answer in time: %v", got)
	}
	hold.open()
}

// C10: what cannot be read is an error, never absence.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + redis.Address})
	g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	ctx := context.Background()
	keys, err := redis.Client.Keys(ctx, "idempotency:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("Redis has keys %v, %v", keys, err)
	}
	for _, value := range []string{"", "OK", strings.Repeat("\x09", 200)} {
		if err := redis.Client.Set(ctx, keys[0], value, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		if got := g.send(t, request{key: "k", body: "x"}); got.status != 503 || got.code() != "idempotency_store_unavailable" {
			t.Errorf("with value %q: %v", value, got)
		}
		p.want(t, 1)
		if got := redis.Client.Get(ctx, keys[0]).Val(); got != value {
			t.Errorf("the value became %q", got)
		}
	}
}

// B3: killed after the provider read the submit.
func TestGatewayKilled(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	stores := map[string]string{"embedded": "", "redis": "redis " + redis.Address}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := startHolding(t)
			g := startGateway(t, p.url, options{store: store, idempotency: "lease 10s"})
			g.sendLater(t, request{key: "k", body: "x"})
			p.awaitSubmits(t, 1)
			g.kill(t)
			g.run(t)
			gateways := []*gateway{g}
			if store != "" {
				gateways = append(gateways, startGateway(t, p.url, options{store: store}))
			}
			for _, g := range gateways {
				if got := g.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_key_in_progress" {
					t.Errorf("within the lease: %v", got)
				}
			}
			p.want(t, 1)
			for _, g := range gateways {
				var got answer
				await(t, "the end of the lease", func() bool {
					got = g.send(t, request{key: "k", body: "x"})
					return got.code() != "idempotency_key_in_progress"
				})
				p.want(t, 1)
				if got.status != 409 || got.code() != "idempotency_outcome_unknown" {
					t.Errorf("after the lease: %v", got)
				}
			}
		})
	}
}

// B4: a gateway that stood still comes back with the provider's answer.
func TestGatewayFrozen(t *testing.T) {
	t.Parallel()
	store := "redis " + redistest.Start(t).Address
	p, hold := startHolding(t)
	frozen := startGateway(t, p.url, options{store: store, idempotency: "lease 500ms"})
	other := startGateway(t, p.url, options{store: store, idempotency: "lease 500ms"})
	done := frozen.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	frozen.freeze(t)
	await(t, "the end of the lease", func() bool {
		return other.send(t, request{key: "k", body: "x"}).code() == "idempotency_outcome_unknown"
	})
	p.want(t, 1)
	frozen.thaw(t)
	hold.open()
	first := <-done
	p.want(t, 1)
	if first.status != 202 {
		t.Errorf("the first caller got %v", first)
	}
	for range 3 {
		if got := other.send(t, request{key: "k", body: "x"}); got.body != first.body || !got.replayed() {
			t.Errorf("in the end: %v", got)
		}
	}
	p.want(t, 1)
}

// B6: an attempt lives through reloads: the same configuration, other options,
// another store.
func TestReloadDuringAttempt(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			p, hold := startHolding(t)
			// A short grace period, so that reloads leave the attempt behind.
			o := options{store: store.directive(t), global: "grace_period 100ms", idempotency: "lease 3s"}
			g := startGateway(t, p.url, o)
			done := g.sendLater(t, request{key: "k", body: "x"})
			p.awaitSubmits(t, 1)
			inProgress := func(when string) {
				t.Helper()
				if got := g.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_key_in_progress" {
					t.Errorf("%s: %v", when, got)
				}
				p.want(t, 1)
			}
			g.reload(t)
			inProgress("after a reload")
			changed := o
			changed.idempotency = "lease 6s\nerrors problem\nupstream_timeout 1m"
			g.write(t, p.url, changed)
			g.reload(t)
			inProgress("after a reload with other options")

			elsewhere := o
			elsewhere.store = "embedded " + filepath.Join(g.dir, "other.db")
			g.write(t, p.url, elsewhere)
			g.reload(t)
			// Longer than the lease in the other configuration, and back again.
			over := time.Now().Add(4500 * time.Millisecond)
			await(t, "more than a lease", func() bool { return time.Now().After(over) })
			g.write(t, p.url, o)
			g.reload(t)
			inProgress("back from another store")

			hold.open()
			first := <-done
			p.want(t, 1)
			if first.status != 202 {
				t.Errorf("the first caller got %v", first)
			}
			if got := g.send(t, request{key: "k", body: "x"}); got.body != first.body || !got.replayed() {
				t.Errorf("again: %v", got)
			}
			p.want(t, 1)
		})
	}
}

// An acceptance that could not be stored yet outlives its configuration.
func TestReloadWithUnstoredOutcome(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendfsync", "always")
	p, hold := startHolding(t)
	o := options{store: "redis " + redis.Address}
	g := startGateway(t, p.url, o)
	done := g.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	redis.Kill(t)
	hold.open()
	first := <-done
	p.want(t, 1)
	elsewhere := o
	elsewhere.store = "" // embedded
	g.write(t, p.url, elsewhere)
	g.reload(t)
	redis.Run(t)
	other := startGateway(t, p.url, o)
	var again answer
	await(t, "the replay", func() bool { again = other.send(t, request{key: "k", body: "x"}); return again.replayed() })
	p.want(t, 1)
	if again.body != first.body {
		t.Errorf("again: %v, want %v", again, first)
	}
}

// B7: a stop that does not wait for the provider releases nothing, and says that
// the outcome is unknown.
func TestStopDuringAttempt(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			p, _ := startHolding(t)
			g := startGateway(t, p.url, options{store: store.directive(t), global: "grace_period 100ms"})
			g.sendLater(t, request{key: "k", body: "x"})
			p.awaitSubmits(t, 1)
			g.stop(t)
			if !strings.Contains(g.log.String(), "stopping while submits are running") {
				t.Error("the log does not say what the gateway leaves behind")
			}
			g.run(t)
			got := g.send(t, request{key: "k", body: "x"}) // its lease is not over
			p.want(t, 1)
			if got.code() != "idempotency_outcome_unknown" {
				t.Errorf("after the restart: %v", got)
			}
		})
	}
}

// A stop waits for a provider that answers within the grace period.
func TestStopWaits(t *testing.T) {
	t.Parallel()
	p, hold := startHolding(t)
	g := startGateway(t, p.url, options{global: "grace_period 20s"})
	done := g.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	stopped := make(chan struct{})
	go func() { g.stop(t); close(stopped) }()
	await(t, "the stop to begin", func() bool { return strings.Contains(g.log.String(), "servers shutting down") })
	hold.open()
	if first := <-done; first.status != 202 {
		t.Errorf("the caller got %v", first)
	}
	<-stopped
	g.run(t)
	if got := g.send(t, request{key: "k", body: "x"}); !got.replayed() {
		t.Errorf("after the restart: %v", got)
	}
	p.want(t, 1)
}

// Two processes on one embedded file: the second refuses submits with a key,
// and says why.
func TestEmbeddedSecondProcess(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	store := "embedded " + filepath.Join(t.TempDir(), "shared.db")
	first := startGateway(t, p.url, options{store: store})
	first.send(t, request{key: "k", body: "x"})
	second := startGateway(t, p.url, options{store: store})
	if got := second.send(t, request{key: "k", body: "x"}); got.status != 503 {
		t.Errorf("the second got %v", got)
	}
	p.want(t, 1)
	second.awaitLog(t, "in use by another process")
	first.stop(t)
	await(t, "the second to take over", func() bool { return second.send(t, request{key: "k", body: "x"}).replayed() })
	p.want(t, 1)
}

// Two round trips for a first submit, one for a replay.
func TestStoreRoundTrips(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + redis.Address + " {\ntimeout 10s\n}"})
	// The first request loads scripts and asks for the clock.
	g.send(t, request{key: "warm", body: "x"})
	g.send(t, request{key: "warm", body: "x"})
	p.want(t, 1)

	calls := func() map[string]int { t.Helper(); return commandCalls(t, redis) }
	spent := func(do func()) map[string]int {
		t.Helper()
		before := calls()
		do()
		n := map[string]int{}
		for name, count := range calls() {
			// Commands within a script are no round trips; info is this test's.
			if d := count - before[name]; d > 0 && name != "info" && name != "get" && name != "set" && name != "time" && name != "del" {
				n[name] = d
			}
		}
		return n
	}
	const n = 20
	first := spent(func() {
		for i := range n {
			g.send(t, request{key: fmt.Sprint("k", i), body: "x"})
		}
	})
	p.want(t, 1+n)
	if len(first) != 1 || first["evalsha"] != 2*n {
		t.Errorf("%d first submits cost %v, want evalsha %d", n, first, 2*n)
	}
	replays := spent(func() {
		for i := range n {
			g.send(t, request{key: fmt.Sprint("k", i), body: "x"})
		}
	})
	p.want(t, 1+n)
	if len(replays) != 1 || replays["evalsha"] != n {
		t.Errorf("%d replays cost %v, want evalsha %d", n, replays, n)
	}
	keyless := spent(func() { g.send(t, request{body: "x"}); g.send(t, request{method: http.MethodGet}) })
	if len(keyless) != 0 {
		t.Errorf("keyless traffic cost %v", keyless)
	}
	if total := calls()["time"]; total > 1+2*(1+n)+2+n {
		t.Errorf("TIME was called %d times", total)
	}
}

// commandCalls counts the commands that Redis has carried out, those of scripts
// included.
func commandCalls(t testing.TB, redis *redistest.Server) map[string]int {
	t.Helper()
	info, err := redis.Client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for line := range strings.Lines(info) {
		var count int
		name, stats, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if _, err := fmt.Sscanf(stats, "%d", &count); found && err == nil {
			calls[name] = count
		}
	}
	return calls
}

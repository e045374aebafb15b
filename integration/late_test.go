package integration

import (
	"context"
	"net/http"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

const lateAcceptance = "the provider accepted a submit that no longer owns its record"

// holdFirst holds the answer to the first submit, accepted already, and answers
// the others.
func holdFirst(p *provider, hold *gate) behaviour {
	held := p.holdUntil(hold)
	return func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
		if n == 1 {
			held(w, r, n, accept)
			return
		}
		acceptPlainly(w, accept)
	}
}

// B5: a gateway stood still past its lease, the record was removed, and the
// repeat was accepted: two submits, by decision. The late acceptance changes
// nothing, and the log tells of it.
func TestLateAcceptanceAfterRelease(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	hold := newGate()
	p := startProvider(t, nil)
	p.now(holdFirst(p, hold))
	o := options{store: "redis " + redis.Address, idempotency: "lease 500ms"}
	frozen, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
	late := frozen.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	frozen.freeze(t)
	await(t, "the end of the lease", func() bool {
		return other.send(t, request{key: "k", body: "x"}).code() == "idempotency_outcome_unknown"
	})
	p.want(t, 1)
	removeRecords(t, redis)
	second := other.send(t, request{key: "k", body: "x"})
	p.want(t, 2)
	if second.status != 202 {
		t.Fatalf("after the removal: %v", second)
	}
	frozen.thaw(t)
	hold.open()
	first := <-late
	if first.status != 202 || first.body == second.body {
		t.Errorf("the late one: %v", first)
	}
	frozen.awaitLog(t, lateAcceptance)
	for _, g := range []*gateway{frozen, other} {
		if got := g.send(t, request{key: "k", body: "x"}); got.body != second.body || !got.replayed() {
			t.Errorf("in the end: %v", got)
		}
	}
	p.want(t, 2)
}

// With on_uncertain resubmit a repeat takes the record over; the first
// attempt's acceptance comes too late for it.
func TestLateAcceptanceAfterTakeOver(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	hold := newGate()
	p := startProvider(t, nil)
	p.now(holdFirst(p, hold))
	o := options{store: "redis " + redis.Address, idempotency: "lease 500ms\non_uncertain resubmit"}
	frozen, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
	late := frozen.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	frozen.freeze(t)
	var second answer
	await(t, "the end of the lease", func() bool {
		second = other.send(t, request{key: "k", body: "x"})
		return second.code() != "idempotency_key_in_progress"
	})
	p.want(t, 2)
	if second.status != 202 {
		t.Fatalf("the repeat that took over: %v", second)
	}
	frozen.thaw(t)
	hold.open()
	if first := <-late; first.status != 202 || first.body == second.body {
		t.Errorf("the late one: %v", first)
	}
	frozen.awaitLog(t, lateAcceptance)
	if got := frozen.send(t, request{key: "k", body: "x"}); got.body != second.body || !got.replayed() {
		t.Errorf("in the end: %v", got)
	}
	p.want(t, 2)
}

// removeRecords removes every record, as an operator would who knows better.
func removeRecords(t testing.TB, redis *redistest.Server) {
	t.Helper()
	ctx := context.Background()
	keys, err := redis.Client.Keys(ctx, "idempotency:*").Result()
	if err == nil {
		err = redis.Client.Del(ctx, keys...).Err()
	}
	if err != nil || len(keys) == 0 {
		t.Fatalf("removing records %v: %v", keys, err)
	}
}

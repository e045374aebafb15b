package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

const markerKey = "idempotency:marker"

func flush(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := server.Client.FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
}

func mustClaim(t *testing.T, store idempotency.Store, key string) {
	t.Helper()
	if _, err := claim(store, key); err != nil {
		t.Fatalf("Claim: %v", err)
	}
}

// wantLost wants a claim to be refused because of the marker, with nothing written.
func wantLost(t *testing.T, store idempotency.Store, key string) {
	t.Helper()
	c, err := claim(store, key)
	if !errors.Is(err, idempotency.ErrNotApplied) || !strings.Contains(err.Error(), "marker") {
		t.Fatalf("Claim gave %v, want that the marker is not the store's", err)
	}
	if _, found, err := store.Get(context.Background(), c.ID); found || err != nil {
		t.Errorf("the record is there %t, %v", found, err)
	}
}

func adopt(t *testing.T, store *redis.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := store.Adopt(ctx); err != nil {
		t.Fatalf("Adopt: %v", err)
	}
}

// A strict store that was seen with records, and has lost its marker, grants no
// claim, not even one between two looks, until it is adopted.
func TestMarkerIsLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var heard reports
	config := redis.Config{Addresses: []string{server.Address}, Strict: true, CheckInterval: time.Hour, Report: heard.hear}
	knows, other := newStore(t, config), newStore(t, config)
	mustClaim(t, knows, "a")
	mustClaim(t, other, "b")
	if ttl := server.Client.TTL(context.Background(), markerKey).Val(); ttl != -1 {
		t.Errorf("the marker lives for %s", ttl)
	}
	flush(t, server)
	wantLost(t, knows, "c")
	wantLost(t, other, "c")
	came, _ := heard.so()
	if came["marker none"] != 2 {
		t.Errorf("reported: %v", came)
	}
	// One that knows nothing makes a marker of its own, which is not the others'.
	late := newStore(t, config)
	mustClaim(t, late, "d")
	wantLost(t, knows, "e")

	adopt(t, knows)
	mustClaim(t, knows, "f")
	mustClaim(t, late, "g")
	redistest.Await(t, "the other gateway to notice", func() bool { _, err := claim(other, "h"); return err == nil })
	if err := knows.Adopt(context.Background()); !errors.Is(err, redis.ErrNotLost) {
		t.Errorf("to adopt it again gave %v", err)
	}
	if _, over := heard.so(); over["marker"] != 2 {
		t.Errorf("reported as over: %v", over)
	}
}

// A store that nobody has seen with records has lost none.
func TestMarkerOfUnusedStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := newStore(t, redis.Config{Addresses: []string{server.Address}, Strict: true, CheckInterval: time.Hour})
	store.Watch()
	redistest.Await(t, "the marker", func() bool { return server.Client.Exists(context.Background(), markerKey).Val() == 1 })
	flush(t, server)
	mustClaim(t, store, "k")
	flush(t, server)
	wantLost(t, store, "k")
}

// Without strict there is no marker, and nothing to adopt; looking alone makes
// none.
func TestNoMarker(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	lax := newStore(t, redis.Config{Addresses: []string{server.Address}})
	mustClaim(t, lax, "k")
	if err := lax.Adopt(context.Background()); !errors.Is(err, redis.ErrNotStrict) {
		t.Errorf("Adopt gave %v", err)
	}
	newStore(t, redis.Config{Addresses: []string{server.Address}, Strict: true}).Inspect(context.Background())
	if n := server.Client.Exists(context.Background(), markerKey).Val(); n != 0 {
		t.Error("there is a marker")
	}
	// An upgrade: there are records, and a marker is made.
	mustClaim(t, newStore(t, redis.Config{Addresses: []string{server.Address}, Strict: true}), "new")
}

// On a Cluster each node has its marker, and keeps it when its slots move.
func TestMarkersOfCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	ctx := context.Background()
	config := redis.Config{Addresses: c.Addresses()[:1], Cluster: true, Strict: true, CheckInterval: time.Hour, Timeout: 5 * time.Second}
	store := newStore(t, config)
	mustClaim(t, store, "k")
	markers := func() (keys []string) {
		for _, node := range c.Nodes[:3] {
			keys = append(keys, node.Client.Keys(ctx, markerKey+"*").Val()...)
		}
		return keys
	}
	redistest.Await(t, "a marker on each node", func() bool { return len(markers()) == 3 })
	wrong := func() (losses []string) {
		for _, f := range store.Inspect(ctx) {
			if f.Setting == "marker" && f.Loss != "" {
				losses = append(losses, f.Server)
			}
		}
		return losses
	}
	slot := c.Nodes[0].Client.ClusterKeySlot(ctx, markers()[0]).Val()
	from := c.Owner(t, markers()[0])
	c.MoveSlot(t, slot, from, (from+1)%3, nil)
	if got := wrong(); len(got) > 0 {
		t.Errorf("after a slot has moved: %v", got)
	}
	flush(t, c.Nodes[2])
	if got := wrong(); len(got) != 1 || got[0] != c.Nodes[2].Address {
		t.Errorf("after a node was flushed: %v, want %s", got, c.Nodes[2].Address)
	}
	for i := range 10 {
		if _, err := claim(store, fmt.Sprint("lost", i)); !errors.Is(err, idempotency.ErrNotApplied) {
			t.Errorf("Claim gave %v", err)
		}
	}
	adopt(t, store)
	mustClaim(t, store, "adopted")
	if got := wrong(); len(got) > 0 {
		t.Errorf("after the adoption: %v", got)
	}
}

// A master that took over without its data is not the store that was known.
func TestMarkerAfterEmptyFailover(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t)
	store := newStore(t, redis.Config{Addresses: d.Addresses, Sentinel: d.Master, Strict: true, CheckInterval: time.Hour, Timeout: 5 * time.Second})
	redistest.Await(t, "a claim", func() bool { _, err := claim(store, "k"); return err == nil })
	for _, replica := range d.Servers[1:] {
		replica.CutFrom(t, d.Servers[0])
	}
	// What the replicas have is lost with the first failover: nothing of it is the
	// primary's any more.
	d.Servers[0].Kill(t)
	redistest.Await(t, "another primary", func() bool { return d.Primary(t) != d.Servers[0] })
	flush(t, d.Primary(t))
	redistest.Await(t, "the new primary to be asked", func() bool {
		_, err := claim(store, "after")
		if err == nil {
			t.Fatal("a claim was granted by a server without the marker")
		}
		return strings.Contains(err.Error(), "marker")
	})
	adopt(t, store)
	mustClaim(t, store, "adopted")
}

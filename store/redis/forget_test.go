package redis_test

import (
	"context"
	"errors"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A list under a record's name can be forgotten, and not by somebody who has seen
// a string there, or by somebody who has seen the list when a record has taken
// its place.
func TestForgetType(t *testing.T) {
	server := redistest.Start(t)
	store := newStore(t, redis.Config{Addresses: []string{server.Address}})
	ctx := context.Background()
	id := idempotency.NewRecordID("", nil, "k")
	key := "idempotency:" + string(id)
	if err := server.Client.LPush(ctx, key, "x").Err(); err != nil {
		t.Fatal(err)
	}
	_, _, err := store.Get(ctx, id)
	var unreadable *idempotency.UnreadableError
	if !errors.As(err, &unreadable) || !errors.Is(err, idempotency.ErrUnreadable) {
		t.Fatalf("Get gave %v, want an UnreadableError", err)
	}
	forget := func(seen idempotency.Digest, want bool) {
		t.Helper()
		if reply, err := store.Forget(ctx, id, seen); err != nil || reply.Applied != want {
			t.Errorf("Forget gave %+v, %v; want applied %t", reply, err, want)
		}
	}
	forget(idempotency.DigestOf(nil), false)
	forget(unreadable.Seen, true)
	c, err := claim(store, "k")
	if err != nil {
		t.Fatalf("the key is not free: %v", err)
	}
	if _, err := store.MarkUncertain(ctx, idempotency.Ending{ID: c.ID, Token: c.Token, Payload: []byte("lost")}); err != nil {
		t.Fatal(err)
	}
	forget(unreadable.Seen, false)
	if record, found, err := store.Get(ctx, id); err != nil || !found || record.Token != c.Token {
		t.Errorf("the record is %+v, %t, %v", record, found, err)
	}
}

// A full server lets an operator forget.
func TestForgetOverMaxmemory(t *testing.T) {
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	store := newStore(t, redis.Config{Addresses: []string{server.Address}})
	ctx := context.Background()
	id := idempotency.NewRecordID("", nil, "k")
	if err := server.Client.Set(ctx, "idempotency:"+string(id), "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := server.Client.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if reply, err := store.Forget(ctx, id, idempotency.DigestOf([]byte("x"))); err != nil || !reply.Applied {
		t.Errorf("Forget gave %+v, %v", reply, err)
	}
}

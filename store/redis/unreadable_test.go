package redis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A record that cannot be read ends with the retention that it was written with,
// and its key is free again then.
func TestUnreadableRecordEnds(t *testing.T) {
	server := redistest.Start(t)
	store := newStore(t, redis.Config{Addresses: []string{server.Address}, Prefix: t.Name(), Timeout: 10 * time.Second})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c := idempotency.Claim{
		ID: idempotency.NewRecordID("", nil, "k"), Token: idempotency.NewToken(),
		Lease: 100 * time.Millisecond, Retention: 500 * time.Millisecond, NotAfter: time.Now().Add(time.Hour),
	}
	if _, err := store.Claim(ctx, c); err != nil {
		t.Fatal(err)
	}
	key := t.Name() + ":" + string(c.ID)
	if err := server.Client.SetArgs(ctx, key, "no record", goredis.SetArgs{Mode: "XX", KeepTTL: true}).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Claim(ctx, c); !errors.Is(err, idempotency.ErrUnreadable) {
		t.Errorf("a claim gave %v, want ErrUnreadable", err)
	}
	for {
		reply, err := store.Claim(ctx, c)
		if err == nil && reply.Verdict == idempotency.Claimed {
			return
		}
		if !errors.Is(err, idempotency.ErrUnreadable) || ctx.Err() != nil {
			t.Fatalf("a claim gave %+v, %v", reply, err)
		}
	}
}

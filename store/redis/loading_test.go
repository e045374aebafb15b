package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
)

// A server that has just started reads its append-only file, and says until then
// that it has none: it cannot be used yet, and nothing is wrong with it.
func TestLoadingServer(t *testing.T) {
	t.Parallel()
	var loaded atomic.Bool
	f := startFakeServer(t, "7.2.0", "standalone", func(command []string) (string, bool) {
		switch {
		case command[0] == "info" && loaded.Load():
			return bulk("loading:0\r\nmaxmemory:0\r\naof_enabled:1\r\naof_last_write_status:ok\r\n"), false
		case command[0] == "info":
			return bulk("loading:1\r\nmaxmemory:0\r\naof_enabled:0\r\n"), false
		case command[0] == "config":
			return array(bulk("appendfsync"), bulk("everysec"), bulk("save"), bulk("")), false
		default:
			return "-LOADING Redis is loading the dataset in memory\r\n", false
		}
	})
	store := newStore(t, redis.Config{Addresses: []string{f.address}})
	if _, err := claim(store, "k"); !errors.Is(err, idempotency.ErrNotApplied) {
		t.Errorf("Claim gave %v, want ErrNotApplied", err)
	}
	for _, found := range store.Inspect(context.Background()) {
		if found.Setting != "connection" {
			t.Errorf("found %+v", found)
		}
	}
	loaded.Store(true)
	for _, found := range store.Inspect(context.Background()) {
		if found.Loss != "" {
			t.Errorf("when it is there: %+v", found)
		}
	}
}

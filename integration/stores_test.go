package integration

import (
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// stores are the stores that a test can run on. directive gives what follows
// "store" in the Caddyfile.
var stores = []struct {
	name      string
	directive func(t testing.TB) string
}{
	{"embedded", func(testing.TB) string { return "" }},
	{"redis", func(t testing.TB) string { return "redis " + redistest.Start(t).Address }},
}

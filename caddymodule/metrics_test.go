package caddymodule_test

import (
	"context"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/caddymodule"
)

// A registry that has the metrics already is no reason to refuse a
// configuration.
func TestMetricsAreThereAlready(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	for range 2 {
		var app caddymodule.App
		if err := app.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		if err := app.Cleanup(); err != nil {
			t.Error(err)
		}
	}
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, family := range families {
		if family.GetName() == "caddy_idempotency_requests_total" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the registry has the metric %d times, want once", n)
	}
}

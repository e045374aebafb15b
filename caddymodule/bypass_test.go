package caddymodule_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/caddymodule"
)

// A request without a key costs no allocation.
func TestBypassAllocatesNothing(t *testing.T) {
	h := &caddymodule.Handler{Methods: []string{http.MethodPost}, KeyHeader: []string{"Idempotency-Key"}}
	r := httptest.NewRequest(http.MethodPost, "/v1/videos", nil)
	r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, caddy.NewReplacer()))
	w := httptest.NewRecorder()
	passed := 0
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		passed++
		return nil
	})
	const runs = 1000
	n := testing.AllocsPerRun(runs, func() {
		if err := h.ServeHTTP(w, r, next); err != nil {
			t.Fatal(err)
		}
	})
	if passed != runs+1 {
		t.Fatalf("%d requests of %d were passed on", passed, runs+1)
	}
	if n != 0 {
		t.Errorf("a request without a key takes %v allocations, want none", n)
	}
}

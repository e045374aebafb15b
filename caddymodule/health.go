package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Health{})
	httpcaddyfile.RegisterHandlerDirective("idempotency_health", parseHealth)
	httpcaddyfile.RegisterDirectiveOrder("idempotency_health", httpcaddyfile.Before, "respond")
}

// Health answers the probes of an orchestrator or a load balancer: GET /live with
// 200 as long as the process serves requests, and GET /ready with 200 if
// submits could be claimed now, and 503 if the store is away or strict refuses
// it. Everything else goes to the next handler.
//
// A gateway that is not ready still forwards requests without a key.
type Health struct {
	app *App
}

// CaddyModule returns the Caddy module information.
func (Health) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.idempotency_health",
		New: func() caddy.Module { return new(Health) },
	}
}

// Provision finds the store, without touching it.
func (h *Health) Provision(ctx caddy.Context) error {
	app, err := ctx.App(AppID)
	if err != nil {
		return fmt.Errorf("idempotency app: %w", err)
	}
	h.app = app.(*App)
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return next.ServeHTTP(w, r)
	}
	switch r.URL.Path {
	case "/live":
		return writeHealth(w, nil)
	case "/ready":
		return writeHealth(w, h.app.Ready(r.Context()))
	default:
		return next.ServeHTTP(w, r)
	}
}

// Ready asks the store whether submits could be claimed.
func (a *App) Ready(ctx context.Context) error {
	store, release, err := a.store.use()
	if err != nil {
		return err
	}
	defer release()
	return store.engine.Ready(ctx)
}

// healthDocument is the answer to a probe. It does not say what the store's error
// was: the log does, and a probe may be open to anybody.
type healthDocument struct {
	Status string `json:"status"`
}

func writeHealth(w http.ResponseWriter, err error) error {
	status, document := http.StatusOK, healthDocument{"ok"}
	if err != nil {
		status, document.Status = http.StatusServiceUnavailable, "store unavailable"
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(document)
}

// UnmarshalCaddyfile sets up the handler. Syntax:
//
//	idempotency_health [<matcher>]
func (h *Health) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return wrongValues(d, "idempotency_health")
	}
	for d.NextBlock(0) {
		return d.Errf("unrecognized idempotency_health option %q", d.Val())
	}
	return nil
}

func parseHealth(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Health)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Health)(nil)
	_ caddyhttp.MiddlewareHandler = (*Health)(nil)
	_ caddyfile.Unmarshaler       = (*Health)(nil)
)

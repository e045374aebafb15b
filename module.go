// Package caddyidempotency adds the idempotency gateway to a Caddy binary:
//
//	xcaddy build --with github.com/caddy-idempotency/caddy-idempotency
//
// It only registers the Caddy modules, which are in package caddymodule and
// below it.
package caddyidempotency

import (
	// Registers http.handlers.idempotency, the app idempotency and the stores.
	_ "github.com/caddy-idempotency/caddy-idempotency/caddymodule"
	// Registers admin.api.idempotency and the command idempotency.
	_ "github.com/caddy-idempotency/caddy-idempotency/caddymodule/operator"
)

// Package caddyidempotency adds the idempotency gateway to a Caddy binary:
//
//	xcaddy build --with github.com/caddy-idempotency/caddy-idempotency
//
// It only registers the Caddy modules, which are in package caddymodule.
package caddyidempotency

import (
	// Registers http.handlers.idempotency, the app idempotency and the stores.
	_ "github.com/caddy-idempotency/caddy-idempotency/caddymodule"
)

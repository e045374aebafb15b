// Package integration has black-box tests: they see only the built Caddy
// binary, real redis-server processes and a provider that counts.
//
// The binary is the one that IDEMPOTENCY_CADDY names, or ../caddy. Build it
// with ./xcaddy.sh, or run everything with ./xcaddy.sh test.
//
// The first assertion of every test is the number of submits that the provider
// received.
package integration

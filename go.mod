module github.com/caddy-idempotency/caddy-idempotency

go 1.26.0

require (
	github.com/dunglas/httpsfv v1.1.2
	github.com/fxamacker/cbor/v2 v2.9.4
	github.com/redis/go-redis/v9 v9.23.0
	go.etcd.io/bbolt v1.5.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

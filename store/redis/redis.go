// Package redis keeps idempotency records in Redis 7.0 or later: one server,
// the master that Sentinels name, or a Cluster.
//
// One record is one string key, changed only by Lua scripts, one per
// transition, so that every transition is one atomic compare-and-set in one
// round trip. The scripts are in the lua directory; each names its keys,
// arguments and reply.
//
// Redis' own TIME decides about leases. A key's time to live is only the
// record's retention: it keeps running while Redis is down, and so cannot say
// whether an attempt is alive.
//
// A strict store grants no claim on servers that may lose records, nor on one that
// has lost its marker, a key that says that it is the same store as before.
package redis

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// DefaultPrefix starts the name of every key.
const DefaultPrefix = "idempotency"

// Config says where Redis is. The zero value of a field means its default.
type Config struct {
	// Network is "tcp" (default) or "unix".
	Network string
	// Addresses are host:port, or one path with Network "unix". Without Cluster
	// and Sentinel there is one. Required.
	Addresses []string
	// Cluster: the addresses are nodes of a Redis Cluster. The others are learnt
	// from them.
	Cluster bool
	// Sentinel: the addresses are Sentinels, and this is the name of the master
	// that they watch.
	Sentinel string
	// SentinelUsername and SentinelPassword are for the Sentinels themselves.
	SentinelUsername string
	SentinelPassword string
	// Username and Password of an ACL user; a password alone is requirepass.
	Username string
	Password string
	// DB is the number of the database.
	DB int
	// TLS, if set, is used for every connection.
	TLS *tls.Config
	// Prefix starts the name of every key; default DefaultPrefix.
	Prefix string
	// Timeout bounds dialing, waiting for a free connection, and each command;
	// default idempotency.DefaultStoreTimeout.
	Timeout time.Duration
	// Replicas is how many replicas must have a claim before it counts. A claim
	// that fewer have confirmed within ReplicasTimeout fails.
	Replicas int
	// ReplicasTimeout is shorter than Timeout; default half of it.
	ReplicasTimeout time.Duration
	// Fsync: a claim counts only when it is in the append-only file on the disk
	// of the server, and on those of Replicas replicas. It needs Redis 7.2.
	Fsync bool
	// Strict: as long as a server has a Finding that is Refused, claims fail. The
	// store has a marker then, see Adopt.
	Strict bool
	// Report, if set, hears of each finding with a loss when it comes, with
	// present, and when it is over. It is called from many goroutines.
	Report func(f Finding, present bool)
	// CheckInterval is the time between two looks at the servers; default
	// DefaultCheckInterval.
	CheckInterval time.Duration
}

// Store is an idempotency.Store in one Redis server, in the master that
// Sentinels name, or in a Cluster.
type Store struct {
	transport
	prefix string

	health    health
	markers   markers
	serves    atomic.Bool   // Watch was called: a marker that is missing is made
	looking   chan struct{} // has an element while a first claim asks the servers
	unfit     chan struct{} // tells Watch of a new refusal that a connection has found
	watchOnce sync.Once
	watching  sync.WaitGroup
	closed    context.Context
	close     context.CancelFunc
}

var _ idempotency.Store = (*Store)(nil)

// New returns a store. It does no I/O: connections are made when they are
// needed, and made again when they break.
func New(config Config) *Store {
	if config.Timeout <= 0 {
		config.Timeout = idempotency.DefaultStoreTimeout
	}
	if config.Prefix == "" {
		config.Prefix = DefaultPrefix
	}
	if config.ReplicasTimeout <= 0 {
		config.ReplicasTimeout = config.Timeout / 2
	}
	if config.CheckInterval <= 0 {
		config.CheckInterval = DefaultCheckInterval
	}
	s := &Store{transport: transport{config: config}, prefix: config.Prefix + ":", looking: make(chan struct{}, 1), unfit: make(chan struct{}, 1)}
	s.closed, s.close = context.WithCancel(context.Background())
	s.greet = s.onConnect
	s.client = s.connect()
	return s
}

// Now returns the server's TIME.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	client := s.current()
	now, err := client.Time(ctx).Result()
	s.handleError(ctx, client, err)
	return now, translate(err)
}

// Close ends Watch and closes all connections.
func (s *Store) Close() error {
	s.close()
	s.watching.Wait()
	return s.current().Close()
}

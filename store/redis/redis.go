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
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

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
	// Strict: as long as a server has a Finding that is Refused, claims fail.
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
	config Config
	prefix string

	mu     sync.Mutex
	client goredis.UniversalClient

	health    health
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
	s := &Store{config: config, prefix: config.Prefix + ":", looking: make(chan struct{}, 1), unfit: make(chan struct{}, 1)}
	s.closed, s.close = context.WithCancel(context.Background())
	s.client = s.connect()
	return s
}

// Results of the script of a claim that was granted.
const (
	claimedResult   = "claimed"
	takenOverResult = "taken_over"
)

func (s *Store) key(id idempotency.RecordID) string { return s.prefix + string(id) }

// Now returns the server's TIME.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	client := s.current()
	now, err := client.Time(ctx).Result()
	s.mind(ctx, client, err)
	return now, translate(err)
}

// Claim implements idempotency.Store.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.ClaimReply, error) {
	s.Watch()
	if err := s.fit(ctx); err != nil {
		return idempotency.ClaimReply{}, fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
	}
	takeOver := "0"
	if c.TakeOver {
		takeOver = "1"
	}
	a, err := s.call(ctx, claimScript, c.ID, c.Token,
		c.Fingerprint[:], c.Lease.Milliseconds(), c.Retention.Milliseconds(), takeOver, c.NotAfter.UnixMilli(), c.Payload)
	if err != nil {
		return idempotency.ClaimReply{}, err
	}
	reply := idempotency.ClaimReply{Now: a.now}
	switch a.result {
	case claimedResult, takenOverResult:
		// The claim may have gone over the first connection to its server, which
		// has only now said what it is.
		if err := s.fit(ctx); err != nil {
			return idempotency.ClaimReply{}, fmt.Errorf("%w: %w", ErrUnconfirmed, err)
		}
		reply.Verdict, reply.TookOver = idempotency.Claimed, a.result == takenOverResult
		return reply, nil
	case "too_late":
		reply.Verdict = idempotency.TooLate
		return reply, nil
	case "other_request":
		reply.Verdict = idempotency.OtherRequest
	case "completed":
		reply.Verdict = idempotency.AlreadyCompleted
	case "in_progress":
		reply.Verdict = idempotency.StillInProgress
	case "uncertain":
		reply.Verdict = idempotency.AlreadyUncertain
	default:
		return idempotency.ClaimReply{}, errForeignReply
	}
	return reply, reply.Record.UnmarshalBinary([]byte(a.record))
}

// Renew implements idempotency.Store. The renewals travel in one pipeline.
func (s *Store) Renew(ctx context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	replies, err := s.renew(ctx, renewals, renewScript.bySHA)
	if isNoScript(err) {
		replies, err = s.renew(ctx, renewals, renewScript.bySource)
	}
	return replies, err
}

func (s *Store) renew(
	ctx context.Context, renewals []idempotency.Renewal,
	command func(ctx context.Context, key string, args ...any) sentOnce,
) ([]idempotency.Reply, error) {
	client := s.current()
	pipe := client.Pipeline()
	commands := make([]sentOnce, len(renewals))
	for i, r := range renewals {
		commands[i] = command(ctx, s.key(r.ID), r.Token[:], r.Lease.Milliseconds())
		_ = pipe.Process(ctx, commands[i]) // queues; errors come with the replies
	}
	_, _ = pipe.Exec(ctx)

	replies := make([]idempotency.Reply, len(renewals))
	for i, r := range renewals {
		a, err := renewScript.parse(commands[i], s.key(r.ID), r.Token)
		if errors.Is(err, idempotency.ErrUnreadable) {
			// One record that cannot be read must not cost the others their lease.
			continue
		}
		if err != nil {
			s.mind(ctx, client, err)
			return nil, err
		}
		replies[i] = idempotency.Reply{Applied: a.result == "applied", Now: a.now}
	}
	return replies, nil
}

// Complete implements idempotency.Store.
func (s *Store) Complete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.transition(ctx, completeScript, e.ID, e.Token, e.Payload)
}

// MarkUncertain implements idempotency.Store.
func (s *Store) MarkUncertain(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.transition(ctx, uncertainScript, e.ID, e.Token, e.Payload)
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return s.transition(ctx, releaseScript, id, token)
}

// DecideComplete implements idempotency.Store.
func (s *Store) DecideComplete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.transition(ctx, decideCompleteScript, e.ID, e.Token, e.Payload)
}

// DecideRelease implements idempotency.Store.
func (s *Store) DecideRelease(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return s.transition(ctx, decideReleaseScript, id, token)
}

func (s *Store) transition(ctx context.Context, sc script, id idempotency.RecordID, token idempotency.Token, args ...any) (idempotency.Reply, error) {
	a, err := s.call(ctx, sc, id, token, args...)
	if err != nil {
		return idempotency.Reply{}, err
	}
	return idempotency.Reply{Applied: a.result == "applied", Now: a.now}, nil
}

func (s *Store) call(ctx context.Context, sc script, id idempotency.RecordID, token idempotency.Token, args ...any) (answer, error) {
	client := s.current()
	key := s.key(id)
	var wait waiting
	if sc.awaited {
		wait = s.wait
	}
	cmd := sc.run(ctx, client, wait, key, append([]any{token[:]}, args...)...)
	a, err := sc.parse(cmd, key, token)
	if err == nil && cmd.wait != nil && (a.result == claimedResult || a.result == takenOverResult) {
		err = s.confirm(cmd.wait)
	}
	s.mind(ctx, client, err)
	return a, err
}

// Get implements idempotency.Store. The reply to a plain GET would not name the
// record that it is of.
func (s *Store) Get(ctx context.Context, id idempotency.RecordID) (idempotency.Record, bool, error) {
	a, err := s.call(ctx, getScript, id, idempotency.NewToken())
	if err != nil {
		return idempotency.Record{}, false, err
	}
	var r idempotency.Record
	switch a.result {
	case "absent":
		return r, false, nil
	case "found":
		err := r.UnmarshalBinary([]byte(a.record))
		return r, err == nil, err
	case "unreadable":
		return r, false, unreadable(a)
	default:
		return r, false, errForeignReply
	}
}

// Close ends Watch and closes all connections.
func (s *Store) Close() error {
	s.close()
	s.watching.Wait()
	return s.current().Close()
}

// neverSent reports errors from before a command could be written.
func neverSent(err error) bool {
	var noConnection connectError
	var unfit unfitError
	return errors.As(err, &noConnection) || errors.As(err, &unfit) ||
		errors.Is(err, goredis.ErrPoolTimeout) || errors.Is(err, goredis.ErrPoolExhausted) || errors.Is(err, goredis.ErrClosed)
}

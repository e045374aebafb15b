// Package redis keeps idempotency records in Redis 7.0 or later.
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
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// DefaultPrefix starts the name of every key.
const DefaultPrefix = "idempotency"

// Config says where Redis is. The zero value of a field means its default.
type Config struct {
	// Network is "tcp" (default) or "unix".
	Network string
	// Address is host:port, or a path with Network "unix". Required.
	Address string
	// Username and Password of an ACL user; a password alone is requirepass.
	Username string
	Password string
	// DB is the number of the database.
	DB int
	// TLS, if set, is used for the connection.
	TLS *tls.Config
	// Prefix starts the name of every key; default DefaultPrefix.
	Prefix string
	// Timeout bounds dialing, waiting for a free connection, and each command;
	// default idempotency.DefaultStoreTimeout.
	Timeout time.Duration
}

// ParseAddress reads one of the address forms host:port, redis://, rediss://
// and unix:// into a Config. The text of its errors does not hold a password.
func ParseAddress(address string) (Config, error) {
	if !strings.Contains(address, "://") {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return Config{}, fmt.Errorf("address %q is not host:port, redis://, rediss:// or unix://", address)
		}
		return Config{Address: address}, nil
	}
	options, err := goredis.ParseURL(address)
	if err != nil {
		// ParseURL quotes the URL, and with it the password.
		return Config{}, errors.New("address is not a valid redis://, rediss:// or unix:// URL")
	}
	// A unix socket has no other place for its database; what else go-redis
	// would read from a query is not taken from there.
	u, err := url.Parse(address)
	if err != nil {
		return Config{}, errors.New("address is not a valid URL")
	}
	for name := range u.Query() {
		if name != "db" || u.Scheme != "unix" {
			return Config{}, fmt.Errorf("address has the query parameter %q: options of the connection are set in the store's block", name)
		}
	}
	return Config{
		Network:  options.Network,
		Address:  options.Addr,
		Username: options.Username,
		Password: options.Password,
		DB:       options.DB,
		TLS:      options.TLSConfig,
	}, nil
}

// Store is an idempotency.Store in one Redis server.
type Store struct {
	options goredis.Options
	prefix  string

	mu     sync.Mutex
	client *goredis.Client
}

var _ idempotency.Store = (*Store)(nil)

// New returns a store. It does no I/O: connections are made when they are
// needed, and made again when they break.
func New(config Config) *Store {
	timeout := config.Timeout
	if timeout <= 0 {
		timeout = idempotency.DefaultStoreTimeout
	}
	prefix := config.Prefix
	if prefix == "" {
		prefix = DefaultPrefix
	}
	s := &Store{
		prefix: prefix + ":",
		options: goredis.Options{
			Network:   config.Network,
			Addr:      config.Address,
			Username:  config.Username,
			Password:  config.Password,
			DB:        config.DB,
			TLSConfig: config.TLS,

			// Whether to send again is the engine's decision, see sentOnce.
			MaxRetries:    -1,
			DialerRetries: 1,

			ContextTimeoutEnabled: true,
			DialTimeout:           timeout,
			ReadTimeout:           timeout,
			WriteTimeout:          timeout,
			PoolTimeout:           timeout,

			// RESP2 has no push messages that could get between two replies.
			Protocol:                 2,
			DisableIdentity:          true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		},
	}
	s.client = s.connect()
	return s
}

func (s *Store) connect() *goredis.Client {
	options := s.options // NewClient fills in defaults in place
	return goredis.NewClient(&options)
}

func (s *Store) current() *goredis.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// reconnect replaces a client on which a reply came to the wrong question:
// go-redis would go on using the connection.
func (s *Store) reconnect(broken *goredis.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == broken {
		s.client = s.connect()
		_ = broken.Close() // what is on its way there fails, as it should
	}
}

func (s *Store) key(id idempotency.RecordID) string { return s.prefix + string(id) }

// Now returns the server's TIME.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	now, err := s.current().Time(ctx).Result()
	return now, translate(err)
}

// Claim implements idempotency.Store.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.ClaimReply, error) {
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
	case "claimed":
		reply.Verdict = idempotency.Claimed
		return reply, nil
	case "other_request":
		reply.Verdict = idempotency.OtherRequest
		return reply, nil
	case "too_late":
		reply.Verdict = idempotency.TooLate
		return reply, nil
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
		if errors.Is(err, errForeignReply) {
			s.reconnect(client)
			return nil, err
		}
		if errors.Is(err, idempotency.ErrUnreadable) {
			// One record that cannot be read must not cost the others their lease.
			continue
		}
		if err != nil {
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
	cmd := sc.run(ctx, client, key, append([]any{token[:]}, args...)...)
	a, err := sc.parse(cmd, key, token)
	if errors.Is(err, errForeignReply) {
		s.reconnect(client)
	}
	return a, err
}

// Get implements idempotency.Store.
func (s *Store) Get(ctx context.Context, id idempotency.RecordID) (idempotency.Record, bool, error) {
	value, err := s.current().Get(ctx, s.key(id)).Bytes()
	if errors.Is(err, goredis.Nil) {
		return idempotency.Record{}, false, nil
	}
	if goredis.HasErrorPrefix(err, "WRONGTYPE") {
		return idempotency.Record{}, false, fmt.Errorf("%w: redis: %w", idempotency.ErrUnreadable, err)
	}
	if err != nil {
		return idempotency.Record{}, false, translate(err)
	}
	var r idempotency.Record
	if err := r.UnmarshalBinary(value); err != nil {
		return idempotency.Record{}, false, err
	}
	return r, true, nil
}

// Close closes all connections.
func (s *Store) Close() error { return s.current().Close() }

// neverSent reports errors from before a command could be written.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, goredis.ErrPoolTimeout) || errors.Is(err, goredis.ErrPoolExhausted) || errors.Is(err, goredis.ErrClosed)
}

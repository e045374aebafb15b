package caddymodule

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
)

func init() {
	caddy.RegisterModule(RedisStore{})
	caddy.RegisterModule(EmbeddedStore{})
}

// StoreModule is what a Caddy module in the namespace idempotency.stores
// implements.
type StoreModule interface {
	caddy.Module

	// Identity names the resource and how it is reached. Configurations whose
	// stores have one module id and one identity share one store, over reloads
	// too. Two identities for a resource that can be opened only once break
	// reloads. The identity is digested before it is used; it may hold secrets.
	Identity() string

	// Open returns the store. It does no I/O: the store connects or opens its
	// file when it is used.
	Open() (idempotency.Store, error)

	// OperationTimeout bounds one store operation.
	OperationTimeout() time.Duration
}

// storeKey names a store in the pool without showing its identity.
func storeKey(store StoreModule) string {
	sum := sha256.Sum256([]byte(string(store.CaddyModule().ID) + "\x00" + store.Identity()))
	return hex.EncodeToString(sum[:])
}

// RedisStore keeps records in Redis, version 7.0 or later, that any number of
// gateways share: in one server, in the master that Sentinels name, or in a
// Cluster.
type RedisStore struct {
	// Where the server is: one of host:port, redis://, rediss:// or unix://. With
	// cluster, some of its nodes; with sentinel, the Sentinels.
	Addresses []string `json:"addresses,omitempty"`

	// Whether the addresses are nodes of a Redis Cluster. Default: false.
	Cluster bool `json:"cluster,omitempty"`

	// The name of the master, if the addresses are Sentinels. The user and the
	// password in an address are for the Sentinels then. Default: none.
	Sentinel string `json:"sentinel,omitempty"`

	// The ACL user. Placeholders are expanded.
	Username string `json:"username,omitempty"`

	// The user's password, or the server's. Placeholders are expanded.
	Password string `json:"password,omitempty"`

	// The number of the database. Default: 0.
	DB *int `json:"db,omitempty"`

	// How to speak TLS. Default: not at all, and with the system's authorities
	// for rediss:// addresses.
	TLS *RedisTLS `json:"tls,omitempty"`

	// What the name of every key starts with. Default: idempotency.
	Prefix string `json:"prefix,omitempty"`

	// How long one operation may take. Default: 500ms.
	Timeout Duration `json:"timeout,omitempty"`

	// How many replicas must have a claim before its submit is sent. Default: 0.
	Replicas int `json:"replicas,omitempty"`

	// How long the replicas may take to confirm a claim. Default: half of the
	// timeout.
	ReplicasTimeout Duration `json:"replicas_timeout,omitempty"`

	// Whether a claim must also be on the disks of the server and of the
	// replicas. Needs Redis 7.2. Default: false.
	ReplicasFsync bool `json:"replicas_fsync,omitempty"`

	// Whether submits are rejected as long as the server's settings may lose
	// records, and after it has lost the marker that a gateway knows it by: then
	// until an operator adopts the store (caddy idempotency doctor --adopt).
	// Default: false, there is a warning in the log.
	Strict bool `json:"strict,omitempty"`

	config    redis.Config
	tlsDigest string // of the files that TLS names
}

// CaddyModule returns the Caddy module information.
func (RedisStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "idempotency.stores.redis",
		New: func() caddy.Module { return new(RedisStore) },
	}
}

// Provision reads the configuration without connecting.
func (s *RedisStore) Provision(caddy.Context) error {
	if err := s.configure(caddy.NewReplacer()); err != nil {
		return fmt.Errorf("store redis: %w", err)
	}
	return nil
}

func (s *RedisStore) configure(repl *caddy.Replacer) error {
	if err := s.configureAddresses(repl); err != nil {
		return err
	}
	for _, option := range []struct {
		name, value string
		target      *string
	}{
		{"username", s.Username, &s.config.Username},
		{"password", s.Password, &s.config.Password},
	} {
		if option.value == "" {
			continue
		}
		if *option.target != "" {
			return fmt.Errorf("%s is given twice, as an option and in the address", option.name)
		}
		var err error
		if *option.target, err = expandSecret(repl, option.name, option.value); err != nil {
			return err
		}
	}
	if s.Prefix != "" {
		var err error
		if s.config.Prefix, err = expand(repl, "prefix", s.Prefix); err != nil {
			return err
		}
	}
	if s.DB != nil {
		if s.config.DB != 0 {
			return errors.New("db is given twice, as an option and in the address")
		}
		if *s.DB < 0 {
			return fmt.Errorf("db must not be negative, got %d", *s.DB)
		}
		s.config.DB = *s.DB
	}
	if s.Cluster && s.config.DB != 0 {
		return fmt.Errorf("db is %d, and a Redis Cluster has only database 0", s.config.DB)
	}
	if s.TLS != nil {
		config, digest, err := s.TLS.configure(repl)
		if err != nil {
			return fmt.Errorf("tls: %w", err)
		}
		s.config.TLS, s.tlsDigest = config, digest
	}
	s.config.Strict = s.Strict
	s.config.Report = ReportFinding
	return s.configureTimes(repl)
}

func (s *RedisStore) configureAddresses(repl *caddy.Replacer) error {
	if len(s.Addresses) == 0 {
		return errors.New("an address is missing")
	}
	addresses := make([]string, len(s.Addresses))
	plain := false
	for i, text := range s.Addresses {
		address, err := expandSecret(repl, fmt.Sprintf("address %d", i+1), text)
		if err != nil {
			return err
		}
		addresses[i] = address
		plain = plain || strings.HasPrefix(address, "redis://")
	}
	var err error
	if s.config, err = redis.ParseAddresses(addresses...); err != nil {
		return err
	}
	unix := s.config.Network == "unix"
	switch {
	case s.Cluster && s.Sentinel != "":
		return errors.New("cluster and sentinel are mutually exclusive")
	case len(addresses) > 1 && !s.Cluster && s.Sentinel == "":
		return fmt.Errorf("takes one address without cluster or sentinel, and has %d", len(addresses))
	case unix && s.Cluster:
		return errors.New("cluster and a unix socket are mutually exclusive")
	case unix && s.Sentinel != "":
		return errors.New("sentinel and a unix socket are mutually exclusive")
	case unix && s.TLS != nil:
		return errors.New("tls and a unix socket are mutually exclusive")
	case plain && s.TLS != nil:
		return errors.New("tls is set, and an address says redis://: write rediss:// or host:port")
	}
	s.config.Cluster = s.Cluster
	if s.Sentinel != "" {
		if s.config.Sentinel, err = expand(repl, "sentinel", s.Sentinel); err != nil {
			return err
		}
		s.config.SentinelUsername, s.config.Username = s.config.Username, ""
		s.config.SentinelPassword, s.config.Password = s.config.Password, ""
	}
	return nil
}

func (s *RedisStore) configureTimes(repl *caddy.Replacer) error {
	var err error
	if s.config.Timeout, err = s.Timeout.resolve(repl, "timeout", idempotency.DefaultStoreTimeout); err != nil {
		return err
	}
	if s.config.Timeout < time.Millisecond {
		return fmt.Errorf("timeout must be at least 1ms, got %s", s.config.Timeout)
	}
	s.config.Replicas, s.config.Fsync = s.Replicas, s.ReplicasFsync
	switch {
	case s.Replicas < 0:
		return fmt.Errorf("replicas must not be negative, got %d", s.Replicas)
	case s.Replicas == 0 && !s.ReplicasFsync && s.ReplicasTimeout != "":
		return errors.New("replicas is 0, and has a timeout")
	}
	if s.config.ReplicasTimeout, err = s.ReplicasTimeout.resolve(repl, "replicas: timeout", s.config.Timeout/2); err != nil {
		return err
	}
	if wait := s.config.ReplicasTimeout; s.ReplicasTimeout != "" && (wait < time.Millisecond || wait >= s.config.Timeout) {
		return fmt.Errorf("replicas: its timeout must be at least 1ms and less than timeout (%s), got %s", s.config.Timeout, wait)
	}
	return nil
}

// Identity implements StoreModule. Whatever makes another client is part of
// it, so that a reload with a new password or certificate connects anew.
func (s *RedisStore) Identity() string {
	c := s.config
	return fmt.Sprintf("%q", []string{
		c.Network, fmt.Sprintf("%q", c.Addresses), strconv.FormatBool(c.Cluster),
		c.Sentinel, c.SentinelUsername, c.SentinelPassword, c.Username, c.Password, strconv.Itoa(c.DB),
		strconv.FormatBool(c.TLS != nil), s.tlsDigest, c.Prefix, c.Timeout.String(),
		strconv.Itoa(c.Replicas), c.ReplicasTimeout.String(), strconv.FormatBool(c.Fsync), strconv.FormatBool(c.Strict),
	})
}

// Resources implements resourceNamer: any one address of a Cluster or of
// Sentinels leads to the same records, and with another password, too.
func (s *RedisStore) Resources() []string {
	resources := make([]string, len(s.config.Addresses))
	for i, address := range s.config.Addresses {
		resources[i] = fmt.Sprintf("%q", []string{
			s.config.Network, address, s.config.Sentinel, strconv.Itoa(s.config.DB), cmp.Or(s.config.Prefix, redis.DefaultPrefix),
		})
	}
	return resources
}

// Open implements StoreModule.
func (s *RedisStore) Open() (idempotency.Store, error) { return openRedis(s.config), nil }

// Inspect asks the servers what they say about themselves, over a client of its
// own, and logs none of it.
func (s *RedisStore) Inspect(ctx context.Context) (findings []redis.Finding, err error) {
	quiet := s.config
	quiet.Report = nil
	store := openRedis(quiet)
	defer func() { err = errors.Join(err, store.Close()) }()
	return store.Inspect(ctx), nil
}

func openRedis(config redis.Config) *redis.Store {
	driverLogs.Do(func() { goredis.SetLogger(driverLog{}) })
	return redis.New(config)
}

var driverLogs sync.Once

// driverLog takes what go-redis has to say besides the errors that it returns.
// It would write to the standard error output, between the lines of Caddy's log.
type driverLog struct{}

func (driverLog) Printf(_ context.Context, format string, args ...any) {
	log().Named("redis").Debug(fmt.Sprintf(format, args...))
}

// OperationTimeout implements StoreModule.
func (s *RedisStore) OperationTimeout() time.Duration { return s.config.Timeout }

// EmbeddedStore keeps records in one file, for a gateway that runs as a single
// process. Every acknowledged write has reached the disk.
type EmbeddedStore struct {
	// The file; it is created on first use. Placeholders are expanded.
	// Default: idempotency.db in Caddy's data directory.
	//
	// Once it is open it must stay what and where it is: while it is removed,
	// replaced, cut or overwritten, submits with a key get 503.
	Path string `json:"path,omitempty"`

	path     string // as it is configured
	realPath string
}

// embeddedTimeout bounds one operation. A disk that is busy for a moment is no
// reason to turn a submit away.
const embeddedTimeout = 5 * time.Second

// CaddyModule returns the Caddy module information.
func (EmbeddedStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "idempotency.stores.embedded",
		New: func() caddy.Module { return new(EmbeddedStore) },
	}
}

// Provision finds the path without opening the file.
func (s *EmbeddedStore) Provision(caddy.Context) error {
	path := s.Path
	if path == "" {
		path = filepath.Join(caddy.AppDataDir(), "idempotency.db")
	} else {
		var err error
		if path, err = expand(caddy.NewReplacer(), "store embedded: path", path); err != nil {
			return err
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("store embedded: path: %w", err)
	}
	s.path, s.realPath = path, realPath(path)
	return nil
}

// realPath follows symbolic links as far as the path exists, so that two
// names of one file are one store.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(realPath(parent), filepath.Base(path))
}

// Identity implements StoreModule.
func (s *EmbeddedStore) Identity() string { return s.realPath }

// Open implements StoreModule. The store gets the path with its symbolic links,
// so that one that changes is noticed.
func (s *EmbeddedStore) Open() (idempotency.Store, error) {
	return embedded.New(embedded.Config{Path: s.path, Report: reportFile}), nil
}

// reportFile logs what has become of the embedded store's file.
func reportFile(f idempotency.Finding, present bool) {
	logger := log().With(zap.String("path", f.Server), zap.String("change", f.Value))
	change := embedded.Change(f.Value)
	verb := "was"
	if change == embedded.Unreachable || change == embedded.Damaged {
		verb = "is"
	}
	switch {
	case !present:
		logger.Info("embedded store file is back")
	case change == embedded.Created:
		logger.Warn("embedded store file was created, new and empty", zap.String("loss", f.Loss))
	default:
		logger.Error(fmt.Sprintf("embedded store file %s %s", verb, change), zap.String("loss", f.Loss))
	}
}

// OperationTimeout implements StoreModule.
func (s *EmbeddedStore) OperationTimeout() time.Duration { return embeddedTimeout }

// Interface guards
var (
	_ StoreModule       = (*RedisStore)(nil)
	_ resourceNamer     = (*RedisStore)(nil)
	_ caddy.Provisioner = (*RedisStore)(nil)
	_ StoreModule       = (*EmbeddedStore)(nil)
	_ caddy.Provisioner = (*EmbeddedStore)(nil)
)

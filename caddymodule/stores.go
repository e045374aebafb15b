package caddymodule

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"

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

// RedisStore keeps records in a Redis server, version 7.0 or later, that any
// number of gateways share.
type RedisStore struct {
	// Where the server is: one of host:port, redis://, rediss:// or unix://.
	Addresses []string `json:"addresses,omitempty"`

	// The ACL user. Placeholders are expanded.
	Username string `json:"username,omitempty"`

	// The user's password, or the server's. Placeholders are expanded.
	Password string `json:"password,omitempty"`

	// The number of the database. Default: 0.
	DB *int `json:"db,omitempty"`

	// What the name of every key starts with. Default: idempotency.
	Prefix string `json:"prefix,omitempty"`

	// How long one operation may take. Default: 500ms.
	Timeout Duration `json:"timeout,omitempty"`

	config redis.Config
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
	repl := caddy.NewReplacer()
	switch len(s.Addresses) {
	case 0:
		return errors.New("store redis: an address is missing")
	case 1:
	default:
		return fmt.Errorf("store redis: takes one address, and has %d", len(s.Addresses))
	}
	address, err := expand(repl, "store redis: address", s.Addresses[0])
	if err != nil {
		return err
	}
	s.config, err = redis.ParseAddress(address)
	if err != nil {
		return fmt.Errorf("store redis: %w", err)
	}
	for _, option := range []struct {
		name, value string
		target      *string
	}{
		{"username", s.Username, &s.config.Username},
		{"password", s.Password, &s.config.Password},
		{"prefix", s.Prefix, &s.config.Prefix},
	} {
		if option.value == "" {
			continue
		}
		if *option.target != "" {
			return fmt.Errorf("store redis: %s is given twice, as an option and in the address", option.name)
		}
		if *option.target, err = expand(repl, "store redis: "+option.name, option.value); err != nil {
			return err
		}
	}
	if s.DB != nil {
		if s.config.DB != 0 {
			return errors.New("store redis: db is given twice, as an option and in the address")
		}
		if *s.DB < 0 {
			return fmt.Errorf("store redis: db is %d, and must not be negative", *s.DB)
		}
		s.config.DB = *s.DB
	}
	s.config.Timeout, err = s.Timeout.resolve(repl, "store redis: timeout", idempotency.DefaultStoreTimeout)
	if err != nil {
		return err
	}
	if s.config.Timeout < time.Millisecond {
		return fmt.Errorf("store redis: timeout is %s, and must be 1ms at least", s.config.Timeout)
	}
	return nil
}

// Identity implements StoreModule. Whatever makes another client is part of
// it, so that a reload with a new password connects anew.
func (s *RedisStore) Identity() string {
	c := s.config
	identity := ""
	for _, part := range []string{
		c.Network, c.Address, c.Username, c.Password, strconv.Itoa(c.DB), c.Prefix, c.Timeout.String(), strconv.FormatBool(c.TLS != nil),
	} {
		identity += strconv.Quote(part)
	}
	return identity
}

// Open implements StoreModule.
func (s *RedisStore) Open() (idempotency.Store, error) { return redis.New(s.config), nil }

// OperationTimeout implements StoreModule.
func (s *RedisStore) OperationTimeout() time.Duration { return s.config.Timeout }

// EmbeddedStore keeps records in one file, for a gateway that runs as a single
// process. Every acknowledged write has reached the disk.
type EmbeddedStore struct {
	// The file; it is created on first use. Placeholders are expanded.
	// Default: idempotency.db in Caddy's data directory.
	Path string `json:"path,omitempty"`

	path string
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
	s.path = realPath(path)
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
func (s *EmbeddedStore) Identity() string { return s.path }

// Open implements StoreModule.
func (s *EmbeddedStore) Open() (idempotency.Store, error) {
	return embedded.New(embedded.Config{Path: s.path}), nil
}

// OperationTimeout implements StoreModule.
func (s *EmbeddedStore) OperationTimeout() time.Duration { return embeddedTimeout }

// Interface guards
var (
	_ StoreModule       = (*RedisStore)(nil)
	_ caddy.Provisioner = (*RedisStore)(nil)
	_ StoreModule       = (*EmbeddedStore)(nil)
	_ caddy.Provisioner = (*EmbeddedStore)(nil)
)

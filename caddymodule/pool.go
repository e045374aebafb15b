package caddymodule

import (
	"errors"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
)

// engines has the engine of each store that a configuration uses or an attempt
// still needs, by the identity of the store. Old and new configuration share
// an engine over a reload.
var engines = caddy.NewUsagePool()

// sharedEngine is a handle to an engine in the pool.
type sharedEngine struct {
	store StoreModule
	key   string
}

func newSharedEngine(store StoreModule) *sharedEngine {
	return &sharedEngine{store: store, key: storeKey(store)}
}

// pooledEngine is an engine in the pool. It captures nothing of a
// configuration: it outlives the one that made it.
type pooledEngine struct {
	*idempotency.Engine
	store idempotency.Store
}

// Destruct closes the store, when neither a configuration nor the engine's own
// work needs it.
func (e pooledEngine) Destruct() error { return e.Close() }

func (s *sharedEngine) load() (pooledEngine, error) {
	key := s.key
	value, _, err := engines.LoadOrNew(key, func() (caddy.Destructor, error) {
		store, err := s.store.Open()
		if err != nil {
			return nil, err
		}
		return pooledEngine{store: store, Engine: idempotency.NewEngine(idempotency.EngineConfig{
			Store:        store,
			StoreTimeout: s.store.OperationTimeout(),
			Observer:     observer{},
			// As long as the engine works by itself, it counts as a user.
			Hold: func() func() { return hold(key) },
		})}, nil
	})
	if err != nil {
		return pooledEngine{}, err
	}
	return value.(pooledEngine), nil
}

// hold adds a user to an engine that has one, for as long as it works by itself.
func hold(key string) (done func()) {
	_, _, err := engines.LoadOrNew(key, func() (caddy.Destructor, error) { return nil, errNoUser })
	if err != nil {
		return func() {}
	}
	return func() { letGo(key) }
}

var errNoUser = errors.New("the engine is closed")

// letGo takes a user away who has nobody to tell of an error.
func letGo(key string) {
	if _, err := engines.Delete(key); err != nil {
		log().Error("closing store", zap.Error(err))
	}
}

// watch lets the store watch over its server, if it can. Somebody has to know
// that the engine has a user.
func (s *sharedEngine) watch() error {
	engine, err := s.load()
	if err != nil {
		return err
	}
	if store, ok := engine.store.(interface{ Watch() }); ok {
		store.Watch()
	}
	return s.release()
}

// acquire adds a user. Each successful acquire needs one release.
func (s *sharedEngine) acquire() error {
	_, err := s.load()
	return err
}

func (s *sharedEngine) release() error {
	_, err := engines.Delete(s.key)
	return err
}

// get returns the engine for somebody who knows that it has a user.
func (s *sharedEngine) get() (*idempotency.Engine, error) {
	engine, err := s.load()
	if err != nil {
		return nil, err
	}
	return engine.Engine, s.release()
}

// use returns the engine for one request, which may outlive its configuration
// and must call the function at its end.
func (s *sharedEngine) use() (*idempotency.Engine, func(), error) {
	engine, err := s.load()
	if err != nil {
		return nil, nil, errors.Join(idempotency.ErrStoreUnavailable, err)
	}
	return engine.Engine, func() { letGo(s.key) }, nil
}

// pooledEngines returns all engines in the pool. An engine that begins to work
// enters it once more with its own mutex held, so none is asked while Range
// holds the pool's.
func pooledEngines() (all []pooledEngine) {
	engines.Range(func(_, value any) bool {
		all = append(all, value.(pooledEngine))
		return true
	})
	return all
}

// adopt tells the store that what it lost was right to be lost, by an operator's
// word.
func (s *sharedEngine) adopt(ctx context.Context) error {
	engine, err := s.load()
	if err != nil {
		return err
	}
	defer letGo(s.key)
	if store, ok := engine.store.(interface{ Adopt(context.Context) error }); ok {
		return store.Adopt(ctx)
	}
	return redis.ErrNotStrict
}

// Interface guard
var _ caddy.Destructor = pooledEngine{}

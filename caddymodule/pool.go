package caddymodule

import (
	"context"
	"errors"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
)

// stores has each store that a configuration uses or an attempt still needs, with
// what works on it, by the identity of the store. Old and new configuration share
// all of it over a reload: one client of a server, one handle of a file.
var stores = caddy.NewUsagePool()

// storeHandle is a configuration's way to its store in the pool.
type storeHandle struct {
	module StoreModule
	key    string
}

func newStoreHandle(module StoreModule) *storeHandle {
	return &storeHandle{module: module, key: storeKey(module)}
}

// pooledStore is an open store with its tenants: whatever works on it in this
// process, each of them once. It captures nothing of a configuration: it outlives
// the one that made it.
type pooledStore struct {
	store  idempotency.Store
	engine *idempotency.Engine
}

// Destruct closes the tenants and then the store, when neither a configuration nor
// a tenant's own work needs it.
func (s *pooledStore) Destruct() error {
	s.engine.Close()
	return s.store.Close()
}

func (h *storeHandle) load() (*pooledStore, error) {
	key := h.key
	value, _, err := stores.LoadOrNew(key, func() (caddy.Destructor, error) {
		store, err := h.module.Open()
		if err != nil {
			return nil, err
		}
		return &pooledStore{store: store, engine: idempotency.NewEngine(idempotency.EngineConfig{
			Store:        store,
			StoreTimeout: h.module.OperationTimeout(),
			Observer:     observer{},
			// As long as the engine works by itself, it counts as a user.
			Hold: func() func() { return hold(key) },
		})}, nil
	})
	if err != nil {
		return nil, err
	}
	return value.(*pooledStore), nil
}

// hold adds a user to a store that has one, for as long as a tenant works by itself.
func hold(key string) (done func()) {
	_, _, err := stores.LoadOrNew(key, func() (caddy.Destructor, error) { return nil, errNoUser })
	if err != nil {
		return func() {}
	}
	return func() { releaseAndLog(key) }
}

var errNoUser = errors.New("the store is closed")

// releaseAndLog takes a user away who has nobody to tell of an error.
func releaseAndLog(key string) {
	if _, err := stores.Delete(key); err != nil {
		log().Error("closing store", zap.Error(err))
	}
}

// watch lets the store watch over its server, if it can. Somebody has to know
// that the store has a user.
func (h *storeHandle) watch() error {
	pooled, err := h.load()
	if err != nil {
		return err
	}
	if store, ok := pooled.store.(idempotency.Watcher); ok {
		store.Watch()
	}
	return h.release()
}

// acquire adds a user. Each successful acquire needs one release.
func (h *storeHandle) acquire() error {
	_, err := h.load()
	return err
}

func (h *storeHandle) release() error {
	_, err := stores.Delete(h.key)
	return err
}

// get returns the store for somebody who knows that it has a user.
func (h *storeHandle) get() (*pooledStore, error) {
	pooled, err := h.load()
	if err != nil {
		return nil, err
	}
	return pooled, h.release()
}

// use returns the store for one request, which may outlive its configuration
// and must call the function at its end.
func (h *storeHandle) use() (*pooledStore, func(), error) {
	pooled, err := h.load()
	if err != nil {
		return nil, nil, errors.Join(idempotency.ErrStoreUnavailable, err)
	}
	return pooled, func() { releaseAndLog(h.key) }, nil
}

// pooledStores returns all stores in the pool. An engine that begins to work
// enters its store once more with its own mutex held, so none is asked while Range
// holds the pool's.
func pooledStores() (all []*pooledStore) {
	stores.Range(func(_, value any) bool {
		all = append(all, value.(*pooledStore))
		return true
	})
	return all
}

// adopt tells the store that what it lost was right to be lost, by an operator's
// word.
func (h *storeHandle) adopt(ctx context.Context) error {
	pooled, done, err := h.use()
	if err != nil {
		return err
	}
	defer done()
	if store, ok := pooled.store.(interface{ Adopt(context.Context) error }); ok {
		return store.Adopt(ctx)
	}
	return redis.ErrNotStrict
}

// Interface guard
var _ caddy.Destructor = (*pooledStore)(nil)

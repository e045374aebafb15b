// Package caddymodule puts the idempotency protocol into Caddy: configuration
// in, outcomes out. What a request may do is decided in package idempotency.
package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

func init() {
	caddy.RegisterModule(App{})
}

// App keeps the store that all idempotency handlers of a configuration share.
// Without it in the configuration, the handlers use the embedded store.
//
// Validating a configuration touches neither a server nor a file, and loading
// one does not wait for them. A store that cannot be reached makes submits with
// a key fail with status 503, until it can be reached again.
type App struct {
	// Where records are kept. Default: the embedded store in Caddy's data
	// directory.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=idempotency.stores inline_key=module"`

	// Encrypts everything readable in the store with AES-256-GCM: keys of 32
	// random bytes, as base64 or as 64 hexadecimal digits. The first encrypts new
	// records; all of them decrypt. Placeholders are expanded. Default: none,
	// records are readable.
	EncryptionKey []string `json:"encryption_key,omitempty"`

	keyring  *idempotency.Keyring
	store    *storeHandle
	acquired bool
	checked  map[*caddyhttp.Server]*questions
	guards   []*guard // of the servers that are checked
	owners   owners
	deployed *deployment // while it runs
	logger   *zap.Logger
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  AppID,
		New: func() caddy.Module { return new(App) },
	}
}

// AppID is the app's name in a configuration.
const AppID = "idempotency"

// Provision sets up the store without opening it.
func (a *App) Provision(ctx caddy.Context) error {
	a.logger = ctx.Logger()
	if err := metrics.register(ctx.GetMetricsRegistry()); err != nil {
		return err
	}
	var err error
	if a.keyring, err = parseEncryptionKeys(caddy.NewReplacer(), a.EncryptionKey); err != nil {
		return err
	}
	module, err := a.LoadStore(ctx)
	if err != nil {
		return err
	}
	a.owners.store = resourcesOf(module)
	store := newStoreHandle(module)
	if err := store.acquire(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	a.store, a.acquired = store, true
	return nil
}

// LoadStore provisions the configured store.
func (a *App) LoadStore(ctx caddy.Context) (StoreModule, error) {
	if a.StoreRaw == nil {
		a.StoreRaw = json.RawMessage(`{"module":"embedded"}`)
	}
	loaded, err := ctx.LoadModule(a, "StoreRaw")
	if err != nil {
		return nil, fmt.Errorf("loading store: %w", err)
	}
	store, ok := loaded.(StoreModule)
	if !ok {
		return nil, fmt.Errorf("store: module %T is not an idempotency store", loaded)
	}
	return store, nil
}

// checkOnce checks the routes of a server that has an idempotency handler, when
// the first handler is provisioned, and returns what is known of its proxies.
func (a *App) checkOnce(server *caddyhttp.Server) (*questions, error) {
	if q, checked := a.checked[server]; checked {
		return q, nil
	}
	q, err := findQuestions(server)
	if err != nil {
		return nil, err
	}
	if a.checked == nil {
		a.checked = make(map[*caddyhttp.Server]*questions)
	}
	a.checked[server] = q
	guards, err := checkRoutes(server, a.logger)
	a.addGuards(guards)
	return q, err
}

// Start lets a store that watches over its server begin with it, in the
// background. Any other store is opened by the first submit. It warns of keys
// that this configuration has made free again.
func (a *App) Start() error {
	if err := a.store.watch(); err != nil {
		return err
	}
	a.deploy()
	return nil
}

// WithEngine calls f with the engine of the store and the keys that its records
// are encrypted under. The store stays open until f returns, whatever becomes
// of the configuration. Without f's own, the error is ErrStoreUnavailable.
func (a *App) WithEngine(f func(*idempotency.Engine, *idempotency.Keyring) error) error {
	store, release, err := a.store.use()
	if err != nil {
		return err
	}
	defer release()
	return f(store.engine, a.keyring)
}

// Adopt tells a strict store which has lost its marker that it is right as it is, by
// an operator's word. It is redis.ErrNotStrict for a store without a marker, and
// redis.ErrNotLost if nothing is lost.
func (a *App) Adopt(ctx context.Context) error { return a.store.adopt(ctx) }

// Stop leaves attempts alone: they may still be running when Caddy stops its
// apps.
func (a *App) Stop() error {
	deployments.end(a.deployed)
	return nil
}

// drainTimeout is how long a process that ends waits for outcomes that could
// not be stored yet, after Caddy's own grace period, and once more to store that
// nobody will know the others.
const drainTimeout = 2 * time.Second

// Cleanup lets go of the store. Attempts of this configuration that still run
// keep it open.
func (a *App) Cleanup() error {
	if !a.acquired {
		return nil
	}
	a.acquired = false
	if caddy.Exiting() {
		a.drain()
	}
	return a.store.release()
}

// drain says which attempts the ending process leaves behind, in the store too.
func (a *App) drain() {
	store, err := a.store.get()
	if err != nil {
		return // nothing was ever opened
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	alive, unstored := store.engine.Drain(ctx)
	if len(alive) > 0 {
		a.logger.Warn("stopping while submits are running; their outcome is unknown",
			zap.Int("count", len(alive)), zap.Any("records", first(alive)))
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		if left := store.engine.Abandon(ctx); len(left) > 0 {
			a.logger.Error("stopping before these records could be marked uncertain; repeats get in_progress until their leases expire",
				zap.Int("count", len(left)), zap.Any("records", first(left)))
		}
	}
	if len(unstored) > 0 {
		a.logger.Error("stopping while outcomes are not stored; they are unknown once their leases expire",
			zap.Int("count", len(unstored)), zap.Any("records", first(unstored)))
	}
}

// first are as many records as one line of the log has room for.
func first(records []idempotency.RecordID) []idempotency.RecordID {
	const most = 100
	return records[:min(len(records), most)]
}

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)

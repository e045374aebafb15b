package caddymodule_test

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/caddymodule"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

func init() { caddy.RegisterModule(thirdStore{}) }

// thirdStore is a store of somebody else.
type thirdStore struct {
	Path string `json:"path"`
}

// lastThird is the one that was made last.
var lastThird weak.Pointer[thirdStore]

func (thirdStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "idempotency.stores.third", New: func() caddy.Module {
		s := new(thirdStore)
		lastThird = weak.Make(s)
		return s
	}}
}

func (s *thirdStore) Identity() string                { return s.Path }
func (s *thirdStore) OperationTimeout() time.Duration { return time.Second }
func (s *thirdStore) Open() (idempotency.Store, error) {
	return embedded.New(embedded.Config{Path: s.Path}), nil
}

// The engine that two configurations share keeps nothing of the one that made
// it, whose secrets may be others.
func TestEngineKeepsNoConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	load := func() (*caddymodule.App, func()) {
		ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
		app := &caddymodule.App{StoreRaw: []byte(`{"module":"third","path":"` + path + `"}`)}
		if err := app.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		return app, func() {
			if err := app.Cleanup(); err != nil {
				t.Error(err)
			}
			cancel()
		}
	}
	_, unload := load()
	first := lastThird
	second, unloadSecond := load()
	unload()
	defer unloadSecond()
	for deadline := time.Now().Add(30 * time.Second); first.Value() != nil; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("the engine keeps the store's configuration that is gone")
		}
	}
	runtime.KeepAlive(second)
}

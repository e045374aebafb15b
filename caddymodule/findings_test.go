package caddymodule_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/caddymodule"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

func init() { caddy.RegisterModule(openedStore{}) }

// openedStore shows the test the store that it opened last.
type openedStore struct {
	Path string `json:"path"`
}

var lastOpened *embedded.Store

func (openedStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "idempotency.stores.opened", New: func() caddy.Module { return new(openedStore) }}
}

func (s *openedStore) Identity() string                { return s.Path }
func (s *openedStore) OperationTimeout() time.Duration { return time.Second }
func (s *openedStore) Open() (idempotency.Store, error) {
	lastOpened = embedded.New(embedded.Config{Path: s.Path, Report: caddymodule.ReportFinding})
	return lastOpened, nil
}

// What any store has found wrong counts, also if it is a file.
func TestFindingsOfAFileCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	app := &caddymodule.App{StoreRaw: []byte(`{"module":"opened","path":"` + path + `"}`)}
	if err := app.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := app.Cleanup(); err != nil {
			t.Error(err)
		}
	}()
	look := func() {
		t.Helper()
		if _, err := lastOpened.Now(context.Background()); err != nil {
			t.Fatal(err)
		}
		_, _, _ = lastOpened.Get(context.Background(), idempotency.NewRecordID("", nil, "k"))
	}
	want := func(n float64) {
		t.Helper()
		families, err := ctx.GetMetricsRegistry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "caddy_idempotency_store_findings" {
				if got := family.GetMetric()[0].GetGauge().GetValue(); got != n {
					t.Errorf("the metric is %v, want %v", got, n)
				}
				return
			}
		}
		t.Error("the metric is not there")
	}
	look()
	want(0)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	look()
	want(1)
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	look()
	want(0)
}

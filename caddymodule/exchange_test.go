package caddymodule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(brokenWriter{}) }

// brokenWriter is a handler under which the body of an answer cannot be written,
// if the request asks for that.
type brokenWriter struct{}

func (brokenWriter) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.broken_writer", New: func() caddy.Module { return new(brokenWriter) }}
}

func (brokenWriter) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Header.Get("X-Break") != "" {
		w = unwritable{&caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	}
	return next.ServeHTTP(w, r)
}

type unwritable struct {
	*caddyhttp.ResponseWriterWrapper
}

func (unwritable) Header() http.Header       { return make(http.Header) }
func (unwritable) WriteHeader(int)           {}
func (unwritable) Write([]byte) (int, error) { return 0, errors.New("the body cannot be written") }

// An answer that cannot be written is no reason for Caddy's error routes, which
// may pass the submit on to another provider.
func TestWriteErrorsStayHere(t *testing.T) {
	count := func(n *atomic.Int32, answer http.HandlerFunc) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			answer(w, r)
		}))
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	var submits, passedOn atomic.Int32
	provider := count(&submits, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte("job"))
	})
	backup := count(&passedOn, func(http.ResponseWriter, *http.Request) {})
	gateway := freeAddress(t)
	config := fmt.Sprintf(`{
		"admin": {"disabled": true, "config": {"persist": false}},
		"apps": {
			"idempotency": {"store": {"module": "embedded", "path": %q}},
			"http": {"servers": {"gateway": {
				"listen": [%q], "automatic_https": {"disable": true},
				"routes": [{"handle": [{"handler": "broken_writer"}, {"handler": "idempotency"},
					{"handler": "reverse_proxy", "upstreams": [{"dial": %q}]}]}],
				"errors": {"routes": [{"handle": [{"handler": "reverse_proxy", "upstreams": [{"dial": %q}]}]}]}
			}}}
		}
	}`, filepath.Join(t.TempDir(), "records.db"), gateway, provider, backup)
	var parsed caddy.Config
	if err := json.Unmarshal([]byte(config), &parsed); err != nil {
		t.Fatal(err)
	}
	if err := caddy.Run(&parsed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})

	send := func(t *testing.T, path, key, broken string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, "http://"+gateway+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("X-Break", broken)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	send(t, "/job", "k", "")
	for _, test := range []struct {
		name, path, key string
		submits         int32
	}{
		{"replay", "/job", "k", 1},
		{"problem", "/other", "k", 1},
		{"unknown outcome", "/broken", "l", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			send(t, test.path, test.key, "yes")
			if got := submits.Load(); got != test.submits {
				t.Errorf("the provider received %d submits, want %d", got, test.submits)
			}
			if n := passedOn.Swap(0); n != 0 {
				t.Errorf("another provider received %d submits", n)
			}
		})
	}
}

// freeAddress returns an address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

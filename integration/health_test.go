package integration

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A probe for readiness asks the store, one for liveness does not; neither is
// in the way of other requests.
func TestHealth(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + server.Address, before: "idempotency_health"})
	probe := func(path string) int {
		return g.send(t, request{method: http.MethodGet, path: path}).status
	}
	ready := func() error {
		return exec.Command(caddyBinary, "idempotency", "ready", "--address", g.admin).Run()
	}
	if live, status := probe("/live"), probe("/ready"); live != http.StatusOK || status != http.StatusOK || ready() != nil {
		t.Errorf("with the store, live is %d, ready %d, and the command says %v", live, status, ready())
	}
	if got := g.send(t, request{key: "k", path: "/ready", body: `{}`}); got.status != http.StatusAccepted {
		t.Errorf("a submit to the path of a probe got %s", got)
	}
	p.want(t, 1)

	server.Kill(t)
	await(t, "the gateway not to be ready", func() bool { return probe("/ready") == http.StatusServiceUnavailable })
	if live := probe("/live"); live != http.StatusOK {
		t.Errorf("without the store, live is %d", live)
	}
	if ready() == nil {
		t.Error("without the store, the command says that the gateway is ready")
	}
	server.Run(t)
	await(t, "the gateway to be ready again", func() bool { return probe("/ready") == http.StatusOK })
}

// strict refuses a server that may lose records: the gateway answers, and is
// not ready.
func TestHealthUnderStrict(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "no")
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + server.Address + " {\nstrict\n}", before: "idempotency_health"})
	if got := g.send(t, request{method: http.MethodGet, path: "/ready"}); got.status != http.StatusServiceUnavailable {
		t.Errorf("ready got %s, want 503", got)
	}
	p.want(t, 0)
}

// A gateway whose embedded file is gone answers submits with 503, and is not
// ready until the file is back.
func TestHealthWithoutTheFile(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{before: "idempotency_health"})
	ready := func() int { return g.send(t, request{method: http.MethodGet, path: "/ready"}).status }
	if got := g.send(t, request{key: "k", body: `{}`}); got.status != http.StatusAccepted || ready() != http.StatusOK {
		t.Fatalf("with the file a submit got %v, and ready is %d", got, ready())
	}
	file := filepath.Join(g.dir, "idempotency.db")
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	if got := g.send(t, request{key: "k", body: `{}`}); got.status != http.StatusServiceUnavailable || ready() != http.StatusServiceUnavailable {
		t.Errorf("without the file a submit got %v, and ready is %d", got, ready())
	}
	p.want(t, 1)
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	if status := ready(); status != http.StatusOK {
		t.Errorf("with the file back, ready is %d", status)
	}
}

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// Caddyfile.example runs as it is, before the sandbox: only its ports and the
// place of its file are another test's.
func TestExample(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]string{"embedded": "", "redis": "redis " + redistest.Start(t).Address} {
		t.Run(name, func(t *testing.T) {
			provider := startSandbox(t)
			gateways := []*gateway{startExample(t, provider, store)}
			if store != "" {
				gateways = append(gateways, startExample(t, provider, store))
			}
			r := request{key: "film-1", body: `{"prompt":"a lighthouse"}`}
			first := gateways[0].send(t, r)
			if first.status != 202 || !strings.HasPrefix(first.body, `{"id":"job_`) || first.replayed() {
				t.Fatalf("the first answer is %v", first)
			}
			for _, g := range gateways {
				if again := g.send(t, r); again.body != first.body || !again.replayed() {
					t.Errorf("the repeat got %v, want %v", again, first)
				}
			}
			r.key = "film-2"
			if other := gateways[0].send(t, r); other.status != 202 || other.body == first.body {
				t.Errorf("another key got %v", other)
			}
			if jobs := provider.jobs(t); jobs != 2 {
				t.Errorf("the provider has %d jobs, want 2", jobs)
			}
			if log := gateways[0].log.String(); strings.Contains(log, "film-1") {
				t.Error("the example's log has the key")
			}
		})
	}
}

func startExample(t *testing.T, provider *sandbox, store string) *gateway {
	t.Helper()
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	g := &gateway{url: "http://" + freeAddress(t), admin: freeAddress(t), log: &logBuffer{}, dir: dir, caddyfile: filepath.Join(dir, "Caddyfile")}
	_, port, _ := strings.Cut(strings.TrimPrefix(g.url, "http://"), ":")
	changed := strings.NewReplacer(
		"8080", port,
		"\n{\n", "\n{\n\tadmin "+g.admin+"\n\tpersist_config off\n",
	).Replace(string(text))
	if err := os.WriteFile(g.caddyfile, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	g.env = []string{"PROVIDER_URL=" + provider.url}
	if store != "" {
		g.env = append(g.env, "IDEMPOTENCY_STORE="+store)
	}
	g.endWith(t)
	g.run(t)
	return g
}

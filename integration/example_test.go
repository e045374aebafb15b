package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// Caddyfile.example runs as it is: only its ports and the place of its file are
// another test's.
func TestExample(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]string{"embedded": "", "redis": "redis " + redistest.Start(t).Address} {
		t.Run(name, func(t *testing.T) {
			gateways := []*gateway{startExample(t, store)}
			if store != "" {
				gateways = append(gateways, startExample(t, store))
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
			if log := gateways[0].log.String(); strings.Contains(log, "film-1") {
				t.Error("the example's log has the key")
			}
		})
	}
}

func startExample(t *testing.T, store string) *gateway {
	t.Helper()
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	g := &gateway{url: "http://" + freeAddress(t), admin: freeAddress(t), log: &logBuffer{}, dir: dir, caddyfile: filepath.Join(dir, "Caddyfile")}
	_, port, _ := strings.Cut(strings.TrimPrefix(g.url, "http://"), ":")
	_, providerPort, _ := strings.Cut(freeAddress(t), ":")
	changed := strings.NewReplacer(
		"8080", port,
		"9090", providerPort,
		"\n{\n", "\n{\n\tadmin "+g.admin+"\n\tpersist_config off\n",
	).Replace(string(text))
	if err := os.WriteFile(g.caddyfile, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	if store != "" {
		g.env = []string{"IDEMPOTENCY_STORE=" + store}
	}
	g.endWith(t)
	g.run(t)
	return g
}

package integration

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A strict store that was seen with records and comes back empty is 503, on all
// gateways that know it, until an operator adopts it.
func TestStrictStoreIsLostAndAdopted(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, redis *redistest.Server){
		"flushed":         losses["flushed"],
		"restarted empty": losses["restarted empty"],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			p := startProvider(t, nil)
			o := options{store: "redis " + redis.Address + " {\nstrict\n}"}
			a, b := startGateway(t, p.url, o), startGateway(t, p.url, o)
			r := request{key: "k", body: "x"}
			if got := a.send(t, r); got.status != 202 {
				t.Fatalf("the first caller got %v", got)
			}
			if got := b.send(t, r); !got.replayed() {
				t.Fatalf("a repeat got %v", got)
			}
			p.want(t, 1)
			doctor := func(args ...string) (string, int) {
				cmd := exec.Command(caddyBinary, append([]string{"idempotency", "doctor"}, args...)...)
				output, _ := cmd.CombinedOutput() // the exit code says it
				return string(output), cmd.ProcessState.ExitCode()
			}
			if output, code := doctor("--adopt", "--reason", "too early", "--address", a.admin); code != 9 {
				t.Errorf("to adopt a store that is not lost ended with %d: %s", code, output)
			}

			if name == "restarted empty" {
				losses["flushed"](t, redis)
			}
			lose(t, redis)
			for range 3 {
				for _, g := range []*gateway{a, b} {
					got := g.send(t, r)
					p.want(t, 1)
					if got.status != 503 || got.code() != "idempotency_store_unavailable" {
						t.Errorf("without the marker: %v", got)
					}
				}
			}
			a.awaitLog(t, `"setting":"marker"`)
			if n := a.scrape(t)["caddy_idempotency_store_findings"]; n != 1 {
				t.Errorf("the metric has %v findings", n)
			}
			if output, code := doctor("--adopt", "--address", a.admin); code != 1 || !strings.Contains(output, "--reason") {
				t.Errorf("without a reason it ended with %d: %s", code, output)
			}
			p.want(t, 1)
			if output, code := doctor("--adopt", "--reason", "flushed on purpose", "--address", a.admin); code != 0 {
				t.Fatalf("to adopt ended with %d: %s", code, output)
			}
			a.awaitLog(t, "flushed on purpose")
			if got := a.send(t, r); got.status != 202 || got.replayed() {
				t.Errorf("after the adoption: %v", got)
			}
			p.want(t, 2)
			await(t, "the other gateway to notice", func() bool { return b.send(t, r).replayed() })
			await(t, "the findings to be over", func() bool {
				return a.scrape(t)["caddy_idempotency_store_findings"]+b.scrape(t)["caddy_idempotency_store_findings"] == 0
			})
			p.want(t, 2)
			if output, code := doctor("--config", a.caddyfile); code != 0 || !strings.Contains(output, "marker") {
				t.Errorf("the doctor ended with %d: %s", code, output)
			}
		})
	}
}

// What a gateway works on while the marker is lost is stored when the store has
// been adopted.
func TestOutcomeWaitsForAdoption(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	hold := newGate()
	p := startProvider(t, nil)
	p.now(p.holdUntil(hold))
	g := startGateway(t, p.url, options{store: "redis " + redis.Address + " {\nstrict\n}"})
	r := request{key: "k", body: "x"}
	done := g.sendLater(t, r)
	p.awaitSubmits(t, 1)
	losses["flushed"](t, redis)
	hold.open()
	first := <-done
	if first.status != 202 {
		t.Errorf("the first caller got %v", first)
	}
	if got := g.send(t, r); got.status != 503 {
		t.Errorf("before the adoption: %v", got)
	}
	p.want(t, 1)
	output, err := exec.Command(caddyBinary, "idempotency", "doctor", "--adopt", "--reason", "test", "--address", g.admin).CombinedOutput()
	if err != nil {
		t.Fatalf("adopt: %v\n%s", err, output)
	}
	var again answer
	await(t, "the replay", func() bool { again = g.send(t, r); return again.status != 503 })
	p.want(t, 1)
	if !again.replayed() || again.body != first.body {
		t.Errorf("after the adoption: %v, want %v", again, first)
	}
}

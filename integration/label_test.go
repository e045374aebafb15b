package integration

import (
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
)

func (r request) of(team string) request {
	r.header = http.Header{"X-Team": {team}}
	return r
}

// A record says whose job it is, in words of the configuration; who repeats it
// with another label gets the same replay.
func TestLabel(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{store: store.directive(t), idempotency: `label "{http.request.header.X-Team} on {system.os}"`})
			labels := map[string]string{ // key -> team
				"a": "films", "b": "ads", "c": "", "d": "\u202eevil", "e": strings.Repeat("é", 150),
			}
			for key, team := range labels {
				g.send(t, request{key: key, body: "x"}.of(team))
			}
			again := g.send(t, request{key: "a", body: "x"}.of("somebody else"))
			p.want(t, len(labels))
			if !again.replayed() {
				t.Errorf("with another label the repeat got %s", again)
			}

			got := map[string]bool{}
			for _, r := range g.list(t, "").Records {
				got[r.Label] = true
				if shown := g.show(t, r.ID); shown.Label != r.Label {
					t.Errorf("the record has label %q, and the listing %q", shown.Label, r.Label)
				}
			}
			for _, want := range []string{"films on linux", "ads on linux", "on linux", "\u202eevil on linux", strings.Repeat("é", 100)} {
				if !got[want] {
					t.Errorf("no record has label %q: %v", want, got)
				}
			}
			for query, want := range map[string]int{"films on linux": 1, "films*": 1, "films": 0, "*": 5, "": 5} {
				if l := g.list(t, "?label="+url.QueryEscape(query)); len(l.Records) != want {
					t.Errorf("label %q lists %d records, want %d", query, len(l.Records), want)
				}
			}
			output, err := exec.Command(caddyBinary, "idempotency", "list", "--address", g.admin, "--label", "\u202e*").CombinedOutput()
			if err != nil || !strings.Contains(string(output), `"\u202eevil on linux"`) || strings.Contains(string(output), "films") {
				t.Errorf("list gave %v: %s", err, output)
			}
			if strings.Contains(g.exposition(t), "films") {
				t.Error("a metric has a label of a caller")
			}
		})
	}
}

// A label that has a placeholder which nobody knows is empty, and keeps no submit
// from its way.
func TestLabelOfNobody(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: `label "team {nobody.knows}"`})
	got := g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	if got.status != 202 {
		t.Errorf("the submit got %s", got)
	}
	if r := g.list(t, "").Records[0]; r.Label != "" {
		t.Errorf("the label is %q", r.Label)
	}
}

package integration

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// A record keeps who decided about it, when and why; what an operator gives is
// what is shown and replayed, a JSON string as JSON.
func TestRecordKeepsDecision(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{store: store.directive(t)})
			id := leaveUnknown(t, g, p, submitUnknown)
			if r := g.show(t, id); r.Decision != nil {
				t.Errorf("before a decision the record is %+v", r)
			}
			if got := g.decide(t, id, "complete", `{"status":200,"body":"job_9","reason":"seen in the console"}`); got.status != 200 {
				t.Fatalf("complete gave %s", got)
			}
			again := g.send(t, submitUnknown)
			p.want(t, 1)
			if !again.replayed() || again.status != 200 || again.body != `"job_9"` || again.header.Get("Content-Type") != "application/json" {
				t.Errorf("the repeat got %s %v", again, again.header)
			}
			for where, r := range map[string]record{"the record": g.show(t, id), "the listing": g.list(t, "").Records[0]} {
				if d := r.Decision; r.State != "completed" || r.Status != 200 || r.JobID != "" || d == nil || d.What != "completed" ||
					d.Reason != "seen in the console" || !strings.HasPrefix(d.By, "127.0.0.1:") || time.Since(d.At).Abs() > time.Minute {
					t.Errorf("%s has %+v, decided %+v", where, r, d)
				}
			}
		})
	}
}

// An answer without a body has to be asked for.
func TestCompleteNeedsBody(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	id := leaveUnknown(t, g, p, submitUnknown)
	for body, text := range map[string]string{
		`{"reason":"r","status":202}`:                                             "body: it is missing",
		`{"reason":"r","status":204}`:                                             "body: it is missing",
		`{"reason":"r","status":202,"body_base64":""}`:                            "body: it is missing",
		`{"reason":"r","status":202,"empty":false}`:                               "body: it is missing",
		`{"reason":"r","status":202,"empty":true,"body":{}}`:                      "empty: a body is given",
		`{"reason":"r","status":202,"empty":"yes"}`:                               "empty: it must not be a JSON string",
		`{"reason":"` + strings.Repeat("x", 1001) + `","body":null}`:              "status",
		`{"reason":"` + strings.Repeat("x", 1001) + `","status":202,"body":null}`: "1001 bytes",
	} {
		if got := g.decide(t, id, "complete", body); got.status != http.StatusBadRequest || !strings.Contains(got.body, text) {
			t.Errorf("%.60s gave %s, want 400 with %q", body, got, text)
		}
	}
	if r := g.show(t, id); r.State != "uncertain" {
		t.Fatalf("after all that the record is %+v", r)
	}
	if got := g.decide(t, id, "complete", `{"reason":"r","status":202,"empty":true}`); got.status != 200 {
		t.Fatalf("complete gave %s", got)
	}
	again := g.send(t, submitUnknown)
	p.want(t, 1)
	if !again.replayed() || again.status != 202 || again.body != "" {
		t.Errorf("the repeat got %s", again)
	}
}

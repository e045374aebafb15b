package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// An error page in the place of the provider's answer proves nothing: what the
// provider itself said decides.
func TestRewrittenAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		provider int
		proxy    string // in the proxy's block
		site     string // before the proxy, behind the handler
		status   int
		code     string
	}{
		{"500 as 503", 500, "@bad status 5xx\nreplace_status @bad 503", "", 503, "idempotency_outcome_unknown"},
		{"500 as an error page", 500, "@bad status 5xx\nhandle_response @bad {\nrespond maintenance 503\n}", "", 503, "idempotency_outcome_unknown"},
		{"502 as 404 by intercept", 502, "", "intercept {\n@bad status 5xx\nreplace_status @bad 404\n}", 404, "idempotency_outcome_unknown"},
		{"500 as 200", 500, "@bad status 5xx\nhandle_response @bad {\nrespond {} 200\n}", "", 200, "idempotency_outcome_unknown"},
		{"500 as an event stream", 500, "@bad status 5xx\nhandle_response @bad {\nheader Content-Type text/event-stream\nrespond {} 200\n}", "", 200, "idempotency_outcome_unknown"},
		{"429 as 200", 429, "@bad status 4xx\nhandle_response @bad {\nrespond {} 200\n}", "", 200, ""},
		{"202 as 409", 202, "@acc status 2xx\nhandle_response @acc {\nrespond no 409\n}", "", 409, "idempotency_outcome_unknown"},
		{"429 as 503", 429, "@bad status 4xx\nreplace_status @bad 503", "", 503, ""},
		{"429 as an error page", 429, "@bad status 4xx\nhandle_response @bad {\nrespond busy 503\n}", "", 503, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, answerWith(test.provider, nil, "from the provider"))
			g := startGateway(t, p.url, options{
				instead: fmt.Sprintf("route {\n%s\nreverse_proxy %s {\n%s\n}\n}", test.site, p.url, test.proxy),
			})
			got := g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			if got.status != test.status || got.code() != test.code {
				t.Errorf("got %v", got)
			}
			again := g.send(t, request{key: "k", body: "x"})
			if test.code != "" {
				p.want(t, 1)
				if again.status != 409 || again.code() != test.code {
					t.Errorf("again: %v", again)
				}
			} else {
				p.want(t, 2) // refused by the provider itself
			}
		})
	}
}

// A page for a provider that has not answered is not the provider's word: only
// if nothing can have reached it is the key free. The Caddyfile has no error
// routes behind the handler, JSON has.
func TestErrorRoutesOfSubroute(t *testing.T) {
	t.Parallel()
	broken := func(http.ResponseWriter, *http.Request, int, func() string) { panic(http.ErrAbortHandler) }
	for _, status := range []int{503, 404, 200} {
		for _, body := range []string{"", "x"} {
			t.Run(fmt.Sprintf("%d for a body of %d bytes", status, len(body)), func(t *testing.T) {
				t.Parallel()
				p := startProvider(t, broken)
				g := startGateway(t, p.url, options{instead: "route {\nreverse_proxy " + p.url + "\n}"})
				g.addErrorRoute(t, status)
				got := g.send(t, request{key: "k", body: body})
				again := g.send(t, request{key: "k", body: body})
				p.want(t, 1)
				if got.status != status || got.code() != "idempotency_outcome_unknown" {
					t.Errorf("got %v", got)
				}
				if again.status != 409 || again.code() != "idempotency_outcome_unknown" {
					t.Errorf("again: %v", again)
				}
			})
		}
	}
	for _, status := range []int{503, 200} {
		t.Run(fmt.Sprintf("%d for no connection", status), func(t *testing.T) {
			t.Parallel()
			upstream := freeAddress(t)
			g := startGateway(t, upstream, options{instead: "route {\nreverse_proxy " + upstream + "\n}"})
			g.addErrorRoute(t, status)
			for range 2 {
				if got := g.send(t, request{key: "k", body: "x"}); got.status != status || got.code() != "" || got.replayed() {
					t.Errorf("got %v", got)
				}
			}
		})
	}
}

// addErrorRoute puts an error page into the subroute that the proxy is in.
func (g *gateway) addErrorRoute(t testing.TB, status int) {
	t.Helper()
	var config any
	if err := json.Unmarshal([]byte(g.ask(t, http.MethodGet, "/config/", "").body), &config); err != nil {
		t.Fatal(err)
	}
	page := map[string]any{"routes": []any{map[string]any{"handle": []any{
		map[string]any{"handler": "static_response", "status_code": status, "body": "maintenance"},
	}}}}
	added := 0
	var add func(value any)
	add = func(value any) {
		switch v := value.(type) {
		case []any:
			for _, element := range v {
				add(element)
			}
		case map[string]any:
			routes, _ := json.Marshal(v["routes"])
			if v["handler"] == "subroute" && bytes.Contains(routes, []byte(`"reverse_proxy"`)) && !bytes.Contains(routes, []byte(`"idempotency"`)) {
				v["errors"] = page
				added++
			}
			for _, member := range v {
				add(member)
			}
		}
	}
	add(config)
	text, err := json.Marshal(config)
	if err != nil || added != 1 {
		t.Fatalf("an error route was added %d times: %v", added, err)
	}
	if got := g.ask(t, http.MethodPost, "/load", string(text)); got.status != http.StatusOK {
		t.Fatalf("load: %v", got)
	}
	g.awaitOneListener(t)
}

// Caddy's error routes never see a request with a key: they might pass it on
// to another provider, without protection.
func TestHandleErrors(t *testing.T) {
	t.Parallel()
	backup := startProvider(t, nil)
	g := startGateway(t, freeAddress(t), options{before: fmt.Sprintf("handle_errors {\nreverse_proxy %s\n}", backup.url)})
	for _, r := range []request{{key: "k"}, {key: "l", body: "x"}, {key: "m", body: "x", chunked: true}} {
		for range 2 {
			got := g.send(t, r)
			backup.want(t, 0)
			if got.status != 502 || got.code() != "" {
				t.Errorf("got %v", got)
			}
		}
	}
	g = startGateway(t, freeAddress(t), options{idempotency: "scope {nobody.knows}", before: fmt.Sprintf("handle_errors {\nreverse_proxy %s\n}", backup.url)})
	if got := g.send(t, request{key: "k"}); got.status != 500 {
		t.Errorf("with an unknown placeholder: %v", got)
	}
	backup.want(t, 0)
	first := startProvider(t, func(http.ResponseWriter, *http.Request, int, func() string) { panic(http.ErrAbortHandler) })
	g = startGateway(t, first.url, options{store: "redis " + freeAddress(t), idempotency: "on_store_error forward",
		before: fmt.Sprintf("handle_errors {\nreverse_proxy %s\n}", backup.url)})
	got := g.send(t, request{key: "k"})
	first.want(t, 1)
	backup.want(t, 0)
	if got.status != 502 {
		t.Errorf("forwarded without protection: %v", got)
	}
}

// Of two handlers that a request passes the first one acts, and the other passes
// the submit on.
func TestHandlerBehindHandler(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{
		before: "header >X-Outcome {http.idempotency.outcome}\nidempotency /v1/* {\nlease 10s\n}",
	})
	first := g.send(t, request{key: "k", body: "x"})
	again := g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	if first.status != 202 || first.header.Get("X-Outcome") != "accepted" {
		t.Errorf("got %v", first)
	}
	if again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" || again.header.Get("X-Outcome") != "replayed" {
		t.Errorf("again: %v", again)
	}
}

// A replay that cannot be written is no reason to ask another provider: what a
// handler put in the place of the answer may be a status that has no body.
func TestReplayAndErrorRoutes(t *testing.T) {
	t.Parallel()
	backup := startProvider(t, nil)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{
		before: fmt.Sprintf("handle_errors {\nreverse_proxy %s\n}", backup.url),
		proxy:  "@accepted status 2xx\nreplace_status @accepted 204",
	})
	for range 3 {
		if got := g.send(t, request{key: "k"}); got.status != 204 || got.body != "" {
			t.Errorf("got %v", got)
		}
		p.want(t, 1)
		backup.want(t, 0)
	}
}

// A submit is not upgraded: it is answered.
func TestSubmitIsNotUpgraded(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	got := rawRequest(t, g, "POST /v1/videos HTTP/1.1\r\nHost: "+strings.TrimPrefix(g.url, "http://")+
		"\r\nIdempotency-Key: k\r\nConnection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 1\r\n\r\nx")
	p.want(t, 1)
	if got.status != 202 || p.submit(0).header.Get("Upgrade") != "" {
		t.Errorf("got %v; the provider saw %v", got, p.submit(0).header)
	}
}

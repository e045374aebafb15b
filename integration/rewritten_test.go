package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// An error page in the place of the provider's answer proves nothing: what the
// provider itself said decides.
func TestRewrittenAnswers(t *testing.T) {
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
		{"202 as 409", 202, "@acc status 2xx\nhandle_response @acc {\nrespond no 409\n}", "", 409, "idempotency_outcome_unknown"},
		{"429 as 503", 429, "@bad status 4xx\nreplace_status @bad 503", "", 503, ""},
		{"429 as an error page", 429, "@bad status 4xx\nhandle_response @bad {\nrespond busy 503\n}", "", 503, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
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

// Caddy's error routes never see a request with a key: they might pass it on
// to another provider, without protection.
func TestHandleErrors(t *testing.T) {
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

// A submit is not upgraded, and a record that cannot be read is not a store
// that is away.
func TestSubmitIsNotUpgraded(t *testing.T) {
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	got := rawRequest(t, g, "POST /v1/videos HTTP/1.1\r\nHost: "+strings.TrimPrefix(g.url, "http://")+
		"\r\nIdempotency-Key: k\r\nConnection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 1\r\n\r\nx")
	p.want(t, 1)
	if got.status != 202 || p.submit(0).header.Get("Upgrade") != "" {
		t.Errorf("got %v; the provider saw %v", got, p.submit(0).header)
	}
}

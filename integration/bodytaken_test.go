package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A body that a handler before this one has read is not sent as an empty one, in
// whatever way it came, and no other body is replayed its answer.
func TestBodyTakenBeforeInAnyForm(t *testing.T) {
	scanner := startProvider(t, answerWith(200, nil, "clean"))
	// A body that is buffered has been read when the answer comes.
	scan := "reverse_proxy " + scanner.url + " {\nrequest_buffers 1MB\nhandle_response {\nheader X-Scanned yes\n}\n}"
	for name, test := range map[string]struct {
		before string
		log    string
		server string // lines of the server's options
		taken  bool
	}{
		"by a placeholder, behind a copy":   {before: "tracing\nvars taken {http.request.body}", taken: true},
		"by a matcher, behind a copy":       {before: "tracing\n@x vars_regexp {http.request.body} x\nvars @x a b", taken: true},
		"by a placeholder, no access log":   {before: "tracing\nvars taken {http.request.body}", log: "# none", taken: true},
		"by another proxy":                  {before: scan, taken: true},
		"by another proxy, limited":         {before: "request_body {\nmax_size 1MB\n}\n" + scan, taken: true},
		"by another proxy, traced":          {before: "tracing\n" + scan, log: "# none", taken: true},
		"by a placeholder, no idle timeout": {before: "tracing\nvars taken {http.request.body}", server: "timeouts {\nread_body_idle -1s\n}", taken: true},
		"by a placeholder":                  {before: "vars taken {http.request.body}"},
		"not at all":                        {},
		"not at all, traced":                {before: "tracing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			handler := "idempotency\nreverse_proxy " + p.url
			g := startGateway(t, p.url, options{
				global: "servers {\nprotocols h1 h2c\n" + test.server + "\n}", log: test.log, env: []string{"OTEL_TRACES_EXPORTER=none"},
				// The handler before it acts on other methods.
				idempotency: "methods PUT", instead: "route {\n" + test.before + "\n" + handler + "\n}",
			})
			clients := map[string]http.RoundTripper{"HTTP/1.1": &http.Transport{}, "HTTP/2": h2cTransport()}
			key := 0
			for protocol, client := range clients {
				send := func(key, body string, declared bool) answer {
					var reader io.Reader = strings.NewReader(body)
					if !declared {
						reader = struct{ io.Reader }{reader}
					}
					req, err := http.NewRequest(http.MethodPost, g.url+"/v1/videos", reader)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Idempotency-Key", key)
					req.Header.Set("Content-Type", "application/json")
					res, err := client.RoundTrip(req)
					if err != nil {
						return answer{err: err}
					}
					defer res.Body.Close()
					data, err := io.ReadAll(res.Body)
					return answer{res.StatusCode, res.Header, string(data), err}
				}
				for _, declared := range []bool{true, false} {
					key++
					k := fmt.Sprint("key-", key)
					p.forget()
					for _, body := range []string{`{"a":1}`, `{"a":2}`} {
						got := send(k, body, declared)
						switch {
						case test.taken:
							p.want(t, 0)
							if got.status != 500 || got.code() != "" {
								t.Errorf("%s, declared %t: %v", protocol, declared, got)
							}
						case body == `{"a":1}`:
							p.want(t, 1)
							if got.status != 202 || p.submit(0).body != body {
								t.Errorf("%s, declared %t: %v; the provider got %q", protocol, declared, got, p.submit(0).body)
							}
						default:
							p.want(t, 1)
							if got.code() != "idempotency_key_reuse" {
								t.Errorf("%s, declared %t, another body: %v", protocol, declared, got)
							}
						}
					}
				}
				if test.server != "" {
					continue
				}
				// A body of unknown length may be empty.
				p.forget()
				first, again := send("empty-"+protocol, "", false), send("empty-"+protocol, "", false)
				p.want(t, 1)
				if first.status != 202 || !again.replayed() {
					t.Errorf("%s, empty: %v, again %v", protocol, first, again)
				}
			}
			if test.taken {
				g.awaitLog(t, "has read the request's body")
			}
		})
	}
}

// h2cTransport speaks HTTP/2 without TLS.
func h2cTransport() http.RoundTripper {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: protocols, DialContext: (&net.Dialer{}).DialContext}
}

package integration

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// Nothing that the module writes holds a key, a scope value, a body or a
// response: not its log at the most verbose level, not the names of keys in
// the store, not an error's text, not a metric and not a span.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const keyMark, authMark, bodyMark, answerMark, passwordMark = "mark-key", "mark-auth", "mark-body", "mark-answer", "mark-password"
	marks := []string{keyMark, authMark, bodyMark, answerMark, passwordMark}
	redis := redistest.Start(t, "--requirepass", passwordMark)
	p := startProvider(t, answerWith(202, map[string]string{"X-Mark": answerMark}, answerMark))
	spans := startReceiver(t)
	g := startGateway(t, p.url, options{
		store:  "redis redis://:" + passwordMark + "@" + redis.Address,
		before: "tracing",
		env:    spans.env(),
		global: "debug\nlog default {\ninclude http.handlers.idempotency idempotency\n}",
	})
	r := request{key: keyMark, auth: "Bearer " + authMark, body: bodyMark}
	var texts []string
	answer := func(r request) {
		got := g.send(t, r)
		if got.code() != "" {
			texts = append(texts, got.body)
		}
	}
	answer(r)
	answer(r)
	p.want(t, 1)
	r.body += "2"
	answer(r) // reuse
	answer(request{key: keyMark + " " + keyMark, auth: r.auth, body: bodyMark})
	p.now(hangUp("HTTP/1.1 20x "+answerMark+"\r\n\r\n", false))
	answer(request{key: keyMark + "-2", auth: r.auth, body: bodyMark})
	answer(request{key: keyMark + "-2", auth: r.auth, body: bodyMark})
	p.now(func(http.ResponseWriter, *http.Request, int, func() string) { panic(http.ErrAbortHandler) })
	answer(request{key: keyMark + "-3", auth: r.auth, body: bodyMark})

	names, err := redis.Client.Keys(context.Background(), "*").Result()
	if err != nil || len(names) != 3 {
		t.Fatalf("Redis has keys %v, %v", names, err)
	}
	redis.Kill(t)
	answer(request{key: keyMark + "-4", auth: r.auth, body: bodyMark})
	if len(texts) != 6 {
		t.Errorf("%d answers are the gateway's own, want 6", len(texts))
	}
	g.awaitLog(t, `"the outcome of a submit is unknown; repeats are rejected"`)
	exposition := g.exposition(t)
	// The last request failed at its claim, which is the only span of its kind.
	await(t, "the spans", func() bool {
		return slices.ContainsFunc(spans.received(), func(s *traces.Span) bool { return attributes(s)["idempotency.outcome"] == "store_error" })
	})
	var exported strings.Builder
	spanNames := map[string]bool{}
	for _, span := range spans.received() {
		spanNames[span.Name] = true
		exported.WriteString(prototext.Format(span) + "\n")
	}
	for _, name := range []string{"idempotency.claim", "idempotency.forward", "idempotency.complete"} {
		if !spanNames[name] {
			t.Errorf("no span %s was exported", name)
		}
	}

	for _, mark := range marks {
		if strings.Contains(strings.Join(names, "\n"), mark) {
			t.Errorf("the name of a key in Redis has %s", mark)
		}
		if strings.Contains(strings.Join(texts, "\n"), mark) {
			t.Errorf("an error document has %s", mark)
		}
		if strings.Contains(exposition, mark) {
			t.Errorf("a metric has %s", mark)
		}
		if strings.Contains(exported.String(), mark) {
			t.Errorf("a span has %s: %s", mark, exported.String())
		}
		for line := range strings.Lines(g.log.String()) {
			if strings.Contains(line, mark) && !strings.Contains(line, `"logger":"admin`) {
				t.Errorf("the log has %s: %s", mark, line)
			}
		}
	}
}

// snippet returns the snippet (without_secrets) of a document that shows it.
func snippet(t *testing.T, document string) string {
	t.Helper()
	_, rest, found := strings.Cut(readFile(t, document), "(without_secrets) {\n")
	body, _, ended := strings.Cut(rest, "\n}\n")
	if !found || !ended {
		t.Fatalf("%s has no snippet (without_secrets)", document)
	}
	return body
}

// The filter as docs/security.md and Caddyfile.example show it keeps what Caddy itself
// logs free of keys and API keys: in the access log, in the error log, in
// reverse_proxy's warnings and in what it logs with debug, as JSON and for the
// console.
func TestLogFilter(t *testing.T) {
	t.Parallel()
	document := snippet(t, "../docs/security.md")
	for name, filter := range map[string]string{
		"docs/security.md":       document,
		"docs/security.md, JSON": strings.Replace(document, "format filter {", "format filter {\nwrap json", 1),
		"Caddyfile.example":      snippet(t, "../Caddyfile.example"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			filter = "log {\n" + filter + "\n}"
			secret := request{key: "mark-key", body: "x", header: http.Header{
				"X-Api-Key": {"mark-api-key"}, "X-Idempotency-Key": {"mark-other-key"},
				"Api-Key": {"mark-azure"}, "Xi-Api-Key": {"mark-elevenlabs"}, "X-Goog-Api-Key": {"mark-google"},
			}}
			p := startProvider(t, nil)
			o := options{global: "debug\n" + filter, log: filter}
			g := startGateway(t, p.url, o)
			g.send(t, secret)
			p.now(hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 9\r\n\r\nx", false))
			broken, refused := secret, secret
			broken.key, refused.key, refused.method = "mark-key-2", "mark-key-3", http.MethodPut
			g.send(t, broken)
			p.want(t, 2)
			g.write(t, freeAddress(t), o)
			g.reload(t)
			// The server of the old configuration may still take a connection, and
			// close it.
			await(t, "the refused connection", func() bool { return g.send(t, refused).status == 502 })
			for _, message := range []string{"handled request", "upstream roundtrip", "aborting with incomplete response", "http.log.error"} {
				g.awaitLog(t, message)
			}
			for line := range strings.Lines(g.log.String()) {
				if strings.Contains(line, "mark-") || strings.Contains(line, "Bearer caller") {
					t.Errorf("in spite of the filter the log has a secret: %s", line)
				}
			}
		})
	}

	// Without it the keys are there, so the filter is what removes them.
	p := startProvider(t, nil)
	plain := startGateway(t, p.url, options{})
	plain.send(t, request{key: "mark-key", body: "x"})
	plain.awaitLog(t, "mark-key")
}

// A request body leaves no file behind, in whatever way its request ends.
func TestTemporaryFiles(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	large := strings.Repeat("x", 4<<20)
	g.send(t, request{key: "k", body: large})
	g.send(t, request{key: "k", body: large + "y"})
	p.now(hangUp("", true))
	g.send(t, request{key: "l", body: large})
	p.want(t, 2)
	left, err := filepath.Glob(filepath.Join(g.dir, "idempotency-body-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	await(t, "the open files to be closed", func() bool { return g.usage(t).unnamed == 0 })
}

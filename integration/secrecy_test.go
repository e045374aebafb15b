package integration

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// Nothing that the module writes holds a key, a scope value, a body or a
// response: not its log at the most verbose level, not the names of keys in
// the store, not an error's text.
func TestSecrets(t *testing.T) {
	const keyMark, authMark, bodyMark, answerMark, passwordMark = "mark-key", "mark-auth", "mark-body", "mark-answer", "mark-password"
	marks := []string{keyMark, authMark, bodyMark, answerMark, passwordMark}
	redis := redistest.Start(t, "--requirepass", passwordMark)
	p := startProvider(t, answerWith(202, map[string]string{"X-Mark": answerMark}, answerMark))
	g := startGateway(t, p.url, options{
		store:  "redis redis://:" + passwordMark + "@" + redis.Address,
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
	g.awaitLog(t, "outcome of a submit is unknown")

	for _, mark := range marks {
		if strings.Contains(strings.Join(names, "\n"), mark) {
			t.Errorf("the name of a key in Redis has %s", mark)
		}
		if strings.Contains(strings.Join(texts, "\n"), mark) {
			t.Errorf("an error document has %s", mark)
		}
		for line := range strings.Lines(g.log.String()) {
			if strings.Contains(line, mark) && !strings.Contains(line, `"logger":"admin`) {
				t.Errorf("the log has %s: %s", mark, line)
			}
		}
	}
}

// The filter of README and Caddyfile.example keeps what Caddy itself logs free
// of keys and API keys: in the access log, in the error log and in
// reverse_proxy's warnings.
func TestLogFilter(t *testing.T) {
	const filter = "log {\nformat filter {\nrequest>headers>Idempotency-Key delete\nrequest>headers>X-Api-Key delete\n}\n}"
	secret := request{key: "mark-key", body: "x", header: map[string][]string{"X-Api-Key": {"mark-api-key"}}}
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{global: filter, log: filter})
	g.send(t, secret)
	p.now(hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 9\r\n\r\nx", false))
	broken, refused := secret, secret
	broken.key, refused.key, refused.method = "mark-key-2", "mark-key-3", http.MethodPut
	g.send(t, broken)
	p.want(t, 2)
	g.write(t, freeAddress(t), options{global: filter, log: filter})
	g.reload(t)
	g.send(t, refused)
	for _, message := range []string{"handled request", "aborting with incomplete response", "http.log.error"} {
		g.awaitLog(t, message)
	}
	for line := range strings.Lines(g.log.String()) {
		if strings.Contains(line, "mark-") || strings.Contains(line, "Bearer caller") {
			t.Errorf("in spite of the filter the log has a secret: %s", line)
		}
	}

	// Without it the keys are there, so the filter is what removes them.
	plain := startGateway(t, p.url, options{})
	p.now(nil)
	plain.send(t, secret)
	plain.awaitLog(t, "mark-key")
}

// A request body leaves no file behind, in whatever way its request ends.
func TestTemporaryFiles(t *testing.T) {
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

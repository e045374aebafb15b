package integration

import (
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// wantWords checks that the document of an answer has the texts.
func (a answer) wantWords(t testing.TB, what string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("%s does not say %q: %v", what, text, a)
		}
	}
}

// What a caller is told in place of an answer: what happened, and what to do.
func TestWordsForCallers(t *testing.T) {
	t.Parallel()
	hold := newGate()
	p := startProvider(t, nil)
	p.now(p.holdUntil(hold))
	g := startGateway(t, p.url, options{idempotency: "methods POST PUT"})
	first := g.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)

	running := g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	if running.code() != "idempotency_key_in_progress" || running.header.Get("X-Should-Retry") != "true" || running.header.Get("Retry-After") != "1" {
		t.Errorf("while it runs: %v %v", running, running.header)
	}
	running.wantWords(t, "in_progress", "The job may exist and may be billed.", "Do not submit it again under a new key", "the same key", "Record: ")

	for name, test := range map[string]struct {
		r       request
		differs string
	}{
		"body":           {request{body: "y"}, "the content"},
		"query":          {request{body: "x", path: "/v1/videos?a=b"}, "the content"},
		"path":           {request{body: "x", path: "/v1/images"}, "the path."},
		"method":         {request{body: "x", method: "PUT"}, "the method."},
		"path and body":  {request{body: "y", path: "/v1/images"}, "the path."},
		"method and all": {request{body: "y", method: "PUT", path: "/v1/images"}, "the method and the path."},
	} {
		test.r.key = "k"
		got := g.send(t, test.r)
		p.want(t, 1)
		if got.code() != "idempotency_key_reuse" {
			t.Errorf("another %s: %v", name, got)
		}
		got.wantWords(t, "another "+name, "What differs: "+test.differs, "Record: ", "new key for a new job")
		if strings.Contains(got.body, "/v1/") {
			t.Errorf("another %s: the answer shows a path: %v", name, got)
		}
	}
	hold.open()
	if got := <-first; got.status != 202 {
		t.Errorf("the first caller got %v", got)
	}

	// Two lines of one header that a proxy has joined are no key.
	for _, key := range []string{"k, k", `"k", "k"`} {
		got := g.send(t, request{key: key, body: "x"})
		p.want(t, 1)
		if got.code() != "idempotency_key_invalid" {
			t.Errorf("%s: %v", key, got)
		}
		got.wantWords(t, key, "two header lines", "sent once")
	}
	if got := g.send(t, request{key: "k k", body: "x"}); strings.Contains(got.body, "two header lines") {
		t.Errorf("a space: %v", got)
	}
}

// An encrypted record says what differs, too, also under an old key.
func TestWordsOfEncryptedRecord(t *testing.T) {
	t.Parallel()
	keys := []string{strings.Repeat("ab", 32), strings.Repeat("cd", 32)}
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{app: "encryption_key " + keys[0]})
	g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	other := request{key: "k", body: "x", path: "/v1/images"}
	for range 2 {
		got := g.send(t, other)
		p.want(t, 1)
		got.wantWords(t, "reuse", "What differs: the path.", "Record: ")
		g.write(t, p.url, options{app: "encryption_key " + keys[1] + " " + keys[0]})
		g.reload(t)
	}
}

// A gateway that died says nothing about whether it has sent.
func TestWordsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	hold := newGate()
	p.now(p.holdUntil(hold))
	o := options{store: "redis " + redis.Address, idempotency: "lease 500ms"}
	dies, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
	dies.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	dies.kill(t)
	var got answer
	await(t, "the end of the lease", func() bool {
		got = other.send(t, request{key: "k", body: "x"})
		return got.code() == "idempotency_outcome_unknown"
	})
	p.want(t, 1)
	got.wantWords(t, "outcome_unknown", "The job may exist and may be billed.", "Do not submit it again under a new key", "Record: ", "operator")
	if strings.Contains(got.body, "was sent") {
		t.Errorf("the answer claims to know that it was sent: %v", got)
	}
}

// With on_uncertain resubmit a refusal says nothing about the attempt before: the
// record stays uncertain, and the answer says so.
func TestRefusedTakeOver(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			p := startProvider(t, hangUp("", false))
			o := options{store: store.directive(t), idempotency: "on_uncertain resubmit"}
			g := startGateway(t, p.url, o)
			g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			for i, refusal := range []behaviour{
				answerWith(409, map[string]string{"Retry-After": "7"}, "conflict"),
				answerWith(400, nil, "no"),
				answerWith(429, nil, strings.Repeat("x", 2<<20)),
			} {
				p.now(refusal)
				got := g.send(t, request{key: "k", body: "x"})
				p.want(t, i+2)
				if got.status < 400 || got.status > 429 || got.code() != "idempotency_outcome_unknown" ||
					got.header.Get("X-Should-Retry") != "false" || got.header.Get("Cache-Control") != "no-store" {
					t.Errorf("a refusal after a take-over: %d %v", got.status, got.header)
				}
				g.awaitLog(t, "that of the one before it is still unknown")
			}

			// It was not sent this time, but before.
			o.instead = "reverse_proxy " + freeAddress(t)
			g.write(t, "", o)
			g.reload(t)
			got := g.send(t, request{key: "k", body: "x"})
			p.want(t, 4)
			if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
				t.Errorf("not sent after a take-over: %v", got)
			}

			o.instead, o.idempotency = "", ""
			g.write(t, p.url, o)
			g.reload(t)
			if got := g.send(t, request{key: "k", body: "x"}); got.status != 409 || got.code() != "idempotency_outcome_unknown" {
				t.Errorf("again, without resubmit: %v", got)
			}
			p.want(t, 4)

			o.idempotency = "on_uncertain resubmit"
			g.write(t, p.url, o)
			g.reload(t)
			p.now(nil)
			if got := g.send(t, request{key: "k", body: "x"}); got.status != 202 || got.code() != "" {
				t.Errorf("accepted after a take-over: %v", got)
			}
			p.want(t, 5)

			// A first refusal is one.
			p.now(answerWith(409, nil, "conflict"))
			if got := g.send(t, request{key: "other", body: "x"}); got.status != 409 || got.code() != "" {
				t.Errorf("a first refusal: %v", got)
			}
			p.want(t, 6)
		})
	}
}

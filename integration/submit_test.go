package integration

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestFirstSubmitAndReplay(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{store: store.directive(t)})
			r := request{key: "film-1", body: `{"prompt":"a lighthouse"}`}

			first := g.send(t, r)
			p.want(t, 1)
			if first.status != 202 || first.replayed() || first.code() != "" {
				t.Fatalf("the first answer is %v", first)
			}
			if got := p.submit(0); got.key != "film-1" || got.body != r.body || got.path != "/v1/videos" {
				t.Errorf("the provider got %+v", got)
			}
			for _, spelling := range []string{"film-1", `"film-1"`} {
				r.key = spelling
				again := g.send(t, r)
				p.want(t, 1)
				if again.status != 202 || again.body != first.body || !again.replayed() {
					t.Errorf("the repeat with key %s got %v, want the first answer %v", spelling, again, first)
				}
			}
		})
	}
}

func TestReuse(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			p, hold := startHolding(t)
			g := startGateway(t, p.url, options{store: store.directive(t)})
			first := request{key: "k", body: `{"seed":1}`}
			other := request{key: "k", body: `{"seed":2}`}

			began := time.Now()
			done := g.sendLater(t, first)
			p.awaitSubmits(t, 1)
			reuse := g.send(t, other)
			p.want(t, 1)
			if reuse.status != 400 || reuse.code() != "idempotency_key_reuse" || reuse.header.Get("X-Should-Retry") != "false" {
				t.Errorf("while in progress: %v", reuse)
			}
			inProgress := g.send(t, first)
			p.want(t, 1)
			// As long as the first has run so far: one second, but on a busy machine.
			retry, err := strconv.Atoi(inProgress.header.Get("Retry-After"))
			if most := math.Ceil(time.Since(began).Seconds()); err != nil || retry < 1 || float64(retry) > most {
				t.Errorf("Retry-After is %q, want 1 to %v", inProgress.header.Get("Retry-After"), most)
			}
			if inProgress.status != 400 || inProgress.code() != "idempotency_key_in_progress" {
				t.Errorf("the same request while in progress: %v", inProgress)
			}
			hold.open()
			accepted := <-done
			reuse = g.send(t, other)
			p.want(t, 1)
			if reuse.code() != "idempotency_key_reuse" {
				t.Errorf("when completed: %v", reuse)
			}
			if again := g.send(t, first); again.body != accepted.body || !again.replayed() {
				t.Errorf("the first body gets %v, want its own answer %v", again, accepted)
			}
			p.want(t, 1)

			// Each part of the request that changes the job counts.
			for name, changed := range map[string]request{
				"path":     {key: "k", body: first.body, path: "/v1/images"},
				"query":    {key: "k", body: first.body, path: "/v1/videos?model=x"},
				"method":   {key: "k", body: first.body, method: "PUT"},
				"type":     {key: "k", body: first.body, header: map[string][]string{"Content-Type": {"text/plain"}}},
				"encoding": {key: "k", body: first.body, header: map[string][]string{"Content-Encoding": {"gzip"}}},
			} {
				if changed.method == "PUT" {
					continue // PUT is not configured: it is passed on, see TestBypass
				}
				if got := g.send(t, changed); got.code() != "idempotency_key_reuse" {
					t.Errorf("with another %s: %v", name, got)
				}
			}
			p.want(t, 1)
		})
	}
}

// B9: reuse when the outcome is unknown.
func TestReuseWhenUnknown(t *testing.T) {
	t.Parallel()
	p := startProvider(t, hangUp("", false))
	g := startGateway(t, p.url, options{})
	g.send(t, request{key: "k", body: "a"})
	p.want(t, 1)
	if got := g.send(t, request{key: "k", body: "b"}); got.code() != "idempotency_key_reuse" {
		t.Errorf("another body got %v", got)
	}
	if got := g.send(t, request{key: "k", body: "a"}); got.code() != "idempotency_outcome_unknown" {
		t.Errorf("the first body got %v", got)
	}
	p.want(t, 1)
}

// D2: who guesses another scope's key gets a submit of their own.
func TestScopes(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	a := g.send(t, request{key: "k", body: "same", auth: "Bearer a"})
	b := g.send(t, request{key: "k", body: "same", auth: "Bearer b"})
	c := g.send(t, request{key: "k", body: "same", auth: "Bearer a", header: map[string][]string{"X-Api-Key": {"c"}}})
	p.want(t, 3)
	if a.body == b.body || a.body == c.body || b.replayed() || c.replayed() {
		t.Errorf("answers cross scopes: %v, %v, %v", a, b, c)
	}
	if again := g.send(t, request{key: "k", body: "same", auth: "Bearer a"}); again.body != a.body {
		t.Errorf("scope a gets %v, want %v", again, a)
	}
	// Not even that a key is taken shows.
	if got := g.send(t, request{key: "k", body: "other", auth: "Bearer d"}); got.code() != "" {
		t.Errorf("scope d sees %v", got)
	}
	p.want(t, 4)
}

func TestScopeOption(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "scope tenant-{http.request.header.X-Tenant} {http.request.host}"})
	tenant := func(name string) request {
		return request{key: "k", body: "x", auth: "Bearer " + name, header: map[string][]string{"X-Tenant": {"t1"}}}
	}
	a, b := g.send(t, tenant("a")), g.send(t, tenant("b"))
	p.want(t, 1)
	if a.body != b.body || !b.replayed() {
		t.Errorf("one tenant got two answers: %v, %v", a, b)
	}
	other := tenant("a")
	other.header = map[string][]string{"X-Tenant": {"t2"}}
	g.send(t, other)
	p.want(t, 2)

	// A placeholder that nobody knows must not put all callers into one scope.
	g = startGateway(t, p.url, options{idempotency: "scope {http.auth.user.idd}"})
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 500 {
		t.Errorf("with an unknown placeholder: %v", got)
	}
	p.want(t, 2)
}

// A scope that is one for all callers is what its author wrote, and said aloud.
func TestSharedScopeIsLogged(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, scope string
		warned      bool
	}{
		{"default", "", false},
		{"of the request", "scope fixed {http.auth.user.id}", false},
		{"short placeholder", "scope {header.X-Tenant}", false},
		{"fixed", "scope fixed", true},
		{"of the gateway", "scope {env.TENANT} {system.hostname}", true},
		{"escaped", `scope "\{http.request.host\}"`, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "Caddyfile")
			text := "{\nadmin off\n}\nhttp://localhost:1 {\nidempotency {\n" + test.scope + "\n}\nreverse_proxy localhost:2\n}\n"
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			validate := exec.Command(caddyBinary, "validate", "--adapter", "caddyfile", "--config", file)
			validate.Env = append(os.Environ(), "TENANT=tenant")
			output, err := validate.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			want := 0
			if test.warned {
				want = 1
			}
			if n := strings.Count(string(output), "all callers share one scope"); n != want {
				t.Errorf("warned %d times, want %d: %s", n, want, output)
			}
		})
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	redis := stores[1].directive(t)
	p := startProvider(t, nil)
	one := startGateway(t, p.url, options{store: redis, idempotency: "namespace one"})
	two := startGateway(t, p.url, options{store: redis, idempotency: "namespace two"})
	a, b := one.send(t, request{key: "k", body: "x"}), two.send(t, request{key: "k", body: "x"})
	p.want(t, 2)
	if a.body == b.body {
		t.Error("two namespaces share a record")
	}
}

// D1 and every other malformed key: 400, nothing sent.
func TestInvalidKeys(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	problem := startGateway(t, p.url, options{idempotency: "errors problem"})
	for name, lines := range map[string]string{
		"twice, equal":       "Idempotency-Key: a\r\nIdempotency-Key: a\r\n",
		"twice, different":   "Idempotency-Key: a\r\nidempotency-key: b\r\n",
		"empty":              "Idempotency-Key: \r\n",
		"empty string":       "Idempotency-Key: \"\"\r\n",
		"inner space":        "Idempotency-Key: a b\r\n",
		"unterminated":       "Idempotency-Key: \"a\r\n",
		"after the string":   "Idempotency-Key: \"a\"b\r\n",
		"parameters":         "Idempotency-Key: \"a\";b=c\r\n",
		"list":               "Idempotency-Key: \"a\", \"b\"\r\n",
		"tab":                "Idempotency-Key: a\tb\r\n",
		"not ASCII":          "Idempotency-Key: \xc3\xa9\r\n",
		"too long":           "Idempotency-Key: " + strings.Repeat("a", 256) + "\r\n",
		"too long in quotes": "Idempotency-Key: \"" + strings.Repeat("a", 256) + "\"\r\n",
	} {
		for _, gateway := range []*gateway{g, problem} {
			got := rawRequest(t, gateway, fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s\r\n%sContent-Length: 2\r\n\r\n{}", strings.TrimPrefix(gateway.url, "http://"), lines))
			p.want(t, 0)
			if got.status != 400 || got.code() != "idempotency_key_invalid" || got.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: got %v", name, got)
			}
		}
	}
	if got := problem.send(t, request{key: "a b"}); got.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(got.body, `"code":"idempotency_key_invalid"`) {
		t.Errorf("as a problem: %v", got)
	}

	// The longest key and the oddest one are keys.
	for i, key := range []string{strings.Repeat("a", 255), `a,b;c="d`, `"with space"`} {
		if got := g.send(t, request{key: key, body: "x"}); got.status != 202 {
			t.Errorf("key %d got %v", i, got)
		}
		p.want(t, i+1)
	}
}

func TestKeyHeaderRequireKeyAndMethods(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "key_header X-Request-Key Idempotency-Key\nrequire_key\nmethods POST PUT"})
	if got := g.send(t, request{body: "x"}); got.status != 400 || got.code() != "idempotency_key_missing" {
		t.Errorf("without a key: %v", got)
	}
	p.want(t, 0)
	named := request{body: "x", method: "PUT", header: map[string][]string{"X-Request-Key": {"a"}}}
	first, again := g.send(t, named), g.send(t, named)
	p.want(t, 1)
	if first.status != 202 || again.body != first.body {
		t.Errorf("by the first header: %v, %v", first, again)
	}
	// The first that is present wins, also when it is malformed.
	both := request{body: "x", key: "b", header: map[string][]string{"X-Request-Key": {"a b"}}}
	if got := g.send(t, both); got.code() != "idempotency_key_invalid" {
		t.Errorf("malformed first header: %v", got)
	}
	p.want(t, 1)
	if got := g.send(t, request{key: "b", body: "x"}); got.status != 202 {
		t.Errorf("by the second header: %v", got)
	}
	p.want(t, 2)
	if got := g.send(t, request{method: "DELETE"}); got.status != 202 {
		t.Errorf("another method without a key: %v", got)
	}
	p.want(t, 3)
}

func TestRequestBodyTooLarge(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "max_request_body 1MiB"})
	body := strings.Repeat("x", 1<<20+1)
	// A declared length is enough: the answer does not wait for the body.
	declared := rawRequest(t, g, "POST /v1/videos HTTP/1.1\r\nHost: "+strings.TrimPrefix(g.url, "http://")+
		"\r\nIdempotency-Key: k\r\nContent-Length: 1048577\r\n\r\n")
	chunked := g.send(t, request{key: "k", body: body, chunked: true})
	for framing, got := range map[string]answer{"declared": declared, "chunked": chunked} {
		p.want(t, 0)
		if got.status != 413 || got.code() != "request_body_too_large" {
			t.Errorf("%s: %v", framing, got)
		}
	}
	if got := g.send(t, request{key: "k", body: body[1:]}); got.status != 202 {
		t.Errorf("the largest body: %v", got)
	}
	p.want(t, 1)
}

package integration

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
)

// D7: what belongs to the job is replayed, and what belongs to the exchange is
// not.
func TestReplayHeader(t *testing.T) {
	t.Parallel()
	p := startProvider(t, func(w http.ResponseWriter, _ *http.Request, n int, accept func() string) {
		h := w.Header()
		h.Set("Location", "/v1/videos/1")
		h.Set("Content-Location", "/v1/videos/1")
		h.Set("ETag", `"abc"`)
		h.Set("Link", "</v1>; rel=up")
		h["X-Request-Id"] = []string{"req_1", "req_2"}
		h.Set("Retry-After", "3")
		h.Set("Set-Cookie", "session=secret")
		h.Set("X-RateLimit-Remaining", "10")
		h.Set("RateLimit", "limit=10")
		h.Set("Anthropic-Ratelimit-Requests-Limit", "10")
		h.Set("Connection", "X-Hop")
		h.Set("X-Hop", "1")
		h.Set("Www-Authenticate", "Basic")
		h.Set("Alt-Svc", "h3=:1")
		h.Set("Idempotency-Replayed", "true")
		h.Set("Idempotency-Error", "made_up")
		acceptPlainly(w, accept)
	})
	g := startGateway(t, p.url, options{before: "header X-From-Gateway yes"})
	r := request{key: "k", body: "x", header: map[string][]string{"Idempotency-Replayed": {"true"}, "Idempotency-Error": {"x"}}}
	first, again := g.send(t, r), g.send(t, r)
	p.want(t, 1)
	if h := p.submit(0).header; h.Get("Idempotency-Replayed") != "" || h.Get("Idempotency-Error") != "" {
		t.Error("the caller's own Idempotency-Replayed or -Error reached the provider")
	}
	if first.replayed() || first.code() != "" {
		t.Errorf("the provider's own Idempotency-Replayed or -Error came through: %v", first.header)
	}
	if first.header.Get("Set-Cookie") == "" || first.header.Get("X-Ratelimit-Remaining") == "" {
		t.Errorf("the first caller misses header fields: %v", first.header)
	}
	if again.status != first.status || again.body != first.body || !again.replayed() || again.code() != "" {
		t.Errorf("the replay is %v, want %v", again, first)
	}
	for _, name := range []string{"Location", "Content-Location", "Etag", "Link", "X-Request-Id", "Content-Type", "Retry-After", "X-From-Gateway"} {
		if strings.Join(again.header[name], "|") != strings.Join(first.header[name], "|") || len(first.header[name]) == 0 {
			t.Errorf("%s is %q in the replay and was %q", name, again.header[name], first.header[name])
		}
	}
	for _, name := range []string{"Set-Cookie", "X-Ratelimit-Remaining", "Ratelimit", "Anthropic-Ratelimit-Requests-Limit", "X-Hop", "Www-Authenticate", "Alt-Svc", "Via"} {
		if _, there := again.header[name]; there {
			t.Errorf("%s is in the replay", name)
		}
	}
}

// D8: the stored body is readable by a caller that takes no gzip, and by one
// that does.
func TestGzip(t *testing.T) {
	t.Parallel()
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request, _ int, accept func() string) {
		document := accept()
		w.Header().Set("Content-Type", "application/json")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			w.WriteHeader(202)
			_, _ = io.WriteString(w, document)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(202)
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, document)
		_ = z.Close()
	})
	for _, site := range []string{"", "encode {\nminimum_length 1\n}"} {
		g := startGateway(t, p.url, options{before: site})
		before := p.count()
		zipped := request{key: "k", body: "x", header: map[string][]string{"Accept-Encoding": {"gzip"}}}
		first := g.send(t, zipped)
		plain := g.send(t, request{key: "k", body: "x"})
		again := g.send(t, zipped)
		p.want(t, before+1)
		if !strings.HasPrefix(plain.body, `{"id":`) || plain.header.Get("Content-Encoding") != "" {
			t.Errorf("who takes no gzip gets %q with encoding %q", plain.body, plain.header.Get("Content-Encoding"))
		}
		for name, a := range map[string]answer{"first": first, "again": again} {
			text := a.body
			if a.header.Get("Content-Encoding") == "gzip" {
				z, err := gzip.NewReader(strings.NewReader(a.body))
				if err != nil {
					t.Fatal(err)
				}
				data, err := io.ReadAll(z)
				if err != nil {
					t.Fatal(err)
				}
				text = string(data)
			}
			if text != plain.body {
				t.Errorf("who takes gzip gets %q (%s), want %q", text, name, plain.body)
			}
			if want := site != ""; (a.header.Get("Content-Encoding") == "gzip") != want {
				t.Errorf("%s has encoding %q", name, a.header.Get("Content-Encoding"))
			}
		}
	}
}

// D9: what is too large or a stream is passed on at once, and not replayed.
func TestUnavailableResult(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcdef", 3<<20/16)
	t.Run("large", func(t *testing.T) {
		p := startProvider(t, answerWith(200, nil, large))
		g := startGateway(t, p.url, options{})
		if got := g.send(t, request{key: "k", body: "x"}); got.status != 200 || got.body != large || got.code() != "" {
			t.Errorf("the first caller got %d, %d bytes, %q", got.status, len(got.body), got.code())
		}
		p.want(t, 1)
		if got := g.send(t, request{key: "k", body: "x"}); got.status != 409 || got.code() != "idempotency_result_unavailable" {
			t.Errorf("again: %v", got)
		}
		p.want(t, 1)
	})
	t.Run("just small enough", func(t *testing.T) {
		p := startProvider(t, answerWith(200, nil, large[:1<<20]))
		g := startGateway(t, p.url, options{})
		g.send(t, request{key: "k", body: "x"})
		if got := g.send(t, request{key: "k", body: "x"}); !got.replayed() || got.body != large[:1<<20] {
			t.Errorf("again: %d with %d bytes", got.status, len(got.body))
		}
		p.want(t, 1)
	})
	t.Run("event stream", func(t *testing.T) {
		second := newGate()
		p := startProvider(t, nil)
		p.now(func(w http.ResponseWriter, _ *http.Request, n int, accept func() string) {
			if n > 1 {
				<-p.ctx.Done() // no answer: the upstream timeout ends the wait
				return
			}
			accept()
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-second.opened:
			case <-p.ctx.Done():
				return
			}
			_, _ = io.WriteString(w, "data: 2\n\n")
		})
		// The stream may last longer than the upstream timeout.
		g := startGateway(t, p.url, options{idempotency: "upstream_timeout 3s"})
		req, err := http.NewRequest(http.MethodPost, g.url+"/v1/videos", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		event := make([]byte, len("data: 1\n\n"))
		if _, err := io.ReadFull(res.Body, event); err != nil || string(event) != "data: 1\n\n" {
			t.Fatalf("the first event came as %q, %v", event, err)
		}
		p.want(t, 1)
		again := rawRequest(t, g, "POST /v1/videos HTTP/1.1\r\nHost: "+strings.TrimPrefix(g.url, "http://")+
			"\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx")
		if again.code() != "idempotency_result_unavailable" {
			t.Errorf("again, while it streams: %v", again)
		}
		if got := g.send(t, request{key: "other", body: "x"}); got.status != 504 {
			t.Errorf("a submit that began later, and got no answer within the upstream timeout: %v", got)
		}
		second.open()
		rest, err := io.ReadAll(res.Body)
		if err != nil || string(rest) != "data: 2\n\n" {
			t.Errorf("the rest came as %q, %v", rest, err)
		}
	})
}

func TestEmptyAnswer(t *testing.T) {
	t.Parallel()
	p := startProvider(t, answerWith(204, map[string]string{"Location": "/v1/videos/1"}, ""))
	g := startGateway(t, p.url, options{})
	g.send(t, request{key: "k", body: "x"})
	got := g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	if got.status != 204 || got.body != "" || got.header.Get("Location") != "/v1/videos/1" || !got.replayed() {
		t.Errorf("the replay is %v %v", got, got.header)
	}
}

func TestInterimAnswersAndTrailers(t *testing.T) {
	t.Parallel()
	p := startProvider(t, func(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) {
		w.Header().Set("Link", "</style>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("Trailer", "X-Checksum")
		acceptPlainly(w, accept)
		w.Header().Set("X-Checksum", "1234")
		w.Header().Set(http.TrailerPrefix+"X-Late", "5678")
		w.Header().Set(http.TrailerPrefix+"Idempotency-Replayed", "true")
	})
	g := startGateway(t, p.url, options{})
	raw := "POST /v1/videos HTTP/1.1\r\nHost: " + strings.TrimPrefix(g.url, "http://") +
		"\r\nIdempotency-Key: k\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
	conn := dial(t, g)
	if _, err := io.WriteString(conn, raw); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	p.want(t, 1)
	text := string(data)
	hints, final, found := strings.Cut(text, "HTTP/1.1 202 Accepted\r\n")
	if !found || !strings.Contains(hints, "103 Early Hints\r\n") || !strings.Contains(hints, "Link: </style>") {
		t.Errorf("the interim answer is missing: %q", text)
	}
	if strings.Contains(final, "Link:") || !strings.Contains(final, "X-Checksum: 1234\r\n") || !strings.Contains(final, "X-Late: 5678\r\n") {
		t.Errorf("the final answer or its trailers are not as sent: %q", final)
	}
	if strings.Contains(final, "Idempotency-Replayed: true") {
		t.Errorf("the provider's own Idempotency-Replayed came through as a trailer: %q", final)
	}
	if got := g.send(t, request{key: "other"}); got.status != 202 {
		t.Errorf("the next request got %v", got)
	}
}

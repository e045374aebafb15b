package integration

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
)

// What carries no key is passed on untouched: header, streaming, upgrades.
func TestBypass(t *testing.T) {
	t.Parallel()
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
		w.Header().Set("Idempotency-Replayed", "the provider's own")
		w.Header().Set("X-Saw", r.Header.Get("Accept-Encoding")+"|"+r.Header.Get("Idempotency-Key")+"|"+r.Header.Get("X-Idempotency-Key"))
		acceptPlainly(w, accept)
	})
	g := startGateway(t, p.url, options{})
	gzip := map[string][]string{"Accept-Encoding": {"gzip"}, "X-Idempotency-Key": {"not configured"}}
	for i, r := range []request{
		{body: "x", header: gzip},
		{body: "x", header: gzip},
		{method: "PUT", key: "k", body: "x"},
		{method: "PUT", key: "k", body: "x"},
		{method: "DELETE", key: "k"},
	} {
		got := g.send(t, r)
		p.want(t, i+1)
		if got.status != 202 || got.header.Get("Idempotency-Replayed") != "the provider's own" {
			t.Errorf("request %d got %v %v", i, got, got.header)
		}
		want := r.header.Get("Accept-Encoding")
		if i < 2 && got.header.Get("X-Saw") != "gzip||not configured" {
			t.Errorf("request %d: the provider saw %q, want %q untouched", i, got.header.Get("X-Saw"), want)
		}
	}
	await(t, "the access log", func() bool { return strings.Count(g.log.String(), `"handled request"`) == 5 })
	if strings.Contains(g.log.String(), `"idempotency_outcome"`) {
		t.Error("the access log has an outcome for a request that was passed on")
	}
}

// Without a key an answer is passed on as it comes, and an upgraded connection
// works in both directions.
func TestBypassStreams(t *testing.T) {
	t.Parallel()
	more := newGate()
	p := startProvider(t, nil)
	p.now(func(w http.ResponseWriter, _ *http.Request, _ int, _ func() string) {
		rc := http.NewResponseController(w)
		_, _ = io.WriteString(w, "one\n")
		_ = rc.Flush()
		select {
		case <-more.opened:
		case <-p.ctx.Done():
		}
		_, _ = io.WriteString(w, "two\n")
	})
	g := startGateway(t, p.url, options{proxy: "flush_interval -1"})
	res, err := http.Post(g.url, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	if got, err := lines.ReadString('\n'); err != nil || got != "one\n" {
		t.Fatalf("got %q, %v before the answer's end", got, err)
	}
	more.open()
	if got, err := lines.ReadString('\n'); err != nil || got != "two\n" {
		t.Fatalf("got %q, %v", got, err)
	}

	p.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	})
	conn := dial(t, g)
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: "+strings.TrimPrefix(g.url, "http://")+
		"\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n"); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(data), "HTTP/1.1 101 ") || !strings.HasSuffix(string(data), "\r\n\r\necho hello\n") {
		t.Errorf("the upgraded connection gave %q, %v", data, err)
	}
}

// The outcome is a placeholder for handlers and logs.
func TestPlaceholders(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{
		before: "header >X-Outcome {http.idempotency.outcome}\nheader >X-Record {http.idempotency.record}",
	})
	outcome := func(r request) string { return g.send(t, r).header.Get("X-Outcome") }
	for i, test := range []struct {
		r    request
		want string
	}{
		{request{key: "k", body: "x"}, "accepted"},
		{request{key: "k", body: "x"}, "replayed"},
		{request{key: "k", body: "y"}, "reuse"},
		{request{key: "a b", body: "x"}, "invalid_key"},
		{request{body: "x"}, "bypass"},
	} {
		if got := outcome(test.r); got != test.want {
			t.Errorf("request %d has outcome %q, want %q", i, got, test.want)
		}
	}
	p.want(t, 2)
	for _, r := range []request{{body: "x"}, {key: "a b", body: "x"}} {
		if record := g.send(t, r).header.Get("X-Record"); record != "" {
			t.Errorf("the record of a request without one is %q", record)
		}
	}
	record := g.send(t, request{key: "k", body: "x"}).header.Get("X-Record")
	if len(record) != 32 {
		t.Errorf("the record is %q", record)
	}
	g.awaitLog(t, `"idempotency_record":"`+record+`"`)
	p.now(answerWith(429, nil, ""))
	if got := outcome(request{key: "l", body: "x"}); got != "refused" {
		t.Errorf("a refusal has outcome %q", got)
	}
	p.now(hangUp("", false))
	if got := outcome(request{key: "m", body: "x"}); got != "uncertain" {
		t.Errorf("an unknown outcome is %q", got)
	}
	if got := outcome(request{key: "m", body: "x"}); got != "outcome_unknown" {
		t.Errorf("its repeat is %q", got)
	}
}

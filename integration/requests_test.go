package integration

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A8: a refusal inside a 200.
func TestAcceptIf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		option  string
		answer  string
		outcome string // refused, accepted, unknown
	}{
		{"refused", "accept_if /code 0", `{"code":1,"message":"no credit"}`, "refused"},
		{"accepted", "accept_if /code 0", `{"message":"ok","code":0}`, "accepted"},
		{"nested", "accept_if /base_resp/status_code 0", `{"task_id":"7","base_resp":{"status_code":1004}}`, "refused"},
		{"nested, accepted", "accept_if /base_resp/status_code 0", `{"task_id":"7","base_resp":{"status_code":0}}`, "accepted"},
		{"a text", "accept_if /status ok", `{"status":"ok"}`, "accepted"},
		{"another text", "accept_if /status ok", `{"status":"failed"}`, "refused"},
		{"missing", "accept_if /code 0", `{"message":"maintenance"}`, "refused"},
		{"not JSON", "accept_if /code 0", `<html>proxy error</html>`, "unknown"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, answerWith(200, map[string]string{"Content-Type": "application/json", "X-Trace": "1"}, test.answer))
			g := startGateway(t, p.url, options{idempotency: test.option})
			first := g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			if first.status != 200 || first.body != test.answer || first.header.Get("X-Trace") != "1" {
				t.Errorf("the first caller got %v", first)
			}
			again := g.send(t, request{key: "k", body: "x"})
			switch test.outcome {
			case "refused":
				p.want(t, 2)
				if again.code() != "" || again.replayed() {
					t.Errorf("again: %v", again)
				}
			case "accepted":
				p.want(t, 1)
				if !again.replayed() || again.body != test.answer {
					t.Errorf("again: %v", again)
				}
			case "unknown":
				p.want(t, 1)
				if first.code() != "idempotency_outcome_unknown" || again.code() != "idempotency_outcome_unknown" {
					t.Errorf("first: %v, again: %v", first, again)
				}
			}
		})
	}
}

// An application that has an id for each job, and no key header.
func TestKeyFrom(t *testing.T) {
	t.Parallel()
	const namespace = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "key_from " + namespace + " video:{http.request.header.X-Record}:{http.request.uri.query.part}"})
	record := func(id, body string) request {
		return request{path: "/v1/videos?part=1", body: body, header: http.Header{"X-Record": {id}}}
	}
	first := g.send(t, record("42", "x"))
	p.want(t, 1)
	if first.status != 202 || first.replayed() {
		t.Errorf("first: %v", first)
	}
	// uuid5(NAMESPACE_DNS, "video:42:1"), as other implementations give it.
	const derived = "9d564165-4abd-5633-b0b1-2a8e62bce2dc"
	if key := p.submit(0).key; key != derived {
		t.Errorf("the provider got the key %q, want %q", key, derived)
	}
	if again := g.send(t, record("42", "x")); again.body != first.body || !again.replayed() {
		t.Errorf("again: %v", again)
	}
	if got := g.send(t, request{key: derived, path: "/v1/videos?part=1", body: "x"}); got.body != first.body || !got.replayed() {
		t.Errorf("with the derived key as a header: %v", got)
	}
	if got := g.send(t, record("42", "y")); got.code() != "idempotency_key_reuse" {
		t.Errorf("another body: %v", got)
	}
	p.want(t, 1)
	if got := g.send(t, record("43", "x")); got.replayed() || got.status != 202 {
		t.Errorf("another record: %v", got)
	}
	p.want(t, 2)
	// A key header of its own comes first, and without an id there is no key.
	own := record("42", "x")
	own.key = "own"
	g.send(t, own)
	g.send(t, request{path: "/v1/videos?part=1", body: "x"})
	g.send(t, request{path: "/v1/videos?part=1", body: "x"})
	p.want(t, 5)
	if p.submit(2).key != "own" || p.submit(3).key != "" {
		t.Errorf("the provider got the keys %q and %q", p.submit(2).key, p.submit(3).key)
	}

	g.write(t, p.url, options{idempotency: "require_key\nkey_from " + namespace + " {http.request.header.X-Record}"})
	g.reload(t)
	if got := g.send(t, request{body: "x"}); got.code() != "idempotency_key_missing" {
		t.Errorf("require_key without an id: %v", got)
	}
	// A placeholder that nobody knows is a mistake, and not a missing id.
	g.write(t, p.url, options{idempotency: "key_from " + namespace + " {http.request.haeder.X-Record}"})
	g.reload(t)
	if got := g.send(t, record("42", "x")); got.status != 500 {
		t.Errorf("a misspelt placeholder: %v", got)
	}
	p.want(t, 5)
}

func TestUpstreamKey(t *testing.T) {
	t.Parallel()
	tests := []struct {
		option       string
		with, wanted string // the key that the provider gets with a body, and without
	}{
		{"", "k", ""},
		{"upstream_key auto", "k", ""},
		{"upstream_key keep", "k", "k"},
		{"upstream_key remove", "", ""},
		{"upstream_key remove\nkey_header X-Key Idempotency-Key", "", ""},
	}
	for _, test := range tests {
		t.Run(test.option, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{idempotency: test.option})
			own := http.Header{"X-Key": {"k"}, "X-Idempotency-Key": {"other"}}
			g.send(t, request{key: "k", body: "x", header: own, path: "/with"})
			g.send(t, request{key: "k", header: own, path: "/without", auth: "Bearer other"})
			p.want(t, 2)
			if got := p.submit(0).key; got != test.with {
				t.Errorf("with a body the provider got the key %q", got)
			}
			if got := p.submit(1).key; got != test.wanted {
				t.Errorf("without a body the provider got the key %q", got)
			}
			removed := strings.Contains(test.option, "remove")
			for i, stays := range []bool{!removed, !removed && strings.Contains(test.option, "keep")} {
				if got := p.submit(i).header.Get("X-Idempotency-Key") != ""; got != stays {
					t.Errorf("submit %d: X-Idempotency-Key reached the provider: %t", i, got)
				}
			}
			if got := p.submit(0).header.Get("X-Key"); (got == "") != strings.Contains(test.option, "X-Key") {
				t.Errorf("X-Key is %q", got)
			}
		})
	}
}

// Requests that are no whole requests: an answer, and nothing is sent.
func TestBrokenRequests(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "max_request_body 2MiB"})
	start := "POST /v1/videos HTTP/1.1\r\nHost: " + g.host() + "\r\nIdempotency-Key: k\r\n"
	tests := []struct {
		name, raw string
		status    int // 0: the connection ends without an answer
	}{
		{"no number as length", start + "Content-Length: many\r\n\r\nx", 400},
		{"two lengths", start + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 400},
		{"negative length", start + "Content-Length: -1\r\n\r\n", 400},
		{"bad chunk", start + "Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n", 400},
		{"too large, said so", start + "Content-Length: 999999999999\r\n\r\nx", 413},
		{"too large, waiting to be told", start + "Content-Length: 999999999999\r\nExpect: 100-continue\r\n\r\n", 413},
		{"unknown expectation", start + "Content-Length: 1\r\nExpect: magic\r\n\r\nx", 417},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := rawRequest(t, g, test.raw)
			p.want(t, 0)
			if got.status != test.status {
				t.Errorf("got %v, want %d", got, test.status)
			}
		})
	}
	t.Run("fewer bytes than announced", func(t *testing.T) {
		conn := dial(t, g)
		_, _ = io.WriteString(conn, start+"Content-Length: 100\r\n\r\nx")
		_ = conn.Close()
		await(t, "the request to be forgotten", func() bool {
			return g.send(t, request{key: "k", auth: "Bearer nobody", body: "y"}).status == 202
		})
		p.want(t, 1)
	})
	t.Run("more bytes than announced", func(t *testing.T) {
		got := rawRequest(t, g, start+"Connection: close\r\nContent-Length: 1\r\n\r\nxyz")
		p.want(t, 2)
		if got.status != 202 || p.submit(1).body != "x" {
			t.Errorf("got %v; the provider read %q", got, p.submit(1).body)
		}
	})
}

// A caller that waits for 100 Continue is told to go on; trailers of a request
// reach the provider.
func TestExpectAndTrailers(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	conn := dial(t, g)
	reader := bufio.NewReader(conn)
	_, _ = io.WriteString(conn, "POST /v1/videos HTTP/1.1\r\nHost: "+g.host()+"\r\nIdempotency-Key: k\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
	line, err := reader.ReadString('\n')
	if err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("got %q, %v", line, err)
	}
	_, _ = io.WriteString(conn, "body")
	_, _ = reader.ReadString('\n')
	res, err := http.ReadResponse(reader, nil)
	if err != nil || res.StatusCode != 202 {
		t.Fatalf("got %v, %v", res, err)
	}
	p.want(t, 1)
	if got := p.submit(0); got.body != "body" || got.header.Get("Expect") != "" {
		t.Errorf("the provider got %+v", got)
	}

	got := rawRequest(t, g, "POST /v1/videos HTTP/1.1\r\nHost: "+g.host()+"\r\nIdempotency-Key: t\r\nConnection: close\r\n"+
		"Trailer: X-Checksum\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Checksum: 42\r\n\r\n")
	p.want(t, 2)
	if got.status != 202 || p.submit(1).body != "body" || p.submit(1).trailer.Get("X-Checksum") != "42" {
		t.Errorf("got %v; the provider got the trailer %v", got, p.submit(1).trailer)
	}
	// A body without a trailer goes out with its length, whatever it came with.
	chunked := g.send(t, request{key: "c", body: "body", chunked: true})
	p.want(t, 3)
	if chunked.status != 202 || p.submit(2).header.Get("Content-Length") != "4" {
		t.Errorf("got %v; the provider got %v", chunked, p.submit(2).header)
	}
}

// D10: eight large uploads at a time leave the memory flat.
func TestMemoryOfUploads(t *testing.T) {
	const uploads, size, most = 8, 60 << 20, 128 << 20
	p := startProvider(t, nil)
	p.discard = true
	g := startGateway(t, p.url, options{})
	g.send(t, request{key: "warm", body: "x"})
	before := resident(t, g)
	peak := make(chan int)
	done := make(chan struct{})
	go func() {
		highest := 0
		for {
			select {
			case <-done:
				peak <- highest
				return
			default:
				highest = max(highest, resident(t, g))
			}
		}
	}()
	body := strings.Repeat("0123456789abcdef", size/16)
	var wg sync.WaitGroup
	for i := range uploads {
		wg.Go(func() {
			r := request{key: fmt.Sprint("upload-", i), body: body}
			if got := g.send(t, r); got.status != 202 {
				t.Errorf("got %v", got)
			}
			if got := g.send(t, r); !got.replayed() {
				t.Errorf("again: %v", got)
			}
		})
	}
	wg.Wait()
	close(done)
	p.want(t, uploads+1)
	if grown := <-peak - before; grown > most {
		t.Errorf("the resident size grew by %d MiB, want %d at most", grown>>20, most>>20)
	} else {
		t.Logf("the resident size grew by %d MiB", grown>>20)
	}
}

// resident returns the resident size of the gateway in bytes.
func resident(t testing.TB, g *gateway) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", g.cmd.Process.Pid))
	if err != nil {
		t.Skipf("the resident size cannot be read: %v", err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(status))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// A body that is not there any more is not sent as an empty one.
func TestBodyTakenBefore(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{before: "tracing\nvars taken {http.request.body}", env: []string{"OTEL_TRACES_EXPORTER=none"}})
	for range 2 {
		got := g.send(t, request{key: "k", body: "x"})
		p.want(t, 0)
		if got.status != 500 || got.code() != "" {
			t.Errorf("got %v", got)
		}
	}
	g.awaitLog(t, "has read the request's body")
	if got := g.send(t, request{key: "l"}); got.status != 202 {
		t.Errorf("without a body: %v", got)
	}
}

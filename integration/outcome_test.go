package integration

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A7: a refusal is passed through byte for byte, and the key is free.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 402, 404, 409, 422, 429, 503} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			body := "refused\x00\xff" + strings.Repeat("x", 5000)
			p := startProvider(t, answerWith(status, map[string]string{"Retry-After": "7", "Set-Cookie": "a=b"}, body))
			g := startGateway(t, p.url, options{})
			got := g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			if got.status != status || got.body != body || got.code() != "" ||
				got.header.Get("Retry-After") != "7" || got.header.Get("Set-Cookie") != "a=b" {
				t.Errorf("the refusal came as %d %v", got.status, got.header)
			}
			p.now(nil)
			if got := g.send(t, request{key: "k", body: "x"}); got.status != 202 || got.replayed() {
				t.Errorf("again: %v", got)
			}
			p.want(t, 2)
		})
	}
}

// A refusal that is too large for memory is passed through like any other, and
// is one only if it comes to its end.
func TestLargeRefusal(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 3<<20)
	// With its length the caller knows the end when it has come.
	p := startProvider(t, answerWith(429, map[string]string{"Content-Length": strconv.Itoa(len(body))}, body))
	g := startGateway(t, p.url, options{})
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 429 || got.body != body {
		t.Errorf("got %d with %d bytes", got.status, len(got.body))
	}
	p.want(t, 1)

	// Its end does not come before what it means is stored, or cannot be.
	server := redistest.Start(t)
	way := startNetwork(t, server.Address)
	p = startProvider(t, func(w http.ResponseWriter, r *http.Request, n int, id func() string) {
		way.swallow()
		answerWith(429, map[string]string{"Content-Length": strconv.Itoa(len(body))}, body)(w, r, n, id)
	})
	g = startGateway(t, p.url, options{store: "redis " + way.address})
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 429 || got.body != body {
		t.Errorf("got %d with %d bytes", got.status, len(got.body))
	}
	if !strings.Contains(g.log.String(), `"op":"release"`) {
		t.Error("the caller had the whole answer before the store was asked to free the key")
	}
	p.now(answerWith(429, nil, "slow down"))
	way.heal()
	await(t, "the key to be free", func() bool { return g.send(t, request{key: "k", body: "x"}).status == 429 })

	p = startProvider(t, hangUp("HTTP/1.1 429 Slow Down\r\nContent-Length: 4000000\r\n\r\n"+body, false))
	g = startGateway(t, p.url, options{})
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 502 || got.code() != "idempotency_outcome_unknown" {
		t.Errorf("a broken answer came as %d with %d bytes", got.status, len(got.body))
	}
	p.want(t, 1)
	await(t, "the outcome", func() bool { return g.send(t, request{key: "k", body: "x"}).code() == "idempotency_outcome_unknown" })
	p.want(t, 1)
}

// A5, A6 and the rest of "anything else after the connection was there".
func TestUnknownOutcomes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		behave behaviour
		status int
		body   string // of the provider, if its whole answer is passed on
	}{
		{"closed without a byte", hangUp("", false), 502, ""},
		{"reset without a byte", hangUp("", true), 502, ""},
		{"half a status line", hangUp("HTTP/1.1 20", false), 502, ""},
		{"half a header", hangUp("HTTP/1.1 202 Accepted\r\nContent-Le", false), 502, ""},
		{"cut body", hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\n{\"id\":", false), 502, ""},
		{"cut body, reset", hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\n{\"id\":", true), 502, ""},
		{"cut chunked body", hangUp("HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n", false), 502, ""},
		{"cut refusal", hangUp("HTTP/1.1 429 Slow Down\r\nContent-Length: 100\r\n\r\nslow", false), 502, ""},
		{"no HTTP", hangUp("SSH-2.0-OpenSSH\r\n", false), 502, ""},
		{"408", answerWith(408, nil, "late"), 408, "late"},
		{"499", answerWith(499, nil, "gone"), 499, "gone"},
		{"302", answerWith(302, map[string]string{"Location": "/elsewhere"}, "moved"), 302, "moved"},
		{"500", answerWith(500, nil, "sorry"), 500, "sorry"},
		{"502", answerWith(502, nil, "bad gateway"), 502, "bad gateway"},
		{"504", answerWith(504, nil, "gateway timeout"), 504, "gateway timeout"},
		{"large 500", answerWith(500, nil, strings.Repeat("x", 3<<20)), 500, strings.Repeat("x", 3<<20)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, test.behave)
			g := startGateway(t, p.url, options{})
			got := g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			if got.status != test.status || got.code() != "idempotency_outcome_unknown" ||
				got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Should-Retry") != "false" {
				t.Errorf("the first caller got %d with header %v", got.status, got.header)
			}
			if test.body != "" && got.body != test.body {
				t.Errorf("the provider's body came as %d bytes", len(got.body))
			}
			p.now(nil)
			again := g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			if again.status != 409 || again.code() != "idempotency_outcome_unknown" || again.header.Get("X-Should-Retry") != "false" ||
				!strings.Contains(again.body, "Record: ") {
				t.Errorf("again: %v", again)
			}
		})
	}
}

// A3: the answer does not come within upstream_timeout.
func TestUpstreamTimeout(t *testing.T) {
	t.Parallel()
	p, _ := startHolding(t)
	g := startGateway(t, p.url, options{idempotency: "upstream_timeout 5s"})
	done := g.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	if got := g.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_key_in_progress" {
		t.Errorf("while it runs: %v", got)
	}
	first := <-done
	p.want(t, 1)
	if first.status != 504 || first.code() != "idempotency_outcome_unknown" {
		t.Errorf("the first caller got %v", first)
	}
	for range 4 {
		if got := g.send(t, request{key: "k", body: "x"}); got.status != 409 || got.code() != "idempotency_outcome_unknown" {
			t.Errorf("again: %v", got)
		}
	}
	p.want(t, 1)
}

// Retries between upstreams are harmless where no connection was made, and only
// there.
func TestNextUpstream(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	retries := options{proxy: "to " + strings.TrimPrefix(p.url, "http://") + "\nlb_policy first\nfail_duration 1m\nlb_retries 3\nlb_try_duration 2s"}
	silent := freeAddress(t)
	g := startGateway(t, silent, retries)
	for _, body := range []string{"x", ""} {
		before := p.count()
		got := g.send(t, request{key: "silent" + body, body: body})
		p.want(t, before+1)
		if got.status != 202 {
			t.Errorf("the first upstream is silent: %v", got)
		}
	}

	first := startProvider(t, hangUp("", true))
	before := p.count()
	for i, body := range []string{"x", ""} {
		g := startGateway(t, strings.TrimPrefix(first.url, "http://"), retries)
		got := g.send(t, request{key: "hangs-up" + body, body: body})
		first.want(t, i+1)
		p.want(t, before)
		if got.code() != "idempotency_outcome_unknown" {
			t.Errorf("the first upstream hangs up: %v", got)
		}
	}
}

// A4: what was never sent is free, and the repeat is the one submit.
func TestNeverSent(t *testing.T) {
	t.Parallel()
	silent := freeAddress(t)
	p := startProvider(t, nil)
	for name, upstream := range map[string]string{
		"refused":   silent,
		"not found": "no-such-host.invalid:80",
		"TLS":       strings.Replace(p.url, "http://", "https://", 1), // it speaks no TLS
	} {
		t.Run(name, func(t *testing.T) {
			before := p.count()
			g := startGateway(t, upstream, options{})
			got := g.send(t, request{key: "k", body: "x"})
			p.want(t, before)
			if got.status != 502 || got.code() != "" {
				t.Errorf("got %v", got)
			}
			g.write(t, p.url, options{})
			g.reload(t)
			if got := g.send(t, request{key: "k", body: "x"}); got.status != 202 {
				t.Errorf("again: %v", got)
			}
			p.want(t, before+1)
		})
	}
	t.Run("no healthy upstream", func(t *testing.T) {
		before := p.count()
		unhealthy := options{proxy: "to " + silent + "\nlb_policy first\nfail_duration 1h\n"}
		g := startGateway(t, silent, unhealthy)
		for range 3 {
			got := g.send(t, request{key: "k", body: "x"})
			if got.code() != "" || got.status != 502 && got.status != 503 {
				t.Errorf("got %v", got)
			}
		}
		p.want(t, before)
		g.write(t, p.url, options{})
		g.reload(t)
		if got := g.send(t, request{key: "k", body: "x"}); got.status != 202 {
			t.Errorf("again: %v", got)
		}
		p.want(t, before+1)
	})
	t.Run("no healthy upstream, and 503 is no refusal", func(t *testing.T) {
		before := p.count()
		g := startGateway(t, silent, options{idempotency: "refused_status 4xx", proxy: "fail_duration 1h"})
		for range 3 {
			if got := g.send(t, request{key: "k", body: "x"}); got.code() != "" {
				t.Errorf("got %v", got)
			}
		}
		p.want(t, before)
	})
	t.Run("turned away by a handler", func(t *testing.T) {
		before := p.count()
		g := startGateway(t, p.url, options{instead: "handle {\nerror \"no\" 403\n}"})
		for range 2 {
			if got := g.send(t, request{key: "k", body: "x"}); got.status != 403 || got.code() != "" {
				t.Errorf("got %v", got)
			}
		}
		p.want(t, before)
	})
}

// A1: net/http must not send a body-less submit again by itself.
func TestBodylessSubmitIsSentOnce(t *testing.T) {
	t.Parallel()
	const warm = 5
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "key_header Idempotency-Key X-Idempotency-Key"})

	// Five idle connections, from five requests at once.
	hold := newGate()
	p.now(p.holdUntil(hold))
	done := make(chan answer, warm)
	for range warm {
		go func() { done <- g.send(t, request{body: "warm"}) }()
	}
	p.awaitSubmits(t, warm)
	hold.open()
	for range warm {
		<-done
	}

	p.now(hangUp("", false))
	sent := p.count()
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		r := request{header: map[string][]string{name: {"k-" + name}}}
		got := g.send(t, r)
		sent++
		p.want(t, sent)
		if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
			t.Errorf("%s: the first caller got %v", name, got)
		}
		if s := p.submit(sent - 1); s.header.Get("Idempotency-Key") != "" || s.header.Get("X-Idempotency-Key") != "" {
			t.Errorf("%s: a body-less submit went out with header %v", name, s.header)
		}
		if got := g.send(t, r); got.status != 409 {
			t.Errorf("%s again: %v", name, got)
		}
		p.want(t, sent)
	}

	// Accepted, a body-less submit is stored like any other.
	p.now(nil)
	first, again := g.send(t, request{key: "bodyless"}), g.send(t, request{key: "bodyless"})
	p.want(t, sent+1)
	if first.status != 202 || again.body != first.body {
		t.Errorf("accepted: %v, again: %v", first, again)
	}
}

// A9: the caller hangs up, and the acceptance is stored all the same.
func TestCallerHangsUp(t *testing.T) {
	t.Parallel()
	p, hold := startHolding(t)
	g := startGateway(t, p.url, options{})
	conn := dial(t, g)
	if _, err := io.WriteString(conn, "POST /v1/videos HTTP/1.1\r\nHost: "+g.host()+
		"\r\nAuthorization: Bearer caller\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx"); err != nil {
		t.Fatal(err)
	}
	p.awaitSubmits(t, 1)
	_ = conn.Close()
	if got := g.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_key_in_progress" {
		t.Errorf("while it runs: %v", got)
	}
	hold.open()
	var again answer
	await(t, "the replay", func() bool { again = g.send(t, request{key: "k", body: "x"}); return again.replayed() })
	p.want(t, 1)
	if again.body != `{"id":"job_1","status":"queued"}` {
		t.Errorf("again: %v", again)
	}
}

// A10: an upload that breaks off leaves nothing.
func TestCallerBreaksOffUpload(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	for _, framing := range []string{"Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"} {
		conn := dial(t, g)
		if _, err := io.WriteString(conn, "POST /v1/videos HTTP/1.1\r\nHost: "+strings.TrimPrefix(g.url, "http://")+
			"\r\nAuthorization: Bearer caller\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"+framing); err != nil {
			t.Fatal(err)
		}
		requests := strings.Count(g.log.String(), `"handled request"`)
		_ = conn.Close()
		await(t, "the gateway to notice", func() bool { return strings.Count(g.log.String(), `"handled request"`) > requests })
	}
	p.want(t, 0)
	if got := g.send(t, request{key: "k", body: "another body"}); got.status != 202 {
		t.Errorf("the key is not free: %v", got)
	}
	p.want(t, 1)
}

// A11: a caller that times out and repeats ends with the job.
func TestImpatientCaller(t *testing.T) {
	t.Parallel()
	p, hold := startHolding(t)
	g := startGateway(t, p.url, options{})
	time.AfterFunc(time.Second, hold.open)
	var got answer
	await(t, "the job", func() bool {
		got = g.send(t, request{key: "k", body: "x", timeout: 150 * time.Millisecond})
		return got.status == 202
	})
	p.want(t, 1)
}

// A 2xx that store_status does not count is no acceptance.
func TestStoreStatus(t *testing.T) {
	t.Parallel()
	p := startProvider(t, answerWith(200, nil, "done at once"))
	g := startGateway(t, p.url, options{idempotency: "store_status 202 409\nrefused_status 400 5xx"})
	if got := g.send(t, request{key: "k", body: "x"}); got.status != 200 || got.body != "done at once" || got.code() != "" {
		t.Errorf("got %v", got)
	}
	p.want(t, 1)
	g.awaitLog(t, "store_status does not count")
	p.now(answerWith(500, nil, "configured as a refusal"))
	g.send(t, request{key: "k", body: "x"})
	p.want(t, 2)
	p.now(answerWith(404, nil, "no refusal any more"))
	if got := g.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_outcome_unknown" {
		t.Errorf("404: %v", got)
	}
	p.want(t, 3)
	p.now(answerWith(409, nil, "exists"))
	first, again := g.send(t, request{key: "l", body: "x"}), g.send(t, request{key: "l", body: "x"})
	p.want(t, 4)
	if first.status != 409 || first.code() != "" || again.body != "exists" || !again.replayed() {
		t.Errorf("409: %v, again %v", first, again)
	}
}

func TestOnUncertainResubmit(t *testing.T) {
	t.Parallel()
	p := startProvider(t, hangUp("", false))
	g := startGateway(t, p.url, options{idempotency: "on_uncertain resubmit"})
	if got := g.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_outcome_unknown" {
		t.Errorf("got %v", got)
	}
	p.want(t, 1)
	g.awaitLog(t, `"the outcome of a submit is unknown; the next repeat is sent again"`)
	p.now(nil)
	if got := g.send(t, request{key: "k", body: "y"}); got.code() != "idempotency_key_reuse" {
		t.Errorf("another body: %v", got)
	}
	p.want(t, 1)
	again := g.send(t, request{key: "k", body: "x"})
	p.want(t, 2)
	if again.status != 202 {
		t.Errorf("again: %v", again)
	}
	if got := g.send(t, request{key: "k", body: "x"}); got.body != again.body || !got.replayed() {
		t.Errorf("once more: %v", got)
	}
	p.want(t, 2)
}

// B1: many first requests at once over two gateways are one submit.
func TestRaceOverTwoGateways(t *testing.T) {
	t.Parallel()
	p, hold := startHolding(t)
	// A hundred callers may keep a busy machine longer than the store's own timeout.
	store := "redis " + redistest.Start(t).Address + " {\ntimeout 10s\n}"
	gateways := []*gateway{startGateway(t, p.url, options{store: store}), startGateway(t, p.url, options{store: store})}
	const callers = 100
	answers := make(chan answer, callers)
	for i := range callers {
		go func() { answers <- gateways[i%2].send(t, request{key: "k", body: "x"}) }()
	}
	for range callers - 1 {
		if got := <-answers; got.code() != "idempotency_key_in_progress" {
			t.Errorf("got %v", got)
		}
	}
	hold.open()
	first := <-answers
	p.want(t, 1)
	if first.status != 202 {
		t.Errorf("the one that was sent got %v", first)
	}
	for _, g := range gateways {
		if got := g.send(t, request{key: "k", body: "x"}); got.body != first.body || !got.replayed() {
			t.Errorf("a replay got %v", got)
		}
	}
	p.want(t, 1)
}

// B2: the lease is renewed as long as the provider takes.
func TestProviderTakesFourLeases(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			p, hold := startHolding(t)
			g := startGateway(t, p.url, options{store: store.directive(t), idempotency: "lease 2s"})
			done := g.sendLater(t, request{key: "k", body: "x"})
			p.awaitSubmits(t, 1)
			over := time.After(8 * time.Second)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for waiting := true; waiting; {
				select {
				case <-over:
					waiting = false
				case <-tick.C:
					if got := g.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_key_in_progress" {
						t.Fatalf("while it runs: %v", got)
					}
				}
			}
			hold.open()
			first := <-done
			p.want(t, 1)
			if got := g.send(t, request{key: "k", body: "x"}); got.body != first.body || !got.replayed() {
				t.Errorf("again: %v", got)
			}
			p.want(t, 1)
		})
	}
}

// A5: writing the body to the provider fails in its middle. It may have acted
// on what it read.
func TestProviderBreaksOffUpload(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var submits atomic.Int64
	served := make(chan struct{})
	t.Cleanup(func() { _ = listener.Close(); <-served })
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test ended
			}
			if _, err := io.ReadFull(conn, make([]byte, 64<<10)); err == nil {
				submits.Add(1)
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}()
	g := startGateway(t, "http://"+listener.Addr().String(), options{})
	large := strings.Repeat("x", 16<<20)
	first := g.send(t, request{key: "k", body: large})
	again := g.send(t, request{key: "k", body: large})
	if n := submits.Load(); n != 1 {
		t.Fatalf("the provider received %d submits, want 1", n)
	}
	if first.status != 502 || first.code() != "idempotency_outcome_unknown" {
		t.Errorf("first: %v", first)
	}
	if again.status != 409 || again.code() != "idempotency_outcome_unknown" {
		t.Errorf("again: %v", again)
	}
}

package integration

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// http2Provider speaks HTTP/2, and the test decides on its every frame.
type http2Provider struct {
	address string

	mu      sync.Mutex
	submits int
	conns   int
	act     func(r *http2Request)
}

// http2Request is a request that was read.
type http2Request struct {
	conn   net.Conn
	framer *http2.Framer
	lock   *sync.Mutex // of the framer's writes
	stream uint32
	path   string
}

// accept answers with a 202.
func (r *http2Request) accept() {
	r.lock.Lock()
	defer r.lock.Unlock()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{{Name: ":status", Value: "202"}, {Name: "content-type", Value: "application/json"}} {
		_ = encoder.WriteField(field)
	}
	_ = r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: r.stream, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = r.framer.WriteData(r.stream, true, []byte(`{"id":"job"}`))
}

// write writes a frame.
func (r *http2Request) write(frame func(*http2.Framer) error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	_ = frame(r.framer)
}

func (r *http2Request) reset(code http2.ErrCode) {
	r.write(func(f *http2.Framer) error { return f.WriteRSTStream(r.stream, code) })
}

func (r *http2Request) goAway(last uint32, code http2.ErrCode) {
	r.write(func(f *http2.Framer) error { return f.WriteGoAway(last, code, nil) })
}

// startHTTP2Provider runs a provider that accepts every submit. It ends with the
// test.
func startHTTP2Provider(t *testing.T, secure bool) *http2Provider {
	t.Helper()
	p := &http2Provider{act: (*http2Request).accept}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if secure {
		listener = tls.NewListener(listener, &tls.Config{Certificates: testCertificate(t), NextProtos: []string{"h2"}})
	}
	p.address = listener.Addr().String()
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test ended
			}
			t.Cleanup(func() { _ = conn.Close() })
			go p.serve(conn)
		}
	}()
	return p
}

func (p *http2Provider) serve(conn net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return
	}
	p.mu.Lock()
	p.conns++
	p.mu.Unlock()
	var lock sync.Mutex
	framer := http2.NewFramer(conn, conn)
	open := make(map[uint32]*http2Request) // whose body is being read
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	lock.Lock()
	_ = framer.WriteSettings()
	lock.Unlock()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				lock.Lock()
				_ = framer.WriteSettingsAck()
				lock.Unlock()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				lock.Lock()
				_ = framer.WritePing(true, f.Data)
				lock.Unlock()
			}
		case *http2.MetaHeadersFrame:
			r := &http2Request{conn, framer, &lock, f.StreamID, f.PseudoValue("path")}
			if !f.StreamEnded() {
				open[f.StreamID] = r
				continue
			}
			p.received(r)
		case *http2.DataFrame:
			if r := open[f.StreamID]; r != nil && f.StreamEnded() {
				delete(open, f.StreamID)
				p.received(r)
			}
		}
	}
}

// received counts a request that was read to its end.
func (p *http2Provider) received(r *http2Request) {
	p.mu.Lock()
	p.submits++
	act := p.act
	p.mu.Unlock()
	act(r)
}

func (p *http2Provider) now(act func(r *http2Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.act = act
}

func (p *http2Provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.submits
}

func (p *http2Provider) want(t *testing.T, submits int) {
	t.Helper()
	if n := p.count(); n != submits {
		t.Fatalf("the provider received %d submits, want %d", n, submits)
	}
}

// testCertificate is one that nobody trusts.
func testCertificate(t *testing.T) []tls.Certificate {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return server.TLS.Certificates
}

// startHTTP2Gateway runs a gateway before the provider.
func startHTTP2Gateway(t *testing.T, p *http2Provider, secure bool, o options) *gateway {
	t.Helper()
	if secure {
		o.proxy = "transport http {\ntls_insecure_skip_verify\n}"
		return startGateway(t, "https://"+p.address, o)
	}
	return startGateway(t, "h2c://"+p.address, o)
}

// eachHTTP2 runs a test for both ways to speak HTTP/2.
func eachHTTP2(t *testing.T, test func(t *testing.T, secure bool)) {
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "h2c", true: "TLS"}[secure], func(t *testing.T) {
			t.Parallel()
			test(t, secure)
		})
	}
}

// A submit over HTTP/2 is sent once, whatever the provider does to its stream or
// its connection, and also where HTTP/2 allows to send it again (REFUSED_STREAM,
// GOAWAY): the transport does not tell why it does.
func TestHTTP2SubmitIsSentOnce(t *testing.T) {
	reset := func(code http2.ErrCode) func(*http2Request) { return func(r *http2Request) { r.reset(code) } }
	for name, test := range map[string]struct {
		act     func(r *http2Request)
		stopped bool // without a body the transport sends it again
	}{
		"REFUSED_STREAM":              {reset(http2.ErrCodeRefusedStream), true},
		"PROTOCOL_ERROR":              {reset(http2.ErrCodeProtocol), false},
		"INTERNAL_ERROR":              {reset(http2.ErrCodeInternal), false},
		"CANCEL":                      {reset(http2.ErrCodeCancel), false},
		"NO_ERROR":                    {reset(http2.ErrCodeNo), false},
		"ENHANCE_YOUR_CALM":           {reset(http2.ErrCodeEnhanceYourCalm), false},
		"HTTP_1_1_REQUIRED":           {reset(http2.ErrCodeHTTP11Required), false},
		"GOAWAY, not processed":       {func(r *http2Request) { r.goAway(r.stream-2, http2.ErrCodeNo) }, true},
		"GOAWAY, an error":            {func(r *http2Request) { r.goAway(r.stream-2, http2.ErrCodeEnhanceYourCalm) }, true},
		"GOAWAY, not known, and lost": {func(r *http2Request) { r.goAway(r.stream, http2.ErrCodeNo); _ = r.conn.Close() }, false},
		"lost":                        {func(r *http2Request) { _ = r.conn.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			eachHTTP2(t, func(t *testing.T, secure bool) {
				p := startHTTP2Provider(t, secure)
				g := startHTTP2Gateway(t, p, secure, options{idempotency: "upstream_key keep"})
				for i, body := range []string{"", "x"} {
					p.now((*http2Request).accept)
					if got := g.send(t, request{key: "warm" + body}); got.status != 202 {
						t.Fatalf("warm: %v", got)
					}
					before := p.count()
					p.now(test.act)
					r := request{key: "k" + body, body: body}
					got := g.send(t, r)
					p.want(t, before+1)
					if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
						t.Errorf("got %v", got)
					}
					if got := g.send(t, r); got.status != 409 || got.code() != "idempotency_outcome_unknown" {
						t.Errorf("again: %v", got)
					}
					p.want(t, before+1)
					if i == 0 && strings.Contains(g.log.String(), stoppedLine) != test.stopped {
						t.Errorf("the log says that a second request was stopped: %t", !test.stopped)
					}
				}
			})
		})
	}
}

// A connection that ends before a submit needs it costs nothing, and one that
// ends after it goes on with what it has.
func TestHTTP2GoAway(t *testing.T) {
	eachHTTP2(t, func(t *testing.T, secure bool) {
		p := startHTTP2Provider(t, secure)
		g := startHTTP2Gateway(t, p, secure, options{})
		// The answer comes before the end, and the gateway has read both: it reads
		// frames in their order.
		p.now(func(r *http2Request) {
			r.goAway(r.stream, http2.ErrCodeNo)
			r.accept()
		})
		for i, body := range []string{"", "x", "", "x"} {
			r := request{key: fmt.Sprint("k", i), body: body}
			first, again := g.send(t, r), g.send(t, r)
			p.want(t, i+1)
			if first.status != 202 || !again.replayed() {
				t.Errorf("got %v, again %v", first, again)
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conns != 4 {
			t.Errorf("the submits came over %d connections, want 4", p.conns)
		}
	})
}

// A second request that is stopped ends nobody else's: the connection is shared.
func TestHTTP2StopLeavesOthersAlone(t *testing.T) {
	eachHTTP2(t, func(t *testing.T, secure bool) {
		p := startHTTP2Provider(t, secure)
		g := startHTTP2Gateway(t, p, secure, options{})
		if got := g.send(t, request{key: "warm"}); got.status != 202 {
			t.Fatalf("warm: %v", got)
		}
		held := make(chan *http2Request, 1)
		p.now(func(r *http2Request) { held <- r })
		other := g.sendLater(t, request{key: "other", body: "x"})
		r := <-held
		p.now(func(r *http2Request) { r.reset(http2.ErrCodeRefusedStream) })
		got := g.send(t, request{key: "k"})
		p.want(t, 3)
		if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
			t.Errorf("got %v", got)
		}
		g.awaitLog(t, stoppedLine)
		r.accept()
		if got := <-other; got.status != 202 {
			t.Errorf("the other got %v", got)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conns != 1 {
			t.Errorf("the submits came over %d connections, want 1", p.conns)
		}
	})
}

// forward_auth over HTTP/2, from the address of the provider.
func TestHTTP2ForwardAuth(t *testing.T) {
	p := startHTTP2Provider(t, false)
	asked := 0
	accept := func(r *http2Request) {
		if r.path == "/check" {
			p.mu.Lock()
			asked++
			p.submits-- // a question is none
			p.mu.Unlock()
		}
		r.accept()
	}
	p.now(accept)
	address := "h2c://" + p.address
	g := startGateway(t, "", options{idempotency: "methods POST DELETE", instead: "route {\nforward_auth " + address + " {\nuri /check\n}\nreverse_proxy " + address + "\n}"})
	for i, r := range []request{{key: "a", body: "x"}, {key: "b"}, {key: "c", method: "DELETE"}} {
		first, again := g.send(t, r), g.send(t, r)
		p.want(t, i+1)
		if first.status != 202 || !again.replayed() {
			t.Errorf("got %v, again %v", first, again)
		}
	}
	p.now(func(r *http2Request) {
		if r.path == "/check" {
			accept(r)
			return
		}
		r.reset(http2.ErrCodeRefusedStream)
	})
	if got := g.send(t, request{key: "d"}); got.status != 502 || got.code() != "idempotency_outcome_unknown" {
		t.Errorf("got %v", got)
	}
	p.want(t, 4)
	p.mu.Lock()
	defer p.mu.Unlock()
	if asked != 4 {
		t.Errorf("asked %d times, want 4", asked)
	}
}

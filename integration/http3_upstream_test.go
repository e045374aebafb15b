package integration

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// http3Provider counts what it gets over HTTP/3.
type http3Provider struct {
	address string

	mu      sync.Mutex
	submits int
	act     func(w http.ResponseWriter, r *http.Request)
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

func startHTTP3Provider(t *testing.T) *http3Provider {
	t.Helper()
	p := &http3Provider{act: acceptHTTP3}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = packets.LocalAddr().String()
	server := &http3.Server{
		TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: testCertificate(t)}),
		Handler:   p,
		ConnContext: func(ctx context.Context, conn *quic.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, conn)
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(packets) // until the test ends
	}()
	t.Cleanup(func() {
		_ = server.Close()
		_ = packets.Close()
		<-done
	})
	return p
}

func (p *http3Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.submits++
	act := p.act
	p.mu.Unlock()
	_, _ = io.Copy(io.Discard, r.Body)
	act(w, r)
}

func acceptHTTP3(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, `{"id":"job"}`)
}

func (p *http3Provider) now(act func(http.ResponseWriter, *http.Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.act = act
}

func (p *http3Provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.submits
}

// A submit over HTTP/3 is sent once, whatever the provider does to its stream or
// its connection, and also where HTTP/3 allows to send it again
// (H3_REQUEST_REJECTED).
func TestHTTP3SubmitIsSentOnce(t *testing.T) {
	reset := func(code http3.ErrCode) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			stream := w.(http3.HTTPStreamer).HTTPStream()
			stream.CancelRead(quic.StreamErrorCode(code))
			stream.CancelWrite(quic.StreamErrorCode(code))
		}
	}
	closeWith := func(code http3.ErrCode) func(http.ResponseWriter, *http.Request) {
		return func(_ http.ResponseWriter, r *http.Request) {
			conn := r.Context().Value(connectionKey{}).(*quic.Conn)
			_ = conn.CloseWithError(quic.ApplicationErrorCode(code), "")
		}
	}
	for name, test := range map[string]struct {
		act     func(http.ResponseWriter, *http.Request)
		stopped bool // without a body the transport sends it again
	}{
		"H3_REQUEST_REJECTED":     {reset(http3.ErrCodeRequestRejected), true},
		"H3_REQUEST_CANCELLED":    {reset(http3.ErrCodeRequestCanceled), false},
		"H3_INTERNAL_ERROR":       {reset(http3.ErrCodeInternalError), false},
		"H3_NO_ERROR":             {reset(http3.ErrCodeNoError), false},
		"closed, no error":        {closeWith(http3.ErrCodeNoError), false},
		"closed, rejected":        {closeWith(http3.ErrCodeRequestRejected), true},
		"closed, general problem": {closeWith(http3.ErrCodeGeneralProtocolError), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startHTTP3Provider(t)
			g := startGateway(t, "https://"+p.address, options{
				idempotency: "upstream_key keep", proxy: "transport http {\nversions 3\ntls_insecure_skip_verify\n}",
			})
			for i, body := range []string{"", "x"} {
				p.now(acceptHTTP3)
				// The connection may have been closed when the gateway does not know yet.
				warm := request{key: "warm" + body}
				if got := g.send(t, warm); i == 0 && got.status != 202 {
					t.Fatalf("warm: %v", got)
				}
				before := p.count()
				p.now(test.act)
				r := request{key: "k" + body, body: body}
				got := g.send(t, r)
				if n := p.count() - before; n != 1 {
					t.Fatalf("the provider received %d submits, want 1", n)
				}
				if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
					t.Errorf("got %v", got)
				}
				if got := g.send(t, r); got.status != 409 || got.code() != "idempotency_outcome_unknown" {
					t.Errorf("again: %v", got)
				}
				if n := p.count() - before; n != 1 {
					t.Fatalf("the provider received %d submits, want 1", n)
				}
				if i == 0 && strings.Contains(g.log.String(), stoppedLine) != test.stopped {
					t.Errorf("the log says that a second request was stopped: %t", !test.stopped)
				}
			}
		})
	}
}

// Nobody answers over HTTP/3: nothing was sent, and the key is free.
func TestHTTP3NoConnection(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "https://"+freeAddress(t), options{proxy: "transport http {\nversions 3\ntls_insecure_skip_verify\n}", idempotency: "upstream_timeout 500ms"})
	for range 2 {
		if got := g.send(t, request{key: "k", body: "x"}); got.code() != "" || got.status < 500 {
			t.Errorf("got %v", got)
		}
	}
}

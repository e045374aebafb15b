package integration

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
)

// A13: as A1, with an https provider and with header_up on the proxy, which
// both copy the header anew.
func TestBodylessSubmitIsSentOnceInOtherWays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tls   bool
		proxy string
	}{
		"header_up": {false, "header_up X-Other value"},
		"https":     {true, "transport http {\ntls_insecure_skip_verify\nversions 1.1\n}"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProvider(t, nil)
			upstream := p.url
			if test.tls {
				secure := httptest.NewTLSServer(p)
				t.Cleanup(func() { secure.CloseClientConnections(); secure.Close() })
				upstream = secure.URL
			}
			g := startGateway(t, upstream, options{proxy: test.proxy})
			const warm = 5
			hold := newGate()
			p.now(p.holdUntil(hold))
			var answers []<-chan answer
			for range warm {
				answers = append(answers, g.sendLater(t, request{body: "warm"}))
			}
			p.awaitSubmits(t, warm)
			hold.open()
			for _, a := range answers {
				<-a
			}

			p.now(hangUpAny)
			got := g.send(t, request{key: "k"})
			p.want(t, warm+1)
			if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
				t.Errorf("the first caller got %v", got)
			}
			if got := g.send(t, request{key: "k"}); got.status != 409 {
				t.Errorf("again: %v", got)
			}
			p.want(t, warm+1)
		})
	}
}

// hangUpAny ends the connection without a byte, be it TLS or not.
func hangUpAny(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) {
	accept()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

// Over HTTP/2 a body-less submit that the provider resets with PROTOCOL_ERROR is
// sent once. Go's own HTTP/2 transport sends it again for ever; the one that
// Caddy uses does not, and this test keeps it so.
func TestHTTP2ProtocolError(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]http2.ErrCode{"PROTOCOL_ERROR": http2.ErrCodeProtocol, "INTERNAL_ERROR": http2.ErrCodeInternal} {
		t.Run(name, func(t *testing.T) {
			var submits atomic.Int32
			address := serveHTTP2(t, func(framer *http2.Framer, stream uint32) {
				submits.Add(1)
				_ = framer.WriteRSTStream(stream, code)
			})
			g := startGateway(t, "h2c://"+address, options{})
			got := g.send(t, request{key: "k"})
			if n := submits.Load(); n != 1 {
				t.Fatalf("the provider received %d submits, want 1", n)
			}
			if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
				t.Errorf("got %v", got)
			}
			if got := g.send(t, request{key: "k"}); got.status != 409 {
				t.Errorf("again: %v", got)
			}
			if n := submits.Load(); n != 1 {
				t.Fatalf("the provider received %d submits, want 1", n)
			}
		})
	}
}

// serveHTTP2 accepts HTTP/2 connections without TLS and calls answer for the
// header frame of each request.
func serveHTTP2(t *testing.T, answer func(framer *http2.Framer, stream uint32)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test ended
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() {
				preface := make([]byte, len(http2.ClientPreface))
				if _, err := io.ReadFull(conn, preface); err != nil {
					return
				}
				framer := http2.NewFramer(conn, conn)
				_ = framer.WriteSettings()
				for {
					frame, err := framer.ReadFrame()
					if err != nil {
						return
					}
					switch f := frame.(type) {
					case *http2.SettingsFrame:
						if !f.IsAck() {
							_ = framer.WriteSettingsAck()
						}
					case *http2.HeadersFrame:
						answer(framer, f.StreamID)
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

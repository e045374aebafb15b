package redistest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Fate is what a Proxy does with a request. The zero value passes it and its
// reply on.
type Fate struct {
	// ReplyLost: the connection ends when the server has replied.
	ReplyLost bool
	// Late, if positive, is how long the request is kept back. The client's
	// connection ends at once, and nobody gets the reply.
	Late time.Duration
}

// Proxy stands between clients and a server, and spoils requests.
type Proxy struct {
	// Address is host:port.
	Address string

	server string
	fate   func() Fate
	ctx    context.Context // of the test
	work   sync.WaitGroup
}

// StartProxy starts a proxy before the server at the given address. It asks
// for the fate of each request. It ends with the test.
func StartProxy(t testing.TB, server string, fate func() Fate) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Address: listener.Addr().String(), server: server, fate: fate, ctx: t.Context()}
	p.work.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test ended
			}
			p.work.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.work.Wait()
	})
	return p
}

// serve passes one connection's requests on, until one of the two ends it.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	stop := context.AfterFunc(p.ctx, func() { _ = client.Close(); _ = server.Close() })
	defer stop()

	var lose atomic.Bool
	replies := make(chan struct{})
	p.work.Go(func() {
		defer close(replies)
		defer client.Close()
		buffer := make([]byte, 1<<16)
		for {
			n, err := server.Read(buffer)
			if err != nil || lose.Load() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	})

	buffer := make([]byte, 1<<16)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		fate := p.fate()
		if fate.Late > 0 {
			_ = client.Close()
			select {
			case <-time.After(fate.Late):
			case <-p.ctx.Done():
			}
		}
		spoiled := fate.ReplyLost || fate.Late > 0
		lose.Store(spoiled)
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
		if spoiled {
			<-replies
			return
		}
	}
}

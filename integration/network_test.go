package integration

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// network is a TCP proxy: the way from a gateway to Redis or to the provider,
// which can be cut, slow, silent, or lose replies.
type network struct {
	address string
	target  string
	ended   chan struct{} // closed with the test
	wg      sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	lose  int           // replies still to lose
	delay time.Duration // of each reply
	hole  chan struct{} // if not nil: nothing passes until it is closed
}

// startNetwork runs a proxy to an address. It ends with the test.
func startNetwork(t testing.TB, target string) *network {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{
		address: listener.Addr().String(), target: target,
		ended: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	t.Cleanup(func() {
		close(n.ended)
		_ = listener.Close()
		n.cut()
		n.wg.Wait()
	})
	n.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test ended
			}
			n.wg.Go(func() { n.connect(client) })
		}
	})
	return n
}

func (n *network) connect(client net.Conn) {
	defer n.drop(n.keep(client))
	if !n.passes() {
		return
	}
	server, err := net.Dial("tcp", n.target)
	if err != nil {
		return
	}
	defer n.drop(n.keep(server))
	n.wg.Go(func() {
		defer n.drop(server)
		_, _ = io.Copy(writerFunc(func(b []byte) (int, error) {
			if !n.passes() {
				return 0, net.ErrClosed
			}
			return server.Write(b)
		}), client)
	})
	_, _ = io.Copy(writerFunc(func(b []byte) (int, error) {
		if !n.passes() || n.loses() || !n.waits() {
			return 0, net.ErrClosed
		}
		return client.Write(b)
	}), server)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// keep remembers a connection, so that it can be cut.
func (n *network) keep(conn net.Conn) net.Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[conn] = struct{}{}
	return conn
}

func (n *network) drop(conn net.Conn) {
	_ = conn.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, conn)
}

// passes waits while the network is a black hole, and is false when the test
// ends.
func (n *network) passes() bool {
	n.mu.Lock()
	hole := n.hole
	n.mu.Unlock()
	if hole == nil {
		return true
	}
	select {
	case <-hole:
		return true
	case <-n.ended:
		return false
	}
}

// waits waits for as long as replies are delayed.
func (n *network) waits() bool {
	n.mu.Lock()
	delay := n.delay
	n.mu.Unlock()
	if delay == 0 {
		return true
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-n.ended:
		return false
	}
}

func (n *network) loses() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lose == 0 {
		return false
	}
	n.lose--
	return true
}

// loseReplies loses the next replies. With each, its connection breaks.
func (n *network) loseReplies(replies int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lose = replies
}

// delayReplies makes each reply late.
func (n *network) delayReplies(by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = by
}

// cut breaks all connections. New ones can be made.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn := range n.conns {
		_ = conn.Close()
	}
}

// swallow lets nothing pass any more, without a sign: packets are on their way
// until heal, and arrive then.
func (n *network) swallow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hole == nil {
		n.hole = make(chan struct{})
	}
}

// heal makes the network a good one.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lose, n.delay = 0, 0
	if n.hole != nil {
		close(n.hole)
		n.hole = nil
	}
}

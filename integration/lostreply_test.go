package integration

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// lossyProxy stands between a gateway and Redis and loses replies when told.
type lossyProxy struct {
	address string

	mu   sync.Mutex
	lose int // replies still to lose
}

func startLossyProxy(t *testing.T, redis string) *lossyProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &lossyProxy{address: listener.Addr().String()}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test ended
			}
			server, err := net.Dial("tcp", redis)
			if err != nil {
				_ = client.Close()
				continue
			}
			t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
			go func() {
				_, _ = io.Copy(server, client)
				_ = server.Close()
			}()
			go p.replies(client, server)
		}
	}()
	return p
}

// replies passes replies on; one that is to be lost ends the connection.
func (p *lossyProxy) replies(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		if p.loses() {
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (p *lossyProxy) loses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lose == 0 {
		return false
	}
	p.lose--
	return true
}

// next loses the next n replies.
func (p *lossyProxy) next(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = n
}

// C2: a claim that was executed and whose reply is lost goes on, or leaves the
// key free; a completion whose reply is lost is stored.
func TestLostReplies(t *testing.T) {
	redis := redistest.Start(t)
	lossy := startLossyProxy(t, redis.Address)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + lossy.address, idempotency: "lease 1m"})
	g.send(t, request{key: "warm", body: "x"}) // the clock is asked for, the scripts are loaded
	p.want(t, 1)

	lossy.next(1)
	first := g.send(t, request{key: "one", body: "x"})
	p.want(t, 2)
	if first.status != 202 {
		t.Errorf("one reply lost: %v", first)
	}

	lossy.next(2)
	got := g.send(t, request{key: "two", body: "x"})
	p.want(t, 2)
	if got.status != 503 || got.code() != "idempotency_store_unavailable" {
		t.Errorf("two replies lost: %v", got)
	}
	// Not a long in-progress: the lease is a minute, and the key is free long
	// before await gives up.
	await(t, "the key to be free", func() bool {
		got = g.send(t, request{key: "two", body: "x"})
		return got.code() == ""
	})
	p.want(t, 3)
	if got.status != 202 {
		t.Errorf("again: %v", got)
	}

	hold := newGate()
	p.now(p.holdUntil(hold))
	later := g.sendLater(t, request{key: "three", body: "x"})
	p.awaitSubmits(t, 4)
	lossy.next(1)
	hold.open()
	completed := <-later
	if completed.status != 202 {
		t.Errorf("the completion's reply lost: %v", completed)
	}
	if again := g.send(t, request{key: "three", body: "x"}); again.body != completed.body || !again.replayed() {
		t.Errorf("again: %v", again)
	}
	p.want(t, 4)
}

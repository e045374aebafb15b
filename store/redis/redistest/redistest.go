// Package redistest runs redis-server processes for tests: real ones, on free
// ports of the loopback interface, each with a directory of its own.
package redistest

import (
	"bytes"
	"context"
	"crypto/tls"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Server is one redis-server process.
type Server struct {
	// Address is host:port.
	Address string
	// Client is connected to the server, for what a test wants to see or spoil.
	Client *goredis.Client

	args   []string
	env    []string // in addition to the test's own
	socket string
	log    *syncBuffer
	cmd    *exec.Cmd
	done   chan struct{}
}

// Start runs a redis-server with an append-only file that is fsynced every
// second, and the given further options ("--maxmemory", "10mb"). It ends with
// the test.
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	return start(t, launch{options: options})
}

//go:embed testdata/clock.c
var clockSource []byte

// StartApart runs a redis-server whose clock is off from everybody else's. It
// needs Linux and gcc.
func StartApart(t testing.TB, by time.Duration, options ...string) *Server {
	t.Helper()
	return start(t, launch{env: clockApart(t, by), options: options})
}

// MoveClock sets the clock of a server that is ended, from its next Run on, apart
// from everybody else's. It needs Linux and gcc.
func (s *Server) MoveClock(t testing.TB, by time.Duration) {
	t.Helper()
	s.env = clockApart(t, by)
}

// clockApart returns the environment of a process whose clock is off.
func clockApart(t testing.TB, by time.Duration) []string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the clock of one process can be moved on Linux only")
	}
	library := filepath.Join(t.TempDir(), "clock.so")
	compile := exec.Command("gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library)
	compile.Stdin = bytes.NewReader(clockSource)
	if output, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, output)
	}
	return []string{"LD_PRELOAD=" + library, fmt.Sprintf("CLOCK_APART=%d", int(by.Seconds()))}
}

// launch is how a server is to be started.
type launch struct {
	env     []string      // in addition to the test's own
	tls     *Certificates // the server speaks TLS alone
	options []string
}

func start(t testing.TB, l launch) *Server {
	t.Helper()
	port := FreePort(t)
	listen := []string{"--port", fmt.Sprint(port)}
	var clientTLS *tls.Config
	if c := l.tls; c != nil {
		listen = []string{
			"--port", "0", "--tls-port", fmt.Sprint(port), "--tls-auth-clients", "yes",
			"--tls-cert-file", c.Server, "--tls-key-file", c.ServerKey, "--tls-ca-cert-file", c.CA,
		}
		clientTLS = c.Config
	}
	dir := t.TempDir()
	s := &Server{
		Address: fmt.Sprintf("127.0.0.1:%d", port),
		env:     l.env,
		log:     &syncBuffer{},
		socket:  filepath.Join(dir, "redis.sock"),
	}
	s.args = slices.Concat(listen, []string{
		"--bind", "127.0.0.1", "--dir", dir, "--unixsocket", s.socket,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
		"--enable-debug-command", "yes",
		// A replica follows without the delay that is meant for many of them.
		"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
		"--shutdown-timeout", "0", // or a primary waits for replicas that lag
	}, l.options)
	client := &goredis.Options{Addr: s.Address, MaxRetries: -1, TLSConfig: clientTLS}
	if i := slices.Index(l.options, "--requirepass"); i >= 0 {
		client.Password = l.options[i+1]
	}
	s.Client = goredis.NewClient(client)
	t.Cleanup(func() {
		_ = s.Client.Close()
		s.Kill(t) // nobody reads its data any more
	})
	s.Run(t)
	return s
}

// Socket is the path of the server's unix socket.
func (s *Server) Socket() string { return s.socket }

// Run starts the process, anew after Kill or Stop with the data that it kept,
// and returns when it answers.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatal("redis-server is not installed; ./xcaddy.sh test installs it")
	}
	s.cmd = exec.Command("redis-server", s.args...)
	s.cmd.Env = append(os.Environ(), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	s.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // how it ended shows in its log
		close(done)
	}(s.cmd, s.done)

	deadline := time.Now().Add(20 * time.Second)
	for {
		err := s.Client.Ping(context.Background()).Err()
		if err == nil {
			return
		}
		select {
		case <-s.done:
			t.Fatalf("redis-server ended at once:\n%s", s.log.String())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("redis-server does not answer: %v\n%s", err, s.log.String())
		}
	}
}

// Stop ends the process in an orderly way and waits for its end.
func (s *Server) Stop(t testing.TB) { s.end(t, syscall.SIGTERM) }

// Kill ends the process at once and waits for its end.
func (s *Server) Kill(t testing.TB) { s.end(t, syscall.SIGKILL) }

func (s *Server) end(t testing.TB, signal os.Signal) {
	t.Helper()
	if s.cmd == nil {
		return
	}
	defer func() { s.cmd = nil }()
	deadline := time.After(10 * time.Second)
	// A replica that writes its first append-only file forgets a SIGTERM.
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		_ = s.cmd.Process.Signal(signal)          // it may have ended already
		_ = s.cmd.Process.Signal(syscall.SIGCONT) // a frozen process does not take a SIGTERM
		select {
		case <-s.done:
			return
		case <-again.C:
		case <-deadline:
			_ = s.cmd.Process.Kill()
			<-s.done
			t.Error("redis-server did not end within ten seconds")
			return
		}
	}
}

// Freeze stops the process without ending it; Thaw lets it go on.
func (s *Server) Freeze(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (s *Server) Thaw(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		t.Fatalf("signal redis-server: %v", err)
	}
}

// Await polls until the condition holds, for at most half a minute.
func Await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited half a minute for %s", what)
		}
	}
}

// Ports are given in blocks, each of which belongs to the process that listens on
// its first one: test processes run side by side.
const firstPort, portBlocks, portsOfBlock = 10000, 44, 500

var ports struct {
	mu        sync.Mutex
	next, end int
	blocks    []net.Listener
}

// FreePort returns a port of the loopback interface that nobody listens on, and
// no process gets it again. It is below those that systems give to outgoing
// connections: one of them would take it before the server does.
func FreePort(t testing.TB) int {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for {
		if ports.next == ports.end {
			takePorts(t)
		}
		port := ports.next
		ports.next++
		if l, err := listenOn(port); err == nil {
			_ = l.Close()
			return port
		}
	}
}

// takePorts takes a block that no process has.
func takePorts(t testing.TB) {
	t.Helper()
	for _, block := range rand.Perm(portBlocks) {
		first := firstPort + block*portsOfBlock
		if l, err := listenOn(first); err == nil {
			ports.blocks = append(ports.blocks, l) // until the process ends
			ports.next, ports.end = first+1, first+portsOfBlock
			return
		}
	}
	t.Fatal("no block of ports is free")
}

func listenOn(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

// syncBuffer is a buffer that a process can write and a test can read.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

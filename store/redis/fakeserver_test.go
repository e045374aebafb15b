package redis_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// fakeServer speaks just enough of Redis to say what a test wants to be said.
type fakeServer struct {
	address string
	// answer returns the raw reply to a command; closes ends the connection.
	answer func(command []string) (reply string, closes bool)

	mu          sync.Mutex
	connections [][]string // the names of the commands on each
}

// startFakeServer runs a server that says hello as the given version, and
// answers everything else as told. It ends with the test.
func startFakeServer(t *testing.T, version, mode string, answer func(command []string) (string, bool)) *fakeServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeServer{address: listener.Addr().String()}
	f.answer = func(command []string) (string, bool) {
		if command[0] == "hello" {
			return array(bulk("version"), bulk(version), bulk("mode"), bulk(mode), bulk("role"), bulk("master")), false
		}
		return answer(command)
	}
	var connections sync.WaitGroup
	ends := make(chan struct{})
	t.Cleanup(func() {
		close(ends)
		_ = listener.Close()
		connections.Wait()
	})
	connections.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test ended
			}
			connections.Go(func() {
				<-ends
				_ = conn.Close()
			})
			connections.Go(func() { f.serve(conn) })
		}
	})
	return f
}

func (f *fakeServer) serve(conn net.Conn) {
	defer conn.Close()
	f.mu.Lock()
	number := len(f.connections)
	f.connections = append(f.connections, nil)
	f.mu.Unlock()
	r := bufio.NewReader(conn)
	for {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		f.mu.Lock()
		f.connections[number] = append(f.connections[number], command[0])
		f.mu.Unlock()
		reply, closes := f.answer(command)
		if _, err := io.WriteString(conn, reply); err != nil || closes {
			return
		}
	}
}

// count returns how often a command came.
func (f *fakeServer) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, command := range slices.Concat(f.connections...) {
		if command == name {
			n++
		}
	}
	return n
}

// opened returns how many connections there were.
func (f *fakeServer) opened() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.connections)
}

func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readLength(r, '*')
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		size, err := readLength(r, '$')
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, err
		}
		command[i] = string(text[:size])
	}
	command[0] = strings.ToLower(command[0])
	return command, nil
}

func readLength(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("got %q, want %c", line, kind)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

func integer(n int) string { return fmt.Sprintf(":%d\r\n", n) }

func array(elements ...string) string {
	return fmt.Sprintf("*%d\r\n%s", len(elements), strings.Join(elements, ""))
}

// slotsOf is the reply to CLUSTER SLOTS of a cluster with one node.
func slotsOf(address string) string {
	host, port, _ := strings.Cut(address, ":")
	n, _ := strconv.Atoi(port)
	return array(array(integer(0), integer(16383), array(bulk(host), integer(n), bulk("id"))))
}

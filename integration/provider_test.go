package integration

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

// provider is a media API that counts what it reads and what it accepts.
type provider struct {
	server *httptest.Server
	url    string
	ctx    context.Context // ends with the test

	document string // what a good answer says; %q is the job's id

	mu       sync.Mutex
	submits  []submit
	accepted map[string]string // job id -> key
	jobs     int
	behave   behaviour
	discard  bool // bodies are read and not kept
}

// submit is one POST that the provider has read to its end.
type submit struct {
	key    string
	method string
	path   string
	header http.Header
	body   string
	// What came after the body.
	trailer http.Header
}

// behaviour answers the n-th submit (counted from 1). accept makes it a job
// and returns the document that a good answer has.
type behaviour func(w http.ResponseWriter, r *http.Request, n int, accept func() string)

// startProvider runs a provider that accepts every submit with 202, or behaves
// as told.
func startProvider(t testing.TB, behave behaviour) *provider {
	t.Helper()
	p := newProvider(t, behave)
	p.start()
	return p
}

// startHolding runs a provider that accepts at once and answers when the gate
// opens.
func startHolding(t testing.TB) (*provider, *gate) {
	t.Helper()
	hold := newGate()
	p := startProvider(t, nil)
	p.now(p.holdUntil(hold))
	return p, hold
}

// newProvider returns a provider whose server can be set up before its start.
func newProvider(t testing.TB, behave behaviour) *provider {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &provider{ctx: ctx, document: `{"id":%q,"status":"queued"}`, accepted: map[string]string{}, behave: behave}
	p.server = httptest.NewUnstartedServer(p)
	t.Cleanup(func() {
		cancel(errTest)
		p.server.CloseClientConnections()
		p.server.Close()
	})
	return p
}

func (p *provider) start() {
	p.server.Start()
	p.url = p.server.URL
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	kept := io.Writer(&body)
	if p.discard {
		kept = io.Discard
	}
	if _, err := io.Copy(kept, r.Body); err != nil {
		return // not read to its end: no submit
	}
	if r.Method == http.MethodGet {
		_, _ = io.WriteString(w, "status page")
		return
	}
	if r.ContentLength > 0 {
		r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10)) // net/http takes it out
	}
	s := submit{r.Header.Get("Idempotency-Key"), r.Method, r.URL.RequestURI(), r.Header.Clone(), body.String(), r.Trailer}
	p.mu.Lock()
	p.submits = append(p.submits, s)
	n := len(p.submits)
	behave := p.behave
	p.mu.Unlock()

	accept := func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.jobs++
		id := fmt.Sprintf("job_%d", p.jobs)
		p.accepted[id] = s.key
		return fmt.Sprintf(p.document, id)
	}
	if behave == nil {
		acceptPlainly(w, accept)
		return
	}
	behave(w, r, n, accept)
}

func acceptPlainly(w http.ResponseWriter, accept func() string) {
	w.Header().Set("Content-Type", "application/json")
	document := accept()
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, document)
}

// now changes the behaviour for the submits to come.
func (p *provider) now(behave behaviour) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behave = behave
}

// count returns the number of submits read so far.
func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.submits)
}

func (p *provider) submit(i int) submit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.submits[i]
}

// want is the first assertion of every test.
func (p *provider) want(t testing.TB, submits int) {
	t.Helper()
	if n := p.count(); n != submits {
		t.Fatalf("the provider received %d submits, want %d", n, submits)
	}
}

// awaitSubmits waits until that many submits were read.
func (p *provider) awaitSubmits(t testing.TB, n int) {
	t.Helper()
	await(t, fmt.Sprintf("submit %d at the provider", n), func() bool { return p.count() >= n })
}

// gate makes a behaviour wait until it is opened, or until the test ends.
type gate struct {
	opened chan struct{}
	once   sync.Once
}

func newGate() *gate { return &gate{opened: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// wait returns when the gate is open, or when the provider's test ends.
func (g *gate) wait(p *provider) {
	select {
	case <-g.opened:
	case <-p.ctx.Done():
	}
}

// holdUntil accepts at once and answers when the gate opens.
func (p *provider) holdUntil(g *gate) behaviour {
	return func(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) {
		document := accept()
		select {
		case <-g.opened:
		case <-p.ctx.Done():
			return
		}
		acceptPlainly(w, func() string { return document })
	}
}

// answerWith answers every submit with a status, header and body, and accepts
// nothing.
func answerWith(status int, header map[string]string, body string) behaviour {
	return func(w http.ResponseWriter, _ *http.Request, _ int, _ func() string) {
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// hangUp accepts, writes raw bytes and ends the connection: orderly, or with a
// reset.
func hangUp(raw string, reset bool) behaviour {
	return func(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) {
		accept()
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, raw)
		if reset {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		_ = conn.Close()
	}
}

// rawRequest writes bytes to the gateway as they are and returns the answer.
func rawRequest(t testing.TB, g *gateway, raw string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", g.url[len("http://"):])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, raw); err != nil {
		return answer{err: err}
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	var body bytes.Buffer
	_, err = io.Copy(&body, res.Body)
	return answer{res.StatusCode, res.Header, body.String(), err}
}

// dial opens a connection to the gateway that ends with the test.
func dial(t testing.TB, g *gateway) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", g.url[len("http://"):])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// host is what a request to the gateway has as Host.
func (g *gateway) host() string { return g.url[len("http://"):] }

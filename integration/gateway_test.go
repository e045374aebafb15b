package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

var caddyBinary string

func TestMain(m *testing.M) {
	path := os.Getenv("IDEMPOTENCY_CADDY")
	if path == "" {
		path = filepath.Join("..", "caddy")
	}
	absolute, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(absolute)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "no Caddy binary: %v; build it with ./xcaddy.sh, or run ./xcaddy.sh test\n", err)
		os.Exit(1)
	}
	caddyBinary = absolute
	// A process with the race detector sleeps for a second at its end, for the
	// races of others: hundreds of seconds over all gateways and commands.
	if _, set := os.LookupEnv("GORACE"); !set {
		_ = os.Setenv("GORACE", "atexit_sleep_ms=100")
	}
	os.Exit(m.Run())
}

// gateway is one running Caddy process.
type gateway struct {
	url   string
	admin string
	log   *logBuffer

	dir       string
	caddyfile string
	env       []string
	cmd       *exec.Cmd
	done      chan struct{}
}

// options of a gateway; the zero value is the default of each.
type options struct {
	store       string // what follows "store"; default: embedded in the test's own directory
	app         string // lines of the global idempotency block after "store"
	idempotency string // lines of the handler's block
	global      string // lines of the global block
	admin       string // lines of the admin option's block
	proxy       string // lines of reverse_proxy's block
	log         string // the site's log directive; default: log
	before      string // lines of the site before the handler
	instead     string // replaces reverse_proxy
	env         []string
}

// startGateway runs a gateway before the provider. It ends with the test.
func startGateway(t testing.TB, upstream string, o options) *gateway {
	t.Helper()
	dir := t.TempDir()
	g := &gateway{
		url:   "http://" + freeAddress(t),
		admin: freeAddress(t),
		log:   &logBuffer{},
		dir:   dir,
		env:   o.env,
	}
	g.write(t, upstream, o)
	g.endWith(t)
	g.run(t)
	return g
}

// endWith ends the gateway with the test.
func (g *gateway) endWith(t testing.TB) {
	t.Cleanup(func() {
		if g.cmd != nil {
			g.end(t, syscall.SIGTERM)
		}
		if strings.Contains(g.log.String(), "DATA RACE") {
			t.Errorf("the gateway has a data race:\n%s", g.log.String())
		}
		if t.Failed() {
			t.Logf("log of the gateway at %s:\n%s", g.url, g.log.tail())
		}
	})
}

// write writes the gateway's Caddyfile.
func (g *gateway) write(t testing.TB, upstream string, o options) {
	t.Helper()
	if o.store == "" {
		o.store = "embedded " + filepath.Join(g.dir, "idempotency.db")
	}
	if o.log == "" {
		o.log = "log"
	}
	answerer := o.instead
	if answerer == "" {
		answerer = fmt.Sprintf("reverse_proxy %s {\n%s\n}", upstream, o.proxy)
	}
	g.caddyfile = filepath.Join(g.dir, "Caddyfile")
	text := fmt.Sprintf(`{
	admin %s {
		%s
	}
	persist_config off
	storage file_system %s
	idempotency {
		store %s
		%s
	}
	%s
}
%s {
	%s
	%s
	idempotency {
		%s
	}
	%s
}
`, g.admin, o.admin, g.dir, o.store, o.app, o.global, g.url, o.log, o.before, o.idempotency, answerer)
	if err := os.WriteFile(g.caddyfile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run starts the process and returns when it answers.
func (g *gateway) run(t testing.TB) {
	t.Helper()
	g.cmd = exec.Command(caddyBinary, "run", "--config", g.caddyfile, "--adapter", "caddyfile")
	g.cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+g.dir, "XDG_CONFIG_HOME="+g.dir, "HOME="+g.dir, "TMPDIR="+g.dir)
	g.cmd.Env = append(g.cmd.Env, g.env...)
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	if err := g.cmd.Start(); err != nil {
		t.Fatalf("start caddy: %v", err)
	}
	g.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // how it ended shows in its log
		close(done)
	}(g.cmd, g.done)
	await(t, "the gateway to listen", func() bool {
		select {
		case <-g.done:
			t.Fatalf("caddy ended at once:\n%s", g.log.String())
		default:
		}
		_, address, _ := strings.Cut(g.url, "://")
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	})
	g.awaitLoaded()
}

// awaitLoaded returns when the first configuration is active: Caddy listens a little
// earlier. Its admin endpoint answers this question when the load has ended.
func (g *gateway) awaitLoaded() {
	if res, err := http.Get("http://" + g.admin + "/config/"); err == nil { // it has none, or is a unix socket
		_ = res.Body.Close()
	}
}

// stop ends the process in an orderly way, kill at once; both wait for the end.
func (g *gateway) stop(t testing.TB) { t.Helper(); g.end(t, syscall.SIGTERM) }
func (g *gateway) kill(t testing.TB) { t.Helper(); g.end(t, syscall.SIGKILL) }

func (g *gateway) end(t testing.TB, signal syscall.Signal) {
	t.Helper()
	_ = g.cmd.Process.Signal(signal) // it may have ended already
	_ = g.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-g.done:
	case <-time.After(30 * time.Second):
		_ = g.cmd.Process.Kill()
		<-g.done
		t.Error("caddy did not end within 30 seconds of its signal")
	}
	g.cmd = nil
}

func (g *gateway) freeze(t testing.TB) { t.Helper(); g.signal(t, syscall.SIGSTOP) }
func (g *gateway) thaw(t testing.TB)   { t.Helper(); g.signal(t, syscall.SIGCONT) }

func (g *gateway) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := g.cmd.Process.Signal(signal); err != nil {
		t.Fatalf("signal caddy: %v", err)
	}
}

// reload loads the Caddyfile anew and returns when that is done.
func (g *gateway) reload(t testing.TB) {
	t.Helper()
	output, err := exec.Command(caddyBinary, "reload", "--force",
		"--config", g.caddyfile, "--adapter", "caddyfile", "--address", g.admin).CombinedOutput()
	if err != nil {
		t.Fatalf("caddy reload: %v\n%s", err, output)
	}
	g.awaitOneListener(t)
}

// awaitOneListener waits until the socket of the configuration before is closed:
// Caddy answers a load earlier, and a connection that has come to the old socket
// ends without an answer.
func (g *gateway) awaitOneListener(t testing.TB) {
	t.Helper()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(g.url, "http://"))
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	listening := fmt.Sprintf(":%04X", number)
	await(t, "the old socket to be closed", func() bool {
		n := 0
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			sockets, err := os.ReadFile(table)
			if err != nil {
				return true // this system does not tell
			}
			for line := range strings.Lines(string(sockets)) {
				// Number, local address, remote address and state, of which 0A is listening.
				if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], listening) {
					n++
				}
			}
		}
		return n <= 1
	})
}

// request is one submit of a caller; the zero value of a field is its default.
type request struct {
	method  string // POST
	path    string // /v1/videos
	key     string // none
	auth    string // Bearer caller
	body    string // none
	header  http.Header
	chunked bool
	timeout time.Duration // 30 s
}

// answer is what a caller got.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a answer) String() string {
	if a.err != nil {
		return "error " + a.err.Error()
	}
	return fmt.Sprintf("%d %s %s", a.status, a.header.Get("Idempotency-Error"), a.body)
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }
func (a answer) code() string   { return a.header.Get("Idempotency-Error") }

// send sends the request over a connection of its own.
func (g *gateway) send(t testing.TB, r request) answer {
	t.Helper()
	timeout := r.timeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	method, path := r.method, r.path
	if method == "" {
		method = http.MethodPost
	}
	if path == "" {
		path = "/v1/videos"
	}
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
		if r.chunked {
			body = struct{ io.Reader }{body}
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, g.url+path, body)
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer caller")
	if r.auth != "" {
		req.Header.Set("Authorization", r.auth)
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(data), err}
}

// sendLater sends the request in the background.
func (g *gateway) sendLater(t testing.TB, r request) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- g.send(t, r) }()
	return answers
}

// awaitLog waits until the log has the text: it comes through a pipe, and Caddy
// writes its access log after the answer.
func (g *gateway) awaitLog(t testing.TB, text string) {
	t.Helper()
	await(t, "the log to have "+text, func() bool { return strings.Contains(g.log.String(), text) })
}

// logBuffer collects a process's output.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// tail returns the end of the output, which is what a failed test needs.
func (l *logBuffer) tail() string {
	text := l.String()
	if cut := len(text) - 64<<10; cut > 0 {
		return "...\n" + text[cut:]
	}
	return text
}

// freeAddress returns an address that nobody listens on, and each one only once:
// Caddy shares its ports with other listeners of Caddy (SO_REUSEPORT), so two
// that got the same one would not notice.
func freeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
}

// await polls until the condition holds, for at most half a minute.
func await(t testing.TB, what string, condition func() bool) {
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

var errTest = errors.New("the test ended")

var errNoReplay = errors.New("the answer is no replay")

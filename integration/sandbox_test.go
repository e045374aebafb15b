package integration

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// sandbox is a running `caddy idempotency sandbox`.
type sandbox struct {
	url  string
	log  *logBuffer
	cmd  *exec.Cmd
	done chan struct{}
}

// startSandbox runs the sandbox provider. It ends with the test.
func startSandbox(t testing.TB, flags ...string) *sandbox {
	t.Helper()
	address := freeAddress(t)
	s := &sandbox{url: "http://" + address, log: &logBuffer{}, done: make(chan struct{})}
	s.cmd = exec.Command(caddyBinary, append([]string{"idempotency", "sandbox", "--listen", address}, flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait() // how it ended shows in its log
		close(s.done)
	}()
	t.Cleanup(func() { s.stop(t) })
	await(t, "the sandbox to listen", func() bool {
		select {
		case <-s.done:
			t.Fatalf("the sandbox ended at once:\n%s", s.log)
		default:
		}
		return strings.Contains(s.log.String(), "sandbox provider at ")
	})
	return s
}

// stop ends the sandbox as Ctrl-C does.
func (s *sandbox) stop(t testing.TB) {
	t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGINT) // it may have ended already
	<-s.done
}

// jobs returns how many jobs it would have billed.
func (s *sandbox) jobs(t testing.TB) int {
	t.Helper()
	res, err := http.Get(s.url + "/bill")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var bill struct{ Jobs int }
	if err := json.NewDecoder(res.Body).Decode(&bill); err != nil {
		t.Fatal(err)
	}
	return bill.Jobs
}

// The quick start: a client that repeats a submit whose answer is lost pays for
// each try, and behind the gateway once.
func TestSandboxBill(t *testing.T) {
	t.Parallel()
	direct := startSandbox(t, "--lose-answers", "1")
	for range 3 {
		if res, err := http.Post(direct.url+"/v1/videos", "application/json", strings.NewReader(`{}`)); err == nil {
			_ = res.Body.Close()
			t.Errorf("the submit got status %d, want no answer", res.StatusCode)
		}
	}
	if jobs := direct.jobs(t); jobs != 3 {
		t.Errorf("without the gateway %d jobs are billed, want 3", jobs)
	}

	provider := startSandbox(t, "--lose-answers", "1")
	g := startGateway(t, provider.url, options{})
	var codes []string
	for range 3 {
		codes = append(codes, g.send(t, request{key: "film-1", body: `{}`}).code())
	}
	if jobs := provider.jobs(t); jobs != 1 {
		t.Errorf("behind the gateway %d jobs are billed, want 1", jobs)
	}
	for _, code := range codes {
		if code != "idempotency_outcome_unknown" {
			t.Errorf("the answers have the codes %v", codes)
		}
	}
	provider.stop(t)
	if log := provider.log.String(); !strings.Contains(log, "its answer is lost; $0.50 so far") ||
		!strings.HasSuffix(log, "1 submits, 1 jobs: it would have billed $0.50\n") {
		t.Errorf("the sandbox printed:\n%s", log)
	}
}

func TestSandboxRejectsFlags(t *testing.T) {
	t.Parallel()
	for want, flags := range map[string][]string{
		"lose-answers must be a share from 0 to 1, got 2":   {"--lose-answers", "2"},
		"errors must be a status from 400 to 599, got 200":  {"--errors", "200"},
		"slow must not be negative, got -1s":                {"--slow", "-1s"},
		"listen: ":                                          {"--listen", "nonsense"},
		`invalid argument "x" for "--seed" flag`:            {"--seed", "x"},
		`unknown command "now" for "caddy idempotency sand`: {"now"},
	} {
		output, err := exec.Command(caddyBinary, append([]string{"idempotency", "sandbox"}, flags...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(output), want) {
			t.Errorf("%v gave %v and printed %q, want %q in it", flags, err, output, want)
		}
	}
}

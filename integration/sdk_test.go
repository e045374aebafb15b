package integration

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// sdkCall is one call with a real SDK.
type sdkCall struct {
	BaseURL        string `json:"baseURL"`
	Call           string `json:"call"`
	Key            string `json:"key,omitempty"`
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
	MaxRetries     *int   `json:"maxRetries,omitempty"`
	Timeout        int    `json:"timeout,omitempty"` // milliseconds
}

// sdkResult is what the application gets from it.
type sdkResult struct {
	ID          string `json:"id"`
	Error       string `json:"error"`
	Status      int    `json:"status"`
	Code        string `json:"code"`
	ShouldRetry string `json:"shouldRetry"`
}

func openAI(t *testing.T, g *gateway, c sdkCall) sdkResult {
	t.Helper()
	if _, err := os.Stat("sdk/node_modules/openai/package.json"); err != nil {
		t.Fatal("the openai SDK is not installed: run ./xcaddy.sh test, which installs it")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("node is not installed: run ./xcaddy.sh test, which installs it")
	}
	c.BaseURL = g.url + "/v1"
	order, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, "openai.mjs", string(order))
	cmd.Dir = "sdk"
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("openai.mjs: %v\n%s", err, stderr.String())
	}
	var result sdkResult
	if err := json.Unmarshal(output, &result); err != nil {
		t.Fatalf("openai.mjs printed %q: %v", output, err)
	}
	return result
}

var sdkCalls = []struct{ call, path string }{{"responses", "/v1/responses"}, {"videos", "/v1/videos"}}

// Two calls of an application with one key are one job.
func TestSDKSecondCall(t *testing.T) {
	for _, c := range sdkCalls {
		t.Run(c.call, func(t *testing.T) {
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{})
			first := openAI(t, g, sdkCall{Call: c.call, Key: "film-1"})
			second := openAI(t, g, sdkCall{Call: c.call, Key: "film-1"})
			p.want(t, 1)
			if first.ID != "job_1" || second != first {
				t.Errorf("two calls with one key gave %+v and %+v", first, second)
			}
			if got := p.submit(0); got.path != c.path || got.key != "film-1" {
				t.Errorf("the provider got %s with key %q", got.path, got.key)
			}
			if other := openAI(t, g, sdkCall{Call: c.call, Key: "film-2"}); other.ID != "job_2" {
				t.Errorf("another key gave %+v", other)
			}
			p.want(t, 2)
		})
	}
}

// The SDK repeats a refusal by itself, until the provider accepts; a later
// call gets the same job.
func TestSDKRetriesRefusal(t *testing.T) {
	for _, c := range sdkCalls {
		t.Run(c.call, func(t *testing.T) {
			p := startProvider(t, func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
				if n == 1 {
					answerWith(429, map[string]string{"Retry-After-Ms": "1"}, `{"error":{"message":"slow down"}}`)(w, r, n, accept)
					return
				}
				acceptPlainly(w, accept)
			})
			g := startGateway(t, p.url, options{})
			first := openAI(t, g, sdkCall{Call: c.call, Key: "k"})
			p.want(t, 2) // the first was refused
			again := openAI(t, g, sdkCall{Call: c.call, Key: "k"})
			p.want(t, 2)
			if first.ID != "job_1" || again != first {
				t.Errorf("got %+v, and again %+v", first, again)
			}
			if n := p.submit(1).header.Get("X-Stainless-Retry-Count"); n != "1" {
				t.Errorf("the second submit has retry count %q: it is not the SDK's own retry", n)
			}
		})
	}
}

// The SDK does not repeat an unknown outcome, although it repeats any other 500.
func TestSDKStopsAtUnknownOutcome(t *testing.T) {
	for name, behave := range map[string]behaviour{
		"500":         answerWith(500, nil, `{"error":{"message":"oops"}}`),
		"broken":      hangUp("", false),
		"broken body": hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 99\r\n\r\n{", false),
	} {
		t.Run(name, func(t *testing.T) {
			p := startProvider(t, behave)
			g := startGateway(t, p.url, options{})
			first := openAI(t, g, sdkCall{Call: "videos", Key: "k"})
			p.want(t, 1)
			if first.Status < 500 || first.ShouldRetry != "false" {
				t.Errorf("the application got %+v", first)
			}
			p.now(nil)
			again := openAI(t, g, sdkCall{Call: "videos", Key: "k"})
			p.want(t, 1)
			if again.Status != 409 || again.Code != "idempotency_outcome_unknown" {
				t.Errorf("again: %+v", again)
			}
			g.send(t, request{method: http.MethodGet, path: "/last"})
			g.awaitLog(t, "/last")
			if n := handledPosts(g); n != 2 {
				t.Errorf("two calls of the SDK were %d requests, want 2", n)
			}
		})
	}
}

func handledPosts(g *gateway) (n int) {
	for line := range strings.Lines(g.log.String()) {
		if strings.Contains(line, `"handled request"`) && strings.Contains(line, `"method":"POST"`) {
			n++
		}
	}
	return n
}

// The SDK's own time-out and its retries are one submit; a later call gets the
// job. With errors problem its retries wait for the job themselves.
func TestSDKTimeout(t *testing.T) {
	for _, format := range []string{"envelope", "problem"} {
		t.Run(format, func(t *testing.T) {
			hold := newGate()
			p := startProvider(t, nil)
			p.now(p.holdUntil(hold))
			g := startGateway(t, p.url, options{idempotency: "errors " + format})
			first := make(chan sdkResult, 1)
			go func() { first <- openAI(t, g, sdkCall{Call: "videos", Key: "k", Timeout: 1000}) }()
			await(t, "the SDK's retry", func() bool { return strings.Contains(g.log.String(), `"idempotency_outcome":"in_progress"`) })
			hold.open()
			got := <-first
			p.want(t, 1)
			switch format {
			case "envelope":
				// 400 is not retried.
				if got.Status != 400 || got.Code != "idempotency_key_in_progress" {
					t.Errorf("the application got %+v", got)
				}
			case "problem":
				if got.ID != "job_1" {
					t.Errorf("the application got %+v", got)
				}
			}
			if again := openAI(t, g, sdkCall{Call: "videos", Key: "k"}); again.ID != "job_1" {
				t.Errorf("again: %+v", again)
			}
			p.want(t, 1)
		})
	}
}

// The SDK's option idempotencyKey sends nothing: it is no protection.
func TestSDKIdempotencyKeyOption(t *testing.T) {
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	first := openAI(t, g, sdkCall{Call: "responses", IdempotencyKey: "k"})
	second := openAI(t, g, sdkCall{Call: "responses", IdempotencyKey: "k"})
	p.want(t, 2)
	if first.ID == second.ID || p.submit(0).key != "" {
		t.Errorf("the option sends key %q; README and this test say that it sends none", p.submit(0).key)
	}
	strict := startGateway(t, p.url, options{idempotency: "require_key"})
	if got := openAI(t, strict, sdkCall{Call: "responses", IdempotencyKey: "k"}); got.Code != "idempotency_key_missing" {
		t.Errorf("with require_key: %+v", got)
	}
	p.want(t, 2)
}

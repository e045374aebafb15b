package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// sdkCall is one call with a real SDK; the zero value of a field is its default.
type sdkCall struct {
	BaseURL        string `json:"baseURL"` // the gateway's
	Call           string `json:"call"`
	Prompt         string `json:"prompt,omitempty"`         // a lighthouse
	Key            string `json:"key,omitempty"`            // no header
	IdempotencyKey string `json:"idempotencyKey,omitempty"` // no option
	MaxRetries     int    `json:"maxRetries,omitempty"`     // 2, as the SDK's own
	Timeout        int    `json:"timeout,omitempty"`        // milliseconds; 30 s
}

// sdkResult is what the application gets from it.
type sdkResult struct {
	ID          string `json:"id"`
	Error       string `json:"error"`
	Status      int    `json:"status"`
	Code        string `json:"code"`
	ShouldRetry string `json:"shouldRetry"`
}

// needOpenAI fails the test if what it takes to make a call is missing.
func needOpenAI(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatalf("node is not installed: run ./xcaddy.sh test, which installs it (%v)", err)
	}
	if _, err := os.Stat("sdk/node_modules/openai/package.json"); err != nil {
		t.Fatalf("the openai SDK is not installed: run ./xcaddy.sh test, which installs it (%v)", err)
	}
}

// openAI makes the call and fails the test if it cannot be made.
func openAI(t *testing.T, g *gateway, c sdkCall) sdkResult {
	t.Helper()
	needOpenAI(t)
	result, err := runOpenAI(g, c)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// runOpenAI makes the call. An error means that it could not be made; what the
// application gets from the SDK, an exception too, is in the result.
func runOpenAI(g *gateway, c sdkCall) (sdkResult, error) {
	c.BaseURL = g.url + "/v1"
	order, err := json.Marshal(c)
	if err != nil {
		return sdkResult{}, err
	}
	cmd := exec.Command("node", "openai.mjs", string(order))
	cmd.Dir = "sdk"
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return sdkResult{}, fmt.Errorf("openai.mjs: %w\n%s", err, stderr.String())
	}
	var result sdkResult
	if err := json.Unmarshal(output, &result); err != nil {
		return sdkResult{}, fmt.Errorf("openai.mjs printed %q: %w", output, err)
	}
	return result, nil
}

// sdkCalls are the calls that start a job, and how the SDK sends each.
var sdkCalls = []struct{ call, path, mediaType string }{
	{"responses", "/v1/responses", "application/json"},
	{"videos", "/v1/videos", "multipart/form-data"},
}

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
			reuse := openAI(t, g, sdkCall{Call: c.call, Key: "film-1", Prompt: "a windmill"})
			p.want(t, 1)
			if reuse.Status != 400 || reuse.Code != "idempotency_key_reuse" || reuse.ShouldRetry != "false" {
				t.Errorf("the key with another prompt gave %+v", reuse)
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
			refused, accepted := p.submit(0).header, p.submit(1).header
			if n := accepted.Get("X-Stainless-Retry-Count"); n != "1" {
				t.Errorf("the second submit has retry count %q: it is not the SDK's own retry", n)
			}
			for _, h := range []http.Header{refused, accepted} {
				if mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || mediaType != c.mediaType {
					t.Errorf("the SDK sent %q, %v, want %s", h.Get("Content-Type"), err, c.mediaType)
				}
			}
			// What makes a form's retry differ byte by byte from the first try.
			if c.mediaType == "multipart/form-data" && refused.Get("Content-Type") == accepted.Get("Content-Type") {
				t.Errorf("both tries have %q: the SDK no longer draws a boundary for each", accepted.Get("Content-Type"))
			}
		})
	}
}

// The SDK does not repeat an unknown outcome, although it repeats any other 500.
func TestSDKStopsAtUnknownOutcome(t *testing.T) {
	for _, c := range sdkCalls {
		for name, behave := range map[string]behaviour{
			"500":         answerWith(500, nil, `{"error":{"message":"oops"}}`),
			"broken":      hangUp("", false),
			"broken body": hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 99\r\n\r\n{", false),
		} {
			t.Run(c.call+", "+name, func(t *testing.T) {
				p := startProvider(t, behave)
				g := startGateway(t, p.url, options{})
				first := openAI(t, g, sdkCall{Call: c.call, Key: "k"})
				p.want(t, 1)
				if first.Status < 500 || first.ShouldRetry != "false" {
					t.Errorf("the application got %+v", first)
				}
				p.now(nil)
				again := openAI(t, g, sdkCall{Call: c.call, Key: "k"})
				p.want(t, 1)
				if again.Status != 409 || again.Code != "idempotency_outcome_unknown" {
					t.Errorf("again: %+v", again)
				}
				// A request that comes later is in the log when the SDK's are.
				g.send(t, request{method: http.MethodGet, path: "/last"})
				g.awaitLog(t, "/last")
				await(t, "both calls in the log", func() bool { return handledPosts(g) >= 2 })
				if n := handledPosts(g); n != 2 {
					t.Errorf("two calls of the SDK were %d requests, want 2", n)
				}
			})
		}
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

// Without a key the SDK repeats the same 500, and each try is a submit: what
// stops it in TestSDKStopsAtUnknownOutcome is the gateway.
func TestSDKWithoutKey(t *testing.T) {
	for _, c := range sdkCalls {
		t.Run(c.call, func(t *testing.T) {
			p := startProvider(t, answerWith(500, map[string]string{"Retry-After-Ms": "1"}, `{"error":{"message":"oops"}}`))
			g := startGateway(t, p.url, options{})
			got := openAI(t, g, sdkCall{Call: c.call, MaxRetries: 3})
			p.want(t, 4)
			if got.Status != 500 || got.ShouldRetry != "" {
				t.Errorf("the application got %+v", got)
			}
		})
	}
}

// The SDK's own time-out and its retries are one submit; a later call gets the
// job. With errors problem its retries wait for the job themselves.
func TestSDKTimeout(t *testing.T) {
	needOpenAI(t)
	for _, c := range sdkCalls {
		for _, format := range []string{"envelope", "problem"} {
			t.Run(c.call+", "+format, func(t *testing.T) {
				hold := newGate()
				p := startProvider(t, nil)
				p.now(p.holdUntil(hold))
				g := startGateway(t, p.url, options{idempotency: "errors " + format})
				var got sdkResult
				done := make(chan error, 1)
				go func() {
					var err error
					got, err = runOpenAI(g, sdkCall{Call: c.call, Key: "k", Timeout: 1000})
					done <- err
				}()
				await(t, "the SDK's retry", func() bool {
					return len(done) == 1 || strings.Contains(g.log.String(), `"idempotency_outcome":"in_progress"`)
				})
				hold.open()
				err := <-done
				p.want(t, 1)
				if err != nil {
					t.Fatal(err)
				}
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
				if again := openAI(t, g, sdkCall{Call: c.call, Key: "k"}); again.ID != "job_1" {
					t.Errorf("again: %+v", again)
				}
				p.want(t, 1)
			})
		}
	}
}

// The SDK's option idempotencyKey sends nothing: it is no protection.
func TestSDKIdempotencyKeyOption(t *testing.T) {
	for _, c := range sdkCalls {
		t.Run(c.call, func(t *testing.T) {
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{})
			first := openAI(t, g, sdkCall{Call: c.call, IdempotencyKey: "k"})
			second := openAI(t, g, sdkCall{Call: c.call, IdempotencyKey: "k"})
			p.want(t, 2)
			if first.ID == second.ID || p.submit(0).key != "" {
				t.Errorf("the option sends key %q; README and this test say that it sends none", p.submit(0).key)
			}
			strict := startGateway(t, p.url, options{idempotency: "require_key"})
			if got := openAI(t, strict, sdkCall{Call: c.call, IdempotencyKey: "k"}); got.Code != "idempotency_key_missing" {
				t.Errorf("with require_key: %+v", got)
			}
			p.want(t, 2)
		})
	}
}

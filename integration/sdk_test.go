package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sdkCall is a call of a real SDK that starts a job, and what an application
// gets from it. docs/clients.md has the same.
type sdkCall struct {
	sdk, call string // sdk/<sdk>.mjs and what it exports
	path      string // of the submit
	mediaType string
	scope     string // where the SDK puts its credentials, if not in the default scope
	document  string // the provider's acceptance: %q is the job's id

	// X-Stainless-Retry-Count of the SDK's own repetition, if it sends that.
	retryCount string

	// One call whose first answer is lost on its way to the SDK.
	lost sdkOutcome
	// One call, and the provider ends the connection, answers with 500 or with
	// 429. A call that repeats the first two gets what unknown says.
	broken, failed, refused sdkOutcome
	// One call for a key whose outcome is unknown.
	unknown sdkOutcome
	// One call whose time-out is over while the provider works, if the SDK
	// does not repeat it.
	timedOut sdkResult
	// One call, or the SDK's own repetition, that comes meanwhile, with each of
	// the two formats of errors.
	envelope, problem sdkResult
}

// sdkOutcome is what comes of one call.
type sdkOutcome struct {
	requests int // that the SDK makes of it
	result   sdkResult
}

// sdkResult is what the application gets: a job, or an error of a class and,
// where it can be found, its status and the gateway's code.
type sdkResult struct {
	ID     string `json:"id"`
	Error  string `json:"error"`
	Status int    `json:"status"`
	Code   string `json:"code"`
	// What the gateway says about a retry.
	ShouldRetry string `json:"shouldRetry"`

	Message string `json:"message"` // not compared
}

var sdkJob = sdkResult{ID: "job_1"}

func sdkError(class string, status int, code string) sdkResult {
	r := sdkResult{Error: class, Status: status, Code: code}
	switch code {
	case unknownCode, reuseCode:
		r.ShouldRetry = "false"
	case inProgressCode:
		r.ShouldRetry = "true"
	}
	return r
}

const (
	unknownCode    = "idempotency_outcome_unknown"
	inProgressCode = "idempotency_key_in_progress"
	reuseCode      = "idempotency_key_reuse"
)

// stainless is a call of an SDK of the family that obeys x-should-retry, so it
// waits for a first try that is in progress, and repeats broken connections and
// its own time-outs.
func stainless(sdk, call, path, mediaType, document string) sdkCall {
	return sdkCall{
		sdk: sdk, call: call, path: path, mediaType: mediaType, document: document,
		retryCount: "1",

		lost:     sdkOutcome{2, sdkJob},
		broken:   sdkOutcome{1, sdkError("InternalServerError", 502, unknownCode)},
		failed:   sdkOutcome{1, sdkError("InternalServerError", 500, unknownCode)},
		refused:  sdkOutcome{2, sdkJob},
		unknown:  sdkOutcome{1, sdkError("ConflictError", 409, unknownCode)},
		envelope: sdkJob,
		problem:  sdkJob,
	}
}

var sdkCalls = []sdkCall{
	stainless("openai", "responses", "/v1/responses", "application/json", `{"id":%q,"object":"response","status":"queued","output":[]}`),
	stainless("openai", "videos", "/v1/videos", "multipart/form-data", `{"id":%q,"object":"video","status":"queued"}`),
	stainless("runway", "video", "/v1/image_to_video", "application/json", `{"id":%q}`),
	stainless("lumaai", "video", "/dream-machine/v1/generations/video", "application/json", `{"id":%q,"generation_type":"video","state":"queued"}`),
	{
		sdk: "replicate", call: "prediction", path: "/v1/models/acme/video/predictions", mediaType: "application/json",
		document: `{"id":%q,"status":"starting","urls":{}}`,
		lost:     sdkOutcome{2, sdkJob},
		broken:   sdkOutcome{1, sdkError("ApiError", 502, unknownCode)},
		failed:   sdkOutcome{1, sdkError("ApiError", 500, unknownCode)},
		refused:  sdkOutcome{2, sdkJob},
		unknown:  sdkOutcome{1, sdkError("ApiError", 409, unknownCode)},
		timedOut: sdkError("DOMException", 0, ""),
		envelope: sdkError("ApiError", 400, inProgressCode),
		problem:  sdkError("ApiError", 409, inProgressCode),
	},
	{
		// Its errors hold no header, and a body only if it is application/json:
		// nothing tells that a provider's 500 is an unknown outcome, nor what
		// the 409 of errors problem is about.
		sdk: "fal", call: "queue", path: "/fal-ai/veo3", mediaType: "application/json",
		document: `{"request_id":%q,"status":"IN_QUEUE"}`,
		lost:     sdkOutcome{2, sdkJob},
		broken:   sdkOutcome{2, sdkResult{Error: "ApiError", Status: 409, Code: unknownCode}},
		failed:   sdkOutcome{1, sdkError("ApiError", 500, "")},
		refused:  sdkOutcome{2, sdkJob},
		unknown:  sdkOutcome{1, sdkResult{Error: "ApiError", Status: 409, Code: unknownCode}},
		timedOut: sdkError("DOMException", 0, ""),
		envelope: sdkResult{Error: "ApiError", Status: 400, Code: inProgressCode},
		problem:  sdkError("ApiError", 409, ""),
	},
	{
		sdk: "elevenlabs", call: "dubbing", path: "/v1/dubbing", mediaType: "multipart/form-data",
		scope:    "Xi-Api-Key",
		document: `{"dubbing_id":%q,"expected_duration_sec":8}`,
		lost:     sdkOutcome{1, sdkError("ElevenLabsError", 0, "")},
		broken:   sdkOutcome{2, sdkError("ElevenLabsError", 409, unknownCode)},
		failed:   sdkOutcome{2, sdkError("ElevenLabsError", 409, unknownCode)},
		refused:  sdkOutcome{2, sdkJob},
		unknown:  sdkOutcome{1, sdkError("ElevenLabsError", 409, unknownCode)},
		timedOut: sdkError("ElevenLabsError", 0, ""),
		envelope: sdkError("ElevenLabsError", 400, inProgressCode),
		problem:  sdkError("ElevenLabsError", 409, inProgressCode),
	},
	{
		sdk: "ai", call: "video", path: "/v1beta/models/veo-3.1-generate-preview:predictLongRunning", mediaType: "application/json",
		scope:    "X-Goog-Api-Key",
		document: `{"name":%q}`,
		lost:     sdkOutcome{2, sdkJob},
		broken:   sdkOutcome{2, sdkError("RetryError", 409, unknownCode)},
		failed:   sdkOutcome{2, sdkError("RetryError", 409, unknownCode)},
		refused:  sdkOutcome{2, sdkJob},
		unknown:  sdkOutcome{2, sdkError("RetryError", 409, unknownCode)},
		timedOut: sdkError("DOMException", 0, ""),
		envelope: sdkError("APICallError", 400, inProgressCode),
		problem:  sdkJob,
	},
}

func sdkCallOf(sdk string) sdkCall {
	return sdkCalls[slices.IndexFunc(sdkCalls, func(c sdkCall) bool { return c.sdk == sdk })]
}

// options are the handler's that a gateway before the SDK's provider needs.
func (c sdkCall) options(lines ...string) options {
	if c.scope != "" {
		lines = append(lines, fmt.Sprintf("scope {http.request.header.%s}", c.scope))
	}
	return options{idempotency: strings.Join(lines, "\n")}
}

// startProvider runs a provider whose acceptances the SDK can read.
func (c sdkCall) startProvider(t *testing.T, behave behaviour) *provider {
	t.Helper()
	p := startProvider(t, behave)
	p.document = c.document
	return p
}

// order is one call of an application.
type order struct {
	Call    string `json:"call"`
	Gateway string `json:"gateway"`
	Job     struct {
		Key    string `json:"key,omitempty"`
		Prompt string `json:"prompt"`
		Source string `json:"source"`
	} `json:"job"`
	Timeout    int `json:"timeout"` // milliseconds
	MaxRetries int `json:"maxRetries"`
}

// order is the call with a key, sent to a gateway's URL. No key means no
// header, with the SDKs that allow that.
func (c sdkCall) order(gateway, key string) order {
	o := order{Call: c.call, Gateway: gateway, Timeout: 30_000, MaxRetries: 1}
	o.Job.Key = key
	o.Job.Prompt = "a lighthouse"
	o.Job.Source = "https://files.example/lighthouse.png"
	return o
}

// application is a process that uses an SDK.
type application struct {
	sdk     string
	orders  io.Writer
	results *bufio.Reader
	stderr  logBuffer
}

func startApplication(t *testing.T, sdk string) *application {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatalf("node is not installed: run ./xcaddy.sh test, which installs it (%v)", err)
	}
	if _, err := os.Stat("sdk/node_modules/.package-lock.json"); err != nil {
		t.Fatalf("the SDKs are not installed: run ./xcaddy.sh test, which installs them (%v)", err)
	}
	a := &application{sdk: sdk}
	cmd := exec.Command("node", "app.mjs", sdk)
	cmd.Dir = "sdk"
	cmd.Stderr = &a.stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	results, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.orders, a.results = orders, bufio.NewReader(results)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return a
}

// call makes one call and fails the test if it cannot be made.
func (a *application) call(t *testing.T, o order) sdkResult {
	t.Helper()
	return a.callLater(o)(t)
}

// callLater makes one call in the background. What it returns waits for the
// result, and fails the test if the call could not be made.
func (a *application) callLater(o order) func(*testing.T) sdkResult {
	var result sdkResult
	done := make(chan error, 1)
	go func() {
		var err error
		result, err = a.make(o)
		done <- err
	}()
	return func(t *testing.T) sdkResult {
		t.Helper()
		if err := <-done; err != nil {
			t.Fatalf("app.mjs %s: %v\n%s", a.sdk, err, a.stderr.String())
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s.%s for key %q gave %+v", a.sdk, o.Call, o.Job.Key, result)
			}
		})
		return result
	}
}

func (a *application) make(o order) (result sdkResult, err error) {
	line, err := json.Marshal(o)
	if err != nil {
		return result, err
	}
	if _, err := a.orders.Write(append(line, '\n')); err != nil {
		return result, err
	}
	output, err := a.results.ReadBytes('\n')
	if err != nil {
		return result, err
	}
	return result, json.Unmarshal(output, &result)
}

func (r sdkResult) want(t *testing.T, what string, want sdkResult) {
	t.Helper()
	message := r.Message
	r.Message = ""
	if r != want {
		t.Errorf("%s: the application got %+v, want %+v (%s)", what, r, want, message)
	}
}

// wantRequests is the number of POSTs that have come to the gateway.
func wantRequests(t *testing.T, g *gateway, n int) {
	t.Helper()
	// A request that comes later is in the log when the SDK's are.
	g.send(t, request{method: http.MethodGet, path: "/last"})
	g.awaitLog(t, "/last")
	await(t, "all calls in the log", func() bool { return handledPosts(g) >= n })
	if got := handledPosts(g); got != n {
		t.Errorf("the SDK made %d requests, want %d", got, n)
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

// sdkSituations are what every call is put into, with a key of the job. The
// SDK's own repetitions are on, one where the SDK lets us say.
var sdkSituations = []struct {
	name string
	play func(*testing.T, sdkCall, *application)
}{
	{"second call", sdkSecondCall},
	{"lost answer", sdkLostAnswer},
	{"lost answer without the gateway", sdkWithoutGateway},
	{"the provider hangs up", sdkUnknown(hangUp("", false), func(c sdkCall) sdkOutcome { return c.broken })},
	{"500", sdkUnknown(answerWith(500, nil, `{"error":{"message":"oops"}}`), func(c sdkCall) sdkOutcome { return c.failed })},
	{"429", sdkRefused},
	{"time-out, envelope", sdkTimeout("envelope", func(c sdkCall) sdkResult { return c.envelope })},
	{"time-out, problem", sdkTimeout("problem", func(c sdkCall) sdkResult { return c.problem })},
}

func TestSDK(t *testing.T) {
	t.Parallel()
	for _, c := range sdkCalls {
		t.Run(c.sdk+"/"+c.call, func(t *testing.T) {
			t.Parallel()
			app := startApplication(t, c.sdk)
			for _, s := range sdkSituations {
				t.Run(s.name, func(t *testing.T) { s.play(t, c, app) })
			}
		})
	}
}

// Two calls of an application with one key are one job.
func sdkSecondCall(t *testing.T, c sdkCall, app *application) {
	p := c.startProvider(t, nil)
	g := startGateway(t, p.url, c.options())
	first := app.call(t, c.order(g.url, "film-1"))
	second := app.call(t, c.order(g.url, "film-1"))
	p.want(t, 1)
	first.want(t, "first call", sdkJob)
	second.want(t, "second call", sdkJob)
	submit := p.submit(0)
	if submit.path != c.path || submit.key != "film-1" {
		t.Errorf("the provider got %s with key %q", submit.path, submit.key)
	}
	if mediaType, _, err := mime.ParseMediaType(submit.header.Get("Content-Type")); err != nil || mediaType != c.mediaType {
		t.Errorf("the SDK sent %q, %v, want %s", submit.header.Get("Content-Type"), err, c.mediaType)
	}
	wantRequests(t, g, 2)

	// No SDK repeats a reuse.
	other := c.order(g.url, "film-1")
	other.Job.Prompt, other.Job.Source = "a windmill", "https://files.example/windmill.png"
	reuse := app.call(t, other)
	p.want(t, 1)
	if reuse.Status != 400 || reuse.Code != reuseCode || (reuse.ShouldRetry != "false" && c.sdk != "fal") {
		t.Errorf("the key with another prompt: %+v", reuse)
	}
	wantRequests(t, g, 3)

	app.call(t, c.order(g.url, "film-2")).want(t, "another key", sdkResult{ID: "job_2"})
	p.want(t, 2)
}

// The provider's acceptance is lost between the gateway and the SDK. The SDK's
// own repetition gets it, or the application's.
func sdkLostAnswer(t *testing.T, c sdkCall, app *application) {
	p := c.startProvider(t, nil)
	g := startGateway(t, p.url, c.options())
	way := startNetwork(t, strings.TrimPrefix(g.url, "http://"))
	way.loseReplies(1)
	first := app.call(t, c.order("http://"+way.address, "k"))
	again := app.call(t, c.order(g.url, "k"))
	p.want(t, 1)
	first.want(t, "first call", c.lost.result)
	again.want(t, "again", sdkJob)
	wantRequests(t, g, c.lost.requests+1)
}

// Without the gateway each request of sdkLostAnswer is a submit.
func sdkWithoutGateway(t *testing.T, c sdkCall, app *application) {
	p := c.startProvider(t, nil)
	way := startNetwork(t, strings.TrimPrefix(p.url, "http://"))
	way.loseReplies(1)
	app.call(t, c.order("http://"+way.address, "k"))
	p.want(t, c.lost.requests)
}

// What the SDK repeats of an unknown outcome is no second submit. The SDKs that
// obey x-should-retry repeat nothing.
func sdkUnknown(behave behaviour, outcome func(sdkCall) sdkOutcome) func(*testing.T, sdkCall, *application) {
	return func(t *testing.T, c sdkCall, app *application) {
		p := c.startProvider(t, behave)
		g := startGateway(t, p.url, c.options())
		first := app.call(t, c.order(g.url, "k"))
		p.want(t, 1)
		want := outcome(c)
		first.want(t, "first call", want.result)
		p.now(nil)
		again := app.call(t, c.order(g.url, "k"))
		p.want(t, 1)
		again.want(t, "again", c.unknown.result)
		wantRequests(t, g, want.requests+c.unknown.requests)
	}
}

// The SDK repeats a refusal by itself, until the provider accepts; a later call
// gets the same job.
func sdkRefused(t *testing.T, c sdkCall, app *application) {
	p := c.startProvider(t, func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
		if n == 1 {
			answerWith(429, map[string]string{"Retry-After-Ms": "1"}, `{"error":{"message":"slow down"}}`)(w, r, n, accept)
			return
		}
		acceptPlainly(w, accept)
	})
	g := startGateway(t, p.url, c.options())
	first := app.call(t, c.order(g.url, "k"))
	again := app.call(t, c.order(g.url, "k"))
	p.want(t, 2) // the first was refused
	first.want(t, "first call", c.refused.result)
	again.want(t, "again", sdkJob)
	wantRequests(t, g, c.refused.requests+1)

	refused, accepted := p.submit(0), p.submit(1)
	if n := accepted.header.Get("X-Stainless-Retry-Count"); n != c.retryCount {
		t.Errorf("the second submit has retry count %q, want %q of the SDK's own retry", n, c.retryCount)
	}
	// What makes a form's retry differ byte by byte from the first try.
	if c.mediaType == "multipart/form-data" && refused.header.Get("Content-Type") == accepted.header.Get("Content-Type") {
		t.Errorf("both tries have %q: the SDK no longer draws a boundary for each", accepted.header.Get("Content-Type"))
	}
}

// The time-out of a call and what follows it are one submit. The SDK repeats by
// itself or the application does; a call that comes later gets the job.
func sdkTimeout(format string, meanwhile func(sdkCall) sdkResult) func(*testing.T, sdkCall, *application) {
	return func(t *testing.T, c sdkCall, app *application) {
		hold := newGate()
		p := c.startProvider(t, nil)
		p.now(p.holdUntil(hold))
		g := startGateway(t, p.url, c.options("errors "+format))
		o := c.order(g.url, "k")
		o.MaxRetries = 2 // after the time-out, and after the 409
		if c.timedOut != (sdkResult{}) {
			timeout := o
			timeout.Timeout = 3000
			app.call(t, timeout).want(t, "timed out", c.timedOut)
		} else {
			o.Timeout = 3000
		}
		later := app.callLater(o)
		g.awaitLog(t, `"idempotency_outcome":"in_progress"`)
		hold.open()
		got := later(t)
		p.want(t, 1)
		got.want(t, "meanwhile", meanwhile(c))
		g.awaitLog(t, `"idempotency_outcome":"accepted"`)
		app.call(t, c.order(g.url, "k")).want(t, "again", sdkJob)
		p.want(t, 1)
	}
}

// An answer that breaks off is like none.
func TestSDKBrokenBody(t *testing.T) {
	t.Parallel()
	app := startApplication(t, "openai")
	for _, c := range sdkCalls {
		if c.sdk != "openai" {
			continue
		}
		t.Run(c.call, func(t *testing.T) {
			broken := hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 99\r\n\r\n{", false)
			sdkUnknown(broken, func(c sdkCall) sdkOutcome { return c.broken })(t, c, app)
		})
	}
}

// Without a key the SDK repeats the same 500, and each try is a submit: what
// stops it elsewhere is the gateway.
func TestSDKWithoutKey(t *testing.T) {
	t.Parallel()
	app := startApplication(t, "openai")
	for _, c := range sdkCalls {
		if c.sdk != "openai" {
			continue
		}
		t.Run(c.call, func(t *testing.T) {
			p := c.startProvider(t, answerWith(500, map[string]string{"Retry-After-Ms": "1"}, `{"error":{"message":"oops"}}`))
			g := startGateway(t, p.url, c.options())
			o := c.order(g.url, "")
			o.MaxRetries = 3
			got := app.call(t, o)
			p.want(t, 4)
			got.want(t, "the call", sdkError("InternalServerError", 500, ""))
		})
	}
}

// The option idempotencyKey sends nothing: it is no protection.
func TestSDKIdempotencyKeyOption(t *testing.T) {
	t.Parallel()
	for _, c := range sdkCalls {
		switch c.sdk {
		case "openai", "runway", "lumaai":
		default:
			continue // it has no such option
		}
		t.Run(c.sdk+"/"+c.call, func(t *testing.T) {
			t.Parallel()
			c.call += "ByOption"
			app := startApplication(t, c.sdk)
			p := c.startProvider(t, nil)
			g := startGateway(t, p.url, c.options())
			app.call(t, c.order(g.url, "k")).want(t, "first call", sdkJob)
			app.call(t, c.order(g.url, "k")).want(t, "second call", sdkResult{ID: "job_2"})
			p.want(t, 2)
			if key := p.submit(0).key; key != "" {
				t.Errorf("the option sends key %q; docs/clients.md and this test say that it sends none", key)
			}
			strict := startGateway(t, p.url, c.options("require_key"))
			got := app.call(t, c.order(strict.url, "k"))
			p.want(t, 2)
			got.want(t, "with require_key", sdkError("BadRequestError", 400, "idempotency_key_missing"))
		})
	}
}

// An SDK that uploads a file as part of a call does it for each call, and the
// request is another one then: it is no second submit, and no replay.
func TestSDKUploadsAnew(t *testing.T) {
	t.Parallel()
	c := sdkCallOf("replicate")
	c.call += "OfFile"
	app := startApplication(t, c.sdk)
	p := c.startProvider(t, func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
		if r.URL.Path == "/v1/files" {
			answerWith(201, nil, fmt.Sprintf(`{"urls":{"get":"https://files.example/%d"}}`, n))(w, r, n, accept)
			return
		}
		acceptPlainly(w, accept)
	})
	g := startGateway(t, p.url, c.options())
	first := app.call(t, c.order(g.url, "k"))
	again := app.call(t, c.order(g.url, "k"))
	p.want(t, 3) // two uploads, which have no key, and one job
	first.want(t, "first call", sdkJob)
	again.want(t, "again", sdkError("ApiError", 400, reuseCode))
	for i, path := range []string{"/v1/files", c.path, "/v1/files"} {
		if got := p.submit(i); got.path != path || (got.key != "") != (path == c.path) {
			t.Errorf("request %d is %s with key %q", i, got.path, got.key)
		}
	}
}

// What docs/clients.md shows of each SDK is in the calls that are tested here, and
// the versions are those that are installed.
func TestSDKDocumentation(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("sdk/package.json")
	if err != nil {
		t.Fatal(err)
	}
	var installed struct {
		Dependencies map[string]string `json:"dependencies"`
	}
	if err := json.Unmarshal(manifest, &installed); err != nil {
		t.Fatal(err)
	}
	for name, version := range installed.Dependencies {
		row := regexp.MustCompile(`(?m)^\| .*` + regexp.QuoteMeta("`"+name+"`") + `.* ` + regexp.QuoteMeta(version) + `[ ,].*\|$`)
		if !row.Match(document) {
			t.Errorf("docs/clients.md has no row for %s %s", name, version)
		}
	}
	shown := map[string]int{}
	for _, block := range strings.Split(string(document), "```js\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		found := false
		for _, c := range sdkCalls {
			source, err := os.ReadFile("sdk/" + c.sdk + ".mjs")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(unindented(string(source)), unindented(block)) {
				shown[c.sdk]++
				found = true
				break
			}
		}
		if !found {
			t.Errorf("no tested call is\n%s", block)
		}
	}
	for _, c := range sdkCalls {
		if shown[c.sdk] == 0 {
			t.Errorf("docs/clients.md does not show a call of sdk/%s.mjs", c.sdk)
		}
	}
}

func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimLeft(line, " "))
	}
	return b.String()
}

// The AI SDK makes a key for each start of a video: its own repetitions are one
// job, and another call is another.
func TestSDKKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	c := sdkCallOf("ai")
	c.call += "ByItself"
	app := startApplication(t, c.sdk)
	p := c.startProvider(t, nil)
	g := startGateway(t, p.url, c.options("require_key"))
	way := startNetwork(t, strings.TrimPrefix(g.url, "http://"))
	way.loseReplies(1)
	first := app.call(t, c.order("http://"+way.address, ""))
	p.want(t, 1)
	first.want(t, "the answer was lost once", sdkJob)
	second := app.call(t, c.order(g.url, ""))
	p.want(t, 2)
	second.want(t, "another call", sdkResult{ID: "job_2"})
	if a, b := p.submit(0).key, p.submit(1).key; !strings.HasPrefix(a, "aisdk_vid_") || a == b {
		t.Errorf("the SDK's own keys are %q and %q", a, b)
	}
	wantRequests(t, g, 3)
}

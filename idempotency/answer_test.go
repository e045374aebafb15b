package idempotency_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// replayOf stores an acceptance and sends its replay through a real server.
func replayOf(t *testing.T, result idempotency.Result, http2 bool) (*http.Response, []byte) {
	t.Helper()
	h := newHarness(t)
	s := submitOf("k")
	h.conclude(h.attempt(policy(), s), result, idempotency.ConcludedAccepted)
	answer := h.begin(policy(), s).Replay
	if answer == nil {
		t.Fatal("the repeat gets no replay")
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Date"] = nil // the server's own would hide a stored one
		if err := answer.Replay(w); err != nil {
			t.Errorf("Replay: %v", err)
		}
		// The server would remove a Content-Length that must not be there.
		if _, there := w.Header()["Content-Length"]; there != (result.Status != http.StatusNoContent) {
			t.Errorf("a replay of %d has a Content-Length: %t", result.Status, there)
		}
	}))
	server.EnableHTTP2 = http2
	server.StartTLS()
	defer server.Close()
	response, err := server.Client().Post(server.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if (response.ProtoMajor == 2) != http2 {
		t.Errorf("the protocol is %s", response.Proto)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, body
}

func TestReplayHeader(t *testing.T) {
	survive := http.Header{
		"Content-Type":     {"application/json; charset=utf-8"},
		"Content-Encoding": {"identity"},
		"Content-Language": {"en"},
		"Content-Location": {"/v1/jobs/1"},
		"Location":         {"https://api.provider.example/v1/jobs/1"},
		"Etag":             {`"1"`},
		"Last-Modified":    {"Mon, 01 Jan 2024 00:00:00 GMT"},
		"Link":             {"<a>; rel=next", "<b>; rel=prev"},
		"X-Request-Id":     {"req_1"},
		"Request-Id":       {"req_2"},
		"Openai-Request-Id": {
			"req_3",
		},
		"Retry-After":   {"5"},
		"Cache-Control": {"private"},
		"X-Empty":       {""},
	}
	gone := http.Header{
		"Connection":                          {"close, X-Hop", " x-HOP-two ,keep-alive"},
		"X-Hop":                               {"1"},
		"X-Hop-Two":                           {"1"},
		"Keep-Alive":                          {"timeout=5"},
		"Proxy-Connection":                    {"keep-alive"},
		"Te":                                  {"trailers"},
		"Trailer":                             {"X-Trailer"},
		"Trailer:X-Sum":                       {"1"},
		"Transfer-Encoding":                   {"chunked"},
		"Upgrade":                             {"h2c"},
		"Set-Cookie":                          {"session=1", "b=2"},
		"Set-Cookie2":                         {"session=1"},
		"Date":                                {"Mon, 01 Jan 2024 00:00:00 GMT"},
		"Server":                              {"provider"},
		"Via":                                 {"1.1 proxy"},
		"Alt-Svc":                             {"h3=\":443\""},
		"Www-Authenticate":                    {"Bearer"},
		"Proxy-Authenticate":                  {"Basic"},
		"Authentication-Info":                 {"nextnonce=1"},
		"Proxy-Authentication-Info":           {"nextnonce=1"},
		"Ratelimit":                           {"\"default\";r=50"},
		"Ratelimit-Policy":                    {"\"default\";q=100"},
		"Ratelimit-Limit":                     {"100"},
		"X-Ratelimit-Remaining-Requests":      {"99"},
		"X-Rate-Limit-Reset":                  {"1"},
		"Anthropic-Ratelimit-Tokens-Limit":    {"1"},
		"Idempotency-Error":                   {"idempotency_key_reuse"},
		"X-Ratelimit-Limit-Tokens_usage_base": {"1"},
	}
	header := maps.Clone(survive)
	maps.Copy(header, gone)
	header["Content-Length"] = []string{"9999"}
	header["Idempotency-Replayed"] = []string{"false", "no"}
	unchanged := header.Clone()
	body := []byte("{\"id\":\"job_1\"}\n\x00\xff")
	response, got := replayOf(t, idempotency.Result{Status: 201, Header: header, Body: body, Whole: true}, false)
	if response.StatusCode != 201 || !bytes.Equal(got, body) {
		t.Errorf("the replay is %d with body %q, want 201 with %q", response.StatusCode, got, body)
	}
	if !maps.EqualFunc(header, unchanged, slices.Equal) {
		t.Error("storing the answer changed the header that the first caller gets")
	}

	want := survive.Clone()
	want["Idempotency-Replayed"] = []string{"true"}
	want["Content-Length"] = []string{strconv.Itoa(len(body))}
	for name := range gone {
		if values, there := response.Header[name]; there {
			t.Errorf("%s is replayed as %q", name, values)
		}
	}
	if !maps.EqualFunc(response.Header, want, slices.Equal) {
		t.Errorf("the replay has header\n%v, want\n%v", response.Header, want)
	}
}

func TestReplayStatusAndBody(t *testing.T) {
	tests := []struct {
		name       string
		status     int
		body       []byte
		http2      bool
		wantLength string
	}{
		{"200", 200, []byte("body"), false, "4"},
		{"200 over HTTP/2", 200, []byte("body"), true, "4"},
		{"202 without a body", 202, nil, false, "0"},
		{"202 without a body over HTTP/2", 202, nil, true, "0"},
		{"204", 204, nil, false, ""},
		{"large", 200, bytes.Repeat([]byte("x"), 1<<20), false, strconv.Itoa(1 << 20)},
		{"any bytes", 200, []byte("\x00\x1f\x8b\xff\r\n"), false, "6"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			response, body := replayOf(t, idempotency.Result{Status: test.status, Body: test.body, Whole: true}, test.http2)
			if response.StatusCode != test.status || !bytes.Equal(body, test.body) {
				t.Errorf("the replay is %d with %d bytes, want %d with %d", response.StatusCode, len(body), test.status, len(test.body))
			}
			if got := response.Header.Get("Content-Length"); got != test.wantLength {
				t.Errorf("Content-Length is %q, want %q", got, test.wantLength)
			}
			if got := response.Header.Values("Idempotency-Replayed"); !slices.Equal(got, []string{"true"}) {
				t.Errorf("Idempotency-Replayed is %q", got)
			}
			if len(response.TransferEncoding) > 0 {
				t.Errorf("the replay has transfer encoding %v", response.TransferEncoding)
			}
		})
	}
}

// What is not replayed is not in the store either.
func TestStoredAnswer(t *testing.T) {
	h := newHarness(t)
	s := submitOf("k")
	h.conclude(h.attempt(policy(), s), idempotency.Result{
		Status: 202, Header: http.Header{"Set-Cookie": {"session=1"}, "Etag": {"1"}}, Body: []byte("answer"), Whole: true,
	}, idempotency.ConcludedAccepted)
	d := h.details(s)
	if d.Answer == nil || d.Answer.Header.Get("Set-Cookie") != "" || d.Answer.Header.Get("Etag") != "1" || string(d.Answer.Body) != "answer" {
		t.Errorf("stored answer is %+v", d.Answer)
	}
	d.Answer = nil
	if want := (idempotency.Details{Namespace: "namespace", Key: "k", Method: "POST", Path: "/v1/jobs"}); d != want {
		t.Errorf("stored details are %+v, want %+v", d, want)
	}

	// Of an answer that was not kept, only the fact is.
	s = submitOf("stream")
	h.conclude(h.attempt(policy(), s), idempotency.Result{
		Status: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, BodyNotKept: true,
	}, idempotency.ConcludedAccepted)
	if a := h.details(s).Answer; a == nil || a.Status != 200 || !a.Unavailable || len(a.Header)+len(a.Body) > 0 {
		t.Errorf("stored answer is %+v", a)
	}
}

// Header fields and paths can have bytes that are no UTF-8.
func TestReplayOfLatin1(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for name, change := range map[string]func(*idempotency.Submit, *idempotency.Result){
		"header": func(_ *idempotency.Submit, r *idempotency.Result) {
			r.Header = http.Header{"Content-Disposition": {"attachment; filename=\"caf\xe9.mp4\""}}
		},
		"path": func(s *idempotency.Submit, _ *idempotency.Result) { s.Details.Path = "/v1/jobs/\xff" },
	} {
		t.Run(name, func(t *testing.T) {
			s, r := submitOf(name), accepted("answer")
			change(&s, &r)
			h.conclude(h.attempt(policy(), s), r, idempotency.ConcludedAccepted)
			a, err := h.engine.Begin(context.Background(), policy(), s)
			if err != nil || a.Replay == nil {
				t.Fatalf("the repeat gets %+v, %v; want a replay", a, err)
			}
			if got := a.Replay.Header.Get("Content-Disposition"); got != r.Header.Get("Content-Disposition") {
				t.Errorf("header comes back as %q", got)
			}
		})
	}
}

// Over HTTP/2 even an empty Write is an error after a 204.
func TestReplayOf204OverHTTP2(t *testing.T) {
	response, _ := replayOf(t, idempotency.Result{Status: 204, Whole: true}, true)
	if response.StatusCode != 204 || response.Header.Get("Content-Length") != "" {
		t.Errorf("the replay is %d with Content-Length %q", response.StatusCode, response.Header.Get("Content-Length"))
	}
}

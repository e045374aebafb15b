package idempotency_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// problems is the table of design section 6.
var problems = []struct {
	code              idempotency.Code
	name              string
	envelope, problem int
	shouldRetry       string
}{
	{idempotency.CodeMissing, "idempotency_key_missing", 400, 400, ""},
	{idempotency.CodeInvalid, "idempotency_key_invalid", 400, 400, ""},
	{idempotency.CodeInProgress, "idempotency_key_in_progress", 400, 409, "true"},
	{idempotency.CodeScopeUnstable, "idempotency_scope_unstable", 500, 500, "false"},
	{idempotency.CodeReuse, "idempotency_key_reuse", 400, 422, "false"},
	{idempotency.CodeOutcomeUnknown, "idempotency_outcome_unknown", 409, 409, "false"},
	{idempotency.CodeResultUnavailable, "idempotency_result_unavailable", 409, 409, "false"},
	{idempotency.CodeStoreUnavailable, "idempotency_store_unavailable", 503, 503, ""},
	{idempotency.CodeBodyTooLarge, "request_body_too_large", 413, 413, ""},
}

func writeProblem(t *testing.T, p idempotency.Problem, format idempotency.ProblemFormat, unknownStatus int) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	if err := p.Write(w, format, unknownStatus); err != nil {
		t.Fatal(err)
	}
	return w
}

// document reads an error document, which has exactly the wanted members.
func document(t *testing.T, body []byte, members ...string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	slices.Sort(members)
	if got := slices.Sorted(maps.Keys(m)); !slices.Equal(got, members) {
		t.Errorf("members are %v, want %v", got, members)
	}
	return m
}

func wantProblemHeader(t *testing.T, header http.Header, name, shouldRetry string) {
	t.Helper()
	want := map[string]string{"Idempotency-Error": name, "Cache-Control": "no-store", "X-Should-Retry": shouldRetry}
	for field, value := range want {
		if got := header.Get(field); got != value {
			t.Errorf("%s is %q, want %q", field, got, value)
		}
	}
}

func TestProblemEnvelope(t *testing.T) {
	const detail = `Reason <"x">.`
	for _, test := range problems {
		t.Run(test.name, func(t *testing.T) {
			p := idempotency.Problem{Code: test.code, Detail: detail}
			w := writeProblem(t, p, idempotency.FormatEnvelope, 0)
			if w.Code != test.envelope || p.Status(idempotency.FormatEnvelope) != test.envelope {
				t.Errorf("status is %d and announced as %d, want %d", w.Code, p.Status(idempotency.FormatEnvelope), test.envelope)
			}
			wantProblemHeader(t, w.Header(), test.name, test.shouldRetry)
			if got := w.Header().Get("Content-Type"); got != "application/json" {
				t.Errorf("Content-Type is %q", got)
			}
			if got := w.Header().Get("Content-Length"); got != strconv.Itoa(w.Body.Len()) {
				t.Errorf("Content-Length is %s for %d bytes", got, w.Body.Len())
			}
			if w.Header().Get("Retry-After") != "" {
				t.Error("Retry-After is there, and was not asked for")
			}
			outer := document(t, w.Body.Bytes(), "error")
			inner, err := json.Marshal(outer["error"])
			if err != nil {
				t.Fatal(err)
			}
			e := document(t, inner, "type", "code", "message")
			wantType := "invalid_request_error"
			if test.envelope >= 500 {
				wantType = "api_error"
			}
			if e["type"] != wantType || e["code"] != test.name {
				t.Errorf("type is %v and code %v, want %s and %s", e["type"], e["code"], wantType, test.name)
			}
			if message := e["message"].(string); !strings.HasSuffix(message, ". "+detail) {
				t.Errorf("message %q is not the code's own sentence and the detail", message)
			}
		})
	}
}

func TestProblemDocument(t *testing.T) {
	for _, test := range problems {
		t.Run(test.name, func(t *testing.T) {
			p := idempotency.Problem{Code: test.code}
			w := writeProblem(t, p, idempotency.FormatProblem, 0)
			if w.Code != test.problem || p.Status(idempotency.FormatProblem) != test.problem {
				t.Errorf("status is %d and announced as %d, want %d", w.Code, p.Status(idempotency.FormatProblem), test.problem)
			}
			wantProblemHeader(t, w.Header(), test.name, test.shouldRetry)
			if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("Content-Type is %q", got)
			}
			d := document(t, w.Body.Bytes(), "type", "title", "status", "detail", "code")
			if d["code"] != test.name || d["status"] != float64(test.problem) {
				t.Errorf("code is %v and status %v, want %s and %d", d["code"], d["status"], test.name, test.problem)
			}
			if uri := d["type"].(string); !strings.HasPrefix(uri, "https://") || !strings.HasSuffix(uri, "#"+test.name) {
				t.Errorf("type is %q", uri)
			}
			if title, detail := d["title"].(string), d["detail"].(string); title == "" || detail == "" || title == detail {
				t.Errorf("title is %q, detail %q", title, detail)
			}
		})
	}
}

// The first caller of an unknown outcome gets the gateway's status, and a 5xx
// is never the caller's fault.
func TestProblemWithGatewayStatus(t *testing.T) {
	p := idempotency.Problem{Code: idempotency.CodeOutcomeUnknown}
	for _, status := range []int{502, 504} {
		w := writeProblem(t, p, idempotency.FormatEnvelope, status)
		if w.Code != status {
			t.Errorf("status is %d, want %d", w.Code, status)
		}
		wantProblemHeader(t, w.Header(), "idempotency_outcome_unknown", "false")
		if e := document(t, w.Body.Bytes(), "error")["error"].(map[string]any); e["type"] != "api_error" {
			t.Errorf("type is %v with status %d, want api_error", e["type"], status)
		}

		w = writeProblem(t, p, idempotency.FormatProblem, status)
		d := document(t, w.Body.Bytes(), "type", "title", "status", "detail", "code")
		if w.Code != status || d["status"] != float64(status) {
			t.Errorf("status is %d, and %v in the document; want %d", w.Code, d["status"], status)
		}
	}
}

// A job that may exist is not to be submitted under a new key, whatever its
// caller is told.
func TestProblemsSayWhatToDo(t *testing.T) {
	for _, code := range []idempotency.Code{
		idempotency.CodeOutcomeUnknown, idempotency.CodeInProgress, idempotency.CodeResultUnavailable,
	} {
		p := idempotency.Problem{Code: code, Detail: "Record: 0123."}
		body := writeProblem(t, p, idempotency.FormatProblem, 0).Body.String()
		for _, text := range []string{"may be billed", "Do not submit it again under a new key", "Record: 0123."} {
			if !strings.Contains(body, text) {
				t.Errorf("%s does not say %q: %s", code, text, body)
			}
		}
	}
	// Nobody knows that of an attempt whose gateway was not heard of again.
	body := writeProblem(t, idempotency.OutcomeUnknown("0123"), idempotency.FormatProblem, 0).Body.String()
	if strings.Contains(body, "was sent") || !strings.Contains(body, "job may exist") {
		t.Errorf("an unknown outcome is told as %s", body)
	}
}

func TestProblemRetryAfter(t *testing.T) {
	tests := []struct {
		after time.Duration
		want  string
	}{
		{-time.Second, ""},
		{0, ""},
		{time.Nanosecond, "1"},
		{time.Second, "1"},
		{time.Second + time.Nanosecond, "2"},
		{1400 * time.Millisecond, "2"},
		{59*time.Second + time.Millisecond, "60"},
		{time.Minute, "60"},
	}
	for _, test := range tests {
		t.Run(test.after.String(), func(t *testing.T) {
			p := idempotency.Problem{Code: idempotency.CodeInProgress, RetryAfter: test.after}
			if got := writeProblem(t, p, idempotency.FormatEnvelope, 0).Header().Get("Retry-After"); got != test.want {
				t.Errorf("Retry-After is %q, want %q", got, test.want)
			}
		})
	}
}

// A provider's own answer is marked without being changed otherwise.
func TestProblemMark(t *testing.T) {
	header := http.Header{
		"Cache-Control": {"public, max-age=60"}, "X-Should-Retry": {"true"}, "Idempotency-Error": {"a", "b"},
		"Retry-After": {"7"}, "Content-Type": {"text/plain"},
	}
	idempotency.Problem{Code: idempotency.CodeOutcomeUnknown}.Mark(header)
	want := http.Header{
		"Cache-Control": {"no-store"}, "X-Should-Retry": {"false"}, "Idempotency-Error": {"idempotency_outcome_unknown"},
		"Retry-After": {"7"}, "Content-Type": {"text/plain"},
	}
	if !maps.EqualFunc(header, want, slices.Equal) {
		t.Errorf("header is %v, want %v", header, want)
	}
}

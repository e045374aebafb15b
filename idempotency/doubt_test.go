package idempotency_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// A refusal that is about another try says nothing about the first one.
func TestDoubtedRefusals(t *testing.T) {
	body := func(text string) func(*idempotency.Result) {
		return func(r *idempotency.Result) { r.Body = []byte(text) }
	}
	marked := func(value string) func(*idempotency.Result) {
		return func(r *idempotency.Result) { r.Header = http.Header{"Idempotency-Error": {value}} }
	}
	doubted := func(r *idempotency.Result) { r.Doubted = true }
	notSent := func(r *idempotency.Result) { r.Sent, r.Doubted = idempotency.NeverSent, true }
	only202 := func(p *idempotency.Policy) { p.StoreStatus = []idempotency.StatusRange{{First: 202, Last: 202}} }
	acceptIf := func(p *idempotency.Policy) {
		p.AcceptIf = &idempotency.Condition{Pointer: parsePointer(t, "/code"), Value: "0"}
	}
	standard := func(*idempotency.Policy) {}
	const (
		accepted = idempotency.ConcludedAccepted
		refused  = idempotency.ConcludedRefused
		unknown  = idempotency.ConcludedUnknown
	)
	tests := []struct {
		name   string
		policy func(*idempotency.Policy)
		status int
		change func(*idempotency.Result)
		want   idempotency.Conclusion
	}{
		{"in progress", standard, 409, marked("idempotency_key_in_progress"), unknown},
		{"outcome unknown", standard, 409, marked("idempotency_outcome_unknown"), unknown},
		{"another word", standard, 400, marked("whatever"), unknown},
		{"no word", standard, 429, marked(""), unknown},
		{"503", standard, 503, marked("idempotency_store_unavailable"), unknown},
		{"a 2xx that is no acceptance", only202, 200, marked("idempotency_outcome_unknown"), unknown},
		{"refused by its body", acceptIf, 200, func(r *idempotency.Result) {
			marked("idempotency_outcome_unknown")(r)
			body(`{"code":1}`)(r)
		}, unknown},
		{"seen elsewhere", standard, 409, doubted, unknown},
		{"never sent", standard, 503, notSent, refused},
		{"an acceptance", standard, 202, marked("idempotency_outcome_unknown"), accepted},

		{"by its body", standard, 400, body(`{"error":{"code":"idempotency_key_in_progress"}}`), unknown},
		{"by its body, escaped", standard, 409, body(` {"error":{"type":"x","code":"idempotency_key_in\u005fprogress"}}`), unknown},
		{"code twice", standard, 409, body(`{"error":{"code":"a","code":"b"}}`), unknown},
		{"another code", standard, 409, body(`{"error":{"code":"rate_limit"}}`), refused},
		{"code elsewhere", standard, 409, body(`{"code":"idempotency_key_in_progress"}`), refused},
		{"code in a text", standard, 409, body(`{"error":{"message":"idempotency_key_in_progress"}}`), refused},
		{"no object", standard, 409, body(`{"error":"idempotency_key_in_progress"}`), refused},
		{"no JSON", standard, 409, body(`idempotency_key_in_progress`), refused},
		{"no body", standard, 409, body(``), refused},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t)
			p, s := policy(test.policy), submitOf("k")
			r := idempotency.Result{Status: test.status, Whole: true}
			test.change(&r)
			reason := h.conclude(h.attempt(p, s), r, test.want)
			if test.want == unknown && !strings.Contains(reason, "another try is running or unknown") {
				t.Errorf("the reason is %q", reason)
			}
		})
	}

	// The header is there before the end of an answer that is too long to keep.
	h := newHarness(t)
	a := h.attempt(policy(), submitOf("k"))
	c, reason, concluded := a.ConcludeStream(idempotency.Result{Status: 409, Header: http.Header{"Idempotency-Error": {"x"}}})
	if c != unknown || !concluded || reason == "" {
		t.Errorf("ConcludeStream gave %d, %q, %t; want an unknown outcome", c, reason, concluded)
	}
}

func TestNamesInProgress(t *testing.T) {
	const code = "idempotency_key_in_progress"
	long := strings.Repeat("x", 1<<20)
	for text, want := range map[string]bool{
		"":                             false,
		code:                           true,
		long:                           false,
		long + code:                    true,
		code + long:                    true,
		long[:32<<10-5] + code + long:  true, // over the end of what is read at a time
		long + code[:len(code)-1]:      false,
		long + "idempotency_key_in_p ": false,
	} {
		for name, reader := range map[string]io.Reader{
			"at once": strings.NewReader(text), "in pieces": iotest.HalfReader(strings.NewReader(text)),
			"with its end": iotest.DataErrReader(strings.NewReader(text)),
		} {
			if got, err := idempotency.NamesInProgress(reader); got != want || err != nil {
				t.Errorf("%d bytes read %s: %t, %v; want %t", len(text), name, got, err, want)
			}
		}
	}
	broken := errors.New("broken")
	if got, err := idempotency.NamesInProgress(iotest.ErrReader(broken)); got || !errors.Is(err, broken) {
		t.Errorf("a body that cannot be read: %t, %v", got, err)
	}
}

// An acceptance that says that it is JSON, and does not say how long it is, is
// one only if its JSON is whole.
func TestCutJSON(t *testing.T) {
	const accepted, unknown = idempotency.ConcludedAccepted, idempotency.ConcludedUnknown
	header := func(fields ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(fields); i += 2 {
			h.Set(fields[i], fields[i+1])
		}
		return h
	}
	json := header("Content-Type", "application/json")
	tests := []struct {
		name   string
		result idempotency.Result
		want   idempotency.Conclusion
	}{
		{"whole", idempotency.Result{Status: 202, Header: json, Undeclared: true, Body: []byte(`{"id":"job"}`)}, accepted},
		{"cut", idempotency.Result{Status: 202, Header: json, Undeclared: true, Body: []byte(`{"id":"jo`)}, unknown},
		{"empty", idempotency.Result{Status: 202, Header: json, Undeclared: true}, unknown},
		{"204", idempotency.Result{Status: 204, Header: json, Undeclared: true}, accepted},
		{"declared", idempotency.Result{Status: 202, Header: json, Body: []byte(`{"id":"jo`)}, accepted},
		{"parameters and case", idempotency.Result{Status: 200, Header: header("Content-Type", "Application/JSON; charset=utf-8"), Undeclared: true, Body: []byte(`{`)}, unknown},
		{"a type of its own", idempotency.Result{Status: 200, Header: header("Content-Type", "application/hal+json"), Undeclared: true, Body: []byte(`{`)}, unknown},
		{"another type", idempotency.Result{Status: 200, Header: header("Content-Type", "text/plain"), Undeclared: true, Body: []byte(`{`)}, accepted},
		{"lines of JSON", idempotency.Result{Status: 200, Header: header("Content-Type", "application/x-ndjson"), Undeclared: true, Body: []byte("{}\n{")}, accepted},
		{"no type", idempotency.Result{Status: 200, Undeclared: true, Body: []byte(`{`)}, accepted},
		{"coded", idempotency.Result{Status: 200, Header: header("Content-Type", "application/json", "Content-Encoding", "br"), Undeclared: true, Body: []byte("\x0b")}, accepted},
		{"coded as it is", idempotency.Result{Status: 200, Header: header("Content-Type", "application/json", "Content-Encoding", "identity"), Undeclared: true, Body: []byte(`{`)}, unknown},
		{"not kept", idempotency.Result{Status: 200, Header: json, Undeclared: true, BodyNotKept: true}, accepted},
		{"a refusal", idempotency.Result{Status: 429, Header: json, Undeclared: true, Body: []byte(`{`)}, idempotency.ConcludedRefused},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			test.result.Whole = true
			reason := h.conclude(h.attempt(policy(), s), test.result, test.want)
			if test.want == unknown && !strings.Contains(reason, "broke off") {
				t.Errorf("the reason is %q", reason)
			}
		})
	}
}

// accept_if without a value: present, and not null.
func TestAcceptIfAnyValue(t *testing.T) {
	p := policy(func(p *idempotency.Policy) {
		p.AcceptIf = &idempotency.Condition{Pointer: parsePointer(t, "/data/id"), AnyValue: true}
	})
	for body, want := range map[string]idempotency.Conclusion{
		`{"data":{"id":"job"}}`:         idempotency.ConcludedAccepted,
		`{"data":{"id":""}}`:            idempotency.ConcludedAccepted,
		`{"data":{"id":0}}`:             idempotency.ConcludedAccepted,
		`{"data":{"id":false}}`:         idempotency.ConcludedAccepted,
		`{"data":{"id":{}}}`:            idempotency.ConcludedAccepted,
		`{"data":{"id": null }}`:        idempotency.ConcludedRefused,
		`{"data":{}}`:                   idempotency.ConcludedRefused,
		`{"data":null}`:                 idempotency.ConcludedRefused,
		`{}`:                            idempotency.ConcludedRefused,
		`{"data":{"id":"a","id":null}}`: idempotency.ConcludedUnknown,
		`[]`:                            idempotency.ConcludedUnknown,
		`job`:                           idempotency.ConcludedUnknown,
		``:                              idempotency.ConcludedUnknown,
	} {
		if got := p.Classify(idempotency.Result{Status: 200, Whole: true, Body: []byte(body)}); got != want {
			t.Errorf("%s gives conclusion %d, want %d", body, got, want)
		}
	}
}

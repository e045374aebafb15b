package idempotency_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

// TestPolicy is the table of design section 5, from a result to the record and
// to what a repeat gets.
func TestPolicy(t *testing.T) {
	whole := func(status int) idempotency.Result {
		return idempotency.Result{Status: status, Body: []byte("answer"), Whole: true}
	}
	with := func(r idempotency.Result, change func(*idempotency.Result)) idempotency.Result {
		change(&r)
		return r
	}
	cut := func(r *idempotency.Result) { r.Whole = false }
	notKept := func(r *idempotency.Result) { r.BodyNotKept, r.Body = true, nil }
	timedOut := func(r *idempotency.Result) { r.TimedOut = true }
	silent := func(r *idempotency.Result) { r.ProviderSilent = true }
	unsent := func(r *idempotency.Result) { r.Sent = idempotency.NeverSent }
	of := func(status int) func(*idempotency.Result) {
		return func(r *idempotency.Result) { r.ProviderStatus = status }
	}

	only202 := func(p *idempotency.Policy) { p.StoreStatus = []idempotency.StatusRange{{First: 202, Last: 202}} }
	only409 := func(p *idempotency.Policy) { p.RefusedStatus = []idempotency.StatusRange{{First: 409, Last: 409}} }
	everything := func(p *idempotency.Policy) { p.RefusedStatus = []idempotency.StatusRange{{First: 100, Last: 599}} }
	store409 := func(p *idempotency.Policy) {
		p.StoreStatus = []idempotency.StatusRange{{First: 200, Last: 299}, {First: 409, Last: 409}}
	}
	standard := func(*idempotency.Policy) {}

	const (
		accepted    = idempotency.ConcludedAccepted
		refused     = idempotency.ConcludedRefused
		notAccepted = idempotency.ConcludedNotAccepted
		neverSent   = idempotency.ConcludedNeverSent
		unknown     = idempotency.ConcludedUnknown

		completed = idempotency.Completed
		uncertain = idempotency.Uncertain
	)
	tests := []struct {
		name   string
		policy func(*idempotency.Policy)
		result idempotency.Result
		want   idempotency.Conclusion
		record idempotency.State
		reason string
	}{
		{"200", standard, whole(200), accepted, completed, ""},
		{"201", standard, whole(201), accepted, completed, ""},
		{"202", standard, whole(202), accepted, completed, ""},
		{"204", standard, idempotency.Result{Status: 204, Whole: true}, accepted, completed, ""},
		{"299", standard, whole(299), accepted, completed, ""},
		{"202 of a narrowed store_status", only202, whole(202), accepted, completed, ""},
		{"200 outside a narrowed store_status", only202, whole(200), notAccepted, absent, ""},
		{"409 in store_status", store409, whole(409), accepted, completed, ""},
		{"202 whole at the timeout", standard, with(whole(202), timedOut), accepted, completed, ""},

		{"202, body not kept", standard, with(whole(202), notKept), accepted, completed, ""},
		{"202, body not kept and broken off", standard, with(with(whole(202), notKept), cut), accepted, completed, ""},
		{"202, body broken off", standard, with(whole(202), cut), unknown, uncertain, "broke off"},
		{"202, body not whole in time", standard, with(with(whole(202), cut), timedOut), unknown, uncertain, "timeout"},
		{"200 outside a narrowed store_status, broken off", only202, with(whole(200), cut), unknown, uncertain, "broke off"},

		{"400", standard, whole(400), refused, absent, ""},
		{"401", standard, whole(401), refused, absent, ""},
		{"402", standard, whole(402), refused, absent, ""},
		{"404", standard, whole(404), refused, absent, ""},
		{"409", standard, whole(409), refused, absent, ""},
		{"422", standard, whole(422), refused, absent, ""},
		{"429", standard, whole(429), refused, absent, ""},
		{"498", standard, whole(498), refused, absent, ""},
		{"503", standard, whole(503), refused, absent, ""},
		{"429 broken off", standard, with(whole(429), cut), unknown, uncertain, "broke off"},
		{"409 of a narrowed refused_status", only409, whole(409), refused, absent, ""},
		{"429 outside a narrowed refused_status", only409, whole(429), unknown, uncertain, "status 429"},
		{"503 outside a narrowed refused_status", only409, whole(503), unknown, uncertain, "status 503"},

		{"408", standard, whole(408), unknown, uncertain, "status 408"},
		{"499", standard, whole(499), unknown, uncertain, "status 499"},
		{"408 in refused_status", everything, whole(408), unknown, uncertain, "status 408"},
		{"499 in refused_status", everything, whole(499), unknown, uncertain, "status 499"},
		{"302", standard, whole(302), unknown, uncertain, "status 302"},
		{"304", standard, whole(304), unknown, uncertain, "status 304"},
		{"500", standard, whole(500), unknown, uncertain, "status 500"},
		{"501", standard, whole(501), unknown, uncertain, "status 501"},
		{"502", standard, whole(502), unknown, uncertain, "status 502"},
		{"504", standard, whole(504), unknown, uncertain, "status 504"},
		{"599", standard, whole(599), unknown, uncertain, "status 599"},
		{"500 in refused_status", everything, whole(500), refused, absent, ""},
		{"200 in refused_status, too", everything, whole(200), accepted, completed, ""},

		{"500 as 503", standard, with(whole(503), of(500)), unknown, uncertain, "status 500"},
		{"500 as 200", standard, with(whole(200), of(500)), unknown, uncertain, "status 500"},
		{"500 as 200, body not kept", standard, with(with(whole(200), of(500)), notKept), unknown, uncertain, "status 500"},
		{"429 as 503", standard, with(whole(503), of(429)), refused, absent, ""},
		{"429 as 200", standard, with(whole(200), of(429)), refused, absent, ""},
		{"429 as 200, broken off", standard, with(with(whole(200), of(429)), cut), unknown, uncertain, "broke off"},
		{"202 as 200", standard, with(whole(200), of(202)), accepted, completed, ""},
		{"202 as 409", standard, with(whole(409), of(202)), unknown, uncertain, "status 202"},
		{"202 as 200 of a narrowed store_status", only202, with(whole(200), of(202)), unknown, uncertain, "status 202"},
		{"a page for no answer, 503", standard, with(whole(503), silent), unknown, uncertain, "connection"},
		{"a page for no answer, 200", standard, with(whole(200), silent), unknown, uncertain, "connection"},
		{"a page for no connection, 503", standard, with(whole(503), unsent), refused, absent, ""},
		{"a page for no connection, 200", standard, with(whole(200), unsent), refused, absent, ""},
		{"a page for no answer in time", standard, with(with(whole(404), silent), timedOut), unknown, uncertain, "timeout"},

		{"no connection", standard, idempotency.Result{Sent: idempotency.NeverSent}, neverSent, absent, ""},
		{"no connection in time", standard, idempotency.Result{Sent: idempotency.NeverSent, TimedOut: true}, neverSent, absent, ""},
		{"connection broke", standard, idempotency.Result{}, unknown, uncertain, "connection"},
		{"no answer in time", standard, idempotency.Result{TimedOut: true}, unknown, uncertain, "timeout"},
		{"panic", standard, idempotency.Result{Panicked: true}, unknown, uncertain, "panicked"},
		{"panic after a status", standard, idempotency.Result{Status: 202, Panicked: true}, unknown, uncertain, "panicked"},
	}
	h := newHarness(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := *h
			h.t = t
			p, s := policy(test.policy), submitOf(test.name)
			reason := h.conclude(h.attempt(p, s), test.result, test.want)
			if !strings.Contains(reason, test.reason) {
				t.Errorf("the reason is %q, want something about %q", reason, test.reason)
			}
			h.wantState(s, test.record)
			switch test.record {
			case idempotency.Completed:
				if test.result.BodyNotKept {
					if problem := h.wantProblem(p, s, idempotency.CodeResultUnavailable); !strings.Contains(problem.Detail, string(s.ID)) {
						t.Errorf("the problem does not name the record: %q", problem.Detail)
					}
				} else {
					h.wantReplay(s, test.result.Status, string(test.result.Body))
				}
			case idempotency.Uncertain:
				if problem := h.wantProblem(p, s, idempotency.CodeOutcomeUnknown); !strings.Contains(problem.Detail, string(s.ID)) {
					t.Errorf("the problem does not name the record: %q", problem.Detail)
				}
				if got := h.details(s).Error; got != reason {
					t.Errorf("the record says %q, want %q", got, reason)
				}
			default: // the same key submits again
				h.conclude(h.attempt(p, s), broken, unknown)
			}
		})
	}
}

// An answer that is passed on before its end is concluded by its status, but a
// refusal is none before its end.
func TestConcludeStream(t *testing.T) {
	header := http.Header{"Content-Type": {"text/event-stream"}}
	only202 := func(p *idempotency.Policy) { p.StoreStatus = []idempotency.StatusRange{{First: 202, Last: 202}} }
	tests := []struct {
		name      string
		policy    idempotency.Policy
		status    int
		want      idempotency.Conclusion
		concluded bool
		record    idempotency.State
		ended     idempotency.Conclusion // when it has come to its end
		broken    idempotency.Conclusion // when it breaks off
	}{
		{"200", policy(), 200, idempotency.ConcludedAccepted, true, idempotency.Completed, 0, 0},
		{"202", policy(only202), 202, idempotency.ConcludedAccepted, true, idempotency.Completed, 0, 0},
		{"500", policy(), 500, idempotency.ConcludedUnknown, true, idempotency.Uncertain, 0, 0},
		{"408", policy(), 408, idempotency.ConcludedUnknown, true, idempotency.Uncertain, 0, 0},
		{"302", policy(), 302, idempotency.ConcludedUnknown, true, idempotency.Uncertain, 0, 0},
		{"429", policy(), 429, 0, false, idempotency.InProgress, idempotency.ConcludedRefused, idempotency.ConcludedUnknown},
		{"503", policy(), 503, 0, false, idempotency.InProgress, idempotency.ConcludedRefused, idempotency.ConcludedUnknown},
		{"200 outside store_status", policy(only202), 200, 0, false, idempotency.InProgress, idempotency.ConcludedNotAccepted, idempotency.ConcludedUnknown},
	}
	h := newHarness(t)
	for _, test := range tests {
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, whole %t", test.name, whole), func(t *testing.T) {
				h := *h
				h.t = t
				s := submitOf(t.Name())
				a := h.attempt(test.policy, s)
				c, reason, concluded := a.ConcludeStream(idempotency.Result{Status: test.status, Header: header})
				if c != test.want || concluded != test.concluded || (reason != "") != (c == idempotency.ConcludedUnknown) {
					t.Errorf("ConcludeStream gave %d, %q, %t; want %d and %t", c, reason, concluded, test.want, test.concluded)
				}
				h.wantState(s, test.record)
				r := idempotency.Result{Status: test.status, Header: header, BodyNotKept: true, Whole: whole}
				switch {
				case concluded:
					defer func() {
						if recover() == nil {
							t.Error("a second conclusion does not panic")
						}
						h.wantState(s, test.record)
					}()
					a.Conclude(r)
				case whole:
					h.conclude(a, r, test.ended)
					h.wantState(s, absent)
				default:
					h.conclude(a, r, test.broken)
					h.wantState(s, idempotency.Uncertain)
				}
			})
		}
	}
}

// Whatever the configuration says, these two prove nothing.
func TestNeverRefusal(t *testing.T) {
	for status := range 1000 {
		if got, want := idempotency.NeverRefusal(status), slices.Contains([]int{408, 499}, status); got != want {
			t.Errorf("NeverRefusal(%d) is %t", status, got)
		}
	}
}

func TestPolicyAccepts(t *testing.T) {
	p := policy(func(p *idempotency.Policy) {
		p.StoreStatus = []idempotency.StatusRange{{First: 200, Last: 202}, {First: 409, Last: 409}}
	})
	for status, want := range map[int]bool{0: false, 199: false, 200: true, 201: true, 202: true, 203: false, 408: false, 409: true, 410: false} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			if got := p.Accepts(status); got != want {
				t.Errorf("Accepts(%d) is %t", status, got)
			}
		})
	}
}

func TestIsStream(t *testing.T) {
	for contentType, want := range map[string]bool{
		"text/event-stream":                true,
		"Text/Event-Stream":                true,
		"text/event-stream; charset=utf-8": true,
		"text/event-streams":               false,
		"application/json":                 false,
		"":                                 false,
	} {
		if got := idempotency.IsStream(http.Header{"Content-Type": {contentType}}); got != want {
			t.Errorf("IsStream of %q is %t", contentType, got)
		}
	}
}

// A 2xx that the body contradicts is a refusal, and one whose body does not say
// is unknown.
func TestAcceptIf(t *testing.T) {
	type change = func(*idempotency.Result)
	status := func(status int) change { return func(r *idempotency.Result) { r.Status = status } }
	provider := func(status int) change { return func(r *idempotency.Result) { r.ProviderStatus = status } }
	cut := func(r *idempotency.Result) { r.Whole = false }
	notKept := func(r *idempotency.Result) { r.BodyNotKept, r.Body = true, nil }
	only202 := func(p *idempotency.Policy) { p.StoreStatus = []idempotency.StatusRange{{First: 202, Last: 202}} }
	store409 := func(p *idempotency.Policy) { p.StoreStatus = []idempotency.StatusRange{{First: 409, Last: 409}} }
	everything := func(p *idempotency.Policy) { p.RefusedStatus = []idempotency.StatusRange{{First: 100, Last: 599}} }
	standard := func(*idempotency.Policy) {}
	nothing := func(*idempotency.Result) {}

	const (
		accepted    = idempotency.ConcludedAccepted
		refused     = idempotency.ConcludedRefused
		notAccepted = idempotency.ConcludedNotAccepted
		unknown     = idempotency.ConcludedUnknown
	)
	tests := []struct {
		name           string
		policy         func(*idempotency.Policy)
		pointer, value string
		body           string
		change         change
		want           idempotency.Conclusion
		reason         string
	}{
		{"number holds", standard, "/code", "0", `{"code":0}`, nothing, accepted, ""},
		{"nested number holds", standard, "/base_resp/status_code", "0", ` {"base_resp": {"status_code": 0 }} `, nothing, accepted, ""},
		{"number differs", standard, "/code", "0", `{"code":1}`, nothing, refused, ""},
		{"number has another sign", standard, "/code", "0", `{"code":-0}`, nothing, refused, ""},
		{"number written in another way", standard, "/code", "0", `{"code":0.0}`, nothing, refused, ""},
		{"number as written", standard, "/code", "0.0", `{"code":0.0}`, nothing, accepted, ""},
		{"number with an exponent", standard, "/code", "100", `{"code":1e2}`, nothing, refused, ""},
		{"large number", standard, "/code", "9007199254740993", `{"code":9007199254740992}`, nothing, refused, ""},
		{"longer number", standard, "/code", "1", `{"code":10}`, nothing, refused, ""},
		{"string content holds", standard, "/status", "ok", `{"status":"ok"}`, nothing, accepted, ""},
		{"string content with escapes", standard, "/status", `a"é`, `{"status":"a\"\u00e9"}`, nothing, accepted, ""},
		{"string as written", standard, "/status", `"ok"`, `{"status":"ok"}`, nothing, accepted, ""},
		{"string content of a number", standard, "/code", "0", `{"code":"0"}`, nothing, accepted, ""},
		{"string in quotes wanted, number there", standard, "/code", `"0"`, `{"code":0}`, nothing, refused, ""},
		{"string differs in case", standard, "/status", "ok", `{"status":"OK"}`, nothing, refused, ""},
		{"string differs in space", standard, "/status", "ok", `{"status":"ok "}`, nothing, refused, ""},
		{"empty string", standard, "/error", "", `{"error":""}`, nothing, accepted, ""},
		{"null is no empty string", standard, "/error", "", `{"error":null}`, nothing, refused, ""},
		{"null as written", standard, "/error", "null", `{"error":null}`, nothing, accepted, ""},
		{"true", standard, "/ok", "true", `{"ok":true}`, nothing, accepted, ""},
		{"false", standard, "/ok", "true", `{"ok":false}`, nothing, refused, ""},
		{"list as written", standard, "/errors", "[]", `{"errors":[]}`, nothing, accepted, ""},
		{"list written in another way", standard, "/errors", "[]", `{"errors":[ ]}`, nothing, refused, ""},
		{"missing", standard, "/code", "0", `{"id":"job_1"}`, nothing, refused, ""},
		{"missing, an empty string wanted", standard, "/error", "", `{"id":"job_1"}`, nothing, refused, ""},
		{"missing on the way", standard, "/base_resp/status_code", "0", `{"base_resp":null}`, nothing, refused, ""},
		{"twice, the last differs", standard, "/code", "0", `{"code":0,"code":1}`, nothing, unknown, "member twice"},
		{"twice, the first differs", standard, "/code", "0", `{"code":1,"code":0}`, nothing, unknown, "member twice"},
		{"twice, with one value", standard, "/code", "0", `{"code":0,"code":0}`, nothing, unknown, "member twice"},
		{"three times", standard, "/code", "0", `{"code":0,"code":0,"code":0}`, nothing, unknown, "member twice"},
		{"twice, once escaped", standard, "/code", "0", `{"code":0,"\u0063ode":1}`, nothing, unknown, "member twice"},
		{"twice, nested", standard, "/a/code", "0", `{"a":{"code":0,"code":1}}`, nothing, unknown, "member twice"},
		{"twice on the way", standard, "/a/code", "0", `{"a":{"code":1},"a":{"code":0}}`, nothing, unknown, "member twice"},
		{"twice on the way, then missing", standard, "/a/code", "0", `{"a":{"code":0},"a":{}}`, nothing, unknown, "member twice"},
		{"twice in an element", standard, "/a/0/code", "0", `{"a":[{"code":0,"code":1}]}`, nothing, unknown, "member twice"},
		{"another member twice", standard, "/code", "0", `{"b":1,"code":0,"b":2}`, nothing, accepted, ""},
		{"another member twice, differs", standard, "/code", "0", `{"b":1,"code":1,"b":2}`, nothing, refused, ""},
		{"an empty list", standard, "/code", "0", `[]`, nothing, unknown, "not a JSON object"},
		{"a list of objects", standard, "/code", "0", ` [{"code":0}]`, nothing, unknown, "not a JSON object"},
		{"a text", standard, "/code", "0", `"code 0"`, nothing, unknown, "not a JSON object"},
		{"a number", standard, "/code", "0", `0`, nothing, unknown, "not a JSON object"},
		{"null", standard, "/code", "null", `null`, nothing, unknown, "not a JSON object"},
		{"whole document", standard, "", "ok", `"ok"`, nothing, accepted, ""},
		{"element", standard, "/results/0/code", "0", `{"results":[{"code":0}]}`, nothing, accepted, ""},

		{"not JSON", standard, "/code", "0", "<html>code 0</html>", nothing, unknown, "not JSON"},
		{"no body", standard, "/code", "0", "", nothing, unknown, "not JSON"},
		{"204", standard, "/code", "0", "", status(204), unknown, "not JSON"},
		{"cut JSON in a whole answer", standard, "/code", "0", `{"code":0`, nothing, unknown, "not JSON"},
		{"more after the JSON", standard, "/code", "0", `{"code":0}{}`, nothing, unknown, "not JSON"},
		{"not JSON, status in refused_status, too", everything, "/code", "0", "OK", nothing, unknown, "not JSON"},
		{"broken off", standard, "/code", "0", `{"code":0}`, cut, unknown, "broke off"},
		{"broken off, differs", standard, "/code", "0", `{"code":1}`, cut, unknown, "broke off"},
		{"body not kept", standard, "/code", "0", "", notKept, accepted, ""},

		{"status outside store_status", only202, "/code", "0", `{"code":0}`, nothing, notAccepted, ""},
		{"status outside store_status, differs", only202, "/code", "0", `{"code":1}`, nothing, notAccepted, ""},
		{"status outside store_status, not JSON", only202, "/code", "0", "OK", nothing, notAccepted, ""},
		{"refusal", standard, "/code", "0", `{"code":0}`, status(429), refused, ""},
		{"refusal, not JSON", standard, "/code", "0", "slow down", status(429), refused, ""},
		{"unknown status", standard, "/code", "0", `{"code":0}`, status(500), unknown, "status 500"},
		{"unknown status, differs", standard, "/code", "0", `{"code":1}`, status(500), unknown, "status 500"},
		{"4xx in store_status", store409, "/code", "0", `{"code":0}`, status(409), accepted, ""},
		{"4xx in store_status, differs", store409, "/code", "0", `{"code":1}`, status(409), refused, ""},

		{"provider's own status", standard, "/code", "0", `{"code":1}`, provider(200), refused, ""},
		{"rewritten acceptance", standard, "/code", "0", `{"code":1}`, provider(202), unknown, "status 202"},
		{"rewritten unknown status", standard, "/code", "0", `{"code":1}`, provider(500), unknown, "status 500"},
		{"rewritten refusal", standard, "/code", "0", `{"code":1}`, provider(429), refused, ""},
		{"rewritten refusal, not JSON", standard, "/code", "0", "sorry", provider(429), refused, ""},
	}
	h := newHarness(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := *h
			h.t = t
			pointer := parsePointer(t, test.pointer)
			p := policy(test.policy, func(p *idempotency.Policy) {
				p.AcceptIf = &idempotency.Condition{Pointer: pointer, Value: test.value}
			})
			r := idempotency.Result{Status: 200, Body: []byte(test.body), Whole: true}
			test.change(&r)
			s := submitOf(test.name)
			reason := h.conclude(h.attempt(p, s), r, test.want)
			if !strings.Contains(reason, test.reason) {
				t.Errorf("the reason is %q, want something about %q", reason, test.reason)
			}
			switch test.want {
			case accepted:
				h.wantState(s, idempotency.Completed)
			case unknown:
				h.wantState(s, idempotency.Uncertain)
			default: // the same key submits again
				h.wantState(s, absent)
				h.conclude(h.attempt(p, s), broken, unknown)
			}
		})
	}
}

// An answer that is passed on before its end is not looked into.
func TestAcceptIfOfStream(t *testing.T) {
	h := newHarness(t)
	pointer := parsePointer(t, "/code")
	p := policy(func(p *idempotency.Policy) {
		p.AcceptIf = &idempotency.Condition{Pointer: pointer, Value: "0"}
	})
	s := submitOf("k")
	c, _, concluded := h.attempt(p, s).ConcludeStream(idempotency.Result{Status: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}})
	if c != idempotency.ConcludedAccepted || !concluded {
		t.Errorf("ConcludeStream gave %d, %t; want accepted", c, concluded)
	}
	h.wantProblem(p, s, idempotency.CodeResultUnavailable)
}

// parsePointer parses a pointer that is one.
func parsePointer(t testing.TB, text string) fingerprint.Pointer {
	t.Helper()
	pointer, err := fingerprint.ParsePointer(text)
	if err != nil {
		t.Fatal(err)
	}
	return pointer
}

package integration

import (
	"net/http"
	"strings"
	"testing"
)

// A gateway behind a gateway, or a provider that honours the key: what it says
// about an earlier try is no refusal of the submit.
func TestGatewayBehindGateway(t *testing.T) {
	t.Parallel()
	inProgress := `{"error":{"type":"invalid_request_error","code":"idempotency_key_in_progress","message":"wait"}}`
	padded := func(size int) string {
		return `{"padding":"` + strings.Repeat("x", size) + `",` + inProgress[1:]
	}
	marked := map[string]string{"Idempotency-Error": "idempotency_key_in_progress"}
	replaced := "handle_response @refused {\nrespond \"sorry\" 409\n}\n@refused status 4xx 503\n"
	tests := []struct {
		name   string
		behave behaviour
		o      options
		status int
		body   string
		again  string // the code; empty if the same key submits again
	}{
		{"in progress", answerWith(409, marked, "wait"), options{}, 409, "wait", "idempotency_outcome_unknown"},
		{"any code", answerWith(503, map[string]string{"Idempotency-Error": "idempotency_store_unavailable"}, "wait"), options{}, 503, "wait", "idempotency_outcome_unknown"},
		{"a header that says nothing", answerWith(429, map[string]string{"Idempotency-Error": ""}, "wait"), options{}, 429, "wait", "idempotency_outcome_unknown"},
		{"too long to keep", answerWith(409, marked, padded(2<<20)), options{}, 409, padded(2 << 20), "idempotency_outcome_unknown"},
		{"a stream", answerWith(409, map[string]string{"Idempotency-Error": "x", "Content-Type": "text/event-stream"}, "data: x\n\n"), options{}, 409, "data: x\n\n", "idempotency_outcome_unknown"},
		{"as a 2xx that is no acceptance", answerWith(200, map[string]string{"Idempotency-Error": "idempotency_outcome_unknown"}, "ok"), options{idempotency: "store_status 202"}, 200, "ok", "idempotency_outcome_unknown"},
		{"refused by its body", answerWith(200, marked, `{"code":1}`), options{idempotency: "accept_if /code 0"}, 200, `{"code":1}`, "idempotency_outcome_unknown"},
		{"behind a page of the gateway's own", answerWith(409, marked, "wait"), options{proxy: replaced}, 409, "sorry", "idempotency_outcome_unknown"},

		{"in the body", answerWith(400, nil, inProgress), options{}, 400, inProgress, "idempotency_outcome_unknown"},
		{"in the body, too long for memory", answerWith(400, nil, padded(64<<10)), options{idempotency: "max_response_body 1KiB"}, 400, padded(64 << 10), "idempotency_outcome_unknown"},
		{"in the body, too long to keep", answerWith(409, nil, padded(3<<20)), options{}, 409, padded(3 << 20), "idempotency_outcome_unknown"},

		{"another code", answerWith(409, nil, `{"error":{"code":"conflict"}}`), options{}, 409, `{"error":{"code":"conflict"}}`, ""},
		{"another code, too long to keep", answerWith(409, nil, strings.Repeat("x", 3<<20)), options{}, 409, strings.Repeat("x", 3<<20), ""},
		{"another page of the gateway's own", answerWith(409, nil, "no"), options{proxy: replaced}, 409, "sorry", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := startProvider(t, test.behave)
			g := startGateway(t, p.url, test.o)
			first := g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			if first.status != test.status || first.body != test.body || first.code() != test.again {
				t.Errorf("the first caller got %d, %d bytes, %v; want %d marked %q", first.status, len(first.body), first.header, test.status, test.again)
			}
			p.now(nil)
			again := g.send(t, request{key: "k", body: "x"})
			if test.again == "" {
				p.want(t, 2)
				return
			}
			p.want(t, 1)
			if again.status != 409 || again.code() != test.again {
				t.Errorf("again: %v", again)
			}
		})
	}
}

// Two gateways in a row: the inner one's first try is alive when the outer one
// asks.
func TestTwoGatewaysInARow(t *testing.T) {
	t.Parallel()
	hold := newGate()
	p := startProvider(t, nil)
	p.now(p.holdUntil(hold))
	inner := startGateway(t, p.url, options{})
	outer := startGateway(t, inner.url, options{})
	direct := inner.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	got := outer.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	if got.status != http.StatusBadRequest || got.code() != "idempotency_outcome_unknown" || !strings.Contains(got.body, "idempotency_key_in_progress") {
		t.Errorf("over both gateways: %v", got)
	}
	hold.open()
	if a := <-direct; a.status != 202 {
		t.Errorf("over the inner gateway: %v", a)
	}
	if got := outer.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_outcome_unknown" {
		t.Errorf("again: %v", got)
	}
	p.want(t, 1)
}

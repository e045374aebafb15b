package integration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// raw is an answer as the provider writes it, after which it hangs up.
func raw(status, header, body string) string {
	return "HTTP/1.1 " + status + "\r\n" + header + "\r\n" + body
}

// An acceptance that does not say how long it is ends where the connection
// ends, or where some proxy thought so: JSON tells whether that was its end.
func TestCutAnswer(t *testing.T) {
	t.Parallel()
	const json = "Content-Type: application/json\r\n"
	whole, cut := `{"id":"job_1","status":"queued"}`, `{"id":"job_1","sta`
	chunk := func(body string) string {
		if body == "" {
			return "0\r\n\r\n"
		}
		return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	}
	tests := []struct {
		name, answer string
		status       int
		unknown      bool
	}{
		{"whole, up to the end of the connection", raw("202 Accepted", json+"Connection: close\r\n", whole), 202, false},
		{"whole, HTTP/1.0", strings.Replace(raw("202 Accepted", json, whole), "HTTP/1.1", "HTTP/1.0", 1), 202, false},
		{"whole, chunked", raw("202 Accepted", json+"Transfer-Encoding: chunked\r\n", chunk(whole)), 202, false},
		{"no content", raw("204 No Content", json, ""), 204, false},
		{"text", raw("202 Accepted", "Content-Type: text/plain\r\nConnection: close\r\n", cut), 202, false},
		{"declared", raw("202 Accepted", json+fmt.Sprintf("Content-Length: %d\r\n", len(cut)), cut), 202, false},
		{"declared, empty", raw("202 Accepted", json+"Content-Length: 0\r\n", ""), 202, false},
		{"a refusal", raw("429 Slow Down", json+"Connection: close\r\n", cut), 429, false},

		{"cut", raw("202 Accepted", json+"Connection: close\r\n", cut), 502, true},
		{"cut, HTTP/1.0", strings.Replace(raw("202 Accepted", json, cut), "HTTP/1.1", "HTTP/1.0", 1), 502, true},
		{"cut, chunked", raw("202 Accepted", json+"Transfer-Encoding: chunked\r\n", chunk(cut)), 502, true},
		{"cut, a type of its own", raw("200 OK", "Content-Type: application/vnd.api+json; charset=utf-8\r\nConnection: close\r\n", cut), 502, true},
		{"empty", raw("202 Accepted", json+"Connection: close\r\n", ""), 502, true},
		{"empty, chunked", raw("202 Accepted", json+"Transfer-Encoding: chunked\r\n", chunk("")), 502, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := startProvider(t, hangUp(test.answer, false))
			g := startGateway(t, p.url, options{})
			first := g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			if first.status != test.status || (first.code() == "idempotency_outcome_unknown") != test.unknown {
				t.Errorf("the first caller got %v, want %d and unknown: %t", first, test.status, test.unknown)
			}
			again := g.send(t, request{key: "k", body: "x"})
			switch {
			case test.unknown:
				p.want(t, 1)
				if again.code() != "idempotency_outcome_unknown" {
					t.Errorf("again: %v", again)
				}
			case test.status == 429:
				p.want(t, 2)
			default:
				p.want(t, 1)
				if !again.replayed() || again.body != first.body {
					t.Errorf("again: %v", again)
				}
			}
		})
	}
}

// What accept_if cannot decide is unknown.
func TestAcceptIfUndecided(t *testing.T) {
	t.Parallel()
	tests := []struct {
		option, answer, outcome string
	}{
		{"accept_if /code 0", `[]`, "unknown"},
		{"accept_if /code 0", `"maintenance"`, "unknown"},
		{"accept_if /code 0", `{"code":0,"code":1}`, "unknown"},
		{"accept_if /code 0", `{"code":1,"code":0}`, "unknown"},
		{"accept_if /base/code 0", `{"base":{"code":1},"base":{"code":0}}`, "unknown"},
		{"accept_if /data/id", `{"data":{"id":"job_1"}}`, "accepted"},
		{"accept_if /data/id", `{"data":{"id":null}}`, "refused"},
		{"accept_if /data/id", `{"data":{}}`, "refused"},
		{"accept_if /data/id", `{"data":{"id":1,"id":2}}`, "unknown"},
		{`accept_if /error ""`, `{"error":""}`, "accepted"},
		{`accept_if /error ""`, `{"error":"no credit"}`, "refused"},
	}
	for i, test := range tests {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			p := startProvider(t, answerWith(200, map[string]string{"Content-Type": "application/json"}, test.answer))
			g := startGateway(t, p.url, options{idempotency: test.option})
			first := g.send(t, request{key: "k", body: "x"})
			p.want(t, 1)
			t.Logf("%s and %s", test.option, test.answer)
			if first.status != 200 || first.body != test.answer || (first.code() != "") != (test.outcome == "unknown") {
				t.Errorf("the first caller got %v", first)
			}
			again := g.send(t, request{key: "k", body: "x"})
			if test.outcome == "refused" {
				p.want(t, 2)
				return
			}
			p.want(t, 1)
			if again.replayed() != (test.outcome == "accepted") {
				t.Errorf("again: %v", again)
			}
		})
	}
}

package integration

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// stuckCaller sends a request and reads nothing of its answer.
func stuckCaller(t testing.TB, g *gateway, key string) net.Conn {
	t.Helper()
	conn := dial(t, g)
	_ = conn.(*net.TCPConn).SetReadBuffer(256 << 10)
	if _, err := io.WriteString(conn, "POST /v1/videos HTTP/1.1\r\nHost: "+g.host()+"\r\nAuthorization: Bearer caller\r\n"+
		"Content-Type: application/json\r\nIdempotency-Key: "+key+"\r\nContent-Length: 1\r\n\r\nx"); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A caller who does not read its answer does not hold the attempt: the outcome
// is decided when the provider's answer has come to its end.
func TestStuckCaller(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	large := strings.Repeat("0123456789abcdef", size/16)
	for _, test := range []struct {
		name   string
		status int
		header map[string]string
		code   string // what a repeat gets; empty if it submits
	}{
		{"refusal", 429, nil, ""},
		{"refusal of a declared length", 429, map[string]string{"Content-Length": strconv.Itoa(size)}, ""},
		{"unknown outcome", 500, nil, "idempotency_outcome_unknown"},
		{"acceptance", 202, nil, "idempotency_result_unavailable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := startProvider(t, answerWith(test.status, test.header, large))
			g := startGateway(t, p.url, options{})
			conn := stuckCaller(t, g, "k")
			p.awaitSubmits(t, 1)
			p.now(nil)
			var again answer
			await(t, "the outcome", func() bool {
				again = g.send(t, request{key: "k", body: "x"})
				return again.code() != "idempotency_key_in_progress"
			})
			if test.code == "" {
				p.want(t, 2)
				if again.status != 202 {
					t.Errorf("again: %v", again)
				}
			} else {
				p.want(t, 1)
			}
			if again.code() != test.code {
				t.Errorf("again: %v", again)
			}
			// When it reads at last, it gets all of it.
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if body, err := io.ReadAll(res.Body); err != nil || string(body) != large || res.StatusCode != test.status {
				t.Errorf("the stuck caller got %d with %d bytes, %v", res.StatusCode, len(body), err)
			}
		})
	}
}

// A refusal that has no end is no refusal, and takes no more than its share of the
// disk.
func TestEndlessRefusal(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	p.now(func(w http.ResponseWriter, r *http.Request, _ int, _ func() string) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.Copy(w, zeros{})
	})
	g := startGateway(t, p.url, options{})
	got := g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
		t.Errorf("got %v", got)
	}
	p.now(nil)
	if got := g.send(t, request{key: "k", body: "x"}); got.code() != "idempotency_outcome_unknown" {
		t.Errorf("again: %v", got)
	}
	p.want(t, 1)
}

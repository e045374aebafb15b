package integration

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// clientThatWritesFirst sends a request and begins to read when all of it is
// written, as many clients do.
func clientThatWritesFirst(t testing.TB, g *gateway, head string, body io.Reader) answer {
	t.Helper()
	conn := dial(t, g)
	if _, err := io.WriteString(conn, head); err != nil {
		return answer{err: err}
	}
	if _, err := io.Copy(struct{ io.Writer }{conn}, body); err != nil {
		return answer{err: fmt.Errorf("write the body: %w", err)}
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(data), err}
}

// chunked frames a body of so many bytes.
func chunked(size int) io.Reader {
	const chunk = 1 << 16
	return io.MultiReader(
		strings.NewReader(strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", chunk, strings.Repeat("x", chunk)), size/chunk)),
		strings.NewReader("0\r\n\r\n"))
}

// What is refused before its body was read can be read by a client that writes
// the whole body first. It would take a broken connection for a failure of the
// network, and upload everything again.
func TestRefusedUploadIsAnswered(t *testing.T) {
	t.Parallel()
	const size = 80 << 20
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "max_request_body 1MiB"})
	misconfigured := startGateway(t, p.url, options{idempotency: "scope {http.auth.user.idd}"})
	declared := "Content-Length: " + strconv.Itoa(size) + "\r\n\r\n"
	for _, test := range []struct {
		name    string
		gateway *gateway
		key     string
		framing string
		status  int
		code    string
	}{
		{"too large, declared", g, "k", declared, 413, "request_body_too_large"},
		{"too large, chunked", g, "k", "Transfer-Encoding: chunked\r\n\r\n", 413, "request_body_too_large"},
		{"invalid key", g, "k k", declared, 400, "idempotency_key_invalid"},
		{"invalid key, chunked", g, "k k", "Transfer-Encoding: chunked\r\n\r\n", 400, "idempotency_key_invalid"},
		{"no scope", misconfigured, "k", declared, 500, "idempotency_scope_unstable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			body := io.LimitReader(zeros{}, size)
			if strings.Contains(test.framing, "chunked") {
				body = chunked(size)
			}
			got := clientThatWritesFirst(t, test.gateway, "POST /v1/videos HTTP/1.1\r\nHost: "+test.gateway.host()+
				"\r\nIdempotency-Key: "+test.key+"\r\n"+test.framing, body)
			p.want(t, 0)
			if got.err != nil || got.status != test.status || got.code() != test.code {
				t.Errorf("got %v, want %d %s", got, test.status, test.code)
			}
		})
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A client that reads while it writes gets the answer at once, however much it
// has announced.
func TestRefusedUploadIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "max_request_body 1MiB"})
	for name, head := range map[string]string{
		"too large":                             "Idempotency-Key: k\r\nContent-Length: 999999999999\r\n\r\n",
		"too large, waiting for 100 Continue":   "Idempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: 999999999999\r\n\r\n",
		"invalid key":                           "Idempotency-Key: k k\r\nContent-Length: 999999999999\r\n\r\n",
		"invalid key, waiting for 100 Continue": "Idempotency-Key: k k\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n",
	} {
		got := rawRequest(t, g, "POST /v1/videos HTTP/1.1\r\nHost: "+g.host()+"\r\n"+head)
		p.want(t, 0)
		if got.err != nil || got.status != 413 && got.status != 400 {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// Node's fetch and its http module, on which axios and the SDKs stand.
func TestNodeReadsRefusedUpload(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "max_request_body 1MiB"})
	const script = `
const [url, how] = process.argv.slice(1);
const body = Buffer.alloc(80 << 20);
const headers = { "Idempotency-Key": "k", "Content-Type": "application/octet-stream" };
const say = (status, text) => console.log(status, JSON.parse(text).error.code);
const fail = (e) => { console.log("failed", e.cause?.code ?? e.code ?? e.message); process.exit(0); };
if (how === "fetch") {
  fetch(url, { method: "POST", headers, body }).then(async (r) => say(r.status, await r.text())).catch(fail);
} else if (how === "stream") {
  const stream = new Blob([body]).stream();
  fetch(url, { method: "POST", headers, body: stream, duplex: "half" }).then(async (r) => say(r.status, await r.text())).catch(fail);
} else {
  const r = require("http").request(url, { method: "POST", headers: { ...headers, "Content-Length": body.length } }, (res) => {
    let text = "";
    res.on("data", (d) => text += d).on("end", () => say(res.statusCode, text)).on("error", fail);
  });
  r.on("error", fail).end(body);
}
`
	for _, how := range []string{"fetch", "stream", "http"} {
		for range 3 {
			output, err := exec.Command(node, "-e", script, g.url+"/v1/videos", how).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v: %s", how, err, output)
			}
			p.want(t, 0)
			if got := strings.TrimSpace(string(output)); got != "413 request_body_too_large" {
				t.Errorf("%s got %s", how, got)
			}
		}
	}
}

// Who announces a body and sends nothing more does not hold the gateway.
func TestRefusedUploadEnds(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "max_request_body 1MiB"})
	conn := dial(t, g)
	if _, err := io.WriteString(conn, "POST /v1/videos HTTP/1.1\r\nHost: "+g.host()+"\r\nIdempotency-Key: k\r\nContent-Length: 999999999999\r\n\r\nx"); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn) // until the gateway ends the connection
	p.want(t, 0)
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 413 ") {
		t.Errorf("got %q, %v", text, err)
	}
	g.awaitLog(t, `"idempotency_outcome":"too_large"`)
}

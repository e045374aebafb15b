package fingerprint_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

// request is what a fingerprint is taken of.
type request struct {
	method, url string
	header      http.Header
	body        string
}

func (r request) fingerprint(t testing.TB) fingerprint.Digest {
	t.Helper()
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	return sum(t, fingerprint.Config{}, r.method, u, r.header, strings.NewReader(r.body))
}

// sum returns the fingerprint of a request.
func sum(t testing.TB, config fingerprint.Config, method string, u *url.URL, header http.Header, r io.Reader) fingerprint.Digest {
	t.Helper()
	f, err := fingerprint.New(config)
	if err != nil {
		t.Fatal(err)
	}
	pending := f.Start(method, u, header)
	body, err := fingerprint.ReadBody(r, -1, 1<<30, plenty(), pending)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	fp, err := pending.SumBody(body)
	if err != nil {
		t.Fatal(err)
	}
	return fp
}

// pieces is a reader that gives one piece at a time.
func pieces(p ...[]byte) io.Reader {
	var readers []io.Reader
	for _, piece := range p {
		readers = append(readers, bytes.NewReader(piece))
	}
	return io.MultiReader(readers...)
}

func TestFingerprintsDiffer(t *testing.T) {
	header := func(fields ...string) http.Header {
		h := make(http.Header)
		for i := 0; i < len(fields); i += 2 {
			h.Add(fields[i], fields[i+1])
		}
		return h
	}
	text := header("Content-Type", "text/plain")
	all := map[string]request{
		"plain":               {"POST", "/v1/jobs?a=1", text, "body"},
		"method":              {"PUT", "/v1/jobs?a=1", text, "body"},
		"method's case":       {"Post", "/v1/jobs?a=1", text, "body"},
		"path":                {"POST", "/v1/job?a=1", text, "body"},
		"path's case":         {"POST", "/v1/Jobs?a=1", text, "body"},
		"trailing slash":      {"POST", "/v1/jobs/?a=1", text, "body"},
		"escaped slash":       {"POST", "/v1%2Fjobs?a=1", text, "body"},
		"query":               {"POST", "/v1/jobs?a=2", text, "body"},
		"query's order":       {"POST", "/v1/jobs?a=1&b=2", text, "body"},
		"query's other order": {"POST", "/v1/jobs?b=2&a=1", text, "body"},
		"no query":            {"POST", "/v1/jobs", text, "body"},
		"query in path":       {"POST", "/v1/jobs%3Fa=1", text, "body"},
		"media type":          {"POST", "/v1/jobs?a=1", header("Content-Type", "text/html"), "body"},
		"no media type":       {"POST", "/v1/jobs?a=1", nil, "body"},
		"unparsable type":     {"POST", "/v1/jobs?a=1", header("Content-Type", "text/"), "body"},
		"content encoding":    {"POST", "/v1/jobs?a=1", header("Content-Type", "text/plain", "Content-Encoding", "gzip"), "body"},
		"other encoding":      {"POST", "/v1/jobs?a=1", header("Content-Type", "text/plain", "Content-Encoding", "br"), "body"},
		"type as encoding":    {"POST", "/v1/jobs?a=1", header("Content-Encoding", "text/plain"), "body"},
		"body":                {"POST", "/v1/jobs?a=1", text, "bodY"},
		"longer body":         {"POST", "/v1/jobs?a=1", text, "body\x00"},
		"no body":             {"POST", "/v1/jobs?a=1", text, ""},
		"seed":                {"POST", "/v1/jobs?a=1", header("Content-Type", "application/json"), `{"seed":9007199254740993}`},
		"other seed":          {"POST", "/v1/jobs?a=1", header("Content-Type", "application/json"), `{"seed":9007199254740992}`},
	}
	seen := make(map[fingerprint.Digest]string)
	for name, r := range all {
		fp := r.fingerprint(t)
		if other, taken := seen[fp]; taken {
			t.Errorf("%q and %q have one fingerprint", name, other)
		}
		seen[fp] = name
		if fp != r.fingerprint(t) {
			t.Errorf("%q: two fingerprints of one request", name)
		}
	}
}

func TestFingerprintsAgree(t *testing.T) {
	first := request{"POST", "/v1/jobs?a=1", http.Header{"Content-Type": {"text/plain"}}, "body"}
	with := func(fields ...string) request {
		r := first
		r.header = r.header.Clone()
		for i := 0; i < len(fields); i += 2 {
			r.header.Set(fields[i], fields[i+1])
		}
		return r
	}
	tests := []struct {
		name  string
		again request
	}{
		{"media type in other case", with("Content-Type", "Text/Plain")},
		{"media type parameter", with("Content-Type", "text/plain; charset=utf-8")},
		{"other parameter", with("Content-Type", `text/plain;x="a;b"`)},
		{"broken parameter", with("Content-Type", "text/plain; charset")},
		{"repeated parameter", with("Content-Type", "text/plain; a=1; a=2")},
		{"space around", with("Content-Type", " text/plain ; a=1")},
		{"host", request{"POST", "https://gateway.internal/v1/jobs?a=1", first.header, "body"}},
		{"fragment", request{"POST", "/v1/jobs?a=1#x", first.header, "body"}},
		{"retry counter", with("X-Stainless-Retry-Count", "1")},
		{"trace", with("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
		{"client", with("User-Agent", "curl/8", "Accept", "*/*", "Accept-Encoding", "gzip")},
		{"length", with("Content-Length", "4", "Transfer-Encoding", "chunked")},
		{"key and scope", with("Idempotency-Key", "k", "Authorization", "Bearer t", "X-Api-Key", "k")},
	}
	want := first.fingerprint(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.again.fingerprint(t) != want {
				t.Error("the repeat has another fingerprint")
			}
		})
	}

	t.Run("content encoding in other case", func(t *testing.T) {
		if with("Content-Encoding", "gzip").fingerprint(t) != with("Content-Encoding", "GZIP").fingerprint(t) {
			t.Error("the repeat has another fingerprint")
		}
	})
}

// The body counts to its last byte, whatever its size and however it comes.
func TestFingerprintOfLargeBody(t *testing.T) {
	for _, contentType := range []string{"application/octet-stream", "application/json", ""} {
		t.Run(contentType, func(t *testing.T) {
			header := http.Header{"Content-Type": {contentType}}
			body := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
			of := func(r io.Reader) fingerprint.Digest {
				return sum(t, fingerprint.Config{}, "POST", &url.URL{Path: "/v1/jobs"}, header, r)
			}
			want := of(bytes.NewReader(body))
			for _, size := range []int{1, 7, 4096, 1<<20 + 1} {
				var split [][]byte
				rest := body
				for n := 0; len(rest) > 0; n++ {
					// One by one for a start is enough to see a border that counts.
					step := min(size, len(rest))
					if size == 1 && n > 1000 {
						step = len(rest)
					}
					split = append(split, rest[:step])
					rest = rest[step:]
				}
				if of(pieces(split...)) != want {
					t.Errorf("written in pieces of %d bytes the body has another fingerprint", size)
				}
			}
			body[len(body)-1] ^= 1
			if of(bytes.NewReader(body)) == want {
				t.Error("the last byte does not count")
			}
		})
	}
}

func FuzzFingerprinter(f *testing.F) {
	f.Add("application/json", []byte(`{"a":1}`), uint(3))
	f.Add("text/plain; charset=utf-8", []byte("text"), uint(0))
	f.Add(`a/b; x="`, []byte{}, uint(9))
	f.Add("; charset=x", []byte{0}, uint(1))
	f.Add("text/plain, text/html", []byte("\xff"), uint(1))
	f.Fuzz(func(t *testing.T, contentType string, body []byte, split uint) {
		sum := func(contentType string, chunks ...[]byte) fingerprint.Digest {
			return sum(t, fingerprint.Config{}, "POST", &url.URL{Path: "/"}, http.Header{"Content-Type": {contentType}}, pieces(chunks...))
		}
		whole := sum(contentType, body)
		at := min(split, uint(len(body)))
		if sum(contentType, body[:at], body[at:]) != whole {
			t.Errorf("a body in two pieces, cut at %d, has another fingerprint", at)
		}
		if sum(contentType, append(bytes.Clone(body), 'x')) == whole && !bytes.HasSuffix(body, []byte("x")) {
			t.Error("a byte more does not count")
		}
		// Up to the first semicolon the value decides, and nothing after it. A
		// multipart boundary is needed to tell the parts.
		mediaType, _, _ := strings.Cut(contentType, ";")
		if !strings.Contains(strings.ToLower(mediaType), "multipart") && sum(mediaType+"; a=b", body) != whole {
			t.Errorf("a parameter of %q counts", contentType)
		}
		if sum("x"+contentType, body) == whole {
			t.Errorf("the media type in %q does not count", contentType)
		}
	})
}

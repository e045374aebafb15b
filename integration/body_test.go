package integration

import (
	"net/http"
	"strings"
	"testing"
)

// D5, second half, and D6, for each way in which a body is compared.
func TestBodies(t *testing.T) {
	t.Parallel()
	for contentType, body := range map[string]func(last string) string{
		"application/octet-stream":          func(last string) string { return strings.Repeat("0123456789abcdef", 8<<20/16) + last },
		"application/json":                  func(last string) string { return `{"a":"` + strings.Repeat("0123456789abcdef", 8<<20/16) + last + `"}` },
		"application/vnd.a+json":            func(last string) string { return strings.Repeat("0123456789abcdef", 8<<20/16) + last }, // which is no JSON
		"multipart/form-data; boundary=one": func(last string) string { return videoForm("one", strings.Repeat("x", 8<<20)+last) },
	} {
		t.Run(contentType, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{})
			with := func(key, body string) request {
				return request{key: key, body: body, header: http.Header{"Content-Type": {contentType}}}
			}
			inChunks := func(r request) request { r.chunked = true; return r }

			large := body("x")
			first := g.send(t, with("large", large))
			p.want(t, 1)
			if first.status != 202 || p.submit(0).body != large {
				t.Fatalf("a body of 8 MiB: %v, %d bytes at the provider", first, len(p.submit(0).body))
			}
			if got := g.send(t, inChunks(with("large", large))); got.body != first.body || !got.replayed() {
				t.Errorf("the same body in chunks: %v", got)
			}
			if got := g.send(t, with("large", body("y"))); got.code() != "idempotency_key_reuse" {
				t.Errorf("another last byte: %v", got)
			}
			p.want(t, 1)

			chunked := g.send(t, inChunks(with("chunked", "{}")))
			p.want(t, 2)
			if got := g.send(t, with("chunked", "{}")); got.body != chunked.body || !got.replayed() {
				t.Errorf("the same body with a length: %v", got)
			}
			if p.submit(1).header.Get("Content-Length") != "2" {
				t.Errorf("a chunked body of known length went out with header %v", p.submit(1).header)
			}
			p.want(t, 2)
		})
	}
}

func videoForm(boundary, video string) string {
	return strings.ReplaceAll("--BOUNDARY\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na lighthouse\r\n"+
		"--BOUNDARY\r\nContent-Disposition: form-data; name=\"video\"; filename=\"a.mp4\"\r\nContent-Type: video/mp4\r\n\r\n"+
		video+"\r\n--BOUNDARY--\r\n", "BOUNDARY", boundary)
}

// What is a repeat of a request, and what is another: D3, D4, D5, and the
// options that say so.
func TestRepeatOrReuse(t *testing.T) {
	t.Parallel()
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333"
	try := func(contentType, body, n string) request {
		return request{key: "k", body: body, header: http.Header{
			"Content-Type": {contentType}, "X-Stainless-Retry-Count": {n}, "Traceparent": {trace + n + "-01"},
		}}
	}
	first := func(body string) request { return try("application/json", body, "0") }
	second := func(body string) request { return try("application/json", body, "1") }
	form := func(boundary, video, n string) request {
		return try("multipart/form-data; boundary="+boundary, videoForm(boundary, video), n)
	}
	named := func(r request, value string) request { r.header.Set("X-Model-Version", value); return r }
	for _, test := range []struct {
		name          string
		options       string
		first, second request
		repeat        bool
	}{
		{"D3: another boundary, counter and trace", "", form("one", "video", "0"), form("two", "video", "1"), true},
		{"D3: another file", "", form("one", "video", "0"), form("two", "vide0", "1"), false},
		{"D4: other order, white space and escapes", "", first(`{"prompt":"caf\u00e9","seconds":8}`), second("{\n\t\"seconds\": 8,\n\t\"prompt\": \"café\"\n}\n"), true},
		{"D5: a 64-bit integer", "", first(`{"seed":9007199254740993}`), second(`{"seed":9007199254740992}`), false},
		{"a number written in another way", "", first(`{"seconds":8}`), second(`{"seconds":8.0}`), false},
		{"a member twice", "", first(`{"seconds":8,"seconds":9}`), second(`{"seconds":9,"seconds":8}`), false},
		{"no JSON", "", first(`{"seconds":8,}`), second(`{ "seconds":8,}`), false},
		{"order, compared by bytes", "fingerprint raw", first(`{"a":1,"b":2}`), second(`{"b":2,"a":1}`), false},
		{"boundary, compared by bytes", "fingerprint raw", form("one", "video", "0"), form("two", "video", "1"), false},
		{"the same, compared by bytes", "fingerprint raw", first(`{"a":1,"b":2}`), second(`{"a":1,"b":2}`), true},
		{"a trace id in the body", "fingerprint_ignore /metadata/trace /webhook_url", first(`{"a":1,"metadata":{"trace":1}}`), second(`{"webhook_url":"b","metadata":{"trace":2},"a":1}`), true},
		{"what is beside it", "fingerprint_ignore /metadata/trace", first(`{"a":1,"metadata":{"trace":1}}`), second(`{"a":2,"metadata":{"trace":1}}`), false},
		{"a field that counts", "fingerprint_header x-model-version", named(first(`{}`), "1"), named(second(`{}`), "2"), false},
		{"a field that counts, the same", "fingerprint_header x-model-version", named(first(`{}`), "1"), named(second(`{}`), "1"), true},
		{"a field that does not count", "", named(first(`{}`), "1"), named(second(`{}`), "2"), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{idempotency: test.options})
			a, b := g.send(t, test.first), g.send(t, test.second)
			p.want(t, 1)
			if a.status != 202 {
				t.Fatalf("the first got %v", a)
			}
			if p.submit(0).body != test.first.body {
				t.Error("the provider got another body than was sent")
			}
			if repeat := b.status == 202 && b.replayed() && b.body == a.body; repeat != test.repeat {
				t.Errorf("the second got %v, want a replay: %t", b, test.repeat)
			}
			if !test.repeat && b.code() != "idempotency_key_reuse" {
				t.Errorf("the second got %v", b)
			}
		})
	}
}

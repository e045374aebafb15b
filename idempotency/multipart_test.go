package idempotency_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

func sumBody(t testing.TB, contentType, body string) idempotency.Fingerprint {
	t.Helper()
	f := idempotency.NewFingerprinter("POST", &url.URL{Path: "/v1/videos"}, http.Header{"Content-Type": {contentType}})
	b, err := idempotency.ReadBody(strings.NewReader(body), -1, 1<<30, plenty(), f)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	return f.SumBody(b)
}

// part is one part of a form: its header as lines, and its content.
type part struct{ header, content string }

func form(boundary string, parts ...part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("--" + boundary + "\r\n" + p.header + "\r\n\r\n" + p.content + "\r\n")
	}
	b.WriteString("--" + boundary + "--\r\n")
	return b.String()
}

func TestMultipartFingerprint(t *testing.T) {
	prompt := part{`Content-Disposition: form-data; name="prompt"`, "a lighthouse"}
	image := part{"Content-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\nContent-Type: image/png", "\x89PNG\r\n\r\n--X\xff"}
	sum := func(boundary string, parts ...part) idempotency.Fingerprint {
		return sumBody(t, "multipart/form-data; boundary="+boundary, form(boundary, parts...))
	}
	want := sum("one", prompt, image)

	if sum("two", prompt, image) != want {
		t.Error("another boundary is another request")
	}
	for name, header := range map[string]string{
		"order of parameters": `Content-Disposition: form-data; filename="a.png"; name="image"` + "\r\nContent-Type: image/png",
		"quotes":              `Content-Disposition: form-data; name=image; filename=a.png` + "\r\nContent-Type: image/png",
		"order of fields":     "content-type: image/png\r\n" + `Content-Disposition: form-data; name="image"; filename="a.png"`,
	} {
		if sum("one", prompt, part{header, image.content}) != want {
			t.Errorf("%s is another request", name)
		}
	}

	seen := map[idempotency.Fingerprint]string{want: "the form"}
	for name, got := range map[string]idempotency.Fingerprint{
		"content":            sum("one", part{prompt.header, "a lighthousE"}, image),
		"content longer":     sum("one", part{prompt.header, "a lighthouse\r\n"}, image),
		"last byte":          sum("one", prompt, part{image.header, image.content[:len(image.content)-1] + "\xfe"}),
		"name":               sum("one", part{`Content-Disposition: form-data; name="Prompt"`, prompt.content}, image),
		"file name":          sum("one", prompt, part{strings.Replace(image.header, "a.png", "b.png", 1), image.content}),
		"part type":          sum("one", prompt, part{strings.Replace(image.header, "image/png", "image/gif", 1), image.content}),
		"another field":      sum("one", prompt, part{image.header + "\r\nContent-Transfer-Encoding: base64", image.content}),
		"order of parts":     sum("one", image, prompt),
		"a part twice":       sum("one", prompt, prompt, image),
		"a part less":        sum("one", prompt),
		"no part":            sum("one"),
		"an empty part":      sum("one", prompt, image, part{`Content-Disposition: form-data; name="x"`, ""}),
		"parts run together": sum("one", part{prompt.header, prompt.content + image.content}, part{image.header, ""}),
		"as text":            sumBody(t, "text/plain", form("one", prompt, image)),
	} {
		if other, there := seen[got]; there {
			t.Errorf("%s gives the fingerprint of %s", name, other)
		}
		seen[got] = name
	}

	// What cannot be parsed to its end counts by its bytes.
	whole := form("one", prompt, image)
	cut := whole[:len(whole)-4]
	contentType := "multipart/form-data; boundary=one"
	if sumBody(t, contentType, cut) == want || sumBody(t, contentType, cut) == sumBody(t, contentType, cut[:len(cut)-1]) {
		t.Error("a form that is cut off counts like another")
	}
	if sumBody(t, contentType, form("two", prompt)) == sumBody(t, contentType, form("two", image)) {
		t.Error("forms with a boundary that was not announced count alike")
	}
	if sumBody(t, "multipart/form-data", whole) == sumBody(t, "multipart/form-data", form("two", prompt, image)) {
		t.Error("without an announced boundary, the boundary does not count")
	}
	mixed := "multipart/mixed; boundary="
	if sumBody(t, mixed+"one", whole) == sumBody(t, mixed+"two", form("two", prompt, image)) {
		t.Error("multipart/mixed is compared by its parts")
	}
}

// Two boundaries give one fingerprint, and a changed byte gives another.
func FuzzMultipartFingerprint(f *testing.F) {
	f.Add("name", "file", "text/plain", []byte("content"), []byte("more"))
	f.Add("", "", "", []byte{}, []byte("\r\n--b--\r\n"))
	f.Add("\"q\\", "ü", "a/b; c=d", []byte("--one"), []byte("\x00"))
	f.Fuzz(func(t *testing.T, name, filename, contentType string, first, second []byte) {
		encode := func(boundary string, contents ...[]byte) (string, bool) {
			var b bytes.Buffer
			w := multipart.NewWriter(&b)
			if err := w.SetBoundary(boundary); err != nil {
				t.Fatal(err)
			}
			for _, content := range contents {
				if bytes.Contains(content, []byte(boundary)) || strings.ContainsAny(contentType, "\r\n") {
					return "", false // no client draws a boundary that is in the content
				}
				header := textproto.MIMEHeader{"Content-Type": {contentType}}
				header.Set("Content-Disposition", multipart.FileContentDisposition(name, filename))
				p, err := w.CreatePart(header)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = p.Write(content)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			return b.String(), true
		}
		const one, two = "boundary-one-1f9a", "boundary-two-77c0"
		sum := func(boundary, body string) idempotency.Fingerprint {
			return sumBody(t, "multipart/form-data; boundary="+boundary, body)
		}
		a, okA := encode(one, first, second)
		b, okB := encode(two, first, second)
		c, okC := encode(one, first, append(bytes.Clone(second), 'x'))
		if !okA || !okB || !okC || !parses(a, one) || !parses(b, two) {
			return
		}
		if sum(one, a) != sum(two, b) {
			t.Error("the boundary counts")
		}
		if sum(one, a) == sum(one, c) {
			t.Error("a byte more does not count")
		}
	})
}

func parses(body, boundary string) bool {
	r := multipart.NewReader(strings.NewReader(body), boundary)
	for {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return true
		}
		if err != nil {
			return false
		}
		if _, err := io.Copy(io.Discard, p); err != nil {
			return false
		}
	}
}

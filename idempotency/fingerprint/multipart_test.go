package fingerprint_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

func sumBody(t testing.TB, contentType, body string) fingerprint.Digest {
	t.Helper()
	return sum(t, fingerprint.Config{}, "POST", &url.URL{Path: "/v1/videos"}, http.Header{"Content-Type": {contentType}}, strings.NewReader(body))
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
	sum := func(boundary string, parts ...part) fingerprint.Digest {
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

	seen := map[fingerprint.Digest]string{want: "the form"}
	for name, got := range map[string]fingerprint.Digest{
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
		sum := func(boundary, body string) fingerprint.Digest {
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

// What two parsers might divide in two ways counts by its bytes.
func TestAmbiguousForms(t *testing.T) {
	p := part{`Content-Disposition: form-data; name="a"`, "content"}
	long := strings.Repeat("x", fingerprint.MaxPartHeader)
	for _, test := range []struct {
		name     string
		body     func(boundary string) string
		byParts  bool
		boundary string // default: b
	}{
		{name: "as SDKs write it", byParts: true, body: func(b string) string { return form(b, p, p) }},
		{name: "no line end at the end", byParts: true, body: func(b string) string { return strings.TrimSuffix(form(b, p), "\r\n") }},
		{name: "no part", byParts: true, body: func(b string) string { return form(b) }},
		{name: "an empty part", byParts: true, body: func(b string) string { return form(b, part{p.header, ""}) }},
		{name: "no header", byParts: true, body: func(b string) string { return "--" + b + "\r\n\r\ncontent\r\n--" + b + "--" }},
		{name: "the longest header", byParts: true, body: func(b string) string { return form(b, part{"A: " + long[:len(long)-5], ""}) }},
		{name: "the longest boundary", byParts: true, body: func(b string) string { return form(b, p) }, boundary: strings.Repeat("b", 70)},
		{name: "a longer boundary", body: func(b string) string { return form(b, p) }, boundary: strings.Repeat("b", 71)},
		{name: "a header that is too long", body: func(b string) string { return form(b, part{"A: " + long, ""}) }},
		{name: "a header of 1 MiB", body: func(b string) string { return form(b, part{"A: " + strings.Repeat(long, 64), ""}) }},
		{name: "a header of 16 MiB", body: func(b string) string { return form(b, part{"A: " + strings.Repeat(long, 1024), ""}) }},
		{name: "a header without end", body: func(b string) string { return "--" + b + "\r\n" + p.header + "\r\n--" + b + "--\r\n" }},
		{name: "text before", body: func(b string) string { return "text\r\n" + form(b, p) }},
		{name: "a line end before", body: func(b string) string { return "\r\n" + form(b, p) }},
		{name: "text behind", body: func(b string) string { return form(b, p) + "text" }},
		{name: "a form behind", body: func(b string) string { return form(b, p) + form(b, p) }},
		{name: "no end", body: func(b string) string { return strings.TrimSuffix(form(b, p), "--\r\n") }},
		{name: "no end, long", body: func(b string) string {
			return "--" + b + "\r\n" + p.header + "\r\n\r\n" + strings.Repeat(long, 128)
		}},
		{name: "half an end", body: func(b string) string { return strings.TrimSuffix(form(b, p), "-\r\n") }},
		{name: "bare line feeds", body: func(b string) string { return strings.ReplaceAll(form(b, p), "\r", "") }},
		{name: "a bare line feed before a delimiter", body: func(b string) string { return form(b, part{p.header, "a\n--" + b + "\r\nA: b\r\n\r\nx"}) }},
		{name: "a bare line feed in a header", body: func(b string) string { return form(b, part{p.header + "\nA: b", "x"}) }},
		{name: "a line that starts like a delimiter", body: func(b string) string { return form(b, part{p.header, "a\r\n--" + b + "x"}) }},
		{name: "the delimiter in a line", body: func(b string) string { return form(b, part{p.header, "a--" + b + "\r\nA: b\r\n\r\nx"}) }},
		{name: "the delimiter in a header", body: func(b string) string { return form(b, part{p.header + "\r\nA: --" + b, "x"}) }},
		{name: "white space behind a delimiter", body: func(b string) string {
			return strings.Replace(form(b, p), "--"+b+"\r\n", "--"+b+" \r\n", 1)
		}},
		{name: "a folded field", body: func(b string) string { return form(b, part{p.header + ";\r\n filename=a", "x"}) }},
		{name: "a line without a colon", body: func(b string) string { return form(b, part{p.header + "\r\nA", "x"}) }},
		{name: "a space before a colon", body: func(b string) string { return form(b, part{p.header + "\r\nA : b", "x"}) }},
		{name: "another boundary than announced", body: func(b string) string { return form(b+"x", p) }},
		{name: "empty", body: func(string) string { return "" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			one := test.boundary
			if one == "" {
				one = "b"
			}
			two := strings.ReplaceAll(one, "b", "c")
			a, b := test.body(one), test.body(two)
			typeOne, typeTwo := "multipart/form-data; boundary="+one, "multipart/form-data; boundary="+two
			if a != b {
				if got := sumBody(t, typeOne, a) == sumBody(t, typeTwo, b); got != test.byParts {
					t.Errorf("compared by its parts: %t, want %t", got, test.byParts)
				}
			}
			if quoted := strings.Replace(a, `name="a"`, `name=a`, 1); a != quoted {
				if got := sumBody(t, typeOne, a) == sumBody(t, typeOne, quoted); got != test.byParts {
					t.Errorf("quotes in it count: %t, want %t", !got, !test.byParts)
				}
			}
			if sumBody(t, typeOne, a) == sumBody(t, typeOne, a+" ") {
				t.Error("a byte more does not count")
			}
		})
	}
	const empty = `multipart/form-data; boundary=""`
	if sumBody(t, empty, form("", p)) == sumBody(t, empty, strings.Replace(form("", p), `"a"`, "a", 1)) {
		t.Error("with an empty boundary a form is compared by its parts")
	}
}

// A delimiter may lie anywhere in the window.
func TestFormThroughWindow(t *testing.T) {
	const boundary, window = "boundary", fingerprint.SmallestFormWindow
	for size := window - 120; size < window+20; size++ {
		body := []byte(form(boundary, part{"A: b", strings.Repeat("\r\n-", size/3) + "xxx"[:size%3]}, part{"C: d", "e"}))
		want, ok := fingerprint.DigestForm(body, boundary, 0)
		if got, okMoved := fingerprint.DigestForm(body, boundary, window); !ok || !okMoved || got != want {
			t.Errorf("with %d bytes of content: in memory %t, through a window %t, equal %t", size, ok, okMoved, got == want)
		}
	}
}

// Two forms of dispositions that not all parsers read alike are two.
func TestDispositions(t *testing.T) {
	of := func(disposition string) fingerprint.Digest {
		return sumBody(t, "multipart/form-data; boundary=b", form("b", part{"Content-Disposition: " + disposition, "x"}))
	}
	for _, pair := range [][2]string{
		{`form-data; name=a; filename="x"`, `form-data; name=a; filename*=utf-8''x`},
		{`form-data; name=a; filename="x"`, `form-data; name=a; filename*0="x"`},
		{`form-data; name=a; filename="a\b"`, `form-data; name=a; filename="a\\b"`},
		{`form-data; name="a"; name="b"`, `form-data; name="b"; name="a"`},
		{`form-data; name=a`, `attachment; name=a`},
	} {
		if of(pair[0]) == of(pair[1]) {
			t.Errorf("%s counts as %s", pair[0], pair[1])
		}
	}
}

// partsOf writes down the parts of a form in one way, as mime/multipart reads
// them.
func partsOf(body []byte, boundary string) (string, bool) {
	var b strings.Builder
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		p, err := r.NextRawPart()
		if err == io.EOF { //nolint:errorlint // a wrapped EOF is a body that is cut off
			return b.String(), true
		}
		if err != nil {
			return "", false
		}
		content, err := io.ReadAll(p)
		if err != nil {
			return "", false
		}
		for _, name := range slices.Sorted(maps.Keys(p.Header)) {
			for _, value := range p.Header[name] {
				if name == "Content-Disposition" && !strings.ContainsAny(value, `\*`) {
					if disposition, parameters, err := mime.ParseMediaType(value); err == nil {
						fmt.Fprintf(&b, "%q %q %q\n", name, disposition, parameters) // a map prints in order
						continue
					}
				}
				fmt.Fprintf(&b, "%q raw %q\n", name, value)
			}
		}
		fmt.Fprintf(&b, "content %q\n", content)
	}
}

// Two bodies have one fingerprint only if mime/multipart finds the same parts
// in them; and if they are compared by their parts, always then.
func FuzzFormBytes(f *testing.F) {
	for i, body := range []string{
		form("b", part{`Content-Disposition: form-data; name="a"; filename="b.png"` + "\r\nContent-Type: image/png", "content\r\n"}, part{"A: b", ""}),
		form("b"), form("b", part{"content-disposition: form-data; filename=x; name=a", "--c"}), "--b\r\n\r\n\r\n--b--", "--b\n\n\n--b--\n", "--b--", "",
		form("b", part{`Content-Disposition: form-data; name="a\\"; filename*=utf-8''x`, "--b"}),
	} {
		f.Add([]byte(body), uint64(i))
	}
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		const boundary, contentType = "b", "multipart/form-data; boundary=b"
		r := rand.New(rand.NewPCG(seed, 2))
		other := mutate(r, body)
		for range r.IntN(3) {
			other = mutate(r, other)
		}
		digest, ok := fingerprint.DigestForm(body, boundary, 0)
		if moved, okMoved := fingerprint.DigestForm(body, boundary, fingerprint.SmallestFormWindow); moved != digest || okMoved != ok {
			t.Error("through a window it counts as another form")
		}
		parts, parsed := partsOf(body, boundary)
		if ok && !parsed && !bytes.ContainsAny(body, "\x00\x7f") {
			t.Errorf("compared by parts that mime/multipart does not find: %q", body)
		}
		_, okOther := fingerprint.DigestForm(other, boundary, 0)
		partsOther, parsedOther := partsOf(other, boundary)
		same := sumBody(t, contentType, string(body)) == sumBody(t, contentType, string(other))
		want := bytes.Equal(body, other) || ok && okOther && parsed && parsedOther && parts == partsOther
		if same != want && (want || parsed && parsedOther) {
			t.Errorf("one fingerprint: %t, want %t: %q and %q", same, want, body, other)
		}
	})
}

package fingerprint_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

// timeline is a render of many short clips: JSON with many small members, in
// the order in which an application has them.
func timeline(size int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields(`a lighthouse at dawn, seen "from the sea" while the camera moves slowly towards Übersee — and 灯台`)
	var b bytes.Buffer
	b.WriteString(`{"model":"video-1","size":"1920x1080","clips":[`)
	for n := 0; b.Len() < size-1000; n++ {
		if n > 0 {
			b.WriteByte(',')
		}
		var prompt []string
		for range 5 + r.IntN(40) {
			prompt = append(prompt, words[r.IntN(len(words))])
		}
		text, _ := json.Marshal(strings.Join(prompt, " "))
		fmt.Fprintf(&b, `{"prompt":%s,"seed":%d,"start":%.3f,"duration":%d,"id":"clip_%08x","loop":%t,"transition":{"type":"fade","ms":%d},"source":null,"tags":["a","b"]}`,
			text, r.Uint64(), r.Float64()*100, r.IntN(20), r.Uint32(), r.IntN(2) == 0, r.IntN(1000))
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// book is a rewrite of one long text.
func book(size int) []byte {
	return []byte(`{"model":"rewrite-1","text":"` + strings.Repeat(`\"Where were you?\" she asked. He had walked the length of the pier and back, twice, without seeing anybody.\n`, size/110) + `"}`)
}

// transcript is a dubbing of many sentences.
func transcript(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"language":"en","segments":[`)
	for n := 0; b.Len() < size-300; n++ {
		fmt.Fprintf(&b, `{"id":%d,"start":%.2f,"end":%.2f,"speaker":"SPEAKER_%02d","text":"So we went down to the harbour, and there was the ship, waiting for us as if it had never left."},`,
			n, float64(n)*3.5, float64(n)*3.5+3.25, n%3)
	}
	b.WriteString(`null]}`)
	return b.Bytes()
}

// upload is a request with a picture in it.
func upload(size int) []byte {
	return []byte(`{"prompt":"a lighthouse at dawn","image":{"mime_type":"image/png","data":"` +
		base64.StdEncoding.EncodeToString(randomBytes(size*3/4)) + `"},"seconds":8}`)
}

// film is a form with a large file.
func film(size int) []byte {
	return []byte(form("one", part{`Content-Disposition: form-data; name="prompt"`, "a lighthouse"},
		part{"Content-Disposition: form-data; name=\"video\"; filename=\"a.mp4\"\r\nContent-Type: video/mp4", string(randomBytes(size))}))
}

func indented(text []byte) []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// BenchmarkFingerprint reports the time of a fingerprint as a multiple of that
// of SHA-256 over the same bytes, by the fastest run of each.
func BenchmarkFingerprint(b *testing.B) {
	for _, bench := range []struct {
		name, contentType string
		body              func() []byte
	}{
		{"JSON, 200 B", "application/json", func() []byte {
			return []byte(`{"model":"video-1","prompt":"a lighthouse at dawn, seen from the sea, while the camera moves slowly towards it","seconds":"8","size":"1280x720","seed":9007199254740993,"metadata":{"trace":"4bf92f3577b34da6"}}`)
		}},
		{"JSON, book of 1 MiB", "application/json", func() []byte { return book(1 << 20) }},
		{"JSON, transcript of 1 MiB", "application/json", func() []byte { return transcript(1 << 20) }},
		{"JSON, timeline of 1 MiB", "application/json", func() []byte { return timeline(1 << 20) }},
		{"JSON, timeline of 1 MiB indented", "application/json", func() []byte { return indented(timeline(1 << 19)) }},
		{"JSON, upload of 1 MiB", "application/json", func() []byte { return upload(1<<20 - 200) }},
		{"JSON, upload of 64 MiB", "application/json", func() []byte { return upload(64 << 20) }},
		{"form of 64 MiB", "multipart/form-data; boundary=one", func() []byte { return film(64 << 20) }},
		{"bytes, 1 MiB", "application/octet-stream", func() []byte { return randomBytes(1 << 20) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			f, err := fingerprint.New(fingerprint.Config{})
			if err != nil {
				b.Fatal(err)
			}
			u := &url.URL{Path: "/v1/videos"}
			header := http.Header{"Content-Type": {bench.contentType}}
			text := bench.body()
			body, err := fingerprint.ReadBody(bytes.NewReader(text), int64(len(text)), 1<<30, plenty(), io.Discard)
			if err != nil {
				b.Fatal(err)
			}
			defer body.Close()
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			fastest, digest := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			for b.Loop() {
				start := time.Now()
				pending := f.Start("POST", u, header)
				if bench.contentType == "application/octet-stream" {
					_, _ = pending.Write(text)
				}
				if _, err := pending.SumBody(body); err != nil {
					b.Fatal(err)
				}
				fastest = min(fastest, time.Since(start))
				b.StopTimer()
				start = time.Now()
				sha256.Sum256(text)
				digest = min(digest, time.Since(start))
				b.StartTimer()
			}
			b.ReportMetric(float64(fastest)/float64(digest), "x-SHA-256")
		})
	}
}

package idempotency

import (
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// Fingerprint is a digest of everything in a request that changes the job:
// two requests with one key must have one fingerprint, or the second has
// reused the key.
type Fingerprint [32]byte

// Fingerprinter computes the Fingerprint of one request. The request's body
// is written to it, whole and in order, whatever its size.
//
// Method, path, raw query, media type without its parameters, content
// encoding and the raw bytes of the body take part. No other header does:
// SDKs change retry counters, trace ids and User-Agent from try to try.
//
// A multipart/form-data body counts by its parts instead, see
// [Fingerprinter.SumBody].
type Fingerprinter struct {
	d digest
	// head is the digest of everything but the body.
	head []byte
	// boundary of a multipart/form-data body; empty for any other.
	boundary string
}

// NewFingerprinter starts the fingerprint of a request with the given method,
// URL and header.
func NewFingerprinter(method string, u *url.URL, header http.Header) *Fingerprinter {
	d := newDigest("fingerprint")
	d.field(method)
	d.field(u.EscapedPath())
	d.field(u.RawQuery)
	d.field(mediaType(header))
	d.field(strings.ToLower(strings.Join(header.Values("Content-Encoding"), ",")))
	// The body is the last field and needs no length: nothing follows it.
	return &Fingerprinter{d: d, head: d.Sum(nil), boundary: formBoundary(header)}
}

// Write adds the next bytes of the body. It never returns an error.
func (f *Fingerprinter) Write(p []byte) (int, error) { return f.d.Write(p) }

// SumBody returns the fingerprint of the request with the body that was written.
// A multipart/form-data body counts by its parts, and not by the boundary
// between them: SDKs draw a new boundary for every try. One that cannot be
// parsed to its end counts by its raw bytes.
func (f *Fingerprinter) SumBody(body *Body) Fingerprint {
	if f.boundary != "" {
		if fp, err := f.sumParts(body.Reader()); err == nil {
			return fp
		}
	}
	return f.Sum()
}

// Sum returns the fingerprint with the raw bytes that were written so far.
func (f *Fingerprinter) Sum() Fingerprint {
	var fp Fingerprint
	f.d.Sum(fp[:0])
	return fp
}

// mediaType returns the type without parameters, in lower case. A value that
// does not parse still counts, up to its first semicolon.
func mediaType(header http.Header) string {
	value := strings.Join(header.Values("Content-Type"), ",")
	if t, _, err := mime.ParseMediaType(value); err == nil {
		return t
	}
	t, _, _ := strings.Cut(value, ";")
	return strings.ToLower(strings.TrimSpace(t))
}

package fingerprint

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Digest is a digest of everything in a request that changes the job:
// two requests with one key must have one fingerprint, or the second has
// reused the key.
type Digest [32]byte

// Config configures a Fingerprinter. The zero value is the default.
type Config struct {
	// Raw compares every body by its bytes.
	Raw bool
	// Ignore names what does not count in a body that is compared as JSON:
	// members of objects, and elements of arrays, counted as they are in the
	// request.
	Ignore []Pointer
	// Header are the names of header fields whose values count. Their order
	// does not.
	Header []string
}

// Fingerprinter computes the fingerprints of requests.
//
// Method, path, raw query, media type without its parameters, content encoding
// and body take part. No other header field does unless it is configured: SDKs
// change retry counters, trace ids and User-Agent from try to try.
//
// A body counts by its bytes, but for two media types:
//
//   - application/json and every type that ends in +json: by what it means. The
//     order of members, white space, and how a string is escaped do not count;
//     numbers count as they are written.
//   - multipart/form-data: by its parts in their order, and not by the boundary
//     between them: SDKs draw a new one for every try.
//
// Whatever two providers might read differently counts by its bytes all the
// same: what is not valid, has a content encoding, or is over a bound. A
// fingerprint that is too fine costs an error message; one that is too coarse
// answers with another job.
type Fingerprinter struct {
	raw    bool
	ignore *pointerSet
	header []string
}

// New returns a Fingerprinter. An error is about a pointer.
func New(config Config) (*Fingerprinter, error) {
	f := &Fingerprinter{raw: config.Raw}
	for _, pointer := range config.Ignore {
		tokens := pointer.Tokens()
		if len(tokens) == 0 {
			return nil, errors.New("the empty JSON pointer names the whole body")
		}
		if i := slices.IndexFunc(tokens, func(token string) bool { return !utf8.ValidString(token) }); i >= 0 {
			return nil, fmt.Errorf("no JSON has the name %q: it is not UTF-8", tokens[i])
		}
		if f.ignore == nil {
			f.ignore = new(pointerSet)
		}
		f.ignore.add(tokens)
	}
	for _, name := range config.Header {
		f.header = append(f.header, http.CanonicalHeaderKey(name))
	}
	slices.Sort(f.header)
	f.header = slices.Compact(f.header)
	return f, nil
}

// bodyKind is how a body is compared. It is part of the fingerprint, so that
// two kinds never agree.
type bodyKind string

const (
	rawBody  bodyKind = "raw"
	jsonBody bodyKind = "json"
	formBody bodyKind = "form"
)

// Pending is the fingerprint of a request whose body is still to
// come.
type Pending struct {
	*Fingerprinter
	// head is what takes part apart from the body.
	head     Fields
	kind     bodyKind
	boundary string    // of a formBody
	raw      hash.Hash // of a rawBody
}

// Start starts the fingerprint of a request with the given method, URL and
// header.
func (f *Fingerprinter) Start(method string, u *url.URL, header http.Header) *Pending {
	p := &Pending{Fingerprinter: f}
	mediaType, parameters := MediaType(header)
	encoding := strings.ToLower(strings.Join(header.Values("Content-Encoding"), ","))

	p.head = make(Fields, 0, 256)
	p.head.Add(method)
	p.head.Add(u.EscapedPath())
	p.head.Add(u.RawQuery)
	p.head.Add(mediaType)
	p.head.Add(encoding)
	p.head.Count(len(f.header))
	for _, name := range f.header {
		p.head.Add(name)
		values := header[name]
		p.head.Count(len(values))
		for _, value := range values {
			p.head.Add(value)
		}
	}

	p.kind, p.boundary = rawBody, parameters["boundary"]
	switch {
	case f.raw || encoding != "":
	case mediaType == "multipart/form-data" && 0 < len(p.boundary) && len(p.boundary) <= maxBoundary:
		p.kind = formBody
	case IsJSON(mediaType):
		p.kind = jsonBody
	}
	if p.kind == rawBody {
		p.raw = p.digest(rawBody)
	}
	return p
}

// Write takes the next bytes of the body as they arrive, so that a body that
// counts by its bytes need not be read a second time. It never returns an
// error.
func (p *Pending) Write(b []byte) (int, error) {
	if p.kind == rawBody {
		return p.raw.Write(b)
	}
	return len(b), nil
}

// SumBody returns the fingerprint of the request with the body, which was
// written whole. The error is ErrBodyNotKept.
func (p *Pending) SumBody(body *Body) (Digest, error) {
	h := p.raw
	var err error
	switch p.kind {
	case rawBody:
	case jsonBody:
		h = p.digest(jsonBody)
		err = writeJSON(h, body.window(), p.ignore)
	case formBody:
		h = p.digest(formBody)
		err = writeForm(h, body.window(), p.boundary)
	}
	if errors.Is(err, errNotSemantic) {
		h = p.digest(rawBody)
		if _, err = io.Copy(h, body.Reader()); err != nil {
			err = fmt.Errorf("%w: %w", ErrBodyNotKept, err)
		}
	}
	if err != nil {
		return Digest{}, fmt.Errorf("read request body again: %w", err)
	}
	var fp Digest
	h.Sum(fp[:0])
	return fp, nil
}

// digest starts a digest of the request. What is compared of the body is its
// last field and needs no length: nothing follows it.
func (p *Pending) digest(kind bodyKind) hash.Hash {
	var first Fields
	first.Add("fingerprint " + string(kind))
	h := sha256.New()
	_, _ = h.Write(first) // a hash.Hash never returns an error
	_, _ = h.Write(p.head)
	return h
}

// MediaType returns the type without parameters, in lower case. A value that
// does not parse still counts, up to its first semicolon, and has no
// parameters.
func MediaType(header http.Header) (string, map[string]string) {
	value := strings.Join(header.Values("Content-Type"), ",")
	if value == "application/json" { // most are, and a map costs something
		return value, nil
	}
	if t, parameters, err := mime.ParseMediaType(value); err == nil {
		return t, parameters
	}
	t, _, _ := strings.Cut(value, ";")
	return strings.ToLower(strings.TrimSpace(t)), nil
}

// IsJSON reports whether a media type says that the body is JSON (RFC 6839
// section 3.1 for the suffix).
func IsJSON(mediaType string) bool {
	return mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
}

package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"mime"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Bounds of a form that is compared by its parts.
const (
	// maxBoundary is the length of a boundary (RFC 2046 section 5.1.1).
	maxBoundary = 70
	// maxPartHeader is the length of the header of one part.
	maxPartHeader = 16 << 10
)

// writeForm writes a multipart/form-data body to h by its parts in their
// order: disposition with name and file name, the other header fields of the
// part, and its content as it is. Nothing of a part is held in memory but its
// header.
//
// A body that two parsers might divide in two ways is errNotSemantic. That is
// why mime/multipart is of no use here: it passes over what precedes the first
// delimiter and what follows the last, takes bare line feeds for line ends, and
// the start of a longer line for none of its business. Here the body has to
// start with a delimiter and to end with one, and the delimiter occurs nowhere
// but between parts.
func writeForm(h hash.Hash, body window, boundary string) error {
	f := formReader{window: body, delimiter: []byte("--" + boundary), content: sha256.New()}
	if err := f.ahead(maxPartHeader); err != nil {
		return err
	}
	if !bytes.HasPrefix(f.in, f.delimiter) {
		return errNotSemantic
	}
	f.pos = len(f.delimiter)
	var part Fields
	for {
		part = part[:0]
		last, err := f.header(&part)
		if err != nil {
			return err
		}
		if last {
			return nil
		}
		content, err := f.readContent()
		if err != nil {
			return err
		}
		part.Add(string(content))
		_, _ = h.Write(part) // a hash.Hash never returns an error
	}
}

// formReader reads a form. It stands behind a delimiter or at the start of a
// part's content.
type formReader struct {
	window
	delimiter []byte
	content   hash.Hash
}

// header reads on from behind a delimiter to the content of the next part, or
// to the end of the body if there is none.
func (f *formReader) header(part *Fields) (last bool, err error) {
	const end = "\r\n\r\n"
	if err := f.ahead(maxPartHeader + len(end)); err != nil {
		return false, err
	}
	rest := f.in[f.pos:]
	if f.end && (string(rest) == "--" || string(rest) == "--\r\n") {
		return true, nil
	}
	if !bytes.HasPrefix(rest, []byte("\r\n")) {
		return false, errNotSemantic
	}
	rest = rest[:min(len(rest), maxPartHeader+len(end))]
	n := bytes.Index(rest, []byte(end))
	if n < 0 {
		return false, errNotSemantic
	}
	f.pos += n + len(end)
	if n == 0 {
		part.Count(0)
		return false, nil
	}
	if bytes.Contains(rest[:n], f.delimiter) {
		return false, errNotSemantic
	}
	return false, addHeader(part, string(rest[len("\r\n"):n]))
}

// readContent reads on from the start of a part's content to behind the
// delimiter after it, and returns the digest of the content.
func (f *formReader) readContent() ([]byte, error) {
	const lineEnd = "\r\n"
	f.content.Reset()
	for {
		rest := f.in[f.pos:]
		if n := bytes.Index(rest, f.delimiter); n >= 0 {
			content, ok := bytes.CutSuffix(rest[:n], []byte(lineEnd))
			if !ok {
				return nil, errNotSemantic
			}
			_, _ = f.content.Write(content)
			f.pos += n + len(f.delimiter)
			return f.content.Sum(nil), nil
		}
		if f.end {
			return nil, errNotSemantic
		}
		// What may be the line end and the start of a delimiter stays in view.
		if n := len(rest) - len(lineEnd) - len(f.delimiter); n > 0 {
			_, _ = f.content.Write(rest[:n])
			f.pos += n
		}
		if err := f.more(); err != nil {
			return nil, err
		}
	}
}

// addHeader adds the header of a part: its fields by their names, those of one
// name in their order.
func addHeader(part *Fields, block string) error {
	type field struct{ name, value string }
	var header []field
	for line := range strings.SplitSeq(block, "\r\n") {
		name, value, found := strings.Cut(line, ":")
		if !found || !httpguts.ValidHeaderFieldName(name) || strings.ContainsAny(value, "\r\n") {
			return errNotSemantic
		}
		header = append(header, field{textproto.CanonicalMIMEHeaderKey(name), strings.Trim(value, " \t")})
	}
	slices.SortStableFunc(header, func(a, b field) int { return strings.Compare(a.name, b.name) })
	part.Count(len(header))
	for _, field := range header {
		part.Add(field.name)
		if field.name == "Content-Disposition" {
			addDisposition(part, field.value)
		} else {
			part.Add(field.value)
		}
	}
	return nil
}

// addDisposition adds the disposition of a part by its parameters, however
// they are quoted and in whatever order. A value with a backslash, or in the
// encoding of RFC 8187, which the asterisk marks, is read in many ways, and
// counts as it is.
func addDisposition(part *Fields, value string) {
	disposition, parameters, err := mime.ParseMediaType(value)
	if err != nil || strings.ContainsAny(value, `\*`) {
		part.Add("raw")
		part.Add(value)
		return
	}
	part.Add("parsed")
	part.Add(disposition)
	part.Count(len(parameters))
	names := make([]string, 0, len(parameters))
	for name := range parameters {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		part.Add(name)
		part.Add(parameters[name])
	}
}

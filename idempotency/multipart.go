package idempotency

import (
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
)

// formBoundary returns the boundary of a multipart/form-data body, or "". A
// body with a content encoding is not looked into.
func formBoundary(header http.Header) string {
	lines := header.Values("Content-Type")
	if len(lines) != 1 || header.Get("Content-Encoding") != "" {
		return ""
	}
	mediaType, parameters, err := mime.ParseMediaType(lines[0])
	if err != nil || mediaType != "multipart/form-data" {
		return ""
	}
	return parameters["boundary"]
}

// sumParts digests the parts of a body in their order: disposition with name
// and file name, the other header fields of the part, and its content as it
// is. Nothing of a part is held in memory but its header.
func (f *Fingerprinter) sumParts(body io.Reader) (Fingerprint, error) {
	d := newDigest("multipart fingerprint")
	d.field(string(f.head))
	parts := multipart.NewReader(body, f.boundary)
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF { // a wrapped EOF is a body that is cut off
			break
		}
		if err != nil {
			return Fingerprint{}, err
		}
		d.field("part")
		d.header(part.Header)
		content := newDigest("content") // its length shows only at its end
		if _, err := io.Copy(content, part); err != nil {
			return Fingerprint{}, err
		}
		d.field(string(content.Sum(nil)))
	}
	d.field("end")
	var fp Fingerprint
	d.Sum(fp[:0])
	return fp, nil
}

// header digests the header of a part. Its disposition counts by its
// parameters, however they are quoted and in whatever order.
func (d digest) header(header map[string][]string) {
	d.count(len(header))
	for _, name := range slices.Sorted(maps.Keys(header)) {
		d.field(name)
		d.count(len(header[name]))
		for _, value := range header[name] {
			disposition, parameters, err := mime.ParseMediaType(value)
			if name != "Content-Disposition" || err != nil {
				d.field("raw")
				d.field(value)
				continue
			}
			d.field("parsed")
			d.field(disposition)
			d.count(len(parameters))
			for _, parameter := range slices.Sorted(maps.Keys(parameters)) {
				d.field(parameter)
				d.field(parameters[parameter])
			}
		}
	}
}

package caddymodule

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// recorder holds back the answer to a submit until its outcome is stored, and
// keeps it for the record. Use it for one answer:
//
//	rec := newRecorder(w, limit, accepts)
//	rec.onStream = …                 // concludes early, see below
//	err := next.ServeHTTP(rec, r)
//	…                                // store rec.status, rec.own(), rec.body
//	rec.flushAll()                   // or write another answer to w
//
// An answer that cannot be held back, because its body is over the limit or is
// an accepted event stream, is passed on from that point on: onStream is called
// first, and may conclude the attempt and change rec.sent. Then only finish is
// left to do, which sends the end of an answer that was not concluded.
//
// Unlike caddyhttp.ResponseRecorder it has a header map of its own, so that
// nothing of an answer that is thrown away reaches the caller, and what the
// provider sent can be told from what handlers before this one had set.
type recorder struct {
	*caddyhttp.ResponseWriterWrapper
	limit   int64
	accepts func(status int) bool
	// onStream is called once, before the first byte is passed on.
	onStream func()

	header  http.Header // what handlers below see and change
	initial http.Header // what it was in the beginning
	sent    http.Header // what it was when the status was written
	status  int
	body    bytes.Buffer // what is held back

	streaming bool
	concluded bool
}

func newRecorder(w http.ResponseWriter, limit int64, accepts func(int) bool) *recorder {
	return &recorder{
		ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w},
		limit:                 limit,
		accepts:               accepts,
		header:                w.Header().Clone(),
		initial:               maps.Clone(w.Header()),
	}
}

// Header implements http.ResponseWriter.
func (rec *recorder) Header() http.Header { return rec.header }

// WriteHeader implements http.ResponseWriter. Interim answers are passed on.
func (rec *recorder) WriteHeader(status int) {
	if rec.status != 0 {
		return
	}
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		outer := rec.ResponseWriterWrapper.Header()
		replaceHeader(outer, rec.header)
		outer.Del(idempotency.HeaderReplayed)
		outer.Del(idempotency.HeaderError)
		rec.ResponseWriterWrapper.WriteHeader(status)
		replaceHeader(outer, rec.initial)
		return
	}
	rec.status = status
	rec.sent = rec.header.Clone()
	// The gateway's own words are not passed through from a provider.
	rec.sent.Del(idempotency.HeaderReplayed)
	rec.sent.Del(idempotency.HeaderError)
	if rec.accepts(status) && idempotency.IsStream(rec.sent) {
		rec.stream()
	}
}

// Write implements http.ResponseWriter.
func (rec *recorder) Write(p []byte) (int, error) {
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if !rec.streaming {
		if int64(rec.body.Len())+int64(len(p)) <= rec.limit {
			return rec.body.Write(p)
		}
		rec.stream()
	}
	if rec.concluded {
		return rec.ResponseWriterWrapper.Write(p)
	}
	// The end of an answer goes out when its outcome is stored. A caller may have
	// left; what the provider says is still to be heard.
	rec.writeBody()
	return rec.body.Write(p)
}

// writeBody passes on the body that was held back.
func (rec *recorder) writeBody() {
	if rec.body.Len() == 0 {
		return // over HTTP/2 even an empty Write is an error after a 204
	}
	_, _ = rec.ResponseWriterWrapper.Write(rec.body.Bytes()) // a caller that has left misses its answer
	rec.body.Reset()
}

// ReadFrom implements io.ReaderFrom, without the short cut of the wrapper to
// the connection.
func (rec *recorder) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{rec}, r)
}

// FlushError is what http.ResponseController flushes by. What is held back
// stays so.
func (rec *recorder) FlushError() error {
	if !rec.streaming {
		return nil
	}
	return http.NewResponseController(rec.ResponseWriterWrapper).Flush()
}

// stream passes on what was held back, and from here on everything.
func (rec *recorder) stream() {
	rec.streaming = true
	rec.onStream()
	replaceHeader(rec.ResponseWriterWrapper.Header(), rec.sent)
	rec.ResponseWriterWrapper.WriteHeader(rec.status)
	rec.writeBody()
	rec.body = bytes.Buffer{} // it has grown to the limit
}

// flushAll sends the whole answer that was held back.
func (rec *recorder) flushAll() {
	replaceHeader(rec.ResponseWriterWrapper.Header(), rec.sent)
	rec.ResponseWriterWrapper.WriteHeader(rec.status)
	rec.finish()
}

// finish sends what is held back of the body, and the trailers.
func (rec *recorder) finish() {
	rec.writeBody()
	var announced []string
	for _, line := range rec.sent["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			announced = append(announced, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	outer := rec.ResponseWriterWrapper.Header()
	flush := false
	for name, values := range rec.header {
		switch strings.TrimPrefix(name, http.TrailerPrefix) {
		case idempotency.HeaderReplayed, idempotency.HeaderError:
			continue
		}
		if strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(announced, name) {
			outer[name] = values
			flush = true
		}
	}
	if flush {
		// So that net/http does not give a short body a Content-Length, which
		// leaves no place for trailers.
		_ = http.NewResponseController(rec.ResponseWriterWrapper).Flush()
	}
}

// own returns what the provider sent, without what was there before.
func (rec *recorder) own() http.Header {
	own := make(http.Header, len(rec.sent))
	for name, values := range rec.sent {
		if !slices.Equal(values, rec.initial[name]) {
			own[name] = values
		}
	}
	return own
}

// whole reports whether the body has the length that was announced.
func (rec *recorder) whole() bool {
	announced := rec.sent.Get("Content-Length")
	if announced == "" || rec.streaming || !idempotency.BodyAllowed(rec.status) {
		return true
	}
	n, err := strconv.ParseInt(announced, 10, 64)
	return err == nil && n == int64(rec.body.Len())
}

func replaceHeader(to, from http.Header) {
	clear(to)
	maps.Copy(to, from)
}

// Interface guards
var (
	_ http.ResponseWriter = (*recorder)(nil)
	_ io.ReaderFrom       = (*recorder)(nil)
)

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
	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

// recorder holds back the answer to a submit until its outcome is stored, and
// keeps it for the record. Use it for one answer:
//
//	rec := newRecorder(w, limit, accepts, onStream) // may conclude early, see below
//	defer rec.close()
//	err := next.ServeHTTP(rec, r)
//	…                                // store rec.status, rec.own, rec.body
//	rec.flushAll()                   // or write another answer to w
//
// For an answer whose body is over the limit, or that is an accepted event
// stream, onStream is called once, before anything of it is passed on. If it
// reports true the attempt is concluded: from that point on the answer is passed
// on as it comes, with what onStream has marked, and only finish is
// left to do. Otherwise the end of the answer decides, and what is over the limit
// goes to a file until then. So the way to the caller, which may be slow or
// stuck, is never in the way of a conclusion.
//
// Unlike caddyhttp.ResponseRecorder it has a header map of its own, so that
// nothing of an answer that is thrown away reaches the caller, and what the
// provider sent can be told from what handlers before this one had set.
type recorder struct {
	*caddyhttp.ResponseWriterWrapper
	limit    int64
	accepts  func(status int) bool
	onStream func() (concluded bool)

	header  http.Header // what handlers below see and change
	initial http.Header // what it was in the beginning
	status  int

	// From here on as it was when the status was written.
	sent     http.Header // what goes to the caller
	own      http.Header // what the provider sent of it
	replaced []string    // what was in initial, and is not in sent any more

	body  bytes.Buffer      // what is held back
	spool fingerprint.Spool // what is held back after it

	asked     bool // onStream was called
	concluded bool // and reported true
}

func newRecorder(w http.ResponseWriter, limit int64, accepts func(int) bool, onStream func() bool) *recorder {
	return &recorder{
		ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w},
		limit:                 limit,
		accepts:               accepts,
		onStream:              onStream,
		header:                w.Header().Clone(),
		initial:               maps.Clone(w.Header()),
	}
}

// close frees what was held back.
func (rec *recorder) close() error { return rec.spool.Close() }

// mark notes the problem in the header of the answer that is held back, if there
// is one.
func (rec *recorder) mark(p idempotency.Problem) {
	if rec.sent != nil {
		p.Mark(rec.sent)
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
		deleteGatewayFields(outer)
		rec.ResponseWriterWrapper.WriteHeader(status)
		replaceHeader(outer, rec.initial)
		return
	}
	rec.status = status
	rec.sent = rec.header.Clone()
	rec.own, rec.replaced = split(rec.sent, rec.initial)
	deleteGatewayFields(rec.sent)
	if rec.accepts(status) && idempotency.IsStream(rec.sent) {
		rec.tryStream()
	}
}

// deleteGatewayFields takes out the gateway's own words: they are not passed
// through from a provider.
func deleteGatewayFields(header http.Header) {
	header.Del(idempotency.HeaderReplayed)
	header.Del(idempotency.HeaderError)
}

// split tells what was added to a header from what it was in the beginning. A
// field of which the initial lines are still the first ones was added to, as
// reverse_proxy does with every field of an answer; of any other nothing was
// left.
func split(header, initial http.Header) (own http.Header, replaced []string) {
	own = make(http.Header, len(header))
	for name, values := range header {
		before := initial[name]
		switch {
		case len(before) > len(values) || !slices.Equal(before, values[:len(before)]):
			own[name] = values
			replaced = append(replaced, name)
		case len(values) > len(before):
			own[name] = values[len(before):]
		}
	}
	for name := range initial {
		if _, there := header[name]; !there {
			replaced = append(replaced, name)
		}
	}
	return own, replaced
}

// Write implements http.ResponseWriter.
func (rec *recorder) Write(p []byte) (int, error) {
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if !rec.asked && rec.size()+int64(len(p)) > rec.limit {
		rec.tryStream()
	}
	switch {
	case rec.concluded:
		return rec.ResponseWriterWrapper.Write(p)
	case rec.spool.Size() == 0 && rec.size()+int64(len(p)) <= rec.limit:
		return rec.body.Write(p)
	default:
		return rec.spool.Write(p)
	}
}

// size returns the length of the body that is held back.
func (rec *recorder) size() int64 { return int64(rec.body.Len()) + rec.spool.Size() }

// writeBody passes on the body that was held back. A caller that has left
// misses its answer.
func (rec *recorder) writeBody() {
	if rec.body.Len() > 0 { // over HTTP/2 even an empty Write is an error after a 204
		if _, err := rec.ResponseWriterWrapper.Write(rec.body.Bytes()); err != nil {
			return
		}
	}
	if rec.spool.Size() > 0 {
		_, _ = io.Copy(rec.ResponseWriterWrapper, rec.spool.Reader())
	}
}

// ReadFrom implements io.ReaderFrom, without the short cut of the wrapper to
// the connection.
func (rec *recorder) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{rec}, r)
}

// FlushError is what http.ResponseController flushes by. What is held back
// stays so.
func (rec *recorder) FlushError() error {
	if !rec.concluded {
		return nil
	}
	return http.NewResponseController(rec.ResponseWriterWrapper).Flush()
}

// tryStream passes on what was held back, and from here on everything, if the
// attempt can be concluded.
func (rec *recorder) tryStream() {
	rec.asked = true
	rec.concluded = rec.onStream()
	if !rec.concluded {
		return
	}
	replaceHeader(rec.ResponseWriterWrapper.Header(), rec.sent)
	rec.ResponseWriterWrapper.WriteHeader(rec.status)
	rec.writeBody()
	rec.body = bytes.Buffer{} // it has grown to the limit
}

// flushAll sends the whole answer that was held back.
func (rec *recorder) flushAll() {
	replaceHeader(rec.ResponseWriterWrapper.Header(), rec.sent)
	rec.ResponseWriterWrapper.WriteHeader(rec.status)
	rec.writeBody()
	rec.finish()
}

// finish sends the trailers.
func (rec *recorder) finish() {
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

// whole reports whether the body has the length that was announced.
func (rec *recorder) whole() bool {
	if !rec.lengthDeclared() || rec.concluded || !idempotency.BodyAllowed(rec.status) {
		return true
	}
	n, err := strconv.ParseInt(rec.sent.Get("Content-Length"), 10, 64)
	return err == nil && n == rec.size()
}

// lengthDeclared reports whether the length of the body was announced.
func (rec *recorder) lengthDeclared() bool { return rec.sent.Get("Content-Length") != "" }

// namesInProgress reports whether a refusal that is too long for memory says
// that the first try is alive. What cannot be read may say so.
func (rec *recorder) namesInProgress() bool {
	names, err := idempotency.NamesInProgress(io.MultiReader(bytes.NewReader(rec.body.Bytes()), rec.spool.Reader()))
	return names || err != nil
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

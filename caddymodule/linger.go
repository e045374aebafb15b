package caddymodule

import (
	"io"
	"net/http"
	"time"
)

const (
	// lingerTime and lingerIdle bound how long the rest of a body is read that
	// nobody wants, as a whole and without a byte of it; lingerSize how much.
	lingerTime = 30 * time.Second
	lingerIdle = 5 * time.Second
	lingerSize = 1 << 30
)

// unreadBody is what net/http reads by itself of a body that a handler has left
// unread, before it answers.
const unreadBody = 256 << 10

// linger is for an answer that is given before the request's body has been
// read. It is called before the answer is written, and what it returns after it.
//
// Many clients write their whole body before they read an answer. If the
// connection is closed on them meanwhile, the system drops what they have not
// read and they see a broken connection, which most of them repeat: the upload
// begins again. So over HTTP/1 the answer goes out at once, for those who read
// it, and then the body is read and dropped, within bounds. HTTP/2 and HTTP/3 end
// the request's stream alone.
func (e *exchange) linger() (afterwards func()) {
	length, expects := e.r.ContentLength, e.r.Header.Get("Expect") != ""
	if e.body != nil || e.r.ProtoMajor != 1 || 0 <= length && length <= unreadBody && !expects {
		return func() {}
	}
	// Otherwise net/http waits for a part of the body before it answers.
	e.w.Header().Set("Connection", "close")
	if expects {
		return func() {} // who waits for 100 Continue sends nothing now
	}
	control := http.NewResponseController(e.w)
	return func() {
		if control.Flush() == nil {
			dropBody(e.r.Body, control.SetReadDeadline)
		}
	}
}

// dropBody reads a body to its end, until it stalls, or until it has had its
// share.
func dropBody(body io.Reader, setDeadline func(time.Time) error) {
	end := time.Now().Add(lingerTime)
	buffer := make([]byte, 32<<10)
	for dropped := 0; dropped < lingerSize; {
		deadline := time.Now().Add(lingerIdle)
		if deadline.After(end) {
			deadline = end
		}
		if setDeadline(deadline) != nil {
			return // nothing would bound the wait
		}
		n, err := body.Read(buffer)
		if err != nil {
			return
		}
		dropped += n
	}
}

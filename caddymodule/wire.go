package caddymodule

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// wire lets one request of a submit reach a provider, whatever the handlers
// below do: Go's HTTP clients that send a request again by themselves, a proxy
// that retries, a second proxy that a request falls through to. A second one is
// stopped before its first byte.
//
// It stands in the submit's context as a client trace. Transports call GotConn
// in the goroutine of the request and before they write to the connection, for
// each connection that a request gets, and once more when they send it again. A
// dial that failed got none, and may be repeated.
//
// A request of a proxy that only asks (forward_auth) does not count. A trace does
// not see the request, so it is told by the upstream that reverse_proxy says it
// has chosen; see questions. What cannot be told counts as the submit.
type wire struct {
	questions *questions
	repl      *caddy.Replacer
	cancel    context.CancelCauseFunc
	out       *http.Request // the submit as the handlers below get it

	mu sync.Mutex
	// asked: a transport that reports its steps was asked for a connection for
	// what may be the submit.
	asked bool
	sent  sentState
	// asking: the last connection was for a question.
	asking  bool
	stopped stopCause

	// What was written, if questions.doubtful.
	pseudoMethod string // :method, over HTTP/2 and HTTP/3
	framed       bool   // HTTP/1: the length of a body was written
}

// sentState is how far the submit has come.
type sentState int

const (
	// notSent: no connection was there that could carry it.
	notSent sentState = iota
	// connected: it has a connection, and its header is not complete. If another
	// connection is asked for now, the first is given up, and nobody can act on what
	// was written: net/http waits for the end of a request's writing before it sends
	// the request again or returns, and its HTTP/2 and HTTP/3 relatives, too.
	connected
	// written: its header is complete, be it in the transport's buffer.
	written
)

// stopCause says who wanted to send a second request.
type stopCause string

const (
	notStopped stopCause = ""
	// stoppedResend: the transport, in the name of the proxy that sent the first.
	stoppedResend stopCause = "Go's HTTP client sent it again by itself when the connection broke or the provider's server declined it, " +
		"as it does with requests that have no body and carry Idempotency-Key or X-Idempotency-Key, or whose method is GET or HEAD; " +
		"look for request_body or method behind idempotency, and for upstream_key keep"
	// stoppedProxy: a proxy, the first one or another.
	stoppedProxy stopCause = "a reverse_proxy sent it on after it had been sent; " +
		"look behind idempotency for lb_retries or lb_try_duration with lb_retry_match or with a handler that makes the method GET, " +
		"and for a second reverse_proxy that handle_response, intercept or an error route falls through to"
)

// errSecondRequest ends the context of a submit whose second request is
// stopped. reverse_proxy gives up at once on what is a cancellation, and tries
// again on other errors.
var errSecondRequest error = secondRequestError{}

type secondRequestError struct{}

func (secondRequestError) Error() string { return "a second request for one submit was stopped" }

func (secondRequestError) Is(target error) bool { return target == context.Canceled }

// Placeholders of reverse_proxy. It sets the first three anew for each try, when
// it has chosen an upstream and before it tries to reach it, and the last when it
// has an answer, before response handlers, its own or intercept's, put something
// in its place.
const (
	placeholderUpstream = "http.reverse_proxy.upstream.address"
	placeholderChosen   = "http.reverse_proxy.upstream.requests"
	// placeholderTry is deleted when the try has a connection: so a second one is
	// known to be the transport's own doing.
	placeholderTry    = "http.reverse_proxy.upstream.max_requests"
	placeholderStatus = "http.reverse_proxy.status_code"
	// placeholderError has the provider's own Idempotency-Error, if it sent one, also
	// when a handler on the way put something in place of the answer.
	placeholderError = "http.reverse_proxy.header." + idempotency.HeaderError
)

func (w *wire) trace() *httptrace.ClientTrace {
	// A proxy before this handler (forward_auth) may have left them behind.
	w.repl.Delete(placeholderTry)
	w.repl.Delete(placeholderChosen)
	w.repl.Delete(placeholderStatus)
	w.repl.Delete(placeholderError)
	trace := &httptrace.ClientTrace{GetConn: w.getConn, GotConn: w.gotConn, WroteHeaders: w.wroteHeaders}
	if w.questions.doubtful {
		trace.WroteHeaderField = w.wroteHeaderField
	}
	return trace
}

func (w *wire) getConn(string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reconsider()
	if _, answered := w.repl.Get(placeholderStatus); answered && w.sent == notSent {
		// What a question was answered is not the provider's own status.
		w.repl.Delete(placeholderStatus)
		w.repl.Delete(placeholderError)
		w.asking = false
	}
	w.asked = true
}

func (w *wire) gotConn(info httptrace.GotConnInfo) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, try := w.repl.Get(placeholderTry)
	w.repl.Delete(placeholderTry)
	w.reconsider()
	if try {
		upstream, _ := w.repl.GetString(placeholderUpstream)
		_, w.asking = w.questions.upstreams[upstream]
	}
	// Without a new try it is what it was: a question that is sent again.
	if w.asking && w.stopped == notStopped {
		if w.sent == notSent {
			w.asked = false
			w.repl.Delete(placeholderChosen)
		}
		return
	}
	w.asking = false
	if w.sent != written && w.stopped == notStopped {
		w.sent, w.pseudoMethod, w.framed = connected, "", false
		return
	}
	if w.stopped == notStopped {
		w.stopped = stoppedResend
		if try {
			w.stopped = stoppedProxy
		}
	}
	// HTTP/2 and HTTP/3 look at the context before they write, and share the
	// connection with other requests. HTTP/1 does not look at it any more.
	w.cancel(errSecondRequest)
	if !isMultiplexed() {
		_ = info.Conn.Close()
	}
}

func (w *wire) wroteHeaders() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sent == connected && !w.asking {
		w.sent = written
	}
}

// wroteHeaderField notes what tells a question from a submit. HTTP/1 does not
// report the method, but writes a length with each POST, PUT or PATCH.
func (w *wire) wroteHeaderField(name string, values []string) {
	switch name {
	case ":method", "Content-Length", "Transfer-Encoding":
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sent != connected:
	case name == ":method" && len(values) == 1:
		w.pseudoMethod = values[0]
	default:
		w.framed = true
	}
}

// reconsider finds out, when a request has ended, whether it was a question, if
// its upstream did not tell. It reports whether it was. w.mu is held.
func (w *wire) reconsider() bool {
	if w.sent != written || w.stopped != notStopped || !w.questions.doubtful || w.questions.methodChanged {
		return false
	}
	// The submit's method may have been changed in place.
	switch {
	case isGET(w.out.Method):
		return false
	case w.pseudoMethod != "":
		if !isGET(w.pseudoMethod) {
			return false
		}
	case w.framed || !alwaysFramed(w.out.Method):
		return false
	}
	w.sent = notSent
	return true
}

// alwaysFramed reports whether HTTP/1 requests with the method have a length,
// with a body or without one.
func alwaysFramed(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

// state returns what is known when the handlers below have returned, or have
// begun with an answer.
func (w *wire) state() (s wireState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, try := w.repl.Get(placeholderTry)
	if w.reconsider() && !try {
		w.asking, w.asked = true, false
		w.repl.Delete(placeholderChosen)
	}
	return wireState{asked: w.asked, connected: w.sent != notSent, asking: w.asking && w.sent == notSent && !try, stopped: w.stopped}
}

type wireState struct {
	asked     bool
	connected bool
	// asking: the last that happened is a question, before the submit was sent.
	asking  bool
	stopped stopCause
}

// isMultiplexed reports whether the trace is called by an HTTP/2 or HTTP/3
// transport. The trace does not say; without TLS the connection does not, either.
func isMultiplexed() bool {
	var callers [16]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers[:])])
	for {
		frame, more := frames.Next()
		switch {
		case frame.Function == "net/http.(*Transport).getConn":
			return false
		case strings.Contains(frame.Function, "http2"), strings.Contains(frame.Function, "http3"):
			return true
		case !more:
			return false
		}
	}
}

// questions is what is known of a server's proxies that ask something with GET
// before a submit goes on, as forward_auth does.
type questions struct {
	// upstreams are the addresses that only such proxies have, as reverse_proxy
	// spells them.
	upstreams map[string]struct{}
	// doubtful: one of them has an address that another proxy has or may have, or
	// that is not known before a request is there.
	doubtful bool
	// methodChanged: a handler changes methods to others than POST, PUT and PATCH, so
	// that what is sent with GET may be a submit.
	methodChanged bool
}

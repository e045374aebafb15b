package caddymodule

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// forwarding is the way of one submit to the provider: the context that it is
// bound to, and what is known about how far it came.
type forwarding struct {
	*exchange
	attempt   *idempotency.Attempt // nil without protection
	rec       *recorder
	span      trace.Span
	uncertain bool // the answer says so

	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stop   func() bool // ends following the caller; nil if that has not begun

	timedOut atomic.Bool
	wire     wire
}

// newForwarding starts the clock of the upstream timeout. The forwarding's
// context has the caller's values and does not end when the caller hangs up.
func newForwarding(e *exchange, attempt *idempotency.Attempt, limit int64) *forwarding {
	f := &forwarding{exchange: e, attempt: attempt}
	f.rec = newRecorder(e.w, limit, e.policy.Accepts, f.concludeStream)
	caller, span := e.startForward()
	f.span = span
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	f.cancel = cancel
	f.timer = time.AfterFunc(e.upstreamTimeout, func() {
		f.timedOut.Store(true)
		cancel(context.DeadlineExceeded)
	})
	f.wire.questions, f.wire.repl, f.wire.cancel = e.questions, e.repl, cancel
	f.ctx = httptrace.WithClientTrace(ctx, f.wire.trace())
	return f
}

// follow ends the upstream timeout and binds the forwarding to the caller from
// here on.
func (f *forwarding) follow(caller context.Context) {
	f.timer.Stop()
	f.stop = context.AfterFunc(caller, func() { f.cancel(context.Canceled) })
}

func (f *forwarding) end() {
	f.closeRecorder(f.rec)
	f.timer.Stop()
	if f.stop != nil {
		f.stop()
	}
	f.cancel(context.Canceled)
	f.span.End() // if it has not ended before
}

// outgoing returns the request as it goes to the handlers below: with the body
// that was read, and without what must not reach a provider.
func (e *exchange) outgoing(ctx context.Context) *http.Request {
	out := e.r.WithContext(ctx)
	out.Header = e.r.Header.Clone()
	// The stored body must be readable by every later caller.
	out.Header.Del("Accept-Encoding")
	// The body is here already.
	out.Header.Del("Expect")
	// A submit is answered, not upgraded.
	out.Header.Del("Upgrade")
	// The gateway's own words are not taken from callers.
	out.Header.Del(idempotency.HeaderReplayed)
	out.Header.Del(idempotency.HeaderError)

	out.TransferEncoding = nil
	out.ContentLength = e.body.Size()
	out.GetBody = nil
	if e.UpstreamKey == choiceRemove {
		for _, name := range e.KeyHeader {
			out.Header.Del(name)
		}
	}
	if e.UpstreamKey == choiceRemove || e.UpstreamKey == choiceAuto && e.body.Size() == 0 {
		// net/http sends a request without a body again by itself, on another
		// connection, if it carries one of these fields and a reused connection
		// breaks before the first byte of the answer (Request.isReplayable). The
		// wire stops that; without them it is not tried.
		out.Header.Del("Idempotency-Key")
		out.Header.Del("X-Idempotency-Key")
	}
	if e.body.Size() == 0 {
		out.Body = http.NoBody
		return out
	}
	// With a body and without GetBody it is sent once.
	out.Body = io.NopCloser(e.body.Reader())
	out.Header.Set("Content-Length", strconv.FormatInt(e.body.Size(), 10))
	return out
}

// result collects what is known after the handlers below have returned.
func (f *forwarding) result(err error, crashed *crash) idempotency.Result {
	rec := f.rec
	r := idempotency.Result{
		Status:   rec.status,
		Header:   rec.own,
		Replaced: rec.replaced,
		Whole:    err == nil && crashed == nil && (rec.status == 0 || rec.whole()),
		TimedOut: f.timedOut.Load(),
		Panicked: crashed != nil && !crashed.isAbort(),
	}
	if r.Status != 0 {
		r.Undeclared = !rec.lengthDeclared()
		f.readProviderStatus(&r)
	}
	if !rec.asked {
		r.Body = rec.body.Bytes()
	} else if r.Whole {
		// It was not concluded when it turned out to be too long, so its end decides.
		r.BodyNotKept = true
		r.Doubted = r.Doubted || rec.namesInProgress()
	}
	wire := f.wire.state()
	r.Stopped = wire.stopped != notStopped
	if r.Status == statusClientClosed && (r.Stopped || r.ProviderStatus != statusClientClosed) {
		// reverse_proxy's word for a context that was cancelled, with no error.
		r.Status, r.Whole = 0, false
	}
	if r.Status != 0 {
		return r
	}
	if r.Stopped {
		r.ProviderStatus = f.providerStatus()
		if _, unknown := f.repl.Get(placeholderError); unknown {
			r.ProviderStatus = 0
		}
	}

	var withStatus caddyhttp.HandlerError
	hasStatus := errors.As(err, &withStatus)
	r.TimedOut = r.TimedOut || hasStatus && withStatus.StatusCode == http.StatusGatewayTimeout
	if crashed == nil && f.neverSent(err, withStatus.StatusCode) {
		r.Sent = idempotency.NeverSent
	}
	return r
}

// readProviderStatus fills in what the provider itself has said. Whatever it may have received
// and has not answered, an answer that is there all the same is an error route's.
func (f *forwarding) readProviderStatus(r *idempotency.Result) {
	status := f.providerStatus()
	_, r.Doubted = f.repl.Get(placeholderError)
	_, chosen := f.repl.Get(placeholderChosen)
	switch {
	case f.wire.state().asking:
		// Somebody was asked, and the submit did not go on. If a handler made an
		// answer of its own, that counts.
		if status == r.Status && (status < 200 || 299 < status) {
			r.Sent = idempotency.NeverSent
		}
	case status != 0:
		r.ProviderStatus = status
	case !chosen:
	case f.neverSent(nil, 0):
		r.Sent = idempotency.NeverSent
	default:
		r.ProviderSilent = true
	}
}

// providerStatus returns the status that a proxy got last, or 0.
func (f *forwarding) providerStatus() int {
	value, _ := f.repl.Get(placeholderStatus)
	status, _ := value.(int)
	return status
}

// statusClientClosed is not registered; nginx and Caddy use it for a caller
// that went away.
const statusClientClosed = 499

// neverSent reports whether it is certain that the provider saw nothing. status
// is that of the error, or 0.
func (f *forwarding) neverSent(err error, status int) bool {
	wire := f.wire.state()
	if wire.connected {
		return false
	}
	if wire.asked {
		return true // no connection: DNS, dial, TLS handshake, or a pool that is full
	}
	if wire.asking && f.providerStatus() == 0 {
		return true // the one who was asked did not answer
	}
	// A transport that does not report its steps, or none at all.
	var dial reverseproxy.DialError
	if errors.As(err, &dial) {
		return true
	}
	_, chosen := f.repl.Get(placeholderChosen)
	if chosen {
		return false
	}
	// No proxy was at work. 503 is its word for no healthy upstream; a 4xx is
	// a handler that turned the request away. Anything else may come from a
	// handler that talks to a provider in its own way.
	return status == http.StatusServiceUnavailable || 400 <= status && status <= 499 && !idempotency.NeverRefusal(status)
}

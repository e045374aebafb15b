package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// forward sends a claimed submit to the provider and answers the caller when
// the outcome is stored. Without an attempt nothing is stored; what is said of
// answers holds there, too. An answer over the limit is passed on as it comes.
func (e *exchange) forward(attempt *idempotency.Attempt, limit int64) error {
	f := newForwarding(e, attempt, limit)
	defer f.end()
	out := e.outgoing(f.ctx)
	f.wire.out = out
	e.propagate(f.ctx, out.Header)
	crashed, err := serve(e.next, f.rec, out)
	return f.conclude(crashed, err)
}

// settle finds out what came of the submit, stores it, and makes it known: to
// logs, metrics and spans, and to the caller in the header of the answer that is
// held back. Of an answer that has not come to its end it may report false: then
// its end is to be settled.
func (f *forwarding) settle(began time.Time, r idempotency.Result, ended bool) (c idempotency.Conclusion, settled bool) {
	if f.attempt == nil {
		c = f.policy.Classify(r)
		f.uncertain = c == idempotency.ConcludedUnknown
	} else {
		var reason string
		if ended {
			c, reason = f.attempt.Conclude(r)
		} else if c, reason, settled = f.attempt.ConcludeStream(r); !settled {
			return c, false
		}
		f.noteConclusion(c, reason, cmp.Or(r.Status, r.ProviderStatus))
		f.traceConclusion(began, c, reason)
		// After another attempt nothing but an acceptance makes the outcome known.
		f.uncertain = c == idempotency.ConcludedUnknown || c != idempotency.ConcludedAccepted && f.attempt.TookOver()
	}
	if f.uncertain {
		f.rec.mark(idempotency.OutcomeUnknown(f.id))
	}
	return c, true
}

// concludeStream settles an answer before its end, if that can be: see recorder.
func (f *forwarding) concludeStream() (concluded bool) {
	began := time.Now()
	result := idempotency.Result{Status: f.rec.status, Header: f.rec.own, Whole: true, BodyNotKept: true}
	f.readProviderStatus(&result)
	if _, settled := f.settle(began, result, false); !settled {
		return false
	}
	// From here on this is a stream to this caller.
	f.follow(f.r.Context())
	return true
}

// conclude settles what came of a submit, unless that was done when its stream
// began, and answers the caller.
func (f *forwarding) conclude(crashed *crash, err error) error {
	answered := time.Now()
	if cause := f.wire.state().stopped; cause != notStopped {
		f.logger.Error("a second request to a provider for one submit was stopped before its first byte; "+
			"what the first one came to decides", zap.String("record", string(f.id)), zap.String("cause", string(cause)))
	}
	if f.rec.concluded {
		if crashed != nil {
			panic(crashed.value)
		}
		f.rec.finish()
		if err != nil {
			f.logPassedOn(err)
		}
		return nil
	}

	result := f.result(err, crashed)
	conclusion, _ := f.settle(answered, result, true)
	f.span.End(trace.WithTimestamp(answered))
	if crashed != nil && !crashed.isAbort() {
		// The value may hold anything; its type and the stack tell where to look.
		f.logger.Error("a handler after idempotency panicked", zap.String("record", string(f.id)),
			zap.String("type", fmt.Sprintf("%T", crashed.value)), zap.ByteString("stack", crashed.stack))
	}
	return f.answer(result, conclusion, err)
}

// answer gives the first caller what the attempt came to.
func (f *forwarding) answer(result idempotency.Result, conclusion idempotency.Conclusion, err error) error {
	switch conclusion {
	case idempotency.ConcludedUnknown:
		if result.Status != 0 && !f.policy.BrokeOff(result) {
			f.rec.flushAll()
			return nil
		}
		status := http.StatusBadGateway
		if result.TimedOut {
			status = http.StatusGatewayTimeout
		}
		return f.written(idempotency.OutcomeUnknown(f.id).Write(f.w, f.format, status))
	case idempotency.ConcludedNeverSent:
		if err == nil {
			err = caddyhttp.Error(http.StatusGatewayTimeout, errors.New("no connection to the provider"))
		}
		return f.turnDown(err)
	case idempotency.ConcludedRefused, idempotency.ConcludedNotAccepted:
		if result.Status == 0 {
			// A refusal that a handler below wanted to make up for elsewhere.
			return f.turnDown(caddyhttp.Error(result.ProviderStatus, errSecondRequest))
		}
		f.rec.flushAll() // an error would have made it another conclusion
		return nil
	case idempotency.ConcludedAccepted:
		f.rec.flushAll()
		return nil
	default:
		return fmt.Errorf("idempotency: unexpected conclusion %d", conclusion)
	}
}

// turnDown answers with an error of the gateway's own in place of what is held
// back.
func (f *forwarding) turnDown(err error) error {
	if f.uncertain {
		idempotency.OutcomeUnknown(f.id).Mark(f.w.Header())
	}
	return f.fail(err)
}

// crash is a panic of a handler below.
type crash struct {
	value any
	stack []byte
}

// isAbort reports the way in which reverse_proxy says that the provider's body
// broke off.
func (c *crash) isAbort() bool { return c.value == http.ErrAbortHandler } //nolint:errorlint // net/http compares so, too

// serve calls a handler and catches its panic, so that an attempt is concluded
// whatever happens.
func serve(next caddyhttp.Handler, w http.ResponseWriter, r *http.Request) (crashed *crash, err error) {
	defer func() {
		if value := recover(); value != nil {
			crashed = &crash{value, debug.Stack()}
		}
	}()
	return nil, next.ServeHTTP(w, r)
}

// logPassedOn logs the error of an answer that the caller has seen already.
func (e *exchange) logPassedOn(err error) {
	e.logger.Error("forwarded response ended with an error", zap.String("record", string(e.id)), zap.Error(err))
}

// closeRecorder frees the answer that was held back.
func (e *exchange) closeRecorder(rec *recorder) {
	if err := rec.close(); err != nil {
		e.logger.Error("closing temporary file of an answer", zap.Error(err))
	}
}

// noteConclusion notes and logs what an attempt came to.
func (f *forwarding) noteConclusion(c idempotency.Conclusion, reason string, status int) {
	if f.attempt.TookOver() && c != idempotency.ConcludedAccepted && c != idempotency.ConcludedUnknown {
		c, reason = idempotency.ConcludedUnknown, "this attempt came to nothing, and that of the one before it is still unknown"
	}
	switch c {
	case idempotency.ConcludedAccepted:
		f.note(outcomeAccepted)
	case idempotency.ConcludedRefused, idempotency.ConcludedNeverSent:
		f.note(outcomeRefused)
	case idempotency.ConcludedNotAccepted:
		f.note(outcomeRefused)
		f.logger.Warn("the provider answered with a 2xx that store_status does not count as acceptance; the key is free again",
			zap.String("record", string(f.id)), zap.Int("status", status))
	case idempotency.ConcludedUnknown:
		f.note(outcomeUncertain)
		repeats := "repeats are rejected"
		if f.policy.ResubmitUncertain {
			repeats = "the next repeat is sent again"
		}
		f.logger.Warn("the outcome of a submit is unknown; "+repeats,
			zap.String("record", string(f.id)), zap.String("reason", reason))
	}
}

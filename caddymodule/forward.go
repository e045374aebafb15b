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
// the outcome is stored. Without an attempt nothing is stored, and the answer is
// passed on as it comes; what is said of answers holds there, too.
func (e *exchange) forward(attempt *idempotency.Attempt) error {
	ctx, span := e.startForward()
	defer span.End() // if it has not ended before
	f := newForwarding(ctx, e.questions, e.upstreamTimeout)
	defer f.end()
	limit := e.maxResponseBody
	if attempt == nil {
		limit = 0 // nothing waits for the store
	}
	rec := newRecorder(e.w, limit, e.policy.Accepts)
	defer e.closeRecorder(rec)
	rec.onStream = func() (concluded bool) {
		began := time.Now()
		result := idempotency.Result{Status: rec.status, Header: rec.own}
		f.hear(&result)
		if attempt == nil {
			f.follow(e.r.Context())
			result.Whole, result.BodyNotKept = true, true
			if e.policy.Classify(result) == idempotency.ConcludedUnknown {
				idempotency.OutcomeUnknown(e.id).Mark(rec.sent)
			}
			return true
		}
		conclusion, reason, concluded := attempt.ConcludeStream(result)
		if !concluded {
			return false
		}
		// The outcome is settled: from here on this is a stream to this caller.
		f.follow(e.r.Context())
		e.noteConclusion(attempt, conclusion, reason, rec.status)
		e.traceConclusion(span, began, attempt, conclusion, reason)
		if conclusion == idempotency.ConcludedUnknown {
			idempotency.OutcomeUnknown(e.id).Mark(rec.sent)
		}
		return true
	}

	out := e.outgoing(f.ctx)
	f.wire.out = out
	e.propagate(f.ctx, out.Header)
	crashed, err := serve(e.next, rec, out)
	return e.conclude(attempt, f, span, rec, crashed, err)
}

// conclude settles what came of a submit, unless that was done when its stream
// began, and answers the caller.
func (e *exchange) conclude(
	attempt *idempotency.Attempt, f *forwarding, span trace.Span, rec *recorder, crashed *crash, err error,
) error {
	answered := time.Now()
	if cause := f.wire.state().stopped; cause != notStopped {
		e.logger.Error("a second request to a provider for one submit was stopped before its first byte; "+
			"what the first one came to decides", zap.String("record", string(e.id)), zap.String("cause", string(cause)))
	}
	if rec.concluded {
		if crashed != nil {
			panic(crashed.value)
		}
		rec.finish()
		if err != nil {
			e.logPassedOn(err)
		}
		return nil
	}

	result := f.result(rec, err, crashed)
	var conclusion idempotency.Conclusion
	if attempt == nil {
		conclusion = e.policy.Classify(result)
	} else {
		var reason string
		conclusion, reason = attempt.Conclude(result)
		e.noteConclusion(attempt, conclusion, reason, cmp.Or(result.Status, result.ProviderStatus))
		e.traceConclusion(span, answered, attempt, conclusion, reason)
	}
	span.End(trace.WithTimestamp(answered))
	if crashed != nil && !crashed.isAbort() {
		// The value may hold anything; its type and the stack tell where to look.
		e.logger.Error("a handler after idempotency panicked", zap.String("record", string(e.id)),
			zap.String("type", fmt.Sprintf("%T", crashed.value)), zap.ByteString("stack", crashed.stack))
	}
	return e.answer(attempt, rec, result, conclusion, err)
}

// answer gives the first caller what the attempt came to.
func (e *exchange) answer(
	attempt *idempotency.Attempt, rec *recorder, result idempotency.Result, conclusion idempotency.Conclusion, err error,
) error {
	problem := idempotency.OutcomeUnknown(e.id)
	// Then nothing but an acceptance makes the outcome known.
	tookOver := attempt != nil && attempt.TookOver()
	switch conclusion {
	case idempotency.ConcludedUnknown:
		if result.Status != 0 && !e.policy.BrokeOff(result) {
			problem.Mark(rec.sent)
			rec.flushAll()
			return nil
		}
		status := http.StatusBadGateway
		if result.TimedOut {
			status = http.StatusGatewayTimeout
		}
		return e.written(problem.Write(e.w, e.format, status))
	case idempotency.ConcludedNeverSent:
		if err == nil {
			err = caddyhttp.Error(http.StatusGatewayTimeout, errors.New("no connection to the provider"))
		}
		if tookOver {
			problem.Mark(e.w.Header())
		}
		return e.fail(err)
	case idempotency.ConcludedRefused, idempotency.ConcludedNotAccepted:
		if result.Status == 0 {
			// A refusal that a handler below wanted to make up for elsewhere.
			if tookOver {
				problem.Mark(e.w.Header())
			}
			return e.fail(caddyhttp.Error(result.ProviderStatus, errSecondRequest))
		}
		if tookOver {
			problem.Mark(rec.sent)
		}
		rec.flushAll() // an error would have made it another conclusion
		return nil
	case idempotency.ConcludedAccepted:
		rec.flushAll()
		return nil
	default:
		return fmt.Errorf("idempotency: unexpected conclusion %d", conclusion)
	}
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
	e.logger.Error("an answer that was passed on ended in an error", zap.String("record", string(e.id)), zap.Error(err))
}

// closeRecorder frees the answer that was held back.
func (e *exchange) closeRecorder(rec *recorder) {
	if err := rec.close(); err != nil {
		e.logger.Error("closing temporary file of an answer", zap.Error(err))
	}
}

// noteConclusion notes and logs what an attempt came to.
func (e *exchange) noteConclusion(attempt *idempotency.Attempt, c idempotency.Conclusion, reason string, status int) {
	if attempt.TookOver() && c != idempotency.ConcludedAccepted && c != idempotency.ConcludedUnknown {
		c, reason = idempotency.ConcludedUnknown, "this attempt came to nothing, and that of the one before it is still unknown"
	}
	switch c {
	case idempotency.ConcludedAccepted:
		e.note(outcomeAccepted)
	case idempotency.ConcludedRefused, idempotency.ConcludedNeverSent:
		e.note(outcomeRefused)
	case idempotency.ConcludedNotAccepted:
		e.note(outcomeRefused)
		e.logger.Warn("the provider answered with a 2xx that store_status does not count as acceptance; the key is free again",
			zap.String("record", string(e.id)), zap.Int("status", status))
	case idempotency.ConcludedUnknown:
		e.note(outcomeUncertain)
		repeats := "repeats are refused"
		if e.policy.ResubmitUncertain {
			repeats = "the next repeat is sent again"
		}
		e.logger.Warn("the outcome of a submit is unknown; "+repeats,
			zap.String("record", string(e.id)), zap.String("reason", reason))
	}
}

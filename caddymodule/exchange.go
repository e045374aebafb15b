package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

const (
	placeholderOutcome = "http.idempotency.outcome"
	placeholderRecord  = "http.idempotency.record"
)

// exchange is one request that the handler acts on, and its answer.
type exchange struct {
	*Handler
	w    http.ResponseWriter
	r    *http.Request
	repl *caddy.Replacer
	next caddyhttp.Handler

	id      idempotency.RecordID
	body    *fingerprint.Body // once it has been read
	outcome outcome           // once it has come to one
	traced  bool              // its steps are spans
}

// submit takes a request with a key through the protocol: body, claim,
// forward, conclude, answer. What it calls on the way to forward keeps the
// stack of a submit that waits for the provider small.
func (e *exchange) submit(key idempotency.Key) error {
	defer e.closeBody()
	fingerprint, read, err := e.read(key)
	if !read {
		return err
	}
	store, release, err := e.store.use()
	if err != nil {
		return e.storeError(err)
	}
	defer release()
	attempt, err := e.claim(store.engine, key, fingerprint)
	if attempt == nil {
		return err
	}
	return e.forward(attempt)
}

// read finds out which record the request is about, reads its body, and digests
// it. If it reports false, the request is answered.
func (e *exchange) read(key idempotency.Key) (f idempotency.Fingerprint, read bool, err error) {
	scope, problem := e.scopeValues()
	if problem != nil {
		return f, false, e.problem(*problem)
	}
	e.id = idempotency.NewRecordID(e.Namespace, scope, key)
	e.repl.Set(placeholderRecord, string(e.id))

	wasRead := e.r.ContentLength < 0 && bodyWasRead(e.r)
	pending := e.fingerprinter.Start(e.r.Method, e.r.URL, e.r.Header)
	e.body, err = fingerprint.ReadBody(e.r.Body, e.r.ContentLength, e.maxRequestBody, bodyMemory, pending)
	if errors.Is(err, fingerprint.ErrBodyTooLarge) {
		return f, false, e.problem(idempotency.Problem{Code: idempotency.CodeBodyTooLarge,
			Detail: fmt.Sprintf("The maximum is %d bytes.", e.maxRequestBody)})
	}
	if err != nil {
		// The caller broke off, or sent something that is no body.
		return f, false, e.fail(bodyError(err))
	}
	if e.body.Size() < e.r.ContentLength || e.body.Size() == 0 && (wasRead || e.tookBody()) {
		err = caddyhttp.Error(http.StatusInternalServerError, errBodyTaken)
	} else if f, err = pending.SumBody(e.body); err != nil {
		err = bodyError(err)
	}
	if err != nil {
		return f, false, e.fail(err)
	}
	return f, true, nil
}

func (e *exchange) closeBody() {
	if e.body == nil {
		return // it could not be read
	}
	if err := e.body.Close(); err != nil {
		e.logger.Error("closing temporary file of a request body", zap.Error(err))
	}
}

// claim asks the engine whether the submit may be sent. Without an attempt the
// request is answered.
func (e *exchange) claim(engine *idempotency.Engine, key idempotency.Key, fingerprint idempotency.Fingerprint) (*idempotency.Attempt, error) {
	began := time.Now()
	admission, err := engine.Begin(e.r.Context(), e.policy, idempotency.Submit{
		ID:          e.id,
		Fingerprint: fingerprint,
		Details: idempotency.Details{
			Namespace: e.Namespace, Key: key, Method: e.r.Method, Path: e.r.URL.Path, Label: e.label(e.repl),
		},
	})
	e.traceClaim(began, admission, err)
	switch {
	case err != nil:
		return nil, e.storeError(err)
	case admission.Problem != nil:
		return nil, e.problem(*admission.Problem)
	case admission.Replay != nil:
		e.note(outcomeReplayed)
		return nil, e.written(admission.Replay.Replay(e.w))
	default:
		return admission.Attempt, nil
	}
}

// fail answers with the status of an error. The error is not returned to Caddy:
// handle_errors may pass the request on to another provider, without
// protection.
func (e *exchange) fail(err error) error {
	if e.outcome == "" { // the store was not asked
		e.note(outcomeFailed)
	}
	status := http.StatusInternalServerError
	var withStatus caddyhttp.HandlerError
	if errors.As(err, &withStatus) && withStatus.StatusCode != 0 {
		status = withStatus.StatusCode
	}
	level := zap.ErrorLevel
	if status < http.StatusInternalServerError {
		level = zap.DebugLevel
	}
	e.logger.Log(level, "a request with a key failed, and nothing is recorded",
		zap.String("record", string(e.id)), zap.Int("status", status), zap.Error(err))
	e.w.Header().Set("Cache-Control", "no-store")
	defer e.linger()()
	e.w.WriteHeader(status)
	return nil
}

// bodyWasRead reports whether somebody has read bytes of a request's body: a
// handler that read them all and did not put them back leaves a body that ends at
// once, like an empty one. Below whatever handlers have put around the body, Caddy
// counts in the idle deadline of its reader, if read_body_idle is not off.
func bodyWasRead(r *http.Request) bool {
	reader, _ := caddyhttp.IdleTimeoutsFromContext(r.Context())
	if reader == nil {
		return false
	}
	d := reader.Deadline
	return d != caddyhttp.IdleDeadline{Start: d.Start, Timeout: d.Timeout, MinRate: d.MinRate, HardDeadline: d.HardDeadline}
}

// tookBody reports of an empty body of unknown length whether a placeholder has
// its bytes: it puts them back into the request that the client sent, which a
// handler like tracing may have copied before.
func (e *exchange) tookBody() bool {
	if e.r.ContentLength >= 0 {
		return false
	}
	body, _ := e.repl.GetString("http.request.body")
	return body != ""
}

// errBodyTaken means that the body ended before its declared length and without
// an error: its reader gives what is left of it. Or it ended before it began,
// with an unknown length. An empty submit must not go out in its place.
var errBodyTaken = errors.New("a handler before idempotency has read the request's body, such as one with {http.request.body}")

// bodyError gives an error in reading the body the status that Caddy's own
// request_body handler meant, 500 if it is the gateway's, and 400 otherwise.
func bodyError(err error) error {
	var withStatus caddyhttp.HandlerError
	switch {
	case errors.As(err, &withStatus):
		return err
	case errors.Is(err, http.ErrBodyReadAfterClose):
		return caddyhttp.Error(http.StatusInternalServerError, errBodyTaken)
	case errors.Is(err, fingerprint.ErrBodyNotKept):
		return caddyhttp.Error(http.StatusInternalServerError, err)
	default:
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
}

// storeError answers a submit whose claim failed.
func (e *exchange) storeError(err error) error {
	// A record that cannot be read is there, and a duplicate that has waited is
	// one: the submit was sent before.
	sentBefore := errors.Is(err, idempotency.ErrUnreadable) || errors.Is(err, idempotency.ErrClaimedBefore)
	if e.OnStoreError == choiceForward && !sentBefore {
		e.note(outcomeStoreError)
		e.logger.Warn("submit is forwarded without protection because the store failed (on_store_error forward)",
			zap.String("record", string(e.id)), zap.Error(err))
		return e.forward(nil)
	}
	return e.problem(idempotency.Problem{Code: idempotency.CodeStoreUnavailable, RetryAfter: retryStore})
}

// logPassedOn logs the error of an answer that the caller has seen already.
func (e *exchange) logPassedOn(err error) {
	e.logger.Error("an answer that was passed on ended in an error", zap.String("record", string(e.id)), zap.Error(err))
}

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

func (e *exchange) problem(p idempotency.Problem) error {
	e.note(problemOutcomes[p.Code])
	defer e.linger()()
	return e.written(p.Write(e.w, e.format, 0))
}

// written takes the error of writing an answer. Like every other it does not go
// to Caddy's error routes.
func (e *exchange) written(err error) error {
	if err != nil {
		e.logger.Debug("an answer could not be written", zap.String("record", string(e.id)), zap.Error(err))
	}
	return nil
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

// note makes the outcome known to placeholders, metrics and the access log. It
// is called once for each request that comes to an outcome.
func (e *exchange) note(o outcome) {
	e.outcome = o
	e.requests.count(o)
	e.repl.Set(placeholderOutcome, string(o))
	ctx := e.r.Context()
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && server.Logs == nil {
		return // it has no access log
	}
	extra, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	if !ok {
		return
	}
	extra.Set(zap.String("idempotency_outcome", string(o)))
	if e.id != "" {
		extra.Set(zap.String("idempotency_record", string(e.id)))
	}
}

// bodyMemory is what all request bodies together may take of a process's
// memory.
var bodyMemory = fingerprint.NewBodyMemory(maxBodyMemory)

const maxBodyMemory = 64 << 20

// retryStore is when to come back after the store failed.
const retryStore = time.Second

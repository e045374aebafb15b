package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
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
	return e.forward(attempt, e.maxResponseBody)
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
	e.logger.Log(level, "keyed request failed; nothing was recorded",
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
		return e.forward(nil, 0) // nothing waits for the store
	}
	return e.problem(idempotency.Problem{Code: idempotency.CodeStoreUnavailable, RetryAfter: retryStore})
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

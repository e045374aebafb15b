package caddymodule

import (
	"context"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/propagators/autoprop"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Names of spans, and of their attributes.
const (
	spanClaim    = "idempotency.claim"
	spanForward  = "idempotency.forward"
	spanComplete = "idempotency.complete"

	attributeOutcome = "idempotency.outcome"
	attributeRecord  = "idempotency.record"
)

// spanClaimed is the outcome of a claim that was granted: its request has none
// of its own yet.
const spanClaimed outcome = "claimed"

const tracerName = "github.com/caddy-idempotency/caddy-idempotency"

// startSpan begins a span under the one that Caddy's tracing directive began,
// with the provider that it brought. Without tracing, or if the request was not
// sampled, the span records nothing and the context stays as it is.
func startSpan(ctx context.Context, name string, id idempotency.RecordID, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, noop.Span{}
	}
	ctx, span := parent.TracerProvider().Tracer(tracerName).Start(ctx, name, options...)
	span.SetAttributes(attribute.String(attributeRecord, string(id)))
	return ctx, span
}

// setOutcome says what the step came to. A failure, if there is one, is a fixed
// text or a reason that can be logged.
func setOutcome(span trace.Span, o outcome, failure string) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String(attributeOutcome, string(o)))
	if failure != "" {
		span.SetStatus(codes.Error, failure)
	}
}

// endClaim ends the span of a claim. A claim that is turned down is no failure
// of the claim.
func endClaim(span trace.Span, admission idempotency.Admission, err error) {
	switch {
	case err != nil:
		setOutcome(span, outcomeStoreError, "the store did not answer the claim")
	case admission.Problem != nil:
		setOutcome(span, problemOutcomes[admission.Problem.Code], "")
	case admission.Replay != nil:
		setOutcome(span, outcomeReplayed, "")
	default:
		setOutcome(span, spanClaimed, "")
	}
	span.End()
}

// forwardFailure is what made a forwarding fail, empty if it did not: a refusal
// is an answer like any other.
func forwardFailure(c idempotency.Conclusion, reason string) string {
	if c == idempotency.ConcludedNeverSent {
		return "nothing was sent to the provider"
	}
	return reason
}

// traceCompletion adds the span of storing an outcome, which has just ended.
func (e *exchange) traceCompletion(began time.Time, attempt *idempotency.Attempt) {
	_, span := startSpan(e.r.Context(), spanComplete, e.id, trace.WithTimestamp(began))
	failure := ""
	if !attempt.Stored() {
		failure = "the store has not acknowledged the outcome yet"
	}
	setOutcome(span, e.outcome, failure)
	span.End()
}

// propagators write a trace into a header in the formats that Caddy's tracing
// uses, which OTEL_PROPAGATORS names.
var propagators = sync.OnceValue(func() propagation.TextMapPropagator { return autoprop.NewTextMapPropagator() })

// propagate makes the provider's spans children of the context's. The tracing
// directive has written its own span into the header, before there was another.
func propagate(ctx context.Context, header http.Header) {
	if trace.SpanFromContext(ctx).IsRecording() {
		propagators().Inject(ctx, propagation.HeaderCarrier(header))
	}
}

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

// isTraced reports whether Caddy's tracing directive began a span that is
// exported. If it did not, a request costs nothing here.
func isTraced(r *http.Request) bool { return trace.SpanFromContext(r.Context()).IsRecording() }

// startSpan begins a span under that of the tracing directive, with the
// provider that it brought.
func (e *exchange) startSpan(name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx := e.r.Context()
	options = append(options, trace.WithAttributes(attribute.String(attributeRecord, string(e.id))))
	return trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName).Start(ctx, name, options...)
}

// addSpan adds the span of a step that has just ended. A failure, if there is
// one, is a fixed text: no error's text goes into a span.
func (e *exchange) addSpan(name string, began time.Time, o outcome, failure string) {
	if !e.traced {
		return
	}
	_, span := e.startSpan(name, trace.WithTimestamp(began), trace.WithAttributes(attribute.String(attributeOutcome, string(o))))
	if failure != "" {
		span.SetStatus(codes.Error, failure)
	}
	span.End()
}

// traceClaim adds the span of a claim. That a submit is turned down is no
// failure of the claim.
func (e *exchange) traceClaim(began time.Time, admission idempotency.Admission, err error) {
	switch {
	case err != nil:
		e.addSpan(spanClaim, began, outcomeStoreError, "the store did not decide the claim")
	case admission.Problem != nil:
		e.addSpan(spanClaim, began, problemOutcomes[admission.Problem.Code], "")
	case admission.Replay != nil:
		e.addSpan(spanClaim, began, outcomeReplayed, "")
	default:
		e.addSpan(spanClaim, began, spanClaimed, "")
	}
}

// startForward begins the span that the handlers below work under.
func (e *exchange) startForward() (context.Context, trace.Span) {
	if !e.traced {
		return e.r.Context(), noop.Span{}
	}
	return e.startSpan(spanForward, trace.WithSpanKind(trace.SpanKindClient))
}

// traceConclusion notes in the span of the forwarding what it came to, and adds
// that of storing it. A refusal is an answer like any other, and no failure.
// The reason of an unknown outcome is made to be logged.
func (f *forwarding) traceConclusion(began time.Time, c idempotency.Conclusion, reason string) {
	if !f.traced {
		return
	}
	f.span.SetAttributes(attribute.String(attributeOutcome, string(f.outcome)))
	switch c {
	case idempotency.ConcludedUnknown:
		f.span.SetStatus(codes.Error, reason)
	case idempotency.ConcludedNeverSent:
		f.span.SetStatus(codes.Error, "nothing was sent to the provider")
	case idempotency.ConcludedAccepted, idempotency.ConcludedRefused, idempotency.ConcludedNotAccepted:
	}
	failure := ""
	if !f.attempt.Stored() {
		failure = "the store has not acknowledged the outcome yet"
	}
	f.addSpan(spanComplete, began, f.outcome, failure)
}

// propagators write a trace into a header in the formats that Caddy's tracing
// uses, which OTEL_PROPAGATORS names.
var propagators = sync.OnceValue(func() propagation.TextMapPropagator { return autoprop.NewTextMapPropagator() })

// propagate makes the provider's spans children of the forwarding's. The
// tracing directive wrote its own span into the header, before there was
// another.
func (e *exchange) propagate(forward context.Context, header http.Header) {
	if e.traced {
		propagators().Inject(forward, propagation.HeaderCarrier(header))
	}
}

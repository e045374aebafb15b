package integration

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// receiver takes the spans that a gateway exports by OTLP over HTTP.
type receiver struct {
	url string

	mu     sync.Mutex
	spans  []*traces.Span
	failed error
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	server := httptest.NewServer(r)
	r.url = server.URL
	t.Cleanup(func() {
		server.Close()
		if r.failed != nil {
			t.Errorf("the receiver of spans: %v", r.failed)
		}
	})
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var export collector.ExportTraceServiceRequest
	body, err := io.ReadAll(req.Body)
	if req.URL.Path != "/v1/traces" {
		err = fmt.Errorf("a request for %s", req.URL.Path)
	}
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed = err
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, resource := range export.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			r.spans = append(r.spans, scope.Spans...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// env makes a gateway export to the receiver, soon after a span has ended.
func (r *receiver) env() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.url,
		"OTEL_BSP_SCHEDULE_DELAY=20",
	}
}

func (r *receiver) received() []*traces.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*traces.Span(nil), r.spans...)
}

// trace waits for the spans of a whole request and returns them by name. The
// span of the request, Caddy's own, ends last.
func (r *receiver) trace(t *testing.T, id string) map[string]*traces.Span {
	t.Helper()
	var spans map[string]*traces.Span
	await(t, "the spans of trace "+id, func() bool {
		spans = map[string]*traces.Span{}
		for _, span := range r.received() {
			if hex.EncodeToString(span.TraceId) != id {
				continue
			}
			if spans[span.Name] != nil {
				t.Fatalf("trace %s has two spans %s", id, span.Name)
			}
			spans[span.Name] = span
		}
		return spans["gateway"] != nil
	})
	return spans
}

func attributes(span *traces.Span) map[string]string {
	values := map[string]string{}
	for _, a := range span.GetAttributes() {
		values[a.Key] = a.Value.GetStringValue()
	}
	return values
}

// Each step of a submit is a span under Caddy's own, with the outcome and the
// record. The provider's spans belong under that of the forwarding.
func TestTracing(t *testing.T) {
	t.Parallel()
	const claim, forward, complete = "idempotency.claim", "idempotency.forward", "idempotency.complete"
	type step struct {
		outcome string
		failed  bool // the span has error status
	}
	redis := redistest.Start(t, "--appendfsync", "always")
	spans := startReceiver(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{
		store: "redis " + redis.Address, env: spans.env(), before: "tracing {\nspan gateway\n}",
		idempotency: "max_response_body 1KiB",
	})
	large := strings.Repeat("x", 4<<10)
	dies := func(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) {
		redis.Kill(t)
		acceptPlainly(w, accept)
	}
	for i, test := range []struct {
		name    string
		behave  behaviour
		request request
		want    map[string]step
	}{
		{"without a key", nil, request{body: "x"}, map[string]step{}},
		{"first", nil, request{key: "k", body: "x"}, map[string]step{
			claim: {"claimed", false}, forward: {"accepted", false}, complete: {"accepted", false}}},
		{"again", nil, request{key: "k", body: "x"}, map[string]step{claim: {"replayed", false}}},
		{"other body", nil, request{key: "k", body: "y"}, map[string]step{claim: {"reuse", false}}},
		{"refusal", answerWith(422, nil, "no"), request{key: "r", body: "x"}, map[string]step{
			claim: {"claimed", false}, forward: {"refused", false}, complete: {"refused", false}}},
		{"large refusal", answerWith(422, nil, large), request{key: "lr", body: "x"}, map[string]step{
			claim: {"claimed", false}, forward: {"refused", false}, complete: {"refused", false}}},
		{"large acceptance", answerWith(202, nil, large), request{key: "la", body: "x"}, map[string]step{
			claim: {"claimed", false}, forward: {"accepted", false}, complete: {"accepted", false}}},
		{"broken", hangUp("", false), request{key: "u", body: "x"}, map[string]step{
			claim: {"claimed", false}, forward: {"uncertain", true}, complete: {"uncertain", false}}},
		{"broken again", nil, request{key: "u", body: "x"}, map[string]step{claim: {"outcome_unknown", false}}},
		{"store dies", dies, request{key: "d", body: "x"}, map[string]step{
			claim: {"claimed", false}, forward: {"accepted", false}, complete: {"accepted", true}}},
		{"store away", nil, request{key: "s", body: "x"}, map[string]step{claim: {"store_error", true}}},
	} {
		p.now(test.behave)
		before := p.count()
		id := fmt.Sprintf("%032x", 0xabc0+i)
		test.request.header = http.Header{"Traceparent": {"00-" + id + "-00000000000000aa-01"}}
		g.send(t, test.request)
		got := spans.trace(t, id)
		parent := got["gateway"]
		record := ""
		for name, want := range test.want {
			span := got[name]
			if span == nil {
				t.Errorf("%s: no span %s", test.name, name)
				continue
			}
			a := attributes(span)
			if a["idempotency.outcome"] != want.outcome || (span.Status.GetCode() == traces.Status_STATUS_CODE_ERROR) != want.failed {
				t.Errorf("%s: %s has %v and status %v, want %+v", test.name, name, a, span.Status, want)
			}
			if string(span.ParentSpanId) != string(parent.SpanId) {
				t.Errorf("%s: %s is not under Caddy's span", test.name, name)
			}
			if span.StartTimeUnixNano < parent.StartTimeUnixNano || span.EndTimeUnixNano > parent.EndTimeUnixNano || span.EndTimeUnixNano < span.StartTimeUnixNano {
				t.Errorf("%s: %s is not within Caddy's span", test.name, name)
			}
			if record == "" {
				record = a["idempotency.record"]
			}
			if len(record) != 32 || a["idempotency.record"] != record {
				t.Errorf("%s: %s has record %q", test.name, name, a["idempotency.record"])
			}
		}
		if len(got) != len(test.want)+1 {
			t.Errorf("%s: there are %d spans, want Caddy's and %v", test.name, len(got), test.want)
		}
		if p.count() > before {
			// What is sent has a parent in the trace: the forwarding, or without
			// one Caddy's.
			carrier := parent
			if got[forward] != nil {
				carrier = got[forward]
			}
			want := fmt.Sprintf("00-%s-%x-01", id, carrier.SpanId)
			if sent := p.submit(before).header.Get("Traceparent"); sent != want {
				t.Errorf("%s: the provider got traceparent %s, want %s", test.name, sent, want)
			}
		}
		if got[forward] != nil && got[claim].EndTimeUnixNano > got[forward].StartTimeUnixNano {
			t.Errorf("%s: the forwarding begins before the claim has ended", test.name)
		}
		g.awaitLog(t, fmt.Sprintf(`"traceID":"%s","spanID":"%x"`, id, parent.SpanId))
	}
}

// A request that the caller's trace did not sample has no spans, and its
// provider still learns the trace.
func TestTracingNotSampled(t *testing.T) {
	t.Parallel()
	spans := startReceiver(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{env: spans.env(), before: "tracing {\nspan gateway\n}"})
	const id, sampled = "0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319d"
	g.send(t, request{key: "k", body: "x", header: http.Header{"Traceparent": {"00-" + id + "-00000000000000aa-00"}}})
	p.want(t, 1)
	if sent := p.submit(0).header.Get("Traceparent"); !strings.HasPrefix(sent, "00-"+id+"-") || !strings.HasSuffix(sent, "-00") {
		t.Errorf("the provider got traceparent %q", sent)
	}
	g.send(t, request{key: "k", body: "x", header: http.Header{"Traceparent": {"00-" + sampled + "-00000000000000aa-01"}}})
	spans.trace(t, sampled)
	for _, span := range spans.received() {
		if hex.EncodeToString(span.TraceId) == id {
			t.Errorf("span %s was exported", span.Name)
		}
	}
}

package integration

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// series are the values of what a gateway exposes, by name and labels as
// written.
type series map[string]float64

const (
	inFlight        = "caddy_idempotency_attempts_in_flight"
	unstored        = "caddy_idempotency_outcomes_unstored"
	leaseLost       = "caddy_idempotency_lease_lost_total"
	lateAcceptances = "caddy_idempotency_late_acceptances_total"
)

func requestsOf(outcome string) string {
	return fmt.Sprintf("caddy_idempotency_requests_total{namespace=\"\",outcome=%q}", outcome)
}

func storeCalls(op string) string {
	return fmt.Sprintf("caddy_idempotency_store_duration_seconds_count{op=%q}", op)
}

func storeErrors(op string) string {
	return fmt.Sprintf("caddy_idempotency_store_errors_total{op=%q}", op)
}

// exposition returns what the gateway exposes, in Prometheus' text format.
func (g *gateway) exposition(t testing.TB) string {
	t.Helper()
	res, err := http.Get("http://" + g.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("scrape: %d, %v: %s", res.StatusCode, err, text)
	}
	return string(text)
}

// scrape returns the module's series.
func (g *gateway) scrape(t testing.TB) series {
	t.Helper()
	s := series{}
	for line := range strings.Lines(g.exposition(t)) {
		name, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found || !strings.HasPrefix(name, "caddy_idempotency_") {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		s[name] = number
	}
	return s
}

// accepted returns how many requests were, over all namespaces.
func (s series) accepted() (n float64) {
	for name, value := range s {
		if strings.HasPrefix(name, "caddy_idempotency_requests_total{") && strings.Contains(name, `outcome="accepted"`) {
			n += value
		}
	}
	return n
}

// outcomes returns how many requests came to each outcome, zeros left out.
func (s series) outcomes() map[string]int {
	n := map[string]int{}
	for name, value := range s {
		if outcome, ok := strings.CutPrefix(name, `caddy_idempotency_requests_total{namespace="",outcome="`); ok && value != 0 {
			n[strings.TrimSuffix(outcome, `"}`)] = int(value)
		}
	}
	return n
}

var allOutcomes = []string{
	"bypass", "accepted", "replayed", "in_progress", "reuse", "refused", "uncertain", "outcome_unknown",
	"unavailable", "invalid_key", "missing_key", "too_large", "store_error", "failed",
}

// Every series is there before anything has happened. The scrape itself has the
// records counted, which takes now and scan.
func TestMetricsAtStart(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	s := g.scrape(t)
	want := []string{inFlight, unstored, leaseLost, lateAcceptances}
	for _, outcome := range allOutcomes {
		want = append(want, requestsOf(outcome))
	}
	for _, op := range []string{"now", "claim", "renew", "get", "scan", "decide_complete", "decide_release", "forget", "complete", "uncertain", "release", "withdraw"} {
		want = append(want, storeCalls(op), storeErrors(op))
		for _, bound := range []string{"0.00025", "0.001", "0.01", "0.1", "1", "+Inf"} {
			want = append(want, fmt.Sprintf("caddy_idempotency_store_duration_seconds_bucket{op=%q,le=%q}", op, bound))
		}
	}
	for _, name := range want {
		counted := strings.Contains(name, `op="now"`) || strings.Contains(name, `op="scan"`)
		if value, ok := s[name]; !ok || value != 0 && !counted {
			t.Errorf("%s is %v, %v; want 0", name, value, ok)
		}
	}
	for name := range s {
		if strings.Contains(name, "_requests_total{") && !slices.Contains(want, name) {
			t.Errorf("%s is there", name)
		}
	}
}

// Each request is counted once, in the outcome that it came to.
func TestMetricsOfEachOutcome(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{
		store:       "redis " + redis.Address,
		idempotency: "max_request_body 1KiB\nmax_response_body 1KiB",
	})
	forwarding := startGateway(t, p.url, options{store: "redis " + redis.Address, idempotency: "require_key\non_store_error forward"})
	unreachable := startGateway(t, freeAddress(t), options{})
	large := strings.Repeat("x", 4<<10)
	hold := newGate()
	var first <-chan answer
	for _, step := range []struct {
		name    string
		g       *gateway
		behave  behaviour
		request request
		outcome string
	}{
		{"without a key", g, nil, request{body: "x"}, "bypass"},
		{"another method", g, nil, request{method: http.MethodPut, key: "k", body: "x"}, "bypass"},
		{"first", g, nil, request{key: "k", body: "x"}, "accepted"},
		{"again", g, nil, request{key: "k", body: "x"}, "replayed"},
		{"other body", g, nil, request{key: "k", body: "y"}, "reuse"},
		{"malformed key", g, nil, request{key: "a b", body: "y"}, "invalid_key"},
		{"no key", forwarding, nil, request{body: "x"}, "missing_key"},
		{"large upload", g, nil, request{key: "large", body: large}, "too_large"},
		{"never sent", unreachable, nil, request{key: "n", body: "x"}, "refused"},
		{"refusal", g, answerWith(422, nil, "no"), request{key: "r", body: "x"}, "refused"},
		{"large refusal", g, answerWith(422, nil, large), request{key: "rl", body: "x"}, "refused"},
		{"large acceptance", g, answerWith(202, nil, large), request{key: "al", body: "x"}, "accepted"},
		{"large acceptance again", g, nil, request{key: "al", body: "x"}, "unavailable"},
		{"broken", g, hangUp("", false), request{key: "u", body: "x"}, "uncertain"},
		{"broken again", g, nil, request{key: "u", body: "x"}, "outcome_unknown"},
		{"half an answer", g, hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 9\r\n\r\nx", false), request{key: "h", body: "x"}, "uncertain"},
		{"large unknown", g, answerWith(500, nil, large), request{key: "ul", body: "x"}, "uncertain"},
		{"running", g, p.holdUntil(hold), request{key: "p", body: "x"}, "in_progress"},
		{"store away", g, nil, request{key: "s", body: "x"}, "store_error"},
		{"store away, forwarded", forwarding, nil, request{key: "s", body: "x"}, "store_error"},
	} {
		p.now(step.behave)
		switch step.name {
		case "running":
			before := p.count()
			first = g.sendLater(t, step.request)
			p.awaitSubmits(t, before+1)
		case "store away":
			hold.open()
			<-first
			redis.Kill(t)
		}
		before := step.g.scrape(t).outcomes()
		got := step.g.send(t, step.request)
		after := step.g.scrape(t).outcomes()
		before[step.outcome]++
		if !maps.Equal(after, before) {
			t.Errorf("%s (%v): the counters are %v, want %v", step.name, got, after, before)
		}
	}
	s := g.scrape(t)
	if s[inFlight] != 0 {
		t.Errorf("%v attempts in flight", s[inFlight])
	}
	if s[storeErrors("claim")]+s[storeErrors("now")] == 0 {
		t.Errorf("no store error is counted: %v", s)
	}
}

// A request that fails before its key is claimed has an outcome, too: in the
// metric, and in the access log.
func TestMetricsOfFailures(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	const head = "POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\n"
	for _, test := range []struct {
		name    string
		options options
		raw     string
		status  int
	}{
		{"broken upload", options{}, head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		{"scope of nobody", options{idempotency: "scope {nobody.knows}"}, head + "Content-Length: 1\r\n\r\nx", 500},
		{"key of nobody", options{idempotency: "key_header X-Key\nkey_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {nobody.knows}"}, head + "Content-Length: 1\r\n\r\nx", 500},
		{"body taken", options{before: "tracing\nvars taken {http.request.body}", env: []string{"OTEL_TRACES_EXPORTER=none"}}, head + "Content-Length: 1\r\n\r\nx", 500},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := startGateway(t, p.url, test.options)
			got := rawRequest(t, g, strings.Replace(test.raw, "localhost", strings.TrimPrefix(g.url, "http://"), 1))
			p.want(t, 0)
			if got.status != test.status {
				t.Errorf("got %v, want %d", got, test.status)
			}
			if n := g.scrape(t).outcomes(); !maps.Equal(n, map[string]int{"failed": 1}) {
				t.Errorf("the counters are %v, want one failed", n)
			}
			g.awaitLog(t, `"idempotency_outcome":"failed"`)
		})
	}
}

// The counters are right when many callers come at once.
func TestMetricsUnderConcurrency(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + redistest.Start(t).Address + " {\ntimeout 10s\n}"})
	const callers, each, keys = 40, 15, 60
	var mu sync.Mutex
	want := map[string]int{}
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				r := request{key: fmt.Sprint("k", (c*each+i)%keys), body: "x"}
				if i%5 == 0 {
					r.key = "" // bypass
				}
				got := g.send(t, r)
				outcome := "accepted"
				switch {
				case r.key == "":
					outcome = "bypass"
				case got.replayed():
					outcome = "replayed"
				case got.code() == "idempotency_key_in_progress":
					outcome = "in_progress"
				case got.status != 202:
					t.Errorf("%+v got %v", r, got)
				}
				mu.Lock()
				want[outcome]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	s := g.scrape(t)
	p.want(t, want["accepted"]+want["bypass"])
	if got := s.outcomes(); !maps.Equal(got, want) {
		t.Errorf("the counters are %v, and the callers saw %v", got, want)
	}
	sum := 0
	for _, n := range s.outcomes() {
		sum += n
	}
	if sum != callers*each {
		t.Errorf("%d outcomes of %d requests", sum, callers*each)
	}
	if s[inFlight] != 0 || s[unstored] != 0 {
		t.Errorf("%v in flight, %v unstored in the end", s[inFlight], s[unstored])
	}
	if claims := callers*each - want["bypass"]; s[storeCalls("claim")] != float64(claims) || s[storeCalls("complete")] != float64(want["accepted"]) {
		t.Errorf("%v claims and %v completions are measured, want %d and %d",
			s[storeCalls("claim")], s[storeCalls("complete")], claims, want["accepted"])
	}
}

// Values survive a reload, with the same options and with others, and cover
// all handlers and all stores of the process.
func TestMetricsAfterReload(t *testing.T) {
	t.Parallel()
	hold := newGate()
	p := startProvider(t, nil)
	second := &gateway{url: "http://" + freeAddress(t)}
	o := options{
		global: "grace_period 100ms",
		// A second site with a handler of its own.
		instead: fmt.Sprintf("reverse_proxy %s\n}\n%s {\nidempotency {\nnamespace second\n}\nreverse_proxy %s", p.url, second.url, p.url),
	}
	g := startGateway(t, p.url, o)
	g.send(t, request{key: "k", body: "x"})
	second.send(t, request{key: "k", body: "x"})
	p.want(t, 2)
	p.now(p.holdUntil(hold))
	done := g.sendLater(t, request{key: "held", body: "x"})
	p.awaitSubmits(t, 3)
	p.now(nil)

	accepted := 2
	check := func(when string) {
		t.Helper()
		s := g.scrape(t)
		if s.accepted() != float64(accepted) || s[inFlight] != 1 {
			t.Errorf("%s: %v accepted and %v in flight, want %d and 1", when, s.accepted(), s[inFlight], accepted)
		}
	}
	check("before a reload")
	g.reload(t)
	check("after a reload")
	second.send(t, request{key: "k2", body: "x"})
	accepted++
	check("after a submit")
	changed := o
	changed.idempotency = "lease 2s\nerrors problem"
	g.write(t, p.url, changed)
	g.reload(t)
	check("after a reload with other options")
	changed.store = "embedded " + filepath.Join(g.dir, "other.db")
	g.write(t, p.url, changed)
	g.reload(t)
	check("after a reload with another store")
	g.send(t, request{key: "k3", body: "x"})
	accepted++
	check("after a submit to another store")

	hold.open()
	<-done
	accepted++
	s := g.scrape(t)
	if s.accepted() != float64(accepted) || s[inFlight] != 0 {
		t.Errorf("in the end: %v accepted and %v in flight, want %d and 0", s.accepted(), s[inFlight], accepted)
	}
}

// An attempt whose gateway stood still past its lease is taken over by on_uncertain
// resubmit. Its acceptance comes late: the caller gets it, and it is counted,
// logged and not stored.
func TestLateAcceptanceIsCounted(t *testing.T) {
	t.Parallel()
	hold := newGate()
	p := startProvider(t, nil)
	o := options{store: "redis " + redistest.Start(t).Address, idempotency: "lease 500ms\non_uncertain resubmit"}
	late, other := startGateway(t, p.url, o), startGateway(t, p.url, o)
	r := request{key: "k", body: "x"}
	p.now(p.holdUntil(hold))
	done := late.sendLater(t, r)
	p.awaitSubmits(t, 1)
	p.now(nil)
	late.freeze(t)
	var taken answer
	await(t, "the end of the lease", func() bool { taken = other.send(t, r); return taken.code() != "idempotency_key_in_progress" })
	p.want(t, 2)
	if taken.status != 202 || taken.replayed() {
		t.Fatalf("the repeat got %v", taken)
	}
	late.thaw(t)
	await(t, "the lost lease to be counted", func() bool { return late.scrape(t)[leaseLost] == 1 })
	if s := late.scrape(t); s[lateAcceptances] != 0 || s[inFlight] != 1 {
		t.Errorf("before its answer: %v late acceptances, %v in flight", s[lateAcceptances], s[inFlight])
	}
	hold.open()
	if first := <-done; first.status != 202 || first.body == taken.body {
		t.Errorf("the first caller got %v", first)
	}
	if s := late.scrape(t); s[lateAcceptances] != 1 || s[leaseLost] != 1 || s[inFlight] != 0 {
		t.Errorf("in the end: %v late acceptances, %v leases lost, %v in flight", s[lateAcceptances], s[leaseLost], s[inFlight])
	}
	late.awaitLog(t, "the provider accepted a submit that no longer owns its record")
	for _, g := range []*gateway{late, other} {
		if got := g.send(t, r); got.body != taken.body || !got.replayed() {
			t.Errorf("again: %v, want %v", got, taken)
		}
	}
	p.want(t, 2)
	if s := other.scrape(t); s[lateAcceptances] != 0 || s[leaseLost] != 0 {
		t.Errorf("the other gateway counts %v late acceptances and %v leases lost", s[lateAcceptances], s[leaseLost])
	}
}

// While its store is away, a gateway shows how many outcomes it holds.
func TestUnstoredOutcomesAreShown(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendfsync", "always")
	p, hold := startHolding(t)
	g := startGateway(t, p.url, options{store: "redis " + redis.Address})
	done := g.sendLater(t, request{key: "k", body: "x"})
	p.awaitSubmits(t, 1)
	redis.Kill(t)
	hold.open()
	<-done
	s := g.scrape(t)
	if s[unstored] != 1 || s[inFlight] != 0 || s[storeErrors("complete")] == 0 {
		t.Errorf("%v unstored, %v in flight, %v errors; want 1, 0 and some", s[unstored], s[inFlight], s[storeErrors("complete")])
	}
	redis.Run(t)
	await(t, "the outcome to be stored", func() bool { return g.scrape(t)[unstored] == 0 })
	p.want(t, 1)
	if got := g.send(t, request{key: "k", body: "x"}); !got.replayed() {
		t.Errorf("again: %v", got)
	}
}

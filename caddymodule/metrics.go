package caddymodule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// metrics counts for the whole process. Caddy makes a new registry for each
// configuration; the collectors are registered with all of them, so that values
// survive a reload.
var metrics = newCollectors()

// collectors are what Prometheus sees of the module. No label has a value that
// comes from a request or an answer: a namespace comes from the configuration.
type collectors struct {
	requests        *prometheus.CounterVec
	storeDuration   *prometheus.HistogramVec
	storeErrors     *prometheus.CounterVec
	inFlight        prometheus.GaugeFunc
	unstored        prometheus.GaugeFunc
	findings        prometheus.GaugeFunc
	leaseLost       prometheus.Counter
	lateAcceptances prometheus.Counter
	records         recordsCollector

	// What the vector above has, found at once.
	byOp map[string]storeMetrics
}

// requestCounters count the requests of one namespace, found at once. Those of a
// handler that was not provisioned count nothing.
type requestCounters map[outcome]prometheus.Counter

func (c requestCounters) count(o outcome) {
	if counter, provisioned := c[o]; provisioned {
		counter.Inc()
	}
}

// storeMetrics are those of one store operation.
type storeMetrics struct {
	duration prometheus.Observer
	errors   prometheus.Counter
}

func newCollectors() *collectors {
	const namespace, subsystem = "caddy", "idempotency"
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	c := &collectors{
		requests: prometheus.NewCounterVec(counter("requests_total",
			"Requests by what became of them and by the handler's namespace; bypass has no key or another method, failed ended in an error before the store was asked."),
			[]string{"outcome", "namespace"}),
		storeDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "store_duration_seconds",
			Help:    "How long store operations took, failed ones included.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}, []string{"op"}),
		storeErrors: prometheus.NewCounterVec(counter("store_errors_total",
			"Store operations that failed, those included that were repeated with success."), []string{"op"}),
		inFlight: prometheus.NewGaugeFunc(gauge("attempts_in_flight",
			"Submits that are being forwarded."), func() float64 { return sumEngines((*idempotency.Engine).InFlight) }),
		unstored: prometheus.NewGaugeFunc(gauge("outcomes_unstored",
			"Outcomes of submits that the store has not acknowledged yet; their records become uncertain if the process ends."),
			func() float64 { return sumEngines((*idempotency.Engine).Unstored) }),
		findings: prometheus.NewGaugeFunc(gauge("store_findings",
			"What is wrong with the servers or the file of the store; the log names each."), countFindings),
		leaseLost: prometheus.NewCounter(counter("lease_lost_total",
			"Leases that ran out while their submit was running.")),
		lateAcceptances: prometheus.NewCounter(counter("late_acceptances_total",
			"Acceptances that arrived when their record was no longer their own; the job exists and is not in the store.")),
	}
	c.records.desc = prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "records"), recordsHelp, []string{"state"}, nil)
	// All series are there from the start: one that appears with its first event
	// hides it from rate().
	c.byOp = make(map[string]storeMetrics)
	for _, op := range idempotency.Operations() {
		c.byOp[op] = storeMetrics{c.storeDuration.WithLabelValues(op), c.storeErrors.WithLabelValues(op)}
	}
	return c
}

// register adds the collectors to a configuration's registry.
func (c *collectors) register(registry *prometheus.Registry) error {
	for _, collector := range []prometheus.Collector{
		c.requests, c.storeDuration, c.storeErrors, c.inFlight, c.unstored, c.findings, c.leaseLost, c.lateAcceptances, c.records,
	} {
		var already prometheus.AlreadyRegisteredError
		if err := registry.Register(collector); err != nil && !errors.As(err, &already) {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// requestsOf returns the counters of a namespace. All of them are there from the
// time when the first handler with it is provisioned.
func (c *collectors) requestsOf(namespace string) requestCounters {
	counters := make(requestCounters, len(outcomes))
	for _, o := range outcomes {
		counters[o] = c.requests.WithLabelValues(string(o), strings.ToValidUTF8(namespace, "\uFFFD"))
	}
	return counters
}

func (c *collectors) observeStore(op string, took time.Duration, err error) {
	of := c.byOp[op]
	of.duration.Observe(took.Seconds())
	if err != nil {
		of.errors.Inc()
	}
}

// sumEngines adds up a number over all engines of the process: those of the
// current configuration, and those that attempts of earlier ones still need.
func sumEngines(number func(*idempotency.Engine) int) float64 {
	sum := 0
	for _, pooled := range pooledStores() {
		sum += number(pooled.engine)
	}
	return float64(sum)
}

// countFindings counts what stores have found wrong with their servers or files.
func countFindings() float64 {
	found := make(map[idempotency.Finding]bool) // two stores may have one server
	for _, pooled := range pooledStores() {
		if store, ok := pooled.store.(idempotency.Findings); ok {
			for _, finding := range store.Findings() {
				found[finding] = true
			}
		}
	}
	return float64(len(found))
}

package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

const recordsHelp = "Records in the configured store by their state, also those of other gateways that share it. " +
	"They are counted in the background while somebody scrapes, once a minute (more seldom if a count takes longer than six seconds), " +
	"and a scrape shows the last count: a minute and a scrape interval old as a rule, at most an hour. " +
	"The first scrape of a process shows none."

// recordsCollector shows how many records the active configuration's store has.
// It has nothing to do, and no goroutine, as long as nobody scrapes.
type recordsCollector struct{ desc *prometheus.Desc }

// Describe implements prometheus.Collector.
func (c recordsCollector) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }

// Collect implements prometheus.Collector.
func (c recordsCollector) Collect(series chan<- prometheus.Metric) {
	app, err := caddy.ActiveContext().AppIfConfigured(AppID)
	if err != nil {
		return // no configuration is active, or it has no handler
	}
	store, release, err := app.(*App).store.use()
	if err != nil {
		return // its store cannot be opened, as each submit reports
	}
	defer release()
	counts := store.engine.Census()
	for _, state := range []idempotency.State{idempotency.InProgress, idempotency.Completed, idempotency.Uncertain} {
		if n, known := counts[state]; known {
			series <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), state.String())
		}
	}
}

// Interface guard
var _ prometheus.Collector = recordsCollector{}

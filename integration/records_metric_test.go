package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// records returns the gauge of the records; nil as long as it shows none.
func (s series) records() map[string]int {
	var n map[string]int
	for name, value := range s {
		if state, ok := strings.CutPrefix(name, `caddy_idempotency_records{state="`); ok {
			if n == nil {
				n = map[string]int{}
			}
			n[strings.TrimSuffix(state, `"}`)] = int(value)
		}
	}
	return n
}

func (g *gateway) awaitRecords(t testing.TB, want map[string]int) {
	t.Helper()
	await(t, fmt.Sprint("the metric to show ", want), func() bool { return maps.Equal(g.scrape(t).records(), want) })
}

// What is open is seen by a process that has not seen it come: after a restart,
// and on another gateway of the same store.
func TestRecordsMetric(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			hold := newGate()
			p := startProvider(t, nil)
			o := options{store: store.directive(t)}
			g := startGateway(t, p.url, o)
			g.awaitRecords(t, map[string]int{"uncertain": 0, "in_progress": 0, "completed": 0})
			leaveUnknown(t, g, p, submitUnknown)
			for i := range 3 {
				g.send(t, request{key: fmt.Sprint("done", i), body: "x"})
			}
			p.want(t, 4)
			want := map[string]int{"uncertain": 1, "in_progress": 0, "completed": 3}
			if s := g.scrape(t).records(); s["completed"] != 0 {
				t.Errorf("within a minute the records were counted again: %v", s)
			}
			g.stop(t)
			g.run(t)
			if s := g.scrape(t).records(); s != nil {
				t.Errorf("before the first count the metric shows %v", s)
			}
			g.awaitRecords(t, want)
			if n := g.stacksIn(t, "takeCensus"); n != 0 {
				t.Errorf("%d goroutines count when nothing is to be counted", n)
			}
			// A reload with the same store keeps what is known.
			g.reload(t)
			if s := g.scrape(t); !maps.Equal(s.records(), want) {
				t.Errorf("after a reload the metric shows %v", s.records())
			}

			if o.store != "" {
				p.now(p.holdUntil(hold))
				first := g.sendLater(t, request{key: "held", body: "x"})
				p.awaitSubmits(t, 5)
				other := startGateway(t, p.url, o)
				other.awaitRecords(t, map[string]int{"uncertain": 1, "in_progress": 1, "completed": 3})
				hold.open()
				<-first
			}
		})
	}
}

// Without a scrape nobody counts, and a store that cannot be reached shows no
// records instead of none.
func TestRecordsMetricCostsNothing(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + redis.Address})
	g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	commands := func() string {
		t.Helper()
		stats, err := redis.Client.Info(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		return stats
	}
	if strings.Contains(commands(), "cmdstat_scan:") {
		t.Error("the records were counted, and nobody has scraped")
	}
	g.awaitRecords(t, map[string]int{"uncertain": 0, "in_progress": 0, "completed": 1})
	if !strings.Contains(commands(), "cmdstat_scan:calls=1,") {
		t.Errorf("one count took %s", commands())
	}

	away := startGateway(t, p.url, options{store: "redis 127.0.0.1:1"})
	await(t, "the count to fail", func() bool { return away.scrape(t)[storeErrors("now")] > 0 })
	if s := away.scrape(t).records(); s != nil {
		t.Errorf("the store is away, and the metric shows %v", s)
	}

	// Another store has other records.
	g.write(t, p.url, options{store: "embedded " + filepath.Join(g.dir, "other.db")})
	g.reload(t)
	g.awaitRecords(t, map[string]int{"uncertain": 0, "in_progress": 0, "completed": 0})
}

// A count that is under way keeps neither a reload nor the end of the process
// from coming.
func TestRecordsMetricEndsWithItsStore(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	o := options{store: "redis " + redis.Address + " {\ntimeout 2s\n}"}
	g := startGateway(t, p.url, o)
	g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	redis.Freeze(t)
	g.scrape(t)
	await(t, "a count to begin", func() bool { return g.stacksIn(t, "takeCensus") == 1 })
	g.write(t, p.url, options{store: "embedded " + filepath.Join(g.dir, "other.db")})
	g.reload(t)
	if n := g.stacksIn(t, "takeCensus"); n != 0 {
		t.Errorf("after the reload %d goroutines count in a store that is closed", n)
	}
	g.awaitRecords(t, map[string]int{"uncertain": 0, "in_progress": 0, "completed": 0})
}

// Requests are counted by the namespace of their handler, whose series are there
// from the start.
func TestMetricsByNamespace(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	second := &gateway{url: "http://" + freeAddress(t)}
	o := options{idempotency: "namespace videos"}
	g := &gateway{url: "http://" + freeAddress(t), admin: freeAddress(t), log: &logBuffer{}, dir: t.TempDir()}
	g.write(t, p.url, o)
	text := readFile(t, g.caddyfile)
	text += fmt.Sprintf("%s {\n\tidempotency {\n\t\tnamespace voices\n\t}\n\treverse_proxy %s\n}\n", second.url, p.url)
	if err := os.WriteFile(g.caddyfile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g.endWith(t)
	g.run(t)
	of := func(namespace, outcome string) string {
		return fmt.Sprintf("caddy_idempotency_requests_total{namespace=%q,outcome=%q}", namespace, outcome)
	}
	s := g.scrape(t)
	for _, namespace := range []string{"videos", "voices"} {
		for _, outcome := range allOutcomes {
			if value, found := s[of(namespace, outcome)]; !found || value != 0 {
				t.Errorf("%s of %s is %v, %v", outcome, namespace, value, found)
			}
		}
	}
	r := request{key: "k", body: "x"}
	g.send(t, r)
	g.send(t, r)
	g.send(t, r)
	second.send(t, r)
	second.send(t, request{body: "x"})
	p.want(t, 3)
	s = g.scrape(t)
	for name, want := range map[string]float64{
		of("videos", "accepted"): 1, of("videos", "replayed"): 2, of("videos", "bypass"): 0,
		of("voices", "accepted"): 1, of("voices", "replayed"): 0, of("voices", "bypass"): 1,
	} {
		if s[name] != want {
			t.Errorf("%s is %v, want %v", name, s[name], want)
		}
	}
}

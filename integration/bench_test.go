package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// BenchmarkGateway measures what a request costs a gateway whose provider costs
// nothing, so that what the module adds shows. cpu-ns/op is the processor time of
// the gateway, which other load on the machine disturbs less than the time that
// passes. Run it with IDEMPOTENCY_CADDY set to one binary and another to compare
// them.
func BenchmarkGateway(b *testing.B) {
	for _, traffic := range []struct {
		name   string
		before string
		key    func(n int64) string
	}{
		{name: "keyless", key: func(int64) string { return "" }},
		{name: "first", key: func(n int64) string { return fmt.Sprint("k", n) }},
		{name: "replay", key: func(int64) string { return "k" }},
		{name: "first, traced", before: "tracing", key: func(n int64) string { return fmt.Sprint("k", n) }},
	} {
		b.Run(traffic.name, func(b *testing.B) {
			g := startGateway(b, "", options{
				store:   "redis " + redistest.Start(b).Address,
				before:  traffic.before,
				log:     "log {\noutput discard\n}",
				instead: `respond "{}" 202`,
				env:     []string{"OTEL_TRACES_EXPORTER=none"},
			})
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
			defer client.CloseIdleConnections()
			var n atomic.Int64
			send := func() {
				req, err := http.NewRequest(http.MethodPost, g.url+"/v1/videos", strings.NewReader(`{"prompt":"a lighthouse"}`))
				if err != nil {
					b.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/json")
				if key := traffic.key(n.Add(1)); key != "" {
					req.Header.Set("Idempotency-Key", key)
				}
				res, err := client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 202 {
					b.Errorf("answer %d, %v", res.StatusCode, err)
				}
			}
			send() // the first loads scripts and asks for the clock
			b.ResetTimer()
			before := g.cpu(b)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					send()
				}
			})
			b.ReportMetric(float64(g.cpu(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu returns the processor time that the gateway has used, in nanoseconds.
func (g *gateway) cpu(b *testing.B) int64 {
	b.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", g.cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		b.Skipf("no /proc to read the processor time from: %v", err)
	}
	var sum int64
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		used, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(used, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return sum
}

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// What encryption costs: replays through two gateways that differ in
// encryption_key alone, in turns, so that the machine's other work meets both.
// The processor time of a gateway does not depend on that work.
//
//	go test ./integration -run '^$' -bench EncryptedReplay -benchtime 50x
func BenchmarkEncryptedReplay(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"200B", 200}, {"16KiB", 16 << 10}, {"256KiB", 256 << 10}} {
		b.Run(size.name, func(b *testing.B) {
			redis := redistest.Start(b)
			p := startProvider(b, answerWith(202, nil, strings.Repeat("x", size.bytes)))
			o := options{store: "redis " + redis.Address + " {\ntimeout 10s\n}", log: "# no access log"}
			gateways := []*gateway{startGateway(b, p.url, o)}
			o.app, o.idempotency = encryptedBy("a"), "namespace encrypted"
			gateways = append(gateways, startGateway(b, p.url, o))
			for _, g := range gateways {
				g.send(b, request{key: "k", body: "x"})
				replays(b, g, 50)
			}
			p.want(b, 2)

			const atOnce = 200
			var took, worked [2]time.Duration
			for i, g := range gateways {
				worked[i] -= processorTime(b, g)
			}
			for turn := 0; b.Loop(); turn++ {
				for i := range gateways {
					i = (i + turn) % len(gateways) // nobody is always the second
					took[i] += replays(b, gateways[i], atOnce)
				}
			}
			for i, g := range gateways {
				worked[i] += processorTime(b, g)
			}
			p.want(b, 2)
			for i, name := range []string{"plain", "encrypted"} {
				b.ReportMetric(float64(b.N*atOnce)/took[i].Seconds(), name+"/s")
				b.ReportMetric(float64(worked[i].Microseconds())/float64(b.N*atOnce), name+"-µs")
			}
			b.ReportMetric(100*(1-took[0].Seconds()/took[1].Seconds()), "%slower")
			b.ReportMetric(100*(worked[1].Seconds()/worked[0].Seconds()-1), "%more-work")
			b.ReportMetric(0, "ns/op") // of a turn, which says nothing
		})
	}
}

// processorTime is what the gateway's process has used.
func processorTime(b *testing.B, g *gateway) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.cmd.Process.Pid))
	if err != nil {
		b.Skip("the processor time of another process is read from /proc: ", err)
	}
	// Fields 14 and 15 of proc_pid_stat(5), in hundredths of a second; the second
	// one, in parentheses, may have spaces.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err := errors.Join(err, err2); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// replays has 16 callers get n replays together, and returns how long it took.
func replays(b *testing.B, g *gateway, n int) time.Duration {
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	work := make(chan struct{}, n)
	for range n {
		work <- struct{}{}
	}
	close(work)
	start := time.Now()
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range work {
				if err := replay(transport, g); err != nil {
					b.Error(err)
				}
			}
		})
	}
	callers.Wait()
	return time.Since(start)
}

func replay(transport *http.Transport, g *gateway) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, g.url+"/v1/videos", strings.NewReader("x"))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer caller")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "k")
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.Header.Get("Idempotency-Replayed") != "true" {
		return errNoReplay
	}
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

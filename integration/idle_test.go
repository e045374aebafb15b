package integration

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// A12: the provider closes idle connections just as submits arrive on them,
// hundreds of times. Every answer is an acceptance, or says that the outcome is
// unknown; a key is never submitted twice.
func TestProviderClosesIdleConnections(t *testing.T) {
	for name, body := range map[string]string{"with a body": `{"prompt":"x"}`, "without a body": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const idle, callers, submits = 20 * time.Millisecond, 2, 200
			p := newProvider(t, nil)
			p.server.Config.IdleTimeout = idle
			p.start()
			g := startGateway(t, p.url, options{})
			var wg sync.WaitGroup
			var mu sync.Mutex
			ends := map[string]int{}
			for caller := range callers {
				wg.Go(func() {
					for i := range submits {
						// The connection has been idle for about as long as it may be.
						pause := time.NewTimer(idle - time.Duration(rand.IntN(3000))*time.Microsecond)
						<-pause.C
						r := request{key: fmt.Sprintf("key-%d-%d", caller, i), body: body, path: fmt.Sprintf("/v1/videos/%d/%d", caller, i)}
						first := g.send(t, r)
						again := g.send(t, r)
						_, accepted := jobOf(first)
						switch {
						case accepted && again.replayed() && again.body == first.body:
						case first.status == 502 && first.code() == "idempotency_outcome_unknown" && again.code() == "idempotency_outcome_unknown":
						default:
							t.Errorf("first: %v, again: %v", first, again)
						}
						mu.Lock()
						ends[fmt.Sprint(first.status)]++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			times := map[string]int{}
			for _, s := range p.submits {
				times[s.path]++ // a submit without a body goes without its key
				if times[s.path] > 1 {
					t.Errorf("%s was submitted %d times", s.path, times[s.path])
				}
			}
			t.Logf("%d submits ended with %v", callers*submits, ends)
		})
	}
}

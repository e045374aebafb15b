package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

var (
	randomFor  = flag.Duration("random.for", 15*time.Second, "how long TestRandomDeaths runs")
	randomSeed = flag.Uint64("random.seed", 0, "seed of TestRandomDeaths; 0 draws one")
)

// B8: gateways are killed, frozen and restarted at random while callers repeat
// their jobs and the provider accepts, refuses, stalls and hangs up. However it
// goes, a key has at most one acceptance, every answer names a job of its key,
// and nothing stays in progress.
func TestRandomDeaths(t *testing.T) {
	seed := *randomSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("to repeat: -run TestRandomDeaths -random.seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	const keys, callers = 20, 8
	redis := redistest.Start(t, "--appendfsync", "always")
	p := startProvider(t, nil)
	var dice sync.Mutex
	roll := func(n int) int {
		dice.Lock()
		defer dice.Unlock()
		return random.IntN(n)
	}
	p.now(func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
		wait := time.NewTimer(time.Duration(roll(300)) * time.Millisecond)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-p.ctx.Done():
			return
		}
		switch roll(10) {
		case 0, 1, 2, 3:
			answerWith(429, nil, "slow down")(w, r, n, accept)
		case 4:
			hangUp("", true)(w, r, n, accept)
		case 5:
			hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 50\r\n\r\n{", false)(w, r, n, accept)
		default:
			acceptPlainly(w, accept)
		}
	})
	o := options{store: "redis " + redis.Address, idempotency: "lease 1s"}
	gateways := []*gateway{startGateway(t, p.url, o), startGateway(t, p.url, o)}

	type handedOut struct{ key, job string }
	var mu sync.Mutex
	var jobs []handedOut
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint("key-", roll(keys))
				got := gateways[roll(2)].send(t, request{key: key, body: key, timeout: time.Duration(50+roll(1000)) * time.Millisecond})
				if job, ok := jobOf(got); ok {
					mu.Lock()
					jobs = append(jobs, handedOut{key, job})
					mu.Unlock()
				}
			}
		})
	}

	deaths := 0
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(*randomFor); time.Now().Before(end); {
		for range 2 + roll(10) {
			<-tick.C
		}
		g := gateways[roll(2)]
		switch roll(3) {
		case 0, 1:
			g.kill(t)
			g.run(t)
			deaths++
		case 2:
			g.freeze(t)
			for range roll(30) {
				<-tick.C
			}
			g.thaw(t)
		}
	}
	close(stop)
	wg.Wait()

	// Nothing is stuck: each key ends with its job, a refusal, or "unknown".
	p.now(func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
		answerWith(429, nil, "closed")(w, r, n, accept)
	})
	ends := map[string]int{}
	for i := range keys {
		key := fmt.Sprint("key-", i)
		var got answer
		await(t, key+" to come to an end", func() bool {
			got = gateways[i%2].send(t, request{key: key, body: key})
			return got.status == 202 || got.status == 429 || got.status == 409
		})
		ends[fmt.Sprint(got.status)]++
		if job, ok := jobOf(got); ok {
			jobs = append(jobs, handedOut{key, job})
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	accepted := map[string]int{}
	for _, key := range p.accepted {
		accepted[key]++
		if accepted[key] > 1 {
			t.Errorf("the provider accepted %s %d times", key, accepted[key])
		}
	}
	for _, j := range jobs {
		if p.accepted[j.job] != j.key {
			t.Errorf("an answer to %s names %s, which the provider accepted for %q", j.key, j.job, p.accepted[j.job])
		}
	}
	t.Logf("%d submits, %d acceptances, %d deaths, %d answers with a job; the keys ended with %v",
		len(p.submits), len(p.accepted), deaths, len(jobs), ends)
	if len(p.accepted) == 0 || len(jobs) == 0 || deaths == 0 {
		t.Error("nothing happened that could have gone wrong")
	}
}

func jobOf(a answer) (id string, ok bool) {
	if a.err != nil || a.status != http.StatusAccepted {
		return "", false
	}
	var job struct {
		ID string `json:"id"`
	}
	err := json.Unmarshal([]byte(a.body), &job)
	return job.ID, err == nil && job.ID != ""
}

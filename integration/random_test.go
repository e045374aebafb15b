package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

var (
	randomFor  = flag.Duration("random.for", 20*time.Second, "how long TestRandomFaults runs")
	randomSeed = flag.Uint64("random.seed", 0, "seed of TestRandomFaults; 0 draws one")
)

// B8 and more: gateways and Redis are killed, frozen and restarted at random,
// the networks between them and to the provider are cut, slow and silent, while
// callers repeat their jobs and the provider accepts, refuses, stalls and hangs
// up. However it goes, a key has at most one acceptance, every answer names a
// job of its key, a replay that was seen stays, nothing stays in progress, and
// the gateways hold no more in the end than in the beginning.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	seed := *randomSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("to repeat: -run TestRandomFaults -random.seed %d", seed)
	dice := &dice{random: rand.New(rand.NewPCG(seed, 0))}

	const keys, callers = 20, 8
	redis := redistest.Start(t, "--appendfsync", "always")
	p := startProvider(t, nil)
	toRedis, toProvider := startNetwork(t, redis.Address), startNetwork(t, strings.TrimPrefix(p.url, "http://"))
	o := options{
		store: "redis " + toRedis.address, idempotency: "lease 1s",
		// Idle connections to the provider are gone before the end is measured.
		proxy: "transport http {\nkeepalive 1s\n}",
	}
	gateways := []*gateway{
		startGateway(t, "http://"+toProvider.address, o),
		startGateway(t, "http://"+toProvider.address, o),
	}
	jobs := newLedger(keys)
	for _, g := range gateways {
		jobs.send(t, g, request{key: "warm", body: "x"})
	}
	var before []usage
	for _, g := range gateways {
		before = append(before, g.usage(t))
	}

	p.now(func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
		wait := time.NewTimer(time.Duration(dice.roll(300)) * time.Millisecond)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-p.ctx.Done():
			return
		}
		switch dice.roll(12) {
		case 0, 1, 2, 3:
			answerWith(429, nil, "slow down")(w, r, n, accept)
		case 4:
			hangUp("", true)(w, r, n, accept)
		case 5:
			hangUp("", false)(w, r, n, accept)
		case 6:
			hangUp("HTTP/1.1 202 Accepted\r\nContent-Length: 50\r\n\r\n{", false)(w, r, n, accept)
		default:
			acceptPlainly(w, accept)
		}
	})

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
				slot := dice.roll(keys)
				key := jobs.key(slot)
				body := key
				if dice.roll(20) == 0 {
					body = "another job" // answered with reuse, if the key is taken
				} else if slot == 0 {
					body += strings.Repeat(" ", 1<<20) // goes to a temporary file
				}
				got := jobs.send(t, gateways[dice.roll(2)], request{
					key: key, body: body, timeout: time.Duration(50+dice.roll(1000)) * time.Millisecond,
				})
				if (got.replayed() || got.code() == "idempotency_outcome_unknown") && dice.roll(10) == 0 {
					jobs.renew(slot, key)
				}
			}
		})
	}

	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	pause := func(ticks int) {
		for range ticks {
			<-tick.C
		}
	}
	faults := []struct {
		name string
		do   func()
	}{
		{"gateway killed", func() { g := gateways[dice.roll(2)]; g.kill(t); g.run(t) }},
		{"gateway frozen", func() { g := gateways[dice.roll(2)]; g.freeze(t); pause(dice.roll(30)); g.thaw(t) }},
		{"Redis killed", func() { redis.Kill(t); pause(dice.roll(10)); redis.Run(t) }},
		{"Redis frozen", func() { redis.Freeze(t); pause(dice.roll(30)); redis.Thaw(t) }},
		{"Redis cut off", toRedis.cut},
		{"replies of Redis lost", func() { toRedis.loseReplies(1 + dice.roll(5)) }},
		{"replies of Redis late", func() {
			toRedis.delayReplies(time.Duration(dice.roll(700)) * time.Millisecond)
			pause(dice.roll(20))
			toRedis.heal()
		}},
		{"Redis swallowed", func() { toRedis.swallow(); pause(dice.roll(30)); toRedis.heal() }},
		{"provider cut off", toProvider.cut},
		{"answers of the provider lost", func() { toProvider.loseReplies(1 + dice.roll(3)) }},
		{"provider swallowed", func() { toProvider.swallow(); pause(dice.roll(20)); toProvider.heal() }},
	}
	happened := map[string]int{}
	for end := time.Now().Add(*randomFor); time.Now().Before(end); {
		pause(2 + dice.roll(8))
		fault := faults[dice.roll(len(faults))]
		fault.do()
		happened[fault.name]++
	}
	close(stop)
	wg.Wait()
	toRedis.heal()
	toProvider.heal()

	// Each key ends with its job, a refusal, or "unknown".
	p.now(answerWith(429, nil, "closed"))
	ends := map[int]int{}
	for i, key := range jobs.allKeys() {
		request := request{key: key, body: key}
		var got answer
		await(t, key+" to come to an end", func() bool {
			got = jobs.send(t, gateways[i%2], request)
			if got.code() == "idempotency_key_reuse" {
				// Its first body was the other one, or has blanks at its end.
				request.body = map[string]string{key: "another job", "another job": key + strings.Repeat(" ", 1<<20)}[request.body]
				return false
			}
			return got.status == 202 || got.status == 429 || got.code() == "idempotency_outcome_unknown"
		})
		ends[got.status]++
	}
	p.checkAcceptances(t)
	jobs.check(t, p)
	for i, g := range gateways {
		g.awaitUsage(t, before[i])
	}
	t.Logf("%d keys ended with %v; %d submits; faults: %v", len(jobs.allKeys()), ends, p.count(), happened)
	if ends[202] == 0 || ends[409] == 0 || p.count() < keys {
		t.Error("nothing happened that could have gone wrong")
	}
}

// dice are rolled by many goroutines.
type dice struct {
	mu     sync.Mutex
	random *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(n)
}

// ledger remembers what callers were told.
type ledger struct {
	mu       sync.Mutex
	all      []string
	current  []string // the key of each slot
	handed   map[string]map[string]bool
	replayed map[string]string // key -> job of the first replay
	broken   []string
}

func newLedger(slots int) *ledger {
	l := &ledger{current: make([]string, slots), handed: map[string]map[string]bool{}, replayed: map[string]string{}}
	for slot := range slots {
		l.renew(slot, "")
	}
	return l
}

func (l *ledger) key(slot int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current[slot]
}

// renew gives a slot another key, unless somebody else did.
func (l *ledger) renew(slot int, old string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current[slot] == old {
		l.current[slot] = fmt.Sprintf("key-%d-%d", slot, len(l.all))
		l.all = append(l.all, l.current[slot])
	}
}

func (l *ledger) allKeys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.all...)
}

// send sends a request and enters its answer.
func (l *ledger) send(t testing.TB, g *gateway, r request) answer {
	t.Helper()
	l.mu.Lock()
	was := l.replayed[r.key]
	l.mu.Unlock()
	got := g.send(t, r)
	job, ok := jobOf(got)
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		if l.handed[r.key] == nil {
			l.handed[r.key] = map[string]bool{}
		}
		l.handed[r.key][job] = true
		if got.replayed() && was == "" {
			l.replayed[r.key] = job
		}
	}
	honest := got.err != nil || got.code() == "idempotency_store_unavailable" || got.code() == "idempotency_key_reuse"
	if was != "" && !honest && (job != was || !got.replayed()) {
		l.broken = append(l.broken, fmt.Sprintf("%s was replayed as %s, and then: %v", r.key, was, got))
	}
	return got
}

// check compares what callers were told with what the provider knows.
func (l *ledger) check(t testing.TB, p *provider) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, jobs := range l.handed {
		for job := range jobs {
			if p.accepted[job] != key {
				t.Errorf("an answer to %s names %s, which the provider accepted for %q", key, job, p.accepted[job])
			}
		}
	}
	for _, text := range l.broken {
		t.Error(text)
	}
}

// checkAcceptances checks that no key was accepted twice.
func (p *provider) checkAcceptances(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	times := map[string]int{}
	for _, key := range p.accepted {
		times[key]++
		if times[key] > 1 {
			t.Errorf("the provider accepted %s %d times", key, times[key])
		}
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

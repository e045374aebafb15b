package integration

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// steadyLoad sends submits over two gateways as long as the test wants. A caller
// repeats its submit until it has an answer that settles it.
type steadyLoad struct {
	gateways []*gateway
	stop     chan struct{}
	ended    sync.Once
	callers  sync.WaitGroup

	sent     atomic.Int64 // keys
	accepted atomic.Int64 // keys that got a job
	unknown  atomic.Int64 // keys whose outcome nobody knows
	busy     atomic.Int64 // answers 503

	mu   sync.Mutex
	keys []string
}

func startSteadyLoad(t *testing.T, gateways ...*gateway) *steadyLoad {
	l := &steadyLoad{gateways: gateways, stop: make(chan struct{})}
	t.Cleanup(l.end)
	for caller := range 6 {
		l.callers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				default:
					l.submit(t, fmt.Sprintf("load-%d-%d", caller, i), caller)
				}
			}
		})
	}
	return l
}

func (l *steadyLoad) submit(t *testing.T, key string, caller int) {
	l.sent.Add(1)
	l.mu.Lock()
	l.keys = append(l.keys, key)
	l.mu.Unlock()
	for try := 0; ; try++ {
		got := l.gateways[(caller+try)%len(l.gateways)].send(t, request{key: key, body: "x"})
		switch {
		case got.status == 202:
			l.accepted.Add(1)
			return
		case got.code() == "idempotency_outcome_unknown":
			l.unknown.Add(1)
			return
		case got.status == 503:
			l.busy.Add(1)
		}
		select {
		case <-l.stop:
			return // a later test of the key would be another one's business
		default:
		}
	}
}

func (l *steadyLoad) end() {
	l.ended.Do(func() { close(l.stop) })
	l.callers.Wait()
}

// awaitAccepted waits for n more jobs.
func (l *steadyLoad) awaitAccepted(t *testing.T, what string, n int64) {
	t.Helper()
	from := l.accepted.Load()
	await(t, what, func() bool { return l.accepted.Load() >= from+n })
}

// repeat sends all submits once more, as callers do that have lost the answer.
func (l *steadyLoad) repeat(t *testing.T) {
	t.Helper()
	for i, key := range l.keys {
		l.gateways[i%len(l.gateways)].send(t, request{key: key, body: "x"})
	}
}

// wantOnePerKey is what every failover comes to.
func (p *provider) wantOnePerKey(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	jobs := map[string]int{}
	for _, key := range p.accepted {
		jobs[key]++
	}
	for key, n := range jobs {
		if n > 1 {
			t.Errorf("the provider accepted %s %d times", key, n)
		}
	}
}

// deployment is a primary with replicas, one of which takes its place.
type deployment struct {
	directive string // what follows "store"
	primary   *redistest.Server
	replicas  []*redistest.Server
	promoted  func() // waits until a replica has taken the place
}

var deployments = []struct {
	name  string
	start func(t *testing.T) deployment
}{
	{"sentinel", func(t *testing.T) deployment {
		d := redistest.StartSentinels(t)
		return deployment{
			directive: fmt.Sprintf("redis %s {\nsentinel %s\nreplicas 1 100ms\n}", strings.Join(d.Addresses, " "), d.Master),
			primary:   d.Servers[0],
			replicas:  d.Servers[1:],
			promoted: func() {
				redistest.Await(t, "another primary", func() bool { return d.Primary(t) != d.Servers[0] })
			},
		}
	}},
	{"cluster", func(t *testing.T) deployment {
		c := redistest.StartCluster(t)
		return deployment{
			directive: fmt.Sprintf("redis %s {\ncluster\nreplicas 1 100ms\n}", strings.Join(c.Addresses(), " ")),
			primary:   c.Nodes[0],
			replicas:  c.Nodes[3:4],
			promoted:  func() { c.Nodes[3].AwaitInfo(t, "role:master") },
		}
	}},
}

// C9: the primary dies or stands still under load, and its replicas did not have
// what it took last. What it took last was not sent either.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, test := range deployments {
		t.Run(test.name+" killed", func(t *testing.T) {
			t.Parallel()
			testFailover(t, test.start(t), (*redistest.Server).Kill, (*redistest.Server).Run)
		})
		t.Run(test.name+" frozen", func(t *testing.T) {
			t.Parallel()
			testFailover(t, test.start(t), (*redistest.Server).Freeze, (*redistest.Server).Thaw)
		})
	}
}

func testFailover(t *testing.T, d deployment, end, begin func(*redistest.Server, testing.TB)) {
	p := startProvider(t, nil)
	o := options{store: d.directive, idempotency: "lease 2s"}
	a, b := startGateway(t, p.url, o), startGateway(t, p.url, o)
	l := startSteadyLoad(t, a, b)
	l.awaitAccepted(t, "jobs before the failover", 50)

	redistest.CutOff(t, d.primary, d.replicas...)
	// Claims that only the primary has.
	from := l.busy.Load()
	await(t, "claims that no replica confirms", func() bool { return l.busy.Load() >= from+10 })
	end(d.primary, t)
	d.promoted()
	for _, replica := range d.replicas {
		replica.Mend(t)
	}
	if len(d.replicas) > 1 { // otherwise nobody confirms claims until the old primary is back
		l.awaitAccepted(t, "jobs after the failover", 50)
	}
	begin(d.primary, t) // and becomes a replica
	l.awaitAccepted(t, "jobs after the old primary came back", 50)
	l.end()
	l.repeat(t)
	p.wantOnePerKey(t)
	if unknown := l.unknown.Load(); unknown > 12 {
		t.Errorf("%d outcomes are unknown, more than could have been running", unknown)
	}
	t.Logf("%d keys, %d accepted, %d unknown, %d answers 503", l.sent.Load(), l.accepted.Load(), l.unknown.Load(), l.busy.Load())
}

// C5: SCRIPT FLUSH in a loop, a failover that is asked for, and slots that move
// are not noticed.
func TestClusterChangesUnnoticed(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	ctx := context.Background()
	p := startProvider(t, nil)
	o := options{store: fmt.Sprintf("redis %s {\ncluster\n}", c.Nodes[0].Address)}
	a, b := startGateway(t, p.url, o), startGateway(t, p.url, o)
	l := startSteadyLoad(t, a, b)
	l.awaitAccepted(t, "jobs", 50)
	flushing := make(chan struct{})
	var flushes sync.WaitGroup
	flushes.Go(func() {
		for {
			select {
			case <-flushing:
				return
			default:
				for _, node := range c.Nodes {
					_ = node.Client.ScriptFlush(ctx).Err() // replicas refuse
				}
			}
		}
	})
	for slot := range int64(20) {
		c.MoveSlot(t, slot, 0, 1, nil)
	}
	l.awaitAccepted(t, "jobs after slots have moved", 20)
	if err := c.Nodes[5].Client.ClusterFailover(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	c.Nodes[5].AwaitInfo(t, "role:master")
	l.awaitAccepted(t, "jobs after the failover", 50)
	l.end()
	close(flushing)
	flushes.Wait()
	l.repeat(t)
	p.wantOnePerKey(t)
	if unknown, busy := l.unknown.Load(), l.busy.Load(); unknown+busy > 0 {
		t.Errorf("%d outcomes are unknown, and %d answers are 503", unknown, busy)
	}
}

// C8: without its replica a claim is not sent, and its key is free afterwards.
func TestReplicaDoesNotAnswer(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	replica := redistest.StartReplica(t, primary)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + primary.Address + " {\nreplicas 1 200ms\n}", idempotency: "lease 1m"})
	var first answer
	await(t, "a claim that the replica confirms", func() bool {
		first = g.send(t, request{key: "first", body: "x"})
		return first.status == 202
	})
	p.want(t, 1)
	replica.Freeze(t)
	got := g.send(t, request{key: "second", body: "x"})
	p.want(t, 1)
	if got.status != 503 || got.code() != "idempotency_store_unavailable" {
		t.Errorf("without its replica: %v", got)
	}
	g.awaitLog(t, "0 of 1 replicas had it within 200ms")
	if again := g.send(t, request{key: "first", body: "x"}); !again.replayed() || again.body != first.body {
		t.Errorf("a replay: %v", again)
	}
	replica.Thaw(t)
	await(t, "the key to be free", func() bool { got = g.send(t, request{key: "second", body: "x"}); return got.status == 202 })
	p.want(t, 2)
}

// C7: what may lose records is a warning that names the setting, on start
// already, and 503 with strict.
func TestUnsafeServer(t *testing.T) {
	t.Parallel()
	for setting, args := range map[string][]string{
		"maxmemory-policy": {"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"},
		"appendonly":       {"--appendonly", "no"},
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, args...)
			p := startProvider(t, nil)
			lax := startGateway(t, p.url, options{store: "redis " + redis.Address})
			lax.awaitLog(t, `"setting":"`+setting+`"`)
			for i := range 3 {
				lax.send(t, request{key: fmt.Sprint("k", i), body: "x"})
			}
			p.want(t, 3)
			if n := strings.Count(lax.log.String(), `"setting":"`+setting+`"`); n != 1 {
				t.Errorf("the warning is there %d times", n)
			}
			const findings = "caddy_idempotency_store_findings"
			if n := lax.scrape(t)[findings]; n != 1 {
				t.Errorf("the metric has %v findings", n)
			}
			strict := startGateway(t, p.url, options{store: "redis " + redis.Address + " {\nstrict\n}"})
			got := strict.send(t, request{key: "k", body: "x"})
			p.want(t, 3)
			if got.status != 503 || got.code() != "idempotency_store_unavailable" {
				t.Errorf("with strict: %v", got)
			}
			for name, value := range map[string]string{"maxmemory-policy": "noeviction", "appendonly": "yes"} {
				if err := redis.Client.ConfigSet(context.Background(), name, value).Err(); err != nil {
					t.Fatal(err)
				}
			}
			await(t, "strict to be content", func() bool { return strict.send(t, request{key: "k", body: "x"}).status == 202 })
			p.want(t, 4)
			await(t, "the metric to be 0", func() bool { return strict.scrape(t)[findings] == 0 })
		})
	}
}

// Bad input: the log says what is wrong, keyed submits get 503, nothing is sent
// and no password is shown.
func TestUnusableServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "right-word")
	plain := redistest.Start(t)
	replica := redistest.StartReplica(t, plain)
	cluster := redistest.StartCluster(t)
	sentinels := redistest.StartSentinels(t)
	certificates := redistest.NewCertificates(t)
	secure := redistest.StartTLS(t, certificates)
	const slow = " {\ntimeout 10s\n}" // on a busy machine a handshake takes its time
	for _, test := range []struct{ name, store, want string }{
		{"wrong password", "redis " + server.Address + " {\ntimeout 10s\npassword wrong-word\n}", "WRONGPASS"},
		{"unknown authority", "redis rediss://" + secure.Address + slow, "certificate signed by unknown authority"},
		{"no client certificate", "redis " + secure.Address + " {\ntimeout 10s\ntls {\nca " + certificates.CA + "\n}\n}", "client certificate"},
		{"cluster", "redis " + cluster.Nodes[0].Address + slow, "set the option cluster"},
		{"unknown master", "redis " + strings.Join(sentinels.Addresses, " ") + " {\ntimeout 10s\nsentinel nobody\n}", `no Sentinel knows a master named \"nobody\"`},
		{"replica", "redis " + replica.Address + slow, "read-only replica"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{store: test.store})
			g.awaitLog(t, test.want) // before there is a submit
			for i := range 4 {
				got := g.send(t, request{key: fmt.Sprint("k", i), body: "x"})
				p.want(t, 0)
				if got.status != 503 || got.code() != "idempotency_store_unavailable" {
					t.Errorf("got %v", got)
				}
			}
			if strings.Contains(g.log.String(), "wrong-word") {
				t.Error("the log has the password")
			}
		})
	}
}

// TLS with a client certificate, from the Caddyfile.
func TestTLS(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t)
	secure := redistest.StartTLS(t, certificates)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: fmt.Sprintf("redis rediss://%s {\ntls {\nca %s\nclient_auth %s %s\nserver_name redis.internal\n}\n}",
		secure.Address, certificates.CA, certificates.Client, certificates.ClientKey)})
	first := g.send(t, request{key: "k", body: "x"})
	again := g.send(t, request{key: "k", body: "x"})
	p.want(t, 1)
	if first.status != 202 || !again.replayed() {
		t.Errorf("got %v, and again %v", first, again)
	}
}

// Replicas 1 adds WAIT to the round trip of the claim, and nothing else.
func TestReplicasRoundTrips(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	redistest.StartReplica(t, primary)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + primary.Address + " {\ntimeout 10s\nreplicas 1\n}"})
	await(t, "a claim that the replica confirms", func() bool {
		return g.send(t, request{key: "warm", body: "x"}).status == 202
	})
	if err := primary.Client.ConfigResetStat(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	const n = 10
	for i := range n {
		g.send(t, request{key: fmt.Sprint("k", i), body: "x"})
	}
	p.want(t, 1+n)
	// Each script costs one round trip, and the claims bring WAIT with them.
	stats := primary.Client.Info(context.Background(), "commandstats").Val()
	for _, want := range []string{fmt.Sprintf("cmdstat_evalsha:calls=%d,", 2*n), fmt.Sprintf("cmdstat_wait:calls=%d,", n)} {
		if !strings.Contains(stats, want) {
			t.Errorf("the statistics lack %s:\n%s", want, stats)
		}
	}
}

// The doctor shows what the gateway would warn of, and changes nothing.
func TestDoctor(t *testing.T) {
	t.Parallel()
	sound := redistest.Start(t)
	unsound := redistest.Start(t, "--appendonly", "no", "--requirepass", "right-word")
	for _, test := range []struct {
		name, store string
		want        []string
		fails       bool
	}{
		{"sound", "redis " + sound.Address, []string{"appendfsync", "everysec", "maxmemory-policy", "noeviction", "ok"}, false},
		{"unsound", "redis " + unsound.Address + " {\npassword right-word\n}", []string{"appendonly", "no", "set yes", "strict refuses"}, true},
		{"away", "redis " + freeAddress(t), []string{"connection", "failed", "refused"}, true},
		{"embedded", "embedded " + filepath.Join(t.TempDir(), "idempotency.db"), []string{"embedded"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := &gateway{url: "http://localhost:1", admin: "localhost:3", dir: t.TempDir()}
			g.write(t, "localhost:2", options{store: test.store})
			output, err := exec.Command(caddyBinary, "idempotency", "doctor", "--config", g.caddyfile).CombinedOutput()
			if (err != nil) != test.fails {
				t.Errorf("the doctor ended with %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(string(output), want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			if strings.Contains(string(output), "pool.go") {
				t.Error("the output has lines of the driver's own log")
			}
			if strings.Contains(string(output), "right-word") {
				t.Error("the output has the password")
			}
			if t.Failed() {
				t.Logf("%s", output)
			}
		})
	}
	if n := sound.Client.DBSize(context.Background()).Val(); n != 0 {
		t.Errorf("the doctor left %d keys", n)
	}
}

package redis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// reports collects what a store reports.
type reports struct {
	mu   sync.Mutex
	came map[string]int // by setting and value
	over map[string]int // by setting
}

func (r *reports) hear(f redis.Finding, present bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.came == nil {
		r.came, r.over = map[string]int{}, map[string]int{}
	}
	if present {
		r.came[f.Setting+" "+f.Value]++
	} else {
		r.over[f.Setting]++
	}
}

func (r *reports) so() (came, over map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	came, over = map[string]int{}, map[string]int{}
	for name, n := range r.came {
		came[name] = n
	}
	for name, n := range r.over {
		over[name] = n
	}
	return came, over
}

// A server that does not know WAITAOF refuses every claim with Fsync, and says
// so beforehand.
func TestFsyncNeedsVersion(t *testing.T) {
	for _, test := range []struct {
		version string
		fsync   bool
		wrong   bool
	}{
		{"7.0.15", true, true},
		{"7.0.15", false, false},
		{"7.2.0", true, false},
		{"7.10.0", true, false},
		{"8.0.1", true, false},
	} {
		t.Run(fmt.Sprintf("%s fsync %t", test.version, test.fsync), func(t *testing.T) {
			f := startFakeServer(t, test.version, "standalone", func([]string) (string, bool) { return "-ERR not now\r\n", false })
			store := newStore(t, redis.Config{Addresses: []string{f.address}, Fsync: test.fsync, Timeout: 5 * time.Second})
			findings := store.Inspect(context.Background())
			if findings[0].Setting != "version" || findings[0].Value != test.version || (findings[0].Loss != "") != test.wrong {
				t.Errorf("the first finding is %+v", findings[0])
			}
		})
	}
}

// What each setting means, and what strict refuses.
func TestFindings(t *testing.T) {
	t.Parallel()
	sound := []string{"--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction", "--maxmemory", "100mb"}
	for _, test := range []struct {
		name    string
		options []string
		want    string // setting and value; empty: nothing is wrong
		refused bool
	}{
		{name: "sound"},
		{name: "always", options: []string{"--appendfsync", "always"}},
		{"eviction", []string{"--maxmemory-policy", "allkeys-lru"}, "maxmemory-policy allkeys-lru", true},
		{"eviction of what has a time to live", []string{"--maxmemory-policy", "volatile-ttl"}, "maxmemory-policy volatile-ttl", true},
		{name: "eviction without a limit", options: []string{"--maxmemory-policy", "allkeys-lru", "--maxmemory", "0"}},
		{"nearly full", []string{"--maxmemory", "20mb"}, "maxmemory 20971520", false},
		{"no append-only file", []string{"--appendonly", "no", "--save", "3600 1"}, "appendonly no", true},
		{"nothing persistent", []string{"--appendonly", "no", "--save", ""}, "appendonly no", true},
		{"fsync by the kernel", []string{"--appendfsync", "no"}, "appendfsync no", true},
		{"no fsync during a rewrite", []string{"--no-appendfsync-on-rewrite", "yes"}, "no-appendfsync-on-rewrite yes", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, slices.Concat(sound, test.options)...)
			if test.name == "nearly full" {
				fill(t, server, 19<<20)
			}
			for _, strict := range []bool{false, true} {
				store := newStore(t, redis.Config{Addresses: []string{server.Address}, Strict: strict})
				var wrong []string
				refused := false
				for _, f := range store.Inspect(context.Background()) {
					if f.Server != server.Address {
						t.Errorf("%s is of server %q", f.Setting, f.Server)
					}
					if f.Loss != "" {
						wrong = append(wrong, f.Setting+" "+f.Value)
						refused = refused || f.Refused
					}
				}
				if got := strings.Join(wrong, ", "); got != test.want || refused != test.refused {
					t.Errorf("found %q, refused %t; want %q, %t", got, refused, test.want, test.refused)
				}
				if got := len(store.Findings()); got != len(wrong) {
					t.Errorf("Findings has %d, want %d", got, len(wrong))
				}
				_, err := claim(store, fmt.Sprint(strict))
				if wantErr := strict && test.refused; wantErr != errors.Is(err, idempotency.ErrNotApplied) || !wantErr && err != nil {
					t.Errorf("strict %t: Claim gave %v", strict, err)
				}
			}
		})
	}
}

// fill makes the server use more than so many bytes.
func fill(t *testing.T, server *redistest.Server, bytes int64) {
	t.Helper()
	ctx := context.Background()
	for i := 0; ; i++ {
		if err := server.Client.Set(ctx, fmt.Sprint("filling ", i), strings.Repeat("x", 100_000), 0).Err(); err != nil {
			t.Fatal(err)
		}
		var used int64
		info := server.Client.Info(ctx, "memory").Val()
		_, after, _ := strings.Cut(info, "used_memory:")
		if _, err := fmt.Sscan(after, &used); err != nil {
			t.Fatal(err)
		}
		if used > bytes {
			return
		}
	}
}

// Strict refuses claims from the moment that it is known until it is right, and
// nothing else.
func TestStrict(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	set := func(name, value string) {
		t.Helper()
		if err := server.Client.ConfigSet(context.Background(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var heard reports
	store := newStore(t, redis.Config{
		Addresses: []string{server.Address}, Strict: true, Report: heard.hear, CheckInterval: 20 * time.Millisecond,
	})
	running, err := claim(store, "running")
	if err != nil {
		t.Fatal(err)
	}
	set("appendfsync", "no")
	redistest.Await(t, "claims to be refused", func() bool {
		_, err = claim(store, "refused")
		return err != nil && !strings.Contains(err.Error(), "not claimed")
	})
	if !errors.Is(err, idempotency.ErrNotApplied) || !strings.Contains(err.Error(), "appendfsync") {
		t.Errorf("Claim gave %v, want ErrNotApplied and the setting's name", err)
	}
	if err := complete(store, running); err != nil {
		t.Errorf("Complete: %v", err)
	}
	set("appendfsync", "always")
	redistest.Await(t, "claims to be granted", func() bool { _, err := claim(store, "granted"); return err == nil })
	came, over := heard.so()
	if came["appendfsync no"] != 1 || over["appendfsync"] != 1 || len(came) != 1 {
		t.Errorf("reported %v, and %v over; want appendfsync no once, and once over", came, over)
	}
}

// What strict refuses may be found by a new connection, long before the next
// look. Claims go on soon after it is right all the same.
func TestStrictRecovers(t *testing.T) {
	server := redistest.Start(t)
	ctx := context.Background()
	store := newStore(t, redis.Config{Addresses: []string{server.Address}, Strict: true, CheckInterval: time.Hour})
	if _, err := claim(store, "before"); err != nil {
		t.Fatal(err)
	}
	// The first look is over.
	redistest.Await(t, "the store to know its server", func() bool { return len(store.Inspect(ctx)) > 0 })
	if err := server.Client.ConfigSet(ctx, "appendonly", "no").Err(); err != nil {
		t.Fatal(err)
	}
	if err := server.Client.ClientKillByFilter(ctx, "TYPE", "normal").Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Await(t, "claims to be refused", func() bool {
		_, err := claim(store, "refused")
		return err != nil && strings.Contains(err.Error(), "strict refuses claims")
	})
	if err := server.Client.ConfigSet(ctx, "appendonly", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Await(t, "claims to be granted", func() bool { _, err := claim(store, "granted"); return err == nil })
	redistest.Await(t, "the append-only file, without which the server does not end", func() bool {
		info := server.Client.Info(ctx, "persistence").Val()
		return strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	})
}

// What a server says on its first connection counts, also if it has joined the
// Cluster while the others were being asked.
func TestServerJoinsDuringInspect(t *testing.T) {
	t.Parallel()
	const sound = "aof_enabled:1\r\naof_last_write_status:ok\r\n"
	answers := func(info func() string, otherwise func(command []string) string) func([]string) (string, bool) {
		return func(command []string) (string, bool) {
			switch command[0] {
			case "info":
				return bulk(info()), false
			case "config":
				return array(bulk("appendfsync"), bulk("always")), false
			default:
				return otherwise(command), false
			}
		}
	}
	asked, released := make(chan struct{}), make(chan struct{})
	var hold atomic.Bool
	joined := startFakeServer(t, "7.2.0", "cluster", answers(func() string { return "aof_enabled:0\r\n" },
		func([]string) string { return "-ERR not now\r\n" }))
	var first *fakeServer
	first = startFakeServer(t, "7.2.0", "cluster", answers(func() string {
		if hold.CompareAndSwap(true, false) {
			close(asked)
			<-released
		}
		return sound
	}, func(command []string) string {
		if command[0] == "cluster" {
			return slotsOf(first.address)
		}
		return "-MOVED 0 " + joined.address + "\r\n"
	}))
	store := newStore(t, redis.Config{Addresses: []string{first.address}, Cluster: true, Timeout: 20 * time.Second})
	ctx := context.Background()
	if findings := store.Inspect(ctx); len(findings) == 0 || len(store.Findings()) != 0 {
		t.Fatalf("the first server says %+v", findings)
	}
	hold.Store(true)
	inspected := make(chan struct{})
	go func() {
		defer close(inspected)
		store.Inspect(ctx)
	}()
	<-asked
	// It goes to the server that has joined.
	if err := complete(store, idempotency.Claim{ID: idempotency.NewRecordID("", nil, "k")}); err == nil {
		t.Error("a completion that both servers refuse gave no error")
	}
	close(released)
	<-inspected
	if f := store.Findings(); len(f) == 0 || f[0].Server != joined.address || !f[0].Refused {
		t.Errorf("the findings are %+v, want that the server that has joined has no append-only file", f)
	}
}

// However many claims come first, the servers are asked once for all of them.
func TestFirstClaimsShareALook(t *testing.T) {
	const claims = 20
	f := startFakeServer(t, "7.2.0", "standalone", nil)
	hello := f.answer
	f.answer = func(command []string) (string, bool) {
		switch command[0] {
		case "hello":
			return hello(command)
		case "info":
			return bulk("aof_enabled:1\r\naof_last_write_status:ok\r\n"), false
		case "config":
			return array(bulk("appendfsync"), bulk("always")), false
		default:
			return "-ERR not now\r\n", false
		}
	}
	store := newStore(t, redis.Config{Addresses: []string{f.address}, Strict: true, Timeout: 20 * time.Second})
	var wg sync.WaitGroup
	for i := range claims {
		wg.Go(func() {
			if _, err := claim(store, fmt.Sprint(i)); !errors.Is(err, idempotency.ErrNotApplied) {
				t.Errorf("Claim gave %v, want ErrNotApplied", err)
			}
		})
	}
	wg.Wait()
	// Each connection is asked when it is new, and Watch looks once.
	if looks := f.count("info") - f.opened(); looks > 2 {
		t.Errorf("%d claims and Watch looked %d times, want 2", claims, looks)
	}
}

// A claim waits for another's first look no longer than its own time.
func TestFirstLookIsBounded(t *testing.T) {
	released := make(chan struct{})
	f := startFakeServer(t, "7.2.0", "standalone", func([]string) (string, bool) {
		<-released
		return "-ERR not now\r\n", false
	})
	store := newStore(t, redis.Config{Addresses: []string{f.address}, Strict: true, Timeout: time.Minute})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(released)
	wg.Go(func() { _, _ = claim(store, "first") })
	redistest.Await(t, "Watch and the first claim to look", func() bool { return f.count("info") == 2 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	c := idempotency.Claim{ID: idempotency.NewRecordID("", nil, "k"), Token: idempotency.NewToken()}
	_, err := store.Claim(ctx, c)
	if !errors.Is(err, idempotency.ErrNotApplied) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Claim gave %v, want ErrNotApplied and DeadlineExceeded", err)
	}
}

// A store with strict knows the server before its first claim counts, also if
// the server is a new one.
func TestStrictFirstClaim(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "no")
	store := newStore(t, redis.Config{Addresses: []string{server.Address}, Strict: true})
	if _, err := claim(store, "k"); !errors.Is(err, idempotency.ErrNotApplied) {
		t.Errorf("Claim gave %v, want ErrNotApplied", err)
	}
	if n := server.Client.DBSize(context.Background()).Val(); n != 0 {
		t.Errorf("the server has %d records", n)
	}
}

// Each change is reported once: settings, a restart, a server that is away.
func TestReports(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	var heard reports
	store := newStore(t, redis.Config{Addresses: []string{server.Address}, Report: heard.hear, CheckInterval: 10 * time.Millisecond})
	store.Watch()
	await := func(what string, condition func(came, over map[string]int) bool) {
		t.Helper()
		redistest.Await(t, what, func() bool { return condition(heard.so()) })
	}
	await("the policy", func(came, _ map[string]int) bool { return came["maxmemory-policy allkeys-lru"] == 1 })
	if err := server.Client.ConfigSet(context.Background(), "maxmemory-policy", "volatile-lru").Err(); err != nil {
		t.Fatal(err)
	}
	await("the other policy", func(came, _ map[string]int) bool { return came["maxmemory-policy volatile-lru"] == 1 })
	server.Kill(t)
	await("the connection", func(came, _ map[string]int) bool { return came["connection failed"] == 1 })
	server.Run(t)
	await("the restart", func(came, over map[string]int) bool {
		return over["connection"] == 1 && came["maxmemory-policy allkeys-lru"] == 2 // it is back with the process
	})
	came, over := heard.so()
	restarts := 0
	for name, n := range came {
		if strings.HasPrefix(name, "run_id ") {
			restarts += n
		} else if n > 2 {
			t.Errorf("%s was reported %d times", name, n)
		}
	}
	if restarts != 1 || came["connection failed"] != 1 || len(over) != 1 {
		t.Errorf("reported %v, and %v over; want one restart, one failed connection, and that over", came, over)
	}
}

// What keeps records from being kept is said in words that name the remedy, and
// the claim was certainly not made.
func TestBadInput(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	replica := redistest.StartReplica(t, server)
	cluster := redistest.StartCluster(t)
	sentinels := redistest.StartSentinels(t)
	certificates := redistest.NewCertificates(t)
	secure := redistest.StartTLS(t, certificates)
	protected := redistest.Start(t, "--requirepass", "right-word")
	old := startFakeServer(t, "6.2.14", "standalone", func([]string) (string, bool) { return "-ERR no\r\n", false })
	ancient := startFakeServer(t, "", "", nil)
	ancient.answer = func([]string) (string, bool) {
		return "-ERR unknown command 'hello', with args beginning with: \r\n", false
	}

	withoutCA := certificates.Config.Clone()
	withoutCA.RootCAs = nil
	withoutCertificate := certificates.Config.Clone()
	withoutCertificate.Certificates = nil
	otherName := certificates.Config.Clone()
	otherName.ServerName = "elsewhere.internal"

	for _, test := range []struct {
		name   string
		config redis.Config
		want   string
	}{
		{"wrong password", redis.Config{Addresses: []string{protected.Address}, Password: "wrong-word"}, "WRONGPASS"},
		{"no password", redis.Config{Addresses: []string{protected.Address}}, "NOAUTH"},
		{"unknown user", redis.Config{Addresses: []string{protected.Address}, Username: "nobody", Password: "wrong-word"}, "WRONGPASS"},
		{"database that is not there", redis.Config{Addresses: []string{server.Address}, DB: 99}, "DB index is out of range"},
		{"unknown authority", redis.Config{Addresses: []string{secure.Address}, TLS: withoutCA}, "certificate signed by unknown authority"},
		{"certificate of another host", redis.Config{Addresses: []string{secure.Address}, TLS: otherName}, "elsewhere.internal"},
		{"no client certificate", redis.Config{Addresses: []string{secure.Address}, TLS: withoutCertificate}, "client certificate"},
		{"no TLS", redis.Config{Addresses: []string{secure.Address}}, "it may want TLS"},
		{"TLS with a server that has none", redis.Config{Addresses: []string{server.Address}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, "connect: "},
		{"cluster without cluster", redis.Config{Addresses: cluster.Addresses()[:1]}, "set the option cluster"},
		{"cluster without a cluster", redis.Config{Addresses: []string{server.Address}, Cluster: true}, "remove the option cluster"},
		{"unknown master", redis.Config{Addresses: sentinels.Addresses, Sentinel: "nobody"}, `no Sentinel knows a master named "nobody"`},
		{"Sentinel without sentinel", redis.Config{Addresses: sentinels.Addresses[:1]}, "set the option sentinel"},
		{"sentinel without a Sentinel", redis.Config{Addresses: []string{server.Address}, Sentinel: "m"}, "unknown command"},
		{"replica", redis.Config{Addresses: []string{replica.Address}}, "read-only replica"},
		{"old server", redis.Config{Addresses: []string{old.address}}, `its version is "6.2.14", and Redis 7.0 or later is needed`},
		{"ancient server", redis.Config{Addresses: []string{ancient.address}}, "Redis 7.0 or later is needed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store := newStore(t, test.config)
			// Each key of a cluster's node, not only those of other nodes.
			for i := range 8 {
				_, err := claim(store, fmt.Sprint("k", i))
				if !errors.Is(err, idempotency.ErrNotApplied) {
					t.Fatalf("Claim gave %v, want ErrNotApplied", err)
				}
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("the error is %q, want it to have %q", err, test.want)
				}
				if strings.Contains(err.Error(), "wrong-word") || strings.Contains(err.Error(), "right-word") {
					t.Error("the error has the password")
				}
			}
			findings := store.Inspect(context.Background())
			if len(findings) != 1 || findings[0].Setting != "connection" || !strings.Contains(findings[0].Loss, test.want) {
				t.Errorf("Inspect gave %+v, want the connection", findings)
			}
		})
	}
}

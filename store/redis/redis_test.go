package redis_test

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/store/storetest"
)

// Every topology passes the suite.
func TestStore(t *testing.T) {
	t.Parallel()
	t.Run("Standalone", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		lossy := redistest.StartProxy(t, server.Address, func() redistest.Fate {
			switch rand.IntN(8) {
			case 0:
				return redistest.Fate{ReplyLost: true}
			case 1:
				return redistest.Fate{Late: time.Duration(1 + rand.IntN(int(5*time.Millisecond)))}
			default:
				return redistest.Fate{}
			}
		})
		runSuite(t, redis.Config{Addresses: []string{server.Address}}, lossy.Address, server.Client)
	})
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		d := redistest.StartSentinels(t)
		runSuite(t, redis.Config{Addresses: d.Addresses, Sentinel: d.Master}, "", d.Servers[0].Client)
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		runSuite(t, redis.Config{Addresses: c.Addresses()[:2], Cluster: true}, "", c.Client(t))
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		certificates := redistest.NewCertificates(t)
		server := redistest.StartTLS(t, certificates)
		runSuite(t, redis.Config{Addresses: []string{server.Address}, TLS: certificates.Config}, "", server.Client)
	})
}

// runSuite runs the suite on a deployment. Lossy is the address of a way to it
// that loses replies, if there is one.
func runSuite(t *testing.T, config redis.Config, lossy string, client goredis.UniversalClient) {
	storetest.Run(t, func(t *testing.T) storetest.Fixture {
		config := config
		if config.Prefix == "" {
			config.Prefix = t.Name()
		}
		config.Timeout = 10 * time.Second
		reports := new(storetest.Reports)
		config.Report = reports.Report
		openAt := func(t *testing.T, addresses []string) idempotency.Store {
			config := config
			config.Addresses = addresses
			store := redis.New(config)
			t.Cleanup(func() {
				if err := store.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			return store
		}
		open := func(t *testing.T) idempotency.Store { return openAt(t, config.Addresses) }
		fixture := storetest.Fixture{
			Store: open(t),
			Corrupt: func(t *testing.T, id idempotency.RecordID, value []byte) {
				if err := client.Set(context.Background(), config.Prefix+":"+string(id), value, time.Minute).Err(); err != nil {
					t.Fatal(err)
				}
			},
			Reopen:  open,
			Reports: reports,
		}
		if lossy != "" {
			fixture.Lossy = openAt(t, []string{lossy})
		}
		return fixture
	})
}

func newStore(t *testing.T, config redis.Config) *redis.Store {
	t.Helper()
	store := redis.New(config)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func claim(store idempotency.Store, key string) (idempotency.Claim, error) {
	c := idempotency.Claim{
		ID:    idempotency.NewRecordID("", nil, idempotency.Key(key)),
		Token: idempotency.NewToken(), Lease: time.Minute, Retention: time.Hour,
		NotAfter: time.Now().Add(time.Hour), Payload: []byte("payload"),
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	reply, err := store.Claim(ctx, c)
	if err == nil && reply.Verdict != idempotency.Claimed {
		err = errors.New("not claimed")
	}
	return c, err
}

func complete(store idempotency.Store, c idempotency.Claim) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	reply, err := store.Complete(ctx, idempotency.Ending{ID: c.ID, Token: c.Token, Payload: []byte("done")})
	if err == nil && !reply.Applied {
		err = errors.New("not applied")
	}
	return err
}

// A list under a record's name is as unreadable as a foreign string.
func TestUnreadableType(t *testing.T) {
	server := redistest.Start(t)
	store := newStore(t, redis.Config{Addresses: []string{server.Address}})
	id := idempotency.NewRecordID("", nil, "k")
	if err := server.Client.LPush(context.Background(), "idempotency:"+string(id), "x").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := claim(store, "k"); !errors.Is(err, idempotency.ErrUnreadable) {
		t.Errorf("Claim gave %v, want ErrUnreadable", err)
	}
	if _, _, err := store.Get(context.Background(), id); !errors.Is(err, idempotency.ErrUnreadable) {
		t.Errorf("Get gave %v, want ErrUnreadable", err)
	}
}

func TestScriptFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := newStore(t, redis.Config{Addresses: []string{server.Address}})
	flush := func() {
		t.Helper()
		if err := server.Client.ScriptFlush(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	c, err := claim(store, "k")
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	flush()
	replies, err := store.Renew(context.Background(), []idempotency.Renewal{{ID: c.ID, Token: c.Token, Lease: time.Minute}})
	if err != nil || !replies[0].Applied {
		t.Fatalf("Renew: %+v, %v", replies, err)
	}
	flush()
	if err := complete(store, c); err != nil {
		t.Fatalf("Complete: %v", err)
	}
}

// A full server refuses claims, and takes what running attempts come to.
func TestMaxmemory(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	store := newStore(t, redis.Config{Addresses: []string{server.Address}})
	running, err := claim(store, "running")
	if err != nil {
		t.Fatal(err)
	}
	done, err := claim(store, "done")
	if err != nil {
		t.Fatal(err)
	}
	if err := complete(store, done); err != nil {
		t.Fatal(err)
	}
	if err := server.Client.ConfigSet(context.Background(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}

	if _, err := claim(store, "new"); !errors.Is(err, idempotency.ErrNotApplied) {
		t.Errorf("a claim gave %v, want ErrNotApplied", err)
	}
	replies, err := store.Renew(context.Background(), []idempotency.Renewal{{ID: running.ID, Token: running.Token, Lease: time.Minute}})
	if err != nil || !replies[0].Applied {
		t.Errorf("Renew: %+v, %v", replies, err)
	}
	if err := complete(store, running); err != nil {
		t.Errorf("Complete: %v", err)
	}
	done.Token = idempotency.NewToken()
	reply, err := store.Claim(context.Background(), done)
	if err != nil || reply.Verdict != idempotency.AlreadyCompleted {
		t.Errorf("a replay gave verdict %d, error %v", reply.Verdict, err)
	}
}

func TestErrors(t *testing.T) {
	t.Run("nobody listens", func(t *testing.T) {
		store := newStore(t, redis.Config{Addresses: []string{"127.0.0.1:1"}})
		if _, err := claim(store, "k"); !errors.Is(err, idempotency.ErrNotApplied) {
			t.Errorf("Claim gave %v, want ErrNotApplied", err)
		}
	})
	t.Run("wrong password", func(t *testing.T) {
		server := redistest.Start(t, "--requirepass", "right-password")
		store := newStore(t, redis.Config{Addresses: []string{server.Address}, Password: "wrong-password"})
		_, err := claim(store, "k")
		if !errors.Is(err, idempotency.ErrNotApplied) {
			t.Errorf("Claim gave %v, want ErrNotApplied", err)
		}
		if err == nil || strings.Contains(err.Error(), "wrong-password") {
			t.Error("the error has the password")
		}
		store = newStore(t, redis.Config{Addresses: []string{server.Address}, Password: "right-password"})
		if _, err := claim(store, "k"); err != nil {
			t.Errorf("Claim with the right password: %v", err)
		}
	})
	t.Run("frozen server", func(t *testing.T) {
		server := redistest.Start(t)
		store := newStore(t, redis.Config{Addresses: []string{server.Address}, Timeout: 100 * time.Millisecond})
		if _, err := claim(store, "first"); err != nil {
			t.Fatal(err)
		}
		server.Freeze(t)
		_, err := claim(store, "k")
		server.Thaw(t)
		if err == nil || errors.Is(err, idempotency.ErrNotApplied) {
			t.Errorf("Claim gave %v, want an error that leaves open whether it was applied", err)
		}
	})
}

func TestUnixSocketAndDatabase(t *testing.T) {
	server := redistest.Start(t)
	config, err := redis.ParseAddresses("unix://" + server.Socket() + "?db=3")
	if err != nil {
		t.Fatal(err)
	}
	store := newStore(t, config)
	if _, err := claim(store, "k"); err != nil {
		t.Fatal(err)
	}
	keyspace, err := server.Client.Info(context.Background(), "keyspace").Result()
	if err != nil || !strings.Contains(keyspace, "db3:keys=1") {
		t.Errorf("the record is not in database 3: %q, %v", keyspace, err)
	}
}

func TestParseAddresses(t *testing.T) {
	list := func(addresses ...string) []string { return addresses }
	for _, test := range []struct {
		addresses []string
		want      redis.Config
		tls       bool
		wantErr   string
	}{
		{addresses: list("localhost:6379"), want: redis.Config{Network: "tcp", Addresses: list("localhost:6379")}},
		{addresses: list("[::1]:6379"), want: redis.Config{Network: "tcp", Addresses: list("[::1]:6379")}},
		{addresses: list("redis://localhost"), want: redis.Config{Network: "tcp", Addresses: list("localhost:6379")}},
		{addresses: list("redis://u:p@h:1/2"), want: redis.Config{Network: "tcp", Addresses: list("h:1"), Username: "u", Password: "p", DB: 2}},
		{addresses: list("rediss://h:1"), want: redis.Config{Network: "tcp", Addresses: list("h:1")}, tls: true},
		{addresses: list("unix:///run/redis.sock"), want: redis.Config{Network: "unix", Addresses: list("/run/redis.sock")}},
		{addresses: list("unix:///x?db=2"), want: redis.Config{Network: "unix", Addresses: list("/x"), DB: 2}},
		{addresses: list("a:1", "redis://b:2"), want: redis.Config{Network: "tcp", Addresses: list("a:1", "b:2")}},
		{addresses: list("rediss://u:p@a:1", "rediss://u:p@b:2"), want: redis.Config{Network: "tcp", Addresses: list("a:1", "b:2"), Username: "u", Password: "p"}, tls: true},
		{addresses: list("localhost"), wantErr: "address 1 is not host:port"},
		{addresses: list("a:1", "default:secret@b:2"), wantErr: "address 2 is not host:port"},
		{addresses: list(":secret@h:1"), wantErr: "address 1 is not host:port"},
		{addresses: list("secret@h:1"), wantErr: "address 1 is not host:port"},
		{addresses: list("redis:/:secret@h:1"), wantErr: "address 1 is not host:port"},
		{addresses: list("redis://:secret%40h:1"), wantErr: "address 1 is not a valid"},
		{addresses: list("localhost:"), wantErr: "address 1 is not host:port"},
		{addresses: list("localhost:redis"), wantErr: "address 1 is not host:port"},
		{addresses: list("localhost:0"), wantErr: "address 1 is not host:port"},
		{addresses: list("localhost:65536"), wantErr: "address 1 is not host:port"},
		{addresses: list("localhost:6379/0"), wantErr: "address 1 is not host:port"},
		{addresses: list("redis://h:65536"), wantErr: "address 1 has a port that is none"},
		{addresses: list("redis://h:1/-1"), wantErr: "address 1 has a negative database"},
		{addresses: list("http://localhost:6379"), wantErr: "not a valid"},
		{addresses: list("redis://u:secret@h:1/x/y"), wantErr: "not a valid"},
		{addresses: list("redis://h:1?pool_size=3"), wantErr: `query parameter "pool_size"`},
		{addresses: list("unix:///x?dial_timeout=9s"), wantErr: `query parameter "dial_timeout"`},
		{addresses: list("a:1", "unix:///x"), wantErr: "unix socket and another address"},
		{addresses: list("unix:///x", "unix:///y"), wantErr: "more than one unix socket"},
		{addresses: list("a:1", "rediss://b:2"), wantErr: "some are rediss://"},
		{addresses: list("redis://u:secret@a:1", "redis://b:2"), wantErr: "different users or passwords"},
		{addresses: list("redis://a:1/1", "redis://b:2/2"), wantErr: "different databases"},
	} {
		got, err := redis.ParseAddresses(test.addresses...)
		if test.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), test.wantErr) || strings.Contains(err.Error(), "secret") {
				t.Errorf("ParseAddresses(%q) gave error %v, want %q and no password", test.addresses, err, test.wantErr)
			}
			continue
		}
		if (got.TLS != nil) != test.tls || got.TLS != nil && got.TLS.ServerName != "" {
			t.Errorf("ParseAddresses(%q) has TLS %t, or a server name", test.addresses, got.TLS != nil)
		}
		got.TLS = nil
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("ParseAddresses(%q) = %+v, %v; want %+v", test.addresses, got, err, test.want)
		}
	}
}

// A scan has the records of its own prefix and nothing else, whatever
// characters the prefix has.
func TestScanPrefix(t *testing.T) {
	server := redistest.Start(t)
	const prefix = `a*[b-d]?\^{x}`
	store := newStore(t, redis.Config{Addresses: []string{server.Address}, Prefix: prefix})
	c, err := claim(store, "k")
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"a", "axb?", prefix + "x", prefix + ":x", "*"} {
		if _, err := claim(newStore(t, redis.Config{Addresses: []string{server.Address}, Prefix: other}), "other"); err != nil {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	list := idempotency.NewRecordID("", nil, "list")
	if err := errors.Join(
		server.Client.Set(ctx, prefix+":somebody else's", "x", 0).Err(),
		server.Client.LPush(ctx, prefix+":"+string(list), "x").Err(),
	); err != nil {
		t.Fatal(err)
	}
	page, err := store.Scan(ctx, "")
	if err != nil || page.Next != "" {
		t.Fatalf("Scan: %q, %v", page.Next, err)
	}
	if len(page.Headers) != 1 || page.Headers[0].ID != c.ID {
		t.Errorf("the scan has %d records, want the prefix's own", len(page.Headers))
	}
	if len(page.Unreadable) != 1 || page.Unreadable[0] != list {
		t.Errorf("the scan has %v as unreadable, want the list %s", page.Unreadable, list)
	}
}

// A server over its memory still lets operators decide.
func TestDecideOverMaxmemory(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	store := newStore(t, redis.Config{Addresses: []string{server.Address}})
	ctx := context.Background()
	for _, decide := range []func(c idempotency.Claim) (idempotency.Reply, error){
		func(c idempotency.Claim) (idempotency.Reply, error) {
			return store.DecideComplete(ctx, idempotency.Ending{ID: c.ID, Token: c.Token, Payload: []byte("done")})
		},
		func(c idempotency.Claim) (idempotency.Reply, error) { return store.DecideRelease(ctx, c.ID, c.Token) },
	} {
		if err := server.Client.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
			t.Fatal(err)
		}
		c, err := claim(store, cryptorand.Text())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.MarkUncertain(ctx, idempotency.Ending{ID: c.ID, Token: c.Token, Payload: []byte("lost")}); err != nil {
			t.Fatal(err)
		}
		if err := server.Client.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
			t.Fatal(err)
		}
		if reply, err := decide(c); err != nil || !reply.Applied {
			t.Errorf("the decision gave %+v, %v", reply, err)
		}
	}
}

// A reply that does not name the record that was asked for, and the question, is
// an error, and the connection is not used again: it is never another record,
// and never absence.
func TestGetOutOfStep(t *testing.T) {
	now := bulk(strconv.FormatInt(time.Now().UnixMilli(), 10))
	for name, answer := range map[string]func(key, token string) string{
		"nothing": func(string, string) string { return "$-1\r\n" },
		"a text":  func(string, string) string { return bulk("OK") },
		"another record": func(key, token string) string {
			return array(bulk("get"), bulk(key[:len(key)-1]+"-"), bulk(token), now, bulk("absent"))
		},
		"an earlier question": func(key, _ string) string {
			return array(bulk("get"), bulk(key), bulk(strings.Repeat("x", 16)), now, bulk("absent"))
		},
		"another script": func(key, token string) string {
			return array(bulk("renew"), bulk(key), bulk(token), now, bulk("absent"))
		},
		"a result that get has not": func(key, token string) string {
			return array(bulk("get"), bulk(key), bulk(token), now, bulk("applied"))
		},
		"a record that is not there": func(key, token string) string { return array(bulk("get"), bulk(key), bulk(token), now, bulk("found")) },
	} {
		t.Run(name, func(t *testing.T) {
			f := startFakeServer(t, "7.2.0", "standalone", func(command []string) (string, bool) {
				switch command[0] {
				case "evalsha":
					return answer(command[3], command[4]), false
				case "get":
					return "$-1\r\n", false
				default:
					return "-NOPERM no\r\n", false
				}
			})
			store := newStore(t, redis.Config{Addresses: []string{f.address}, Timeout: 5 * time.Second})
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if _, found, err := store.Get(ctx, keyID("k")); err == nil || found {
				t.Errorf("Get gave found %t, error %v; want an error", found, err)
			}
		})
	}
}

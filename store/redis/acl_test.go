package redis_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// aclLine returns the ACL line of docs/redis.md under a comment that begins so.
func aclLine(t *testing.T, comment string) []any {
	t.Helper()
	document, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^# ` + regexp.QuoteMeta(comment) + `.*\n(ACL SETUSER .*)$`).FindSubmatch(document)
	if found == nil {
		t.Fatalf("docs/redis.md has no ACL line for %q", comment)
	}
	var args []any
	for _, word := range strings.Fields(string(found[1])) {
		args = append(args, word)
	}
	return args
}

func setUser(t *testing.T, line []any, clients ...*goredis.Client) {
	t.Helper()
	for _, client := range clients {
		if err := client.Do(context.Background(), line...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// C11: the users of docs/redis.md, and nothing more, can do everything. The suite runs
// under the default prefix, which is the only one that they may use.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		start func(t *testing.T) (redis.Config, goredis.UniversalClient)
	}{
		{"one server", func(t *testing.T) (redis.Config, goredis.UniversalClient) {
			server := redistest.Start(t)
			redistest.StartReplica(t, server)
			setUser(t, aclLine(t, "one server"), server.Client)
			return redis.Config{Addresses: []string{server.Address}}, server.Client
		}},
		{"sentinel", func(t *testing.T) (redis.Config, goredis.UniversalClient) {
			d := redistest.StartSentinels(t)
			for _, server := range d.Servers {
				setUser(t, aclLine(t, "one server"), server.Client)
			}
			for _, sentinel := range d.Sentinels {
				setUser(t, aclLine(t, "each Sentinel"), sentinel.Client)
			}
			return redis.Config{Addresses: d.Addresses, Sentinel: d.Master, SentinelUsername: "gateway", SentinelPassword: "secret"}, d.Servers[0].Client
		}},
		{"cluster", func(t *testing.T) (redis.Config, goredis.UniversalClient) {
			c := redistest.StartCluster(t)
			for _, node := range c.Nodes {
				setUser(t, aclLine(t, "each node of a Cluster"), node.Client)
			}
			return redis.Config{Addresses: c.Addresses()[:1], Cluster: true}, c.Client(t)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config, client := test.start(t)
			config.Username, config.Password, config.Replicas, config.Strict = "gateway", "secret", 1, true
			config.Prefix = redis.DefaultPrefix
			for _, f := range newStore(t, config).Inspect(context.Background()) {
				if f.Loss != "" {
					t.Errorf("%s is %q: %s", f.Setting, f.Value, f.Loss)
				}
			}
			runSuite(t, config, "", client)
		})
	}
}

// Without INFO and CONFIG GET, as on many managed services, the store works,
// and says what it does not know.
func TestDeniedSettings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ without, setting, value string }{
		{"+info", "INFO", "denied"},
		{"+config|get", "appendfsync", "unknown"},
	} {
		t.Run(test.without, func(t *testing.T) {
			server := redistest.Start(t)
			var line []any
			for _, word := range aclLine(t, "one server") {
				if word != test.without {
					line = append(line, word)
				}
			}
			setUser(t, line, server.Client)
			config := redis.Config{Addresses: []string{server.Address}, Username: "gateway", Password: "secret"}
			store := newStore(t, config)
			if _, err := claim(store, "k"); err != nil {
				t.Errorf("Claim: %v", err)
			}
			found := store.Findings()
			if len(found) != 1 || found[0].Setting != test.setting || found[0].Value != test.value || !found[0].Refused {
				t.Errorf("found %+v, want %s %s, which strict refuses", found, test.setting, test.value)
			}
			config.Strict = true
			if _, err := claim(newStore(t, config), "strict"); err == nil {
				t.Error("strict granted a claim on a server of which it does not know enough")
			}
		})
	}
}

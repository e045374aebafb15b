package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// system is something that stands before the provider, or answers in its place.
type system struct {
	name    string
	address string
	process *process
	redis   *redisServer // where it keeps records, if that is Redis
	admin   string       // of a Caddy
	module  bool         // a Caddy with the handler
	answers bool         // by itself: the provider sees nothing

	stored map[int]bool // sizes of bodies whose keys are stored
}

func (s *system) url(path string) string { return "http://" + s.address + path }

// redisServer is one redis-server.
type redisServer struct {
	*process
	address string
	client  *redis.Client
}

// startRedis runs a server that appends to a file. It never rewrites the file:
// that would fall into the round of one system and not of another.
func (b *bench) startRedis(ctx context.Context, name, fsync string) (*redisServer, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	p, err := b.start(ctx, name, address, "redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0")
	if err != nil {
		return nil, err
	}
	return &redisServer{p, address, redis.NewClient(&redis.Options{Addr: address})}, nil
}

// calls returns how many commands clients have sent to the server.
func (r *redisServer) calls(ctx context.Context) (float64, error) {
	text, err := r.client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		name, stats, ok := strings.Cut(strings.TrimSpace(line), ":calls=")
		// What the benchmark itself sends, and connections' greetings.
		if !ok || name == "cmdstat_info" || name == "cmdstat_hello" {
			continue
		}
		n, _, _ := strings.Cut(stats, ",")
		calls, err := strconv.ParseFloat(n, 64)
		if err != nil {
			return 0, err
		}
		sum += calls
	}
	return sum, nil
}

// startCaddy runs a Caddy. handler is the site's first directive, if it has the
// module; answer is what answers: a proxy, or respond.
func (b *bench) startCaddy(ctx context.Context, name, binary, store, answer string) (*system, error) {
	s := &system{name: name, module: store != "", stored: map[int]bool{}}
	var err error
	if s.address, err = freeAddress(); err != nil {
		return nil, err
	}
	if s.admin, err = freeAddress(); err != nil {
		return nil, err
	}
	app, handler := "", ""
	if s.module {
		app, handler = "idempotency {\nstore "+store+"\n}", "idempotency"
	}
	file := filepath.Join(b.dir, name+".caddyfile")
	text := fmt.Sprintf(`{
	admin %s
	persist_config off
	auto_https off
	log {
		level ERROR
	}
	%s
}
http://%s {
	%s
	%s
}
`, s.admin, app, s.address, handler, answer)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s.process, err = b.start(ctx, name, s.address, binary, "run", "--config", file, "--adapter", "caddyfile")
	return s, err
}

// proxy is the directive of all Caddys that have a provider.
func (b *bench) proxy() string {
	return "reverse_proxy " + b.provider.address + ` {
		transport http {
			keepalive 30s
			keepalive_idle_conns_per_host 512
		}
	}`
}

// usage is what a system has used up since it began.
type usage struct {
	gateway, store time.Duration // processor time
	allocations    float64
	allocated      float64 // bytes
	storeCalls     float64
	storeSeconds   float64 // in those calls, as the gateway sees it
	submits        int     // at the provider
}

// usage returns it, with the submits whose keys begin with a prefix.
func (b *bench) usage(ctx context.Context, s *system, prefix string) (u usage, err error) {
	if u.gateway, err = s.process.cpu(); err != nil {
		return u, err
	}
	if u.submits, err = b.provider.submits(ctx, prefix); err != nil {
		return u, err
	}
	if s.redis != nil {
		if u.store, err = s.redis.cpu(); err != nil {
			return u, err
		}
		if !s.module {
			if u.storeCalls, err = s.redis.calls(ctx); err != nil {
				return u, err
			}
		}
	}
	if s.admin == "" {
		return u, nil
	}
	text, err := get(ctx, "http://"+s.admin+"/debug/vars")
	if err != nil {
		return u, err
	}
	var vars struct {
		Memstats struct{ Mallocs, TotalAlloc float64 }
	}
	if err := json.Unmarshal(text, &vars); err != nil {
		return u, fmt.Errorf("memory statistics of %s: %w", s.name, err)
	}
	u.allocations, u.allocated = vars.Memstats.Mallocs, vars.Memstats.TotalAlloc
	if !s.module {
		return u, nil
	}
	text, err = get(ctx, "http://"+s.admin+"/metrics")
	if err != nil {
		return u, err
	}
	const metric = "caddy_idempotency_store_duration_seconds"
	if u.storeCalls, err = sumMetric(text, metric+"_count{"); err != nil {
		return u, err
	}
	u.storeSeconds, err = sumMetric(text, metric+"_sum{")
	return u, err
}

// sumMetric adds up all series of a metric.
func sumMetric(text []byte, name string) (float64, error) {
	sum := 0.0
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), name) {
			continue
		}
		_, value, _ := strings.Cut(lines.Text(), "} ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		sum += n
	}
	return sum, lines.Err()
}

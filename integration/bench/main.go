package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	if err := mainErr(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// mainErr runs the benchmark, or one of the servers that the benchmark starts
// as processes of their own.
func mainErr(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "provider":
		return serveProvider(args[1])
	case len(args) == 4 && args[0] == "fiber":
		return serveFiber(args[1], args[2], args[3])
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	var o options
	flags.StringVar(&o.caddy, "caddy", filepath.Join("..", "..", "caddy"), "the Caddy binary with the module")
	flags.StringVar(&o.before, "before", "", "an earlier Caddy binary, to compare with")
	flags.StringVar(&o.results, "results", "results", "the directory of the results")
	flags.StringVar(&o.name, "name", "latest", "the results' file name, without its extension")
	flags.BoolVar(&o.quick, "quick", false, "one short round of each, to see that everything works")
	flags.BoolVar(&o.mainOnly, "main", false, "small bodies and 32 connections only")
	_ = flags.Parse(args) // it exits on an error
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	b := &bench{options: o, dir: dir, storedCount: 1000}
	r, err := b.all(ctx)
	b.end()
	err = errors.Join(err, os.RemoveAll(dir))
	if r != nil { // also of a run whose last part failed
		err = errors.Join(err, r.write(os.Stdout, o.results, o.name))
	}
	return err
}

// options are the flags.
type options struct {
	caddy, before   string
	results, name   string
	quick, mainOnly bool
}

// bench is one run.
type bench struct {
	options
	dir       string // everything that the run writes, but its results
	nginx     string
	provider  provider
	processes []*process
	prefixes  int // of keys, so that no round repeats another's
	// storedCount is how many keys the replays go through in turn.
	storedCount int
}

// end stops all that was started, the last first.
func (b *bench) end() {
	for _, p := range slices.Backward(b.processes) {
		p.stop()
	}
}

func (*bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// inFlightTarget is how many attempts are held for the memory's figure, if a
// process may have two files open for each of them.
const inFlightTarget = 10_000

// holdable returns how many attempts one gateway can hold at a time.
func holdable() (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	const others = 200 // of the gateway's files
	return min(inFlightTarget, int(min(limit.Cur, 1<<30)-others)/2), nil
}

// all starts everything and measures it.
func (b *bench) all(ctx context.Context) (*report, error) {
	for _, command := range []string{"wrk", "redis-server", "nginx"} {
		path, err := exec.LookPath(command)
		if err != nil {
			return nil, fmt.Errorf("%w: ./xcaddy.sh bench installs it", err)
		}
		if command == "nginx" {
			b.nginx = path
		}
	}
	if err := os.WriteFile(filepath.Join(b.dir, "load.lua"), loadScript, 0o600); err != nil {
		return nil, err
	}
	r := &report{Machine: describeMachine(b.caddy), LoadBefore: loadAverage()}
	variants, gateways, err := b.startAll(ctx)
	if err != nil {
		return nil, err
	}

	settings := []setting{
		{Body: 300, Connections: 32, Rounds: 5, Seconds: 2},
		{Body: 300, Connections: 1, Rounds: 3, Seconds: 1},
		{Body: 300, Connections: 256, Rounds: 3, Seconds: 1},
		{Body: 64 << 10, Connections: 32, Rounds: 3, Seconds: 1},
		{Body: 1 << 20, Connections: 32, Rounds: 3, Seconds: 1},
	}
	held, err := holdable()
	if err != nil {
		return nil, err
	}
	scaleSeconds := 3
	if b.quick {
		settings = settings[:1]
		settings[0].Rounds, settings[0].Seconds = 1, 1
		held, scaleSeconds, b.storedCount = 100, 1, 50
	}
	if b.mainOnly {
		settings = settings[:1]
	}
	for i, s := range settings {
		measured := variants
		if i > 0 {
			measured = slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return !v.everywhere })
		}
		all, err := b.measure(ctx, measured, s)
		if err != nil {
			return nil, err
		}
		r.Series = append(r.Series, all)
	}
	if !b.mainOnly {
		err = b.measureRest(ctx, r, gateways, held, scaleSeconds)
	}
	r.LoadAfter = loadAverage()
	return r, err
}

// measureRest measures memory and scale.
func (b *bench) measureRest(ctx context.Context, r *report, g gateways, held, seconds int) error {
	var err error
	if r.RecordBytes, err = b.recordSize(ctx, g.redis[0]); err != nil {
		return err
	}
	for n := range g.redis {
		m, err := b.measureScale(ctx, g.redis[:n+1], 48, seconds)
		if err != nil {
			return err
		}
		b.say("%d gateways: %.0f/s", m.Gateways, m.Rate)
		r.Scale = append(r.Scale, m)
	}
	for _, one := range []struct {
		*system
		keys
	}{{g.idlePlain, noKeys}, {g.idleRedis, freshKeys}} {
		m, err := b.measureInFlight(ctx, one.system, one.keys, held)
		if err != nil {
			return err
		}
		b.say("%s: %d MiB with %d submits in flight", m.System, m.Bytes>>20, m.Submits)
		r.InFlight = append(r.InFlight, m)
	}
	return nil
}

// gateways are those that more is measured of than their speed.
type gateways struct {
	redis                []*system // before one Redis
	idlePlain, idleRedis *system   // that have done nothing before
}

// startAll starts all systems.
func (b *bench) startAll(ctx context.Context) (variants []variant, g gateways, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, g, err
	}
	if b.provider.address, err = freeAddress(); err != nil {
		return nil, g, err
	}
	if _, err := b.start(ctx, "provider", b.provider.address, self, "provider", b.provider.address); err != nil {
		return nil, g, err
	}
	// Each has a server of its own, so that its processor time is its own.
	servers := map[string]*redisServer{}
	for name, fsync := range map[string]string{
		"redis": "everysec", "redis-always": "always", "redis-before": "everysec", "redis-fiber": "everysec",
	} {
		if servers[name], err = b.startRedis(ctx, name, fsync); err != nil {
			return nil, g, err
		}
	}

	caddy := func(name, binary, store, answer string) *system {
		if err != nil {
			return nil
		}
		var s *system
		s, err = b.startCaddy(ctx, name, binary, store, answer)
		return s
	}
	onRedis := func(name, binary, server string) *system {
		s := caddy(name, binary, "redis "+servers[server].address, b.proxy())
		if s != nil {
			s.redis = servers[server]
		}
		return s
	}
	onFile := func(name, binary string) *system {
		return caddy(name, binary, "embedded "+filepath.Join(b.dir, name+".db"), b.proxy())
	}
	respond := caddy("respond", b.caddy, "", "respond `"+string(answer(0))+"` 202")
	plain := caddy("plain", b.caddy, "", b.proxy())
	first := onRedis("gateway", b.caddy, "redis")
	always := onRedis("gateway-always", b.caddy, "redis-always")
	embedded := onFile("gateway-embedded", b.caddy)
	g.redis = []*system{first, onRedis("gateway-2", b.caddy, "redis"), onRedis("gateway-3", b.caddy, "redis")}
	g.idlePlain = caddy("plain-idle", b.caddy, "", b.proxy())
	g.idleRedis = onRedis("gateway-idle", b.caddy, "redis")
	if err != nil {
		return nil, g, err
	}
	respond.answers = true
	fiber, err := b.startFiber(ctx, servers["redis-fiber"])
	if err != nil {
		return nil, g, err
	}
	nginx, err := b.startNginx(ctx)
	if err != nil {
		return nil, g, err
	}

	variants = []variant{
		{Name: namePlain, system: plain, keys: noKeys, everywhere: true},
		{Name: "Caddy respond, no provider", system: respond, keys: noKeys},
		{Name: "no key", system: first, keys: noKeys, Target: 0.98, everywhere: true},
		{Name: nameFresh, system: first, keys: freshKeys, Target: 0.80, everywhere: true},
		{Name: "replay, Redis", system: first, keys: storedKeys, Target: 2.2, everywhere: true},
		{Name: "fresh key, Redis always", system: always, keys: freshKeys},
		{Name: "replay, Redis always", system: always, keys: storedKeys},
		{Name: "fresh key, embedded", system: embedded, keys: freshKeys, Target: 0.45, everywhere: true},
		{Name: "replay, embedded", system: embedded, keys: storedKeys, Target: 2.5, everywhere: true},
		{Name: fiber.name + ", no key", system: fiber, keys: noKeys},
		{Name: fiber.name + ", fresh key, Redis", system: fiber, keys: freshKeys, everywhere: true},
		{Name: fiber.name + ", replay, Redis", system: fiber, keys: storedKeys, everywhere: true},
		{Name: nginx.name + ", no key", system: nginx, keys: noKeys},
		{Name: nginx.name + ", fresh key, files", system: nginx, keys: freshKeys, everywhere: true},
		{Name: nginx.name + ", replay, files", system: nginx, keys: storedKeys, everywhere: true},
	}
	if b.before == "" {
		return variants, g, nil
	}
	// The peers have not changed.
	variants = slices.DeleteFunc(variants, func(v variant) bool { return v.system == fiber || v.system == nginx })
	earlier := map[*system]*system{
		first:    onRedis("before", b.before, "redis-before"),
		embedded: onFile("before-embedded", b.before),
	}
	if err != nil {
		return nil, g, err
	}
	for _, v := range slices.Clone(variants) {
		if s := earlier[v.system]; s != nil {
			v.Name, v.system, v.Target = v.Name+before, s, 0
			variants = append(variants, v)
		}
	}
	return variants, g, nil
}

// Names that are looked for.
const (
	namePlain = "Caddy reverse_proxy"
	nameFresh = "fresh key, Redis"
	before    = ", before"
)

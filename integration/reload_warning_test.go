package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A reload that changes the namespace, the scope or the store of a handler frees
// its keys: the log says so, and what changed.
func TestReloadThatFreesKeysIsLogged(t *testing.T) {
	t.Parallel()
	const text = "keys that were used before are free again"
	// with has more sites, each with a handler: a name, and the handler's lines.
	with := func(sites ...string) options {
		o := options{instead: "reverse_proxy main:1\n"}
		for _, lines := range sites {
			name, lines, _ := strings.Cut(lines, " ")
			o.instead += fmt.Sprintf("}\nhttp://%s.localhost:1 {\nidempotency {\n%s\n}\nreverse_proxy %s:1\n", name, lines, name)
		}
		return o
	}
	for name, test := range map[string]struct {
		before, after options
		changed       string // in the log line; empty: there is none
	}{
		"namespace":             {options{}, options{idempotency: "namespace video"}, `"changed":["namespace"],"namespaces":[""]`},
		"another namespace":     {options{idempotency: "namespace a"}, options{idempotency: "namespace b"}, `"changed":["namespace"],"namespaces":["a"]`},
		"scope":                 {options{}, options{idempotency: "scope {header.X-Tenant}"}, `"changed":["scope"],"namespaces":[""]`},
		"scope back to default": {options{idempotency: "scope {header.X-Tenant}"}, options{}, `"changed":["scope"]`},
		"order of the scope":    {options{idempotency: "scope {header.A} {header.B}"}, options{idempotency: "scope {header.B} {header.A}"}, `"changed":["scope"]`},
		"store":                 {options{}, options{store: "embedded ./other.db"}, `"changed":["store"],"namespaces":[""]`},
		"all":                   {options{}, options{store: "embedded ./other.db", idempotency: "namespace b\nscope {header.X-Tenant}"}, `"changed":["namespace","scope","store"]`},
		"nothing":               {options{}, options{}, ""},
		"anything else":         {options{}, options{idempotency: "retention 1h\nlease 10s\nerrors problem\nkey_header X-Key", app: "encryption_key " + strings.Repeat("ab", 32)}, ""},
		"one of two": {with("a namespace a"), with("a namespace other"),
			`"changed":["namespace"],"namespaces":["a"]`},
		"one of two alike":      {with("a "), with("a namespace other"), `"changed":["namespace"],"namespaces":[""]`},
		"another handler came":  {with(), with("a namespace a"), ""},
		"another handler went":  {with("a namespace a"), with(), ""},
		"one came and one went": {with("a namespace a"), with("b namespace b"), ""},
		"in another place": {with("a namespace a", "b namespace b"),
			with("b namespace b", "a namespace a"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			other := filepath.Join(t.TempDir(), "other.db")
			test.after.store = strings.Replace(test.after.store, "./other.db", other, 1)
			g := startGateway(t, p.url, test.before)
			if strings.Contains(g.log.String(), text) {
				t.Fatal("the first start warns")
			}
			g.write(t, p.url, test.after)
			// validate touches nothing of what runs, and has nothing to compare.
			if output, err := exec.Command(caddyBinary, "validate", "--adapter", "caddyfile", "--config", g.caddyfile).CombinedOutput(); err != nil || strings.Contains(string(output), text) {
				t.Fatalf("validate: %v: %s", err, output)
			}
			g.reload(t)
			g.awaitLog(t, `"load complete"`)
			want := 0
			if test.changed != "" {
				want = 1
				g.awaitLog(t, test.changed)
			}
			g.reload(t) // unchanged
			if n := strings.Count(g.log.String(), text); n != want {
				t.Errorf("warned %d times, want %d", n, want)
			}
			p.want(t, 0)
			for line := range strings.Lines(g.log.String()) {
				if strings.Contains(line, text) && (!strings.Contains(line, `"level":"warn"`) || strings.Contains(line, "X-Tenant")) {
					t.Errorf("the line is %s", line)
				}
			}
		})
	}
}

// What the warning says is what happens: the key is free again.
func TestReloadFreesKeys(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	g.send(t, request{key: "k", body: "x"})
	g.write(t, p.url, options{idempotency: "namespace video"})
	g.reload(t)
	g.awaitLog(t, "keys that were used before are free again")
	// And back again, which is what the line advises.
	g.write(t, p.url, options{})
	g.reload(t)
	await(t, "the reload", func() bool { return strings.Count(g.log.String(), "are free again") == 2 })
	if got := g.send(t, request{key: "k", body: "x"}); !got.replayed() {
		t.Errorf("got %v", got)
	}
	p.want(t, 1)
}

// A store that is reached in another way is the same store.
func TestReloadOfRedis(t *testing.T) {
	t.Parallel()
	const text = "keys that were used before are free again"
	one, two := redistest.Start(t), redistest.Start(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis " + one.Address})
	for i, test := range []struct {
		store  string
		warned int
	}{
		{fmt.Sprintf("redis redis://%s {\ntimeout 1s\n}", one.Address), 0},
		{fmt.Sprintf("redis %s {\npassword nobody-asks\nprefix idempotency\n}", one.Address), 0},
		{fmt.Sprintf("redis %s {\ndb 1\n}", one.Address), 1},
		{fmt.Sprintf("redis %s {\ndb 1\nprefix video\n}", one.Address), 2},
		{fmt.Sprintf("redis %s {\ndb 1\nprefix video\n}", two.Address), 3},
		{"embedded " + filepath.Join(g.dir, "idempotency.db"), 4},
	} {
		g.write(t, p.url, options{store: test.store})
		g.reload(t)
		await(t, "the reload", func() bool { return strings.Count(g.log.String(), `"load complete"`) == i+1 })
		if n := strings.Count(g.log.String(), text); n != test.warned {
			t.Fatalf("after %s: warned %d times, want %d", test.store, n, test.warned)
		}
	}
	p.want(t, 0)
}

// A configuration that does not start changes nothing: the next one is compared
// with the one that runs. Nor does one without the handler.
func TestReloadThatFails(t *testing.T) {
	t.Parallel()
	const text = "keys that were used before are free again"
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	good := readFile(t, g.caddyfile)

	taken := startProvider(t, nil)
	g.write(t, p.url, options{idempotency: "namespace video"})
	broken := readFile(t, g.caddyfile) + "\n" + taken.url + " {\nrespond no\n}\n"
	if err := os.WriteFile(g.caddyfile, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(caddyBinary, "reload", "--config", g.caddyfile, "--adapter", "caddyfile", "--address", g.admin).CombinedOutput(); err == nil {
		t.Fatalf("the configuration was loaded: %s", output)
	}
	before := strings.Count(g.log.String(), text) // whichever app started first
	write := func(text string) {
		if err := os.WriteFile(g.caddyfile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		g.reload(t)
	}
	write(good)
	if n := strings.Count(g.log.String(), text); n != before {
		t.Errorf("the configuration that ran all along is warned of")
	}
	// Nothing of idempotency in between.
	write(fmt.Sprintf("{\nadmin %s\npersist_config off\n}\n%s {\nrespond no\n}\n", g.admin, g.url))
	g.write(t, p.url, options{idempotency: "namespace video"})
	g.reload(t)
	await(t, "the warning", func() bool { return strings.Count(g.log.String(), text) == before+1 })
	p.want(t, 0)
}

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Two handlers with one namespace before different providers would replay the
// job of one as that of the other: the log says so when they are loaded.
func TestSharedNamespaceIsLogged(t *testing.T) {
	t.Parallel()
	const a, b = "reverse_proxy a:1\n", "reverse_proxy b:1\n"
	guard := func(lines string) string { return "idempotency {\n" + lines + "\n}\n" }
	site := func(port, body string) string { return "http://localhost:" + port + " {\n" + body + "}\n" }
	for name, test := range map[string]struct {
		config string
		warned int
	}{
		"two sites":                 {site("1", guard("")+a) + site("2", guard("")+b), 1},
		"two sites of one server":   {"http://one.localhost:1 {\n" + guard("") + a + "}\nhttp://two.localhost:1 {\n" + guard("") + b + "}\n", 1},
		"a name for both":           {site("1", guard("namespace video")+a) + site("2", guard("namespace video")+b), 1},
		"two handles":               {site("1", "handle /a/* {\n"+guard("")+a+"}\nhandle {\n"+guard("")+b+"}\n"), 1},
		"three sites":               {site("1", guard("")+a) + site("2", guard("")+b) + site("3", guard("")+"reverse_proxy c:1\n"), 2},
		"one handler of both":       {site("1", guard("")+"handle /a/* {\n"+a+"}\nhandle {\n"+b+"}\n"), 0},
		"a name for one":            {site("1", guard("namespace video")+a) + site("2", guard("")+b), 0},
		"names":                     {site("1", guard("namespace video")+a) + site("2", guard("namespace voice")+b), 0},
		"one upstream":              {site("1", guard("")+a) + site("2", guard("")+a), 0},
		"upstreams in common":       {site("1", guard("")+"reverse_proxy a:1 b:1\n") + site("2", guard("")+b), 0},
		"scopes":                    {site("1", guard("scope {header.X-A}")+a) + site("2", guard("scope {header.X-B}")+b), 0},
		"one without a handler":     {site("1", guard("")+a) + site("2", b), 0},
		"an answer for one":         {site("1", guard("")+a) + site("2", guard("")+"respond ok\n"), 0},
		"forward_auth is no submit": {site("1", guard("")+"route {\nforward_auth auth-a:1 {\nuri /\n}\n"+a+"}\n") + site("2", guard("")+"route {\nforward_auth auth-b:1 {\nuri /\n}\n"+a+"}\n"), 0},
		"a shared named route":      {"&(guard) {\n" + guard("") + "}\n" + site("1", "route {\ninvoke guard\n"+a+"}\n") + site("2", "route {\ninvoke guard\n"+b+"}\n"), 1},
		"a deep proxy":              {site("1", guard("")+"route /x/* {\nroute {\n"+a+"}\n}\n") + site("2", "route {\nroute {\n"+guard("")+"}\n"+b+"}\n"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "Caddyfile")
			if err := os.WriteFile(file, []byte("{\nadmin off\n}\n"+test.config), 0o600); err != nil {
				t.Fatal(err)
			}
			output, err := exec.Command(caddyBinary, "validate", "--adapter", "caddyfile", "--config", file).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			if n := strings.Count(string(output), "before different providers have one namespace"); n != test.warned {
				t.Errorf("warned %d times, want %d: %s", n, test.warned, output)
			}
		})
	}
}

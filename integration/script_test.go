package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestCommands runs the scripts of testdata/script, each beside a gateway of
// its own, whose admin endpoint is $ADMIN and whose configuration is
// $CADDYFILE, a provider, two servers that know nothing of the gateway,
// $STRANGER and $STRANGER_JSON, and $NOBODY, where nobody listens. Besides the
// commands of testscript there are
//
//	unknown <key> <variable>
//		a submit whose outcome is not known; the variable is its record's id
//	submit <key> <status> <text> [<path>]
//		a submit, and what its answer must be
//	record <key> <variable>
//		the variable is the id of a key's record
//	unreadable <key>
//		the key's record becomes one that cannot be read
//	submits <n>
//		how many submits the provider must have received
func TestCommands(t *testing.T) {
	t.Parallel()
	type world struct {
		*gateway
		*provider
	}
	worlds := func(ts *testscript.TestScript) world { return ts.Value("world").(world) }
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			tb := env.T().(testing.TB)
			p := startProvider(tb, nil)
			g := startGateway(tb, p.url, options{})
			env.Values["world"], env.Values["testing"] = world{g, p}, tb
			env.Setenv("ADMIN", g.admin)
			env.Setenv("STRANGER", startStranger(tb, "404 page not found"))
			env.Setenv("STRANGER_JSON", startStranger(tb, `{"error":"no such route"}`))
			env.Setenv("CADDYFILE", g.caddyfile)
			env.Setenv("NOBODY", freeAddress(tb))
			bin := filepath.Join(env.WorkDir, ".bin")
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("HOME", env.WorkDir)
			if err := os.Mkdir(bin, 0o700); err != nil {
				return err
			}
			return os.Symlink(caddyBinary, filepath.Join(bin, "caddy"))
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"unknown": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 2 {
					ts.Fatalf("usage: unknown key variable")
				}
				w := worlds(ts)
				w.now(hangUp("", false))
				got := w.send(t, request{key: args[0], body: args[0]})
				w.now(nil)
				if got.code() != "idempotency_outcome_unknown" {
					ts.Fatalf("the submit ended as %s, want unknown", got)
				}
				_, id, _ := strings.Cut(got.body, "Record: ")
				ts.Setenv(args[1], id[:32])
			},
			"record": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 2 {
					ts.Fatalf("usage: record key variable")
				}
				ts.Setenv(args[1], keyRecord(ts.Value("testing").(testing.TB), worlds(ts).gateway, args[0]))
			},
			"unreadable": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 1 {
					ts.Fatalf("usage: unreadable key")
				}
				t, g := ts.Value("testing").(testing.TB), worlds(ts).gateway
				spoilEmbedded(t, g, keyRecord(t, g, args[0]))
			},
			"submit": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 3 || len(args) > 4 {
					ts.Fatalf("usage: submit key status text [path]")
				}
				got := worlds(ts).send(t, request{key: args[0], body: args[0], path: strings.Join(args[3:], "")})
				if strconv.Itoa(got.status) != args[1] || !strings.Contains(got.body, args[2]) {
					ts.Fatalf("the submit got %s, want %s with %q", got, args[1], args[2])
				}
			},
			"submits": func(ts *testscript.TestScript, neg bool, args []string) {
				if n := worlds(ts).count(); neg || len(args) != 1 || fmt.Sprint(n) != args[0] {
					ts.Fatalf("the provider received %d submits, want %v", n, args)
				}
			},
		},
	})
}

// keyRecord returns the id of a key's record.
func keyRecord(t testing.TB, g *gateway, key string) string {
	t.Helper()
	for _, r := range g.list(t, "").Records {
		if told[record](t, g.ask(t, http.MethodGet, "/idempotency/records/"+r.ID+"?reveal=true", "")).Key == key {
			return r.ID
		}
	}
	t.Fatalf("key %s has no record", key)
	return ""
}

// startStranger starts a server that answers everything with 404, and returns
// its address.
func startStranger(t testing.TB, body string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// The admin endpoint may be a unix socket.
func TestCommandOverUnixSocket(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	// The path of a socket has to be short.
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	g := &gateway{url: "http://" + freeAddress(t), admin: "unix/" + filepath.Join(dir, "admin.sock") + "|0600", log: &logBuffer{}, dir: t.TempDir()}
	g.write(t, p.url, options{})
	g.endWith(t)
	g.run(t)
	id := leaveUnknown(t, g, p, submitUnknown)
	for _, args := range [][]string{{"list"}, {"release", id, "--reason", "r"}} {
		output, err := exec.Command(caddyBinary, append([]string{"idempotency"}, append(args, "--address", g.admin)...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(output), id) {
			t.Errorf("%s gave %v: %s", args[0], err, output)
		}
	}
}

package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// usage is what a gateway holds.
type usage struct {
	goroutines int
	files      int // open, connections included
	unnamed    int // open files that have no name any more
}

func (g *gateway) usage(t testing.TB) usage {
	t.Helper()
	u := usage{goroutines: g.goroutines(t)}
	dir := filepath.Join("/proc", strconv.Itoa(g.cmd.Process.Pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Logf("open files are not counted: %v", err)
		return u
	}
	u.files = len(entries)
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && strings.HasSuffix(target, "(deleted)") {
			u.unnamed++
		}
	}
	return u
}

// goroutines counts them by Caddy's own profile.
func (g *gateway) goroutines(t testing.TB) int {
	t.Helper()
	var n int
	if _, err := fmt.Sscanf(g.profile(t, 1), "goroutine profile: total %d", &n); err != nil {
		t.Fatalf("the profile of goroutines: %v", err)
	}
	return n
}

// stacksIn counts the goroutines that are in a function.
func (g *gateway) stacksIn(t testing.TB, function string) int {
	t.Helper()
	return strings.Count(g.profile(t, 2), function+"(")
}

func (g *gateway) profile(t testing.TB, debug int) string {
	t.Helper()
	res, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/goroutine?debug=%d", g.admin, debug))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A gateway that was busy keeps its pool of connections to Redis, and little
// else: the runtime's and the admin endpoint's own come and go.
const (
	poolSize = 64
	slack    = 10
)

// awaitUsage waits until the gateway holds no more than it did.
func (g *gateway) awaitUsage(t testing.TB, before usage) {
	t.Helper()
	var now usage
	defer func() {
		if t.Failed() {
			t.Logf("%s holds %+v, and held %+v", g.url, now, before)
		}
	}()
	await(t, g.url+" to hold no more than before", func() bool {
		now = g.usage(t)
		return now.goroutines <= before.goroutines+slack && now.files <= before.files+slack+poolSize && now.unnamed <= before.unnamed
	})
}

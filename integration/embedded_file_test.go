package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fileLines are the lines of a gateway's log about its embedded file.
func (g *gateway) fileLines() (lines []string) {
	for line := range strings.Lines(g.log.String()) {
		var entry struct{ Level, Msg, Path string }
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, "embedded store file ") {
			lines = append(lines, entry.Level+" "+entry.Msg+": "+entry.Path)
		}
	}
	return lines
}

// wantFileLines waits until the log has the lines, and wants no others.
func (g *gateway) wantFileLines(t *testing.T, want ...string) {
	t.Helper()
	await(t, fmt.Sprintf("%d lines about the file", len(want)), func() bool { return len(g.fileLines()) >= len(want) })
	if got := g.fileLines(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log says of the file:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// submits sends one submit for each key, and returns the answers.
func (g *gateway) submits(t *testing.T, keys ...string) (answers []answer) {
	t.Helper()
	for _, key := range keys {
		answers = append(answers, g.send(t, request{key: key, body: "x"}))
	}
	return answers
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// E5: the embedded file is removed, replaced, cut or put back from a copy under a
// running gateway. Completed keys are not submitted again, traffic without a key
// flows, and the process lives and says once what has happened.
func TestEmbeddedFileLost(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		do      func(path string) error // path.older is a copy from before the last submits
		line    string
		restart string // what is there then: new, older or all
	}{
		{"removed", os.Remove, "was removed", "new"},
		{"directory renamed", func(path string) error {
			return os.Rename(filepath.Dir(path), filepath.Dir(path)+".away")
		}, "was removed", "new"},
		{"backup renamed over it", func(path string) error { return os.Rename(path+".older", path) }, "was replaced", "older"},
		{"backup copied over it", func(path string) error { return copyFile(path+".older", path) }, "was overwritten", "older"},
		{"cut to nothing", func(path string) error { return os.Truncate(path, 0) }, "was cut", "new"},
		{"emptied, and the backup copied over it", func(path string) error {
			return errors.Join(os.Truncate(path, 0), copyFile(path+".older", path))
		}, "was overwritten", "older"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			path := filepath.Join(t.TempDir(), "store", "idempotency.db")
			g := startGateway(t, p.url, options{store: "embedded " + path})
			g.submits(t, "older1", "older2")
			if err := copyFile(path, path+".older"); err != nil {
				t.Fatal(err)
			}
			g.submits(t, "newer1", "newer2", "newer3")
			p.want(t, 5)
			if err := test.do(path); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				answers := g.submits(t, "newer1", "older1", "newer2", "newer3", "older2", "new")
				p.want(t, 5)
				for _, a := range answers {
					if a.status != 503 || a.code() != "idempotency_store_unavailable" {
						t.Errorf("a submit with a key got %v", a)
					}
				}
				g.reload(t) // is no restart
			}
			if a := g.send(t, request{body: "x"}); a.status != 202 {
				t.Errorf("without a key: %v", a)
			}
			if a := g.send(t, request{method: http.MethodGet}); a.status != 200 {
				t.Errorf("GET: %v", a)
			}
			p.want(t, 6)
			created := "warn embedded store file was created, new and empty: " + path
			lost := "error embedded store file " + test.line + ": " + path
			g.wantFileLines(t, created, lost)

			// A restart uses what is there then, and says so if that is nothing.
			g.stop(t)
			g.run(t)
			older := g.send(t, request{key: "older1", body: "x"})
			if want := test.restart != "new"; older.replayed() != want {
				t.Errorf("a key of the backup after the restart: %v, want a replay %t", older, want)
			}
			if test.restart == "new" {
				g.wantFileLines(t, created, lost, created)
			} else {
				g.wantFileLines(t, created, lost)
			}
		})
	}
}

// A file that was away and is put back is used again without a restart. Another
// gateway cannot have it meanwhile; one that makes a file of its own in its
// place is the owner of that one.
func TestEmbeddedFileAway(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	path := filepath.Join(t.TempDir(), "idempotency.db")
	g := startGateway(t, p.url, options{store: "embedded " + path})
	g.submits(t, "k")
	p.want(t, 1)

	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	a := g.submits(t, "k", "new")
	p.want(t, 1)
	if a[0].status != 503 || a[1].status != 503 {
		t.Errorf("while the file is away: %v", a)
	}
	second := startGateway(t, p.url, options{store: "embedded " + path + ".away"})
	if a := second.send(t, request{key: "k", body: "x"}); a.status != 503 {
		t.Errorf("another gateway on the file that is away: %v", a)
	}
	p.want(t, 1)
	third := startGateway(t, p.url, options{store: "embedded " + path})
	if a := third.send(t, request{key: "third", body: "x"}); a.status != 202 {
		t.Errorf("another gateway on a new file: %v", a)
	}
	p.want(t, 2)
	g.submits(t, "third", "new", "k")
	p.want(t, 2)

	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if a := g.send(t, request{key: "k", body: "x"}); !a.replayed() {
		t.Errorf("when the file is back: %v", a)
	}
	if a := third.send(t, request{key: "third", body: "x"}); a.status != 503 {
		t.Errorf("the gateway whose file was replaced: %v", a)
	}
	p.want(t, 2)
	g.wantFileLines(t,
		"warn embedded store file was created, new and empty: "+path,
		"error embedded store file was removed: "+path,
		"error embedded store file was replaced: "+path,
		"info embedded store file is back: "+path)
}

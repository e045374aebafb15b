package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// shellBlock is a block of shell commands in a document.
type shellBlock struct {
	name  string // document and line
	text  string
	noRun string // why it is not run; "" if it is
}

// shellBlocks returns the blocks ```sh of a document. One that the comment
// <!-- no-run: why --> stands before is not run.
func shellBlocks(t *testing.T, document string) []shellBlock {
	t.Helper()
	start := regexp.MustCompile("^( *)```sh$")
	mark := regexp.MustCompile(`^ *<!-- no-run: (.+) -->$`)
	lines := strings.Split(readFile(t, document), "\n")
	var blocks []shellBlock
	for i := 0; i < len(lines); i++ {
		m := start.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		b := shellBlock{name: fmt.Sprintf("%s:%d", filepath.Base(document), i+2)}
		if why := mark.FindStringSubmatch(lines[max(i-1, 0)]); why != nil {
			b.noRun = why[1]
		}
		for i++; i < len(lines) && lines[i] != m[1]+"```"; i++ {
			b.text += strings.TrimPrefix(lines[i], m[1]) + "\n"
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// shell runs documented commands in a directory of their own, with the tested
// binary as caddy and ./caddy.
type shell struct {
	dir     string
	gateway *gateway
	replace *strings.Replacer
}

func newShell(t *testing.T, g *gateway, provider *sandbox) *shell {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(caddyBinary, filepath.Join(dir, "caddy")); err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), example, 0o600); err != nil {
		t.Fatal(err)
	}
	return &shell{dir, g, strings.NewReplacer("http://localhost:8080", g.url, "http://localhost:9090", provider.url)}
}

func (s *shell) run(t *testing.T, text string) string {
	t.Helper()
	for _, command := range []string{"curl", "openssl"} {
		if _, err := exec.LookPath(command); err != nil && strings.Contains(text, command+" ") {
			t.Fatalf("%s is missing: install the package %s", command, command)
		}
	}
	cmd := exec.Command("bash", "-euc", s.replace.Replace(text))
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"), "CADDY_ADMIN="+s.gateway.admin,
		"XDG_DATA_HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir, "HOME="+s.dir)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s\n%s", err, text, output)
	}
	return string(output)
}

// The quick start of README.md, as it is written, with ports of this test's own:
// three bills without the gateway, one with it, and an operator who ends it.
func TestQuickStart(t *testing.T) {
	t.Parallel()
	provider := startSandbox(t, "--lose-answers", "1")
	g := startExample(t, provider, "")
	sh := newShell(t, g, provider)
	jobs := 0
	var outputs []string
	var repeat string
	for _, b := range shellBlocks(t, "../README.md") {
		if b.noRun != "" {
			continue
		}
		outputs = append(outputs, sh.run(t, b.text))
		billed := provider.jobs(t) - jobs
		jobs += billed
		want := 0
		switch {
		case strings.Contains(b.text, "film-0002"):
			want = 1
		case strings.Contains(b.text, ":9090/v1"):
			want = 3
		case strings.Contains(b.text, ":8080/v1"):
			want, repeat = 1, b.text
		}
		if billed != want {
			t.Errorf("%s: %d jobs are billed, want %d\n%s", b.name, billed, want, outputs[len(outputs)-1])
		}
	}
	if len(outputs) != 4 {
		t.Fatalf("README.md has %d blocks that can be run, want 4", len(outputs))
	}
	for i, want := range []string{"Empty reply from server", "Idempotency-Error: idempotency_outcome_unknown", "completed ", "502 Bad Gateway"} {
		if !strings.Contains(outputs[i], want) {
			t.Errorf("block %d does not print %q:\n%s", i+1, want, outputs[i])
		}
	}
	if again := sh.run(t, repeat); !strings.Contains(again, "Idempotency-Replayed: true") || !strings.Contains(again, "job_77") {
		t.Errorf("the repeat after the operator's decision gets\n%s", again)
	}
	if provider.jobs(t) != jobs {
		t.Error("the provider has seen the repeat")
	}
}

// Every shell command of the documents runs, unless it says why it does not.
// <record> is a submit whose outcome is unknown.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("../docs/*.md")
	if err != nil || len(documents) == 0 {
		t.Fatalf("docs/ has %d documents, %v", len(documents), err)
	}
	provider := startSandbox(t, "--lose-answers", "1")
	g := startExample(t, provider, "")
	sh := newShell(t, g, provider)
	ran := 0
	for _, document := range documents {
		for _, b := range shellBlocks(t, document) {
			if b.noRun != "" {
				continue
			}
			ran++
			record := regexp.MustCompile(`[0-9a-v]{32}`).FindString(g.send(t, request{key: b.name, body: `{}`}).body)
			if record == "" {
				t.Fatal("there is no submit whose outcome is unknown")
			}
			sh.run(t, strings.ReplaceAll(b.text, "<record>", record))
		}
	}
	if ran < 6 {
		t.Errorf("the documents have %d blocks that can be run: the test does not find them any more", ran)
	}
}

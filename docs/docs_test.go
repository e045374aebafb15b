// Package docs_test holds the documentation against the code: what the reference
// says of options, defaults, metrics, codes and log lines, every Caddyfile, and
// every link. What the code has and no document, and the other way round, is an
// error that names the side on which it is missing.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// document is one Markdown file. Its name is the path from the module's root.
type document struct {
	name  string
	lines []string
}

// documents are those that are for people who do not read the code.
func documents(t *testing.T) []document {
	t.Helper()
	paths := []string{"../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../examples/README.md"}
	more, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(more) < 11 {
		t.Fatalf("docs/ has %d documents", len(more))
	}
	var all []document
	for _, path := range append(paths, more...) {
		all = append(all, read(t, path))
	}
	return all
}

func read(t *testing.T, path string) document {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	name, below := strings.CutPrefix(path, "../")
	if !below {
		name = "docs/" + path
	}
	return document{name, strings.Split(string(text), "\n")}
}

// fence is a block of code.
type fence struct {
	line     int // of its first line
	language string
	marks    []string // HTML comments right before it, without their arrows
	body     string
}

var (
	fenceStart = regexp.MustCompile("^( *)```(\\w*)$")
	comment    = regexp.MustCompile(`^ *<!-- (.*) -->$`)
)

// fences returns all blocks of code of a document.
func (d document) fences() []fence {
	var all []fence
	var marks []string
	for i := 0; i < len(d.lines); i++ {
		if mark := comment.FindStringSubmatch(d.lines[i]); mark != nil {
			marks = append(marks, mark[1])
			continue
		}
		start := fenceStart.FindStringSubmatch(d.lines[i])
		if start == nil {
			marks = nil
			continue
		}
		f := fence{line: i + 2, language: start[2], marks: marks}
		marks = nil
		var body strings.Builder
		for i++; i < len(d.lines) && d.lines[i] != start[1]+"```"; i++ {
			body.WriteString(strings.TrimPrefix(d.lines[i], start[1]) + "\n")
		}
		f.body = body.String()
		all = append(all, f)
	}
	return all
}

// mark returns what follows the name of a mark.
func (f fence) mark(name string) (text string, found bool) {
	for _, mark := range f.marks {
		if mark == name {
			return "", true
		}
		if rest, ok := strings.CutPrefix(mark, name+": "); ok {
			return rest, true
		}
	}
	return "", false
}

// prose returns the lines that are no code; code becomes empty lines, so that
// indexes stay.
func (d document) prose() []string {
	lines := slices.Clone(d.lines)
	end := ""
	for i, line := range lines {
		switch start := fenceStart.FindStringSubmatch(line); {
		case end != "":
			if line == end {
				end = ""
			}
			lines[i] = ""
		case start != nil:
			end, lines[i] = start[1]+"```", ""
		}
	}
	return lines
}

var heading = regexp.MustCompile(`^(#{1,6}) (.*)$`)

// section returns the lines under the heading, up to the next one of its level
// or above.
func (d document) section(t *testing.T, title string) []string {
	t.Helper()
	level := 0
	var lines []string
	for _, line := range d.prose() {
		if h := heading.FindStringSubmatch(line); h != nil {
			if level > 0 && len(h[1]) <= level {
				return lines
			}
			if level == 0 && h[2] == title {
				level = len(h[1])
				continue
			}
		}
		if level > 0 {
			lines = append(lines, line)
		}
	}
	if level == 0 {
		t.Fatalf("%s has no section %q", d.name, title)
	}
	return lines
}

// rows returns the cells of all tables in the lines, without their heads.
func rows(lines []string) [][]string {
	var all [][]string
	for i, line := range lines {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|---") {
			continue // the head
		}
		cells := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, "\x00"), "|"), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(strings.ReplaceAll(cells[j], "\x00", "|"))
		}
		all = append(all, cells)
	}
	return all
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// spans returns the contents of all code spans.
func spans(text string) []string {
	var all []string
	for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// compare reports what is on one side only.
func compare(t *testing.T, what string, code, docs map[string]bool, where string) {
	t.Helper()
	if len(code) == 0 {
		t.Errorf("the code has no %s: the test does not find them any more", what)
	}
	for _, name := range sorted(code) {
		if !docs[name] {
			t.Errorf("%s %q is in the code and missing in %s", what, name, where)
		}
	}
	for _, name := range sorted(docs) {
		if !code[name] {
			t.Errorf("%s %q is in %s and missing in the code", what, name, where)
		}
	}
}

func sorted(set map[string]bool) []string {
	var names []string
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func setOf(names ...string) map[string]bool {
	set := make(map[string]bool)
	for _, name := range names {
		set[name] = true
	}
	return set
}

// The front page is one.
func TestFrontPage(t *testing.T) {
	if lines := len(read(t, "../README.md").lines) - 1; lines > 250 {
		t.Errorf("README.md has %d lines, want 250 at most", lines)
	}
}

// Lines of text can be read in a terminal and reviewed in a diff.
func TestLineLength(t *testing.T) {
	for _, d := range documents(t) {
		if d.name == "examples/README.md" || d.name == "CONTRIBUTING.md" {
			continue
		}
		for i, line := range d.prose() {
			if len([]rune(line)) > 130 && !strings.HasPrefix(line, "|") && !strings.Contains(line, "default: ") {
				t.Errorf("%s:%d has %d characters", d.name, i+1, len([]rune(line)))
			}
		}
	}
}

// phrases are not English as it is spoken, or not the words of the glossary.
var phrases = map[string]string{
	`not had back`:                            `is never regained`,
	`heard of\b`:                              `heard from`,
	`passed on`:                               `forwarded`,
	`passes on`:                               `forwards`,
	`lease (is|was|were) over`:                `lease expired`,
	`leases are over`:                         `leases expire`,
	`retention is over`:                       `retention expires`,
	`go(es)? together`:                        `are mutually exclusive`,
	`refused at load`:                         `rejected at load`,
	`refused when the config`:                 `rejected at load`,
	`by its meaning`:                          `semantically`,
	`by what (it|they) means?`:                `semantically`,
	`the provider's answers?\b`:               `the provider's response`,
	`what the answer means`:                   `what the response means`,
	`taken back`:                              `withdrawn`,
	`is an uncertain`:                         `is unknown`,
	`(becomes?|count as|counts as) uncertain`: `become unknown`,
}

// The documents have one word for one thing.
func TestWords(t *testing.T) {
	for _, d := range documents(t) {
		if d.name == "CHANGELOG.md" || d.name == "examples/README.md" {
			continue
		}
		for i, line := range d.prose() {
			text := codeSpan.ReplaceAllString(line, "`")
			for phrase, better := range phrases {
				if found := regexp.MustCompile(`(?i)` + phrase).FindString(text); found != "" {
					t.Errorf("%s:%d says %q: say %q", d.name, i+1, found, better)
				}
			}
		}
	}
}

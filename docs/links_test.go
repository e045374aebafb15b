package docs_test

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

var (
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	anchor   = regexp.MustCompile(`<a (?:name|id)="([^"]+)">`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors returns what a link into the document can name: its headings, as
// GitHub names them, and its anchors.
func (d document) anchors() map[string]bool {
	all := make(map[string]bool)
	for _, line := range d.prose() {
		for _, m := range anchor.FindAllStringSubmatch(line, -1) {
			all[m[1]] = true
		}
		h := heading.FindStringSubmatch(line)
		if h == nil {
			continue
		}
		slug := slugOf(h[2])
		for n := 1; all[slug]; n++ {
			slug = slugOf(h[2]) + "-" + strconv.Itoa(n)
		}
		all[slug] = true
	}
	return all
}

func slugOf(title string) string {
	title = linkText.ReplaceAllString(title, "$1")
	var b strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case r == ' ':
			b.WriteRune('-')
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Every relative link leads to a file of the checkout, and to a heading or an
// anchor in it.
func TestLinks(t *testing.T) {
	known := make(map[string]map[string]bool)
	for _, d := range documents(t) {
		known[d.name] = d.anchors()
	}
	for _, d := range documents(t) {
		found := 0
		for i, line := range d.prose() {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				found++
				target, err := url.Parse(m[1])
				if err != nil {
					t.Errorf("%s:%d: %v", d.name, i+1, err)
					continue
				}
				if target.IsAbs() {
					continue
				}
				name := d.name
				if target.Path != "" {
					name = path.Join(path.Dir(d.name), target.Path)
					if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(name))); err != nil {
						t.Errorf("%s:%d: the link %s leads nowhere", d.name, i+1, m[1])
						continue
					}
				}
				if target.Fragment != "" && !known[name][target.Fragment] {
					t.Errorf("%s:%d: %s has no heading or anchor #%s", d.name, i+1, name, target.Fragment)
				}
			}
		}
		if found == 0 && strings.HasPrefix(d.name, "docs/") {
			t.Errorf("%s has no link", d.name)
		}
	}
}

// The front page leads to every document.
func TestMap(t *testing.T) {
	front := read(t, "../README.md")
	text := strings.Join(front.lines, "\n")
	for _, d := range documents(t) {
		if d.name != front.name && !strings.Contains(text, "]("+d.name+")") {
			t.Errorf("README.md does not lead to %s", d.name)
		}
	}
}

// Every picture is shown, and every picture that is shown is there (TestLinks).
func TestPictures(t *testing.T) {
	var all strings.Builder
	for _, d := range documents(t) {
		all.WriteString(strings.Join(d.lines, "\n"))
	}
	pictures, err := filepath.Glob("images/*")
	if err != nil || len(pictures) == 0 {
		t.Fatalf("docs/images has %d files, %v", len(pictures), err)
	}
	for _, picture := range pictures {
		if !strings.Contains(all.String(), filepath.ToSlash(picture)) {
			t.Errorf("no document shows docs/%s", picture)
		}
	}
}

package provider_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/provider"
)

// names are the presets that the contract lists.
var names = []string{
	"assemblyai", "creatomate", "elevenlabs", "fal", "heygen", "infro", "intactvoice", "kling", "luma", "minimax",
	"mux", "openai", "openai-videos", "replicate", "runway", "shotstack",
}

func TestNames(t *testing.T) {
	if got := provider.Names(); !slices.Equal(got, names) {
		t.Errorf("the presets are %v, want %v", got, names)
	}
}

// Each preset says where its facts are from, when they were read, and what is
// not certain.
func TestEveryFactHasItsSource(t *testing.T) {
	dated := regexp.MustCompile(`20\d\d(-\d\d){0,2}`)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			p, found, err := provider.Lookup(name)
			if err != nil || !found {
				t.Fatalf("found %t, error %v", found, err)
			}
			for _, part := range []string{"submit", "keys", "SDK", "uncertain"} {
				if !strings.Contains(p.Notes, "\n"+part) {
					t.Errorf("the notes have no part %q", part)
				}
			}
			if !dated.MatchString(p.Notes) {
				t.Error("the notes have no date")
			}
			if !strings.Contains(p.Options, "job_id") {
				t.Error("the preset does not say where the job's id is")
			}
			if !strings.HasSuffix(p.Title(), ".") {
				t.Errorf("the first line %q is no sentence", p.Title())
			}
			if text := p.Caddyfile(); !strings.Contains(text, "\tnamespace "+name+"\n") {
				t.Errorf("the lines have no namespace:\n%s", text)
			}
		})
	}
}

func TestUnknown(t *testing.T) {
	for _, name := range []string{"", "klign", "../provider", "kling.caddyfile"} {
		if _, found, err := provider.Lookup(name); found || err != nil {
			t.Errorf("%q: found %t, error %v", name, found, err)
		}
	}
}

func TestRequired(t *testing.T) {
	p, _, err := provider.Lookup("kling")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Required) != 1 || p.Required[0].Option != "scope" {
		t.Errorf("kling requires %v, want scope", p.Required)
	}
	if !strings.Contains(p.Caddyfile(), "# scope is required: ") {
		t.Errorf("its lines do not say so:\n%s", p.Caddyfile())
	}
}

func TestParseErrors(t *testing.T) {
	for name, text := range map[string]string{
		"no notes":            "idempotency {\n\tjob_id /id\n}\n",
		"no block":            "# Notes.\n",
		"open block":          "# Notes.\nidempotency {\n\tjob_id /id\n",
		"two blocks":          "# Notes.\nidempotency {\n}\nidempotency {\n}\n",
		"unknown line":        "# Notes.\nidempotency {\n}\nnonsense\n",
		"requirement unclear": "# Notes.\nidempotency {\n}\nrequire scope because\n",
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := provider.Parse("test", text); err == nil {
				t.Errorf("it was read as %+v", p)
			}
		})
	}
}

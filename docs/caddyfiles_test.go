package docs_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-idempotency/caddy-idempotency"
)

// A block of Caddyfile that is not a whole one is marked with where it stands:
//
//	<!-- in: global -->   the global option idempotency
//	<!-- in: handler -->  the directive's block
//	<!-- each: global --> each paragraph stands there by itself
//	<!-- adapt only: why --> what it names is not here
var places = map[string]string{
	"global":  "{\n\tidempotency {\n%s\n\t}\n}\nhttp://localhost:1 {\n\tidempotency\n\treverse_proxy localhost:2\n}\n",
	"handler": "http://localhost:1 {\n\tidempotency {\n%s\n\t}\n\treverse_proxy localhost:2 {\n\ttransport http {\nkeepalive 4s\n}\n}\n}\n",
}

var environment = regexp.MustCompile(`\{env\.(\w+)\}`)

// Every Caddyfile and every JSON configuration of the documents is one that Caddy
// takes.
func TestConfigurations(t *testing.T) {
	// What is validated must not look for an account, or a home.
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	found := 0
	for _, d := range documents(t) {
		for _, f := range d.fences() {
			var texts []string
			switch {
			case f.language == "caddyfile":
				texts = caddyfiles(t, d, f)
			case f.language == "json" && strings.Contains(f.body, `"apps"`):
				texts = []string{f.body}
			}
			for _, text := range texts {
				found++
				t.Run(fmt.Sprintf("%s:%d", d.name, f.line), func(t *testing.T) {
					for _, name := range environment.FindAllStringSubmatch(text, -1) {
						t.Setenv(name[1], strings.Repeat("ab", 32)) // any value, a key included
					}
					check(t, f, text)
				})
			}
		}
	}
	if found < 8 {
		t.Errorf("the documents have %d configurations: the test does not find them any more", found)
	}
}

func caddyfiles(t *testing.T, d document, f fence) []string {
	place, part := f.mark("in")
	each, several := f.mark("each")
	texts := []string{f.body}
	if several {
		place, texts = each, strings.Split(strings.TrimSpace(f.body), "\n\n")
	}
	if !part && !several {
		return texts
	}
	frame, known := places[place]
	if !known {
		t.Errorf("%s:%d: there is no place %q", d.name, f.line, place)
		return nil
	}
	for i := range texts {
		texts[i] = fmt.Sprintf(frame, texts[i])
	}
	return texts
}

func check(t *testing.T, f fence, text string) {
	adapted := []byte(text)
	if f.language == "caddyfile" {
		var warnings []caddyconfig.Warning
		var err error
		adapted, warnings, err = caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
		if err != nil {
			t.Fatalf("caddy adapt: %v\n%s", err, text)
		}
		for _, w := range warnings {
			if !strings.Contains(w.Message, "not formatted") || !wrapped(f) {
				t.Errorf("caddy adapt warns: %s\n%s", w, text)
			}
		}
	}
	if _, only := f.mark("adapt only"); only {
		return
	}
	var config caddy.Config
	if err := json.Unmarshal(adapted, &config); err != nil {
		t.Fatal(err)
	}
	if err := caddy.Validate(&config); err != nil {
		t.Errorf("caddy validate: %v\n%s", err, text)
	}
}

func wrapped(f fence) bool {
	_, part := f.mark("in")
	_, several := f.mark("each")
	return part || several
}

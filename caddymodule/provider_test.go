package caddymodule_test

import (
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/provider"
)

// presetSite is a site with a preset, and what the preset requires.
func presetSite(t *testing.T, preset provider.Preset, options string) string {
	t.Helper()
	for _, required := range preset.Required {
		if required.Option != "scope" {
			t.Fatalf("the test knows no value for the required option %s", required.Option)
		}
		options += "\n\t\tscope {http.request.header.X-Team}"
	}
	return site("\t\tprovider " + preset.Name + options)
}

// Every preset is a valid configuration, and so are the lines that the command
// prints for it.
func TestPresets(t *testing.T) {
	for _, name := range provider.Names() {
		t.Run(name, func(t *testing.T) {
			preset, _, err := provider.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := adaptAndValidate(presetSite(t, preset, "")); err != nil {
				t.Errorf("provider %s: %v", name, err)
			}
			_, block, _ := strings.Cut(preset.Caddyfile(), "idempotency {\n")
			lines := strings.TrimSuffix(block, "}\n")
			if _, err := adaptAndValidate(site(lines)); err != nil {
				t.Errorf("the printed lines: %v\n%s", err, lines)
			}
		})
	}
}

// A single option overrides the preset's.
func TestPresetOverridden(t *testing.T) {
	for name, options := range map[string]string{
		"one value":          "namespace render\n\t\tjob_id /video/id",
		"two that are one":   "in_progress reject",
		"another condition":  "accept_if /ok true",
		"longer than it was": "in_progress wait 3m",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := adaptAndValidate(site("\t\tprovider minimax\n\t\t" + options)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPresetRejected(t *testing.T) {
	for name, test := range map[string]struct{ options, want string }{
		"unknown":          {"provider klign", `provider: there is no preset named "klign"; there are assemblyai, `},
		"required option":  {"provider kling", "scope: provider kling requires it: "},
		"without a name":   {"provider", "provider: wrong argument count"},
		"two names":        {"provider kling minimax", "provider: wrong argument count"},
		"twice":            {"provider mux\n\t\tprovider luma", "provider is given twice"},
		"wait and timeout": {"provider minimax\n\t\tupstream_timeout 30s", "in_progress wait: it is 2m0s, longer than upstream_timeout (30s)"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := adaptAndValidate(site("\t\t" + test.options))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want %q in it", err, test.want)
			}
		})
	}
}

package caddymodule_test

import (
	"strings"
	"testing"
)

// A label is stored and shown to operators: one that would show a secret, or
// that takes the request's body away, is rejected with the option's name.
func TestLabelConfigurations(t *testing.T) {
	for name, test := range map[string]struct{ option, want string }{
		"text":                {"label films", ""},
		"placeholder":         {"label {http.request.header.X-Team}", ""},
		"user":                {"label {http.auth.user.id}", ""},
		"shorthand":           {"label {header.X-Team}/{path.0}", ""},
		"escaped brace":       {`label "a\{b"`, ""},
		"unknown placeholder": {"label {nobody.knows}", ""},
		"no text":             {"label", "label: wrong argument count"},
		"two texts":           {"label a b", "label: wrong argument count"},
		"empty":               {`label ""`, "label: wrong argument count, or an empty value"},
		"twice":               {"label a\nlabel b", "label is given twice"},
		"body":                {"label {http.request.body}", "label: {http.request.body}"},
		"body as base64":      {"label x-{http.request.body_base64}", "label: {http.request.body}"},
		"credential":          {"label {header.authorization}", "is a secret"},
		"API key":             {"label a{header.Team}{header.xi-api-key}", "label: {http.request.header.xi-api-key} is a secret"},
		"cookie":              {"label {cookie.session}", "is a secret"},
		"key":                 {"label {header.Idempotency-Key}", "is a secret"},
		"own key":             {"key_header X-Job\nlabel {header.x-job}", "is a secret"},
		"not closed":          {`label "{http.request.header.X-Team"`, "not closed"},
	} {
		t.Run(name, func(t *testing.T) {
			adapted, err := adaptAndValidate(site(test.option))
			switch {
			case test.want == "" && err != nil:
				t.Errorf("rejected: %v", err)
			case test.want == "" && !strings.Contains(string(adapted), `"label":"`):
				t.Errorf("the configuration has no label: %s", adapted)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("it gives %v, want %q", err, test.want)
			}
		})
	}
}

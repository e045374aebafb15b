package caddymodule

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// isSecretField reports whether the value of a header field must not be shown in a
// label.
func (h *Handler) isSecretField(name string) bool {
	return idempotency.IsCredentialField(name) || slices.Contains(h.KeyHeader, name) ||
		name == "Proxy-Authorization" || name == "Cookie"
}

// checkLabel refuses a label that reads the body, that is never closed, or that
// would show a credential or a key to everybody who reads the store.
func (h *Handler) checkLabel() error {
	if readsBody(h.Label) {
		return fmt.Errorf("label: %w", errReadsBody)
	}
	bare := strings.NewReplacer(`\{`, "", `\}`, "").Replace(h.Label)
	for _, part := range strings.Split(bare, "{")[1:] {
		placeholder, _, closed := strings.Cut(part, "}")
		if !closed {
			return fmt.Errorf("label: %q has a placeholder that is not closed", h.Label)
		}
		if strings.HasPrefix(placeholder, "http.request.cookie.") {
			return fmt.Errorf("label: {%s} is a secret, and a label is stored and shown", placeholder)
		}
		name, isField := strings.CutPrefix(placeholder, "http.request.header.")
		if isField && h.isSecretField(http.CanonicalHeaderKey(name)) {
			return fmt.Errorf("label: {%s} is a secret, and a label is stored and shown", placeholder)
		}
	}
	return nil
}

// label returns whose job a request is; empty if a placeholder is not known.
func (h *Handler) label(repl *caddy.Replacer) string {
	if h.Label == "" {
		return ""
	}
	text, err := repl.ReplaceOrErr(h.Label, false, true)
	if err != nil {
		return ""
	}
	return idempotency.NewLabel(text)
}

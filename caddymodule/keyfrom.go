package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/google/uuid"
)

// KeyFrom derives the key of a request that has no key header, for an
// application that has an id of its own for each job: the UUIDv5 (RFC 9562) of
// a text with placeholders.
type KeyFrom struct {
	// The namespace of the UUID, a UUID itself.
	Namespace string `json:"namespace,omitempty"`

	// A text with placeholders, such as {http.request.header.X-Job-Id}. If one of
	// them is empty, the request has no key.
	Text string `json:"text,omitempty"`
}

type keyDerivation struct {
	namespace uuid.UUID
	text      string
}

func (h *Handler) configureKeyFrom() error {
	if h.KeyFrom == nil {
		return nil
	}
	namespace, err := uuid.Parse(h.KeyFrom.Namespace)
	if err != nil || len(h.KeyFrom.Namespace) != len(uuid.Nil.String()) {
		return fmt.Errorf("key_from: the namespace %q is not a UUID", h.KeyFrom.Namespace)
	}
	if _, err := caddy.NewEmptyReplacer().ReplaceOrErr(h.KeyFrom.Text, false, true); err == nil { // nothing unknown
		return errors.New("key_from: the text has no placeholder, so all requests would have one key")
	}
	if readsBody(h.KeyFrom.Text) {
		return fmt.Errorf("key_from: %w", errReadsBody)
	}
	if err := checkOwnPlaceholders("key_from", h.KeyFrom.Text); err != nil {
		return err
	}
	h.keyFrom = keyDerivation{namespace, h.KeyFrom.Text}
	return nil
}

// readsBody reports whether the placeholders of a text read the request's body.
// Caddy puts what it has read back into the request as it was in the beginning,
// and a handler such as tracing has made another one of it since.
func readsBody(text string) bool { return strings.Contains(text, "{http.request.body") }

var errReadsBody = errors.New("{http.request.body} may leave no body for the provider, and knows no max_request_body: take a header field")

// derive returns the key, or "" if a placeholder is empty. A placeholder that
// nobody knows is an error: a misspelt one must not leave requests without
// protection.
func (k keyDerivation) derive(repl *caddy.Replacer) (string, error) {
	if _, err := repl.ReplaceOrErr(k.text, false, true); err != nil {
		return "", fmt.Errorf("key_from: %w", err)
	}
	text, err := repl.ReplaceOrErr(k.text, true, true)
	if err != nil {
		return "", nil // one is empty
	}
	return uuid.NewSHA1(k.namespace, []byte(text)).String(), nil
}

// withHeader returns the request with one field more, and leaves r as it is.
func withHeader(r *http.Request, name, value string) *http.Request {
	with := r.WithContext(r.Context())
	with.Header = r.Header.Clone()
	with.Header.Set(name, value)
	return with
}

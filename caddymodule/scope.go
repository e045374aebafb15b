package caddymodule

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// scopeValues returns who the key of a request belongs to, or the problem with
// which it is answered because that cannot be said: nothing may be sent then.
func (e *exchange) scopeValues() ([]string, *idempotency.Problem) {
	if len(e.Scope) == 0 {
		if u := idempotency.FindUnstableCredential(e.r.Header, e.r.URL.RawQuery, time.Now(), e.policy.Retention); u != nil {
			e.logger.Error("keyed request rejected: its credential is another one for each request, or runs out, "+
				"so it cannot say who the key belongs to; set the option scope",
				zap.String("credential", u.Where), zap.Stringer("reason", u.Kind), zap.Strings("set_one_of", scopeLines(u.Kind)))
			return nil, &idempotency.Problem{Code: idempotency.CodeScopeUnstable, Detail: unstableDetail(u)}
		}
		return idempotency.DefaultScope(e.r.Header), nil
	}
	scope := make([]string, len(e.Scope))
	empty := slices.Contains(e.scopeVaries, true)
	for i, text := range e.Scope {
		// A placeholder that nobody knows must not become empty: a misspelt
		// scope would put all callers into one.
		value, err := e.repl.ReplaceOrErr(text, false, true)
		if err != nil {
			e.logger.Error("keyed request rejected: the option scope has a placeholder that is unknown for it", zap.Error(err))
			return nil, &idempotency.Problem{Code: idempotency.CodeScopeUnstable,
				Detail: "The option scope has a placeholder that is unknown for this request; the log of the gateway names it."}
		}
		scope[i] = value
		if e.scopeVaries[i] && value != e.scopeEmpty[i] {
			empty = false
		}
	}
	if empty {
		e.logger.Error("keyed request rejected: all placeholders of the option scope are empty for it, " +
			"so it would share its keys with every other caller like it")
		return nil, &idempotency.Problem{Code: idempotency.CodeScopeUnstable,
			Detail: "All placeholders of the option scope are empty for this request."}
	}
	return scope, nil
}

// configureScope reads the option scope. Without it the default scope holds.
func (h *Handler) configureScope(repl *caddy.Replacer) error {
	h.scopeEmpty, h.scopeVaries = make([]string, len(h.Scope)), make([]bool, len(h.Scope))
	for i, value := range h.Scope {
		if value == "" {
			return errors.New("scope: a value is empty, and tells no callers apart")
		}
		if readsBody(value) {
			return fmt.Errorf("scope: %w", errReadsBody)
		}
		if bare := strings.NewReplacer(`\{`, "", `\}`, "").Replace(value); strings.Count(bare, "{") != strings.Count(bare, "}") {
			return fmt.Errorf("scope: %q has a placeholder that is not closed", value)
		}
		switch field := http.CanonicalHeaderKey(value); {
		case idempotency.IsCredentialField(field), field == "Proxy-Authorization", field == "Cookie":
			return fmt.Errorf("scope: %s is the name of a header field, the same for all callers: write {http.request.header.%s}", value, field)
		}
		if err := checkOwnPlaceholders("scope", value); err != nil {
			return err
		}
		for name := range placeholders(value) {
			if variesByItself(name) {
				return fmt.Errorf("scope: {%s} is another one for each request, so no retry would be recognised", name)
			}
			if field, ok := strings.CutPrefix(name, "http.request.header."); ok && slices.Contains(h.KeyHeader, http.CanonicalHeaderKey(field)) {
				return fmt.Errorf("scope: {%s} is the key itself, and tells no callers apart", name)
			}
		}
		if _, err := repl.ReplaceOrErr(value, true, false); err != nil {
			return fmt.Errorf("scope: %w", err)
		}
		_, err := repl.ReplaceOrErr(value, false, true)
		h.scopeVaries[i] = err != nil // it has a placeholder that is not global
		h.scopeEmpty[i] = repl.ReplaceAll(value, "")
	}
	if len(h.Scope) > 0 && !slices.Contains(h.scopeVaries, true) {
		h.logger.Warn("scope has no placeholder of the request, so all callers share one scope: each gets what the others submitted under its key")
	}
	return nil
}

// checkNamespace refuses placeholders, which would stand for themselves.
func checkNamespace(namespace string) error {
	if strings.ContainsAny(namespace, "{}") {
		return fmt.Errorf("namespace: %q has braces, and placeholders are not expanded in it", namespace)
	}
	return nil
}

// scopeLines are what can be written into the handler's block where a credential
// does not stay as it is, best first.
func scopeLines(kind idempotency.CredentialKind) []string {
	lines := []string{"scope {http.auth.user.id}", "scope {http.request.header.X-Caller-Id}"}
	switch kind {
	case idempotency.AWSSignature:
		lines = append(lines, "scope {"+placeholderAccessKey+"}")
	case idempotency.ExpiringToken:
		lines = append(lines, "scope {"+placeholderClaim+"sub}")
	case idempotency.Signature, idempotency.SignedQuery:
	}
	return lines
}

// unstableDetail says to the caller what is wrong, and what the operator can do.
func unstableDetail(u *idempotency.UnstableCredential) string {
	lines := scopeLines(u.Kind)
	text := fmt.Sprintf("The credential in %s does not last: %s. Set one of these lines in the block of idempotency: `%s` names the user of basic_auth; "+
		"`%s` is a header field in which callers, or forward_auth with copy_headers, name the caller", u.Where, u.Kind, lines[0], lines[1])
	switch u.Kind {
	case idempotency.AWSSignature:
		text += fmt.Sprintf("; where callers are trusted, `%s` is what the signature says of itself (not verified, and another one with each set of temporary credentials)", lines[2])
	case idempotency.ExpiringToken:
		text += fmt.Sprintf("; where callers are trusted, `%s`, or another claim that names the caller, is what the token says of itself (not verified)", lines[2])
	case idempotency.Signature, idempotency.SignedQuery:
	}
	return text + "."
}

// What a credential says of itself, for the options scope and key_from.
const (
	placeholderOwn       = "http.idempotency."
	placeholderClaim     = "http.idempotency.jwt."
	placeholderAccessKey = "http.idempotency.aws_access_key"
)

// readsCredential reports whether a text has a placeholder that mapCredential
// makes known.
func readsCredential(text string) bool {
	return strings.Contains(text, "{"+placeholderClaim) || strings.Contains(text, "{"+placeholderAccessKey+"}")
}

// mapCredential makes {http.idempotency.jwt.<claim>} and
// {http.idempotency.aws_access_key} known to a request's placeholders. They are
// read when they are asked for, and empty if there is no such thing. Nobody has
// verified them.
func mapCredential(repl *caddy.Replacer, header http.Header) {
	repl.Map(func(name string) (any, bool) {
		if name == placeholderAccessKey {
			return idempotency.CredentialAccessKey(header), true
		}
		if claim, ok := strings.CutPrefix(name, placeholderClaim); ok {
			return idempotency.CredentialClaim(header, claim), true
		}
		return nil, false
	})
}

// checkOwnPlaceholders refuses placeholders of this module that have no value
// before a key has its record.
func checkOwnPlaceholders(option, text string) error {
	for name := range placeholders(text) {
		if !strings.HasPrefix(name, placeholderOwn) || name == placeholderAccessKey {
			continue
		}
		if claim, ok := strings.CutPrefix(name, placeholderClaim); ok && claim != "" {
			continue
		}
		return fmt.Errorf("%s: {%s} has no value there: of the placeholders of idempotency it takes {%s<claim>} and {%s}",
			option, name, placeholderClaim, placeholderAccessKey)
	}
	return nil
}

// placeholders are the names of the placeholders in a text.
func placeholders(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		errStop := errors.New("enough")
		_, _ = caddy.NewEmptyReplacer().ReplaceFunc(text, func(name string, _ any) (any, error) {
			if !yield(name) {
				return nil, errStop
			}
			return "", nil
		})
	}
}

// variesByItself reports whether a placeholder has another value for each
// request, whoever sends it.
func variesByItself(name string) bool {
	switch name {
	case "http.request.uuid", "http.request.duration", "http.request.duration_ms", "http.request.remote", "http.request.remote.port",
		placeholderClaim + "exp", placeholderClaim + "iat", placeholderClaim + "nbf", placeholderClaim + "jti":
		return true
	}
	return strings.HasPrefix(name, "time.now")
}

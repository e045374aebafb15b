package idempotency_test

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

func TestNewLabel(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", idempotency.MaxLabel)
	for text, want := range map[string]string{
		"":                "",
		"  team a\t":      "team a",
		"a\xffb":          "a\uFFFDb",
		long:              strings.Repeat("é", idempotency.MaxLabel/2),
		"x" + long:        "x" + strings.Repeat("é", idempotency.MaxLabel/2-1),
		"a\x1b[31m\u202e": "a\x1b[31m\u202e", // shown as text, and escaped there
		strings.Repeat("a", idempotency.MaxLabel-1) + " b": strings.Repeat("a", idempotency.MaxLabel-1),
	} {
		got := idempotency.NewLabel(text)
		if got != want || len(got) > idempotency.MaxLabel || !utf8.ValidString(got) {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// A listing can be of one label, whole or as far as a *.
func TestListByLabel(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for _, label := range []string{"", "team-a", "team-b", "team-ab"} {
		s := submitOf("k" + label)
		s.Details.Label = label
		h.conclude(h.attempt(policy(), s), accepted("answer"), idempotency.ConcludedAccepted)
	}
	for label, want := range map[string]int{"": 4, "team-a": 1, "team-a*": 2, "team": 0, "*": 4} {
		l, err := h.engine.List(context.Background(), idempotency.Query{Label: label, Limit: 10})
		if err != nil || len(l.Views) != want {
			t.Errorf("%q gave %d records, %v; want %d", label, len(l.Views), err, want)
		}
	}
}

package idempotency_test

import (
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// No text can be moved across a border of namespace, scope and key without
// naming another record.
func TestRecordIDsDiffer(t *testing.T) {
	type parts struct {
		namespace string
		scope     []string
		key       idempotency.Key
	}
	all := map[string]parts{
		"plain":                            {"ns", []string{"ab"}, "c"},
		"other key":                        {"ns", []string{"ab"}, "d"},
		"key in other case":                {"ns", []string{"ab"}, "C"},
		"other scope":                      {"ns", []string{"abd"}, "c"},
		"other namespace":                  {"ns2", []string{"ab"}, "c"},
		"scope moved into key":             {"ns", []string{"a"}, "bc"},
		"key moved into scope":             {"ns", []string{"abc"}, ""},
		"scope moved into namespace":       {"nsab", []string{""}, "c"},
		"namespace moved into scope":       {"n", []string{"sab"}, "c"},
		"namespace and key exchanged":      {"c", []string{"ab"}, "ns"},
		"no scope":                         {"ns", nil, "abc"},
		"empty scope":                      {"ns", []string{""}, "abc"},
		"two empty scopes":                 {"ns", []string{"", ""}, "abc"},
		"scope in two":                     {"ns", []string{"a", "b"}, "c"},
		"scope in two, exchanged":          {"ns", []string{"b", "a"}, "c"},
		"scope in two, border moved":       {"ns", []string{"ab", ""}, "c"},
		"scope in two, other border moved": {"ns", []string{"", "ab"}, "c"},
		"last scope as key":                {"ns", []string{"a"}, "b"},
		"nothing":                          {"", nil, ""},
		"all in key":                       {"", nil, "nsabc"},
		"all in namespace":                 {"nsabc", nil, ""},
		"length prefix as text":            {"ns", []string{"ab\x00\x00\x00\x00\x00\x00\x00\x01c"}, ""},
	}
	seen := make(map[idempotency.RecordID]string)
	for name, p := range all {
		id := idempotency.NewRecordID(p.namespace, p.scope, p.key)
		if other, taken := seen[id]; taken {
			t.Errorf("%q and %q have one id", name, other)
		}
		seen[id] = name
		if !id.Valid() {
			t.Errorf("%q: id %q is not valid", name, id)
		}
		if again := idempotency.NewRecordID(p.namespace, p.scope, p.key); again != id {
			t.Errorf("%q: ids %q and %q for the same parts", name, id, again)
		}
	}
}

func TestRecordIDHidesItsParts(t *testing.T) {
	id := idempotency.NewRecordID("namespace", []string{"scope"}, "key")
	for _, text := range []string{"namespace", "scope", "key"} {
		if strings.Contains(string(id), text) {
			t.Errorf("id %q shows %q", id, text)
		}
	}
}

func TestRecordIDValid(t *testing.T) {
	good := string(idempotency.NewRecordID("", nil, "k"))
	tests := []struct {
		name string
		id   string
		want bool
	}{
		{"of a key", good, true},
		{"all digits", strings.Repeat("0", 32), true},
		{"all v", strings.Repeat("v", 32), true},
		{"empty", "", false},
		{"short", good[:31], false},
		{"long", good + "0", false},
		{"w", good[:31] + "w", false},
		{"w in the middle", good[:15] + "w" + good[16:], false},
		{"w in front", "w" + good[1:], false},
		{"upper case", strings.Repeat("A", 32), false},
		{"slash", good[:31] + "/", false},
		{"line feed", good[:31] + "\n", false},
		{"braces of a Redis hash tag", "{" + good[2:] + "}", false},
		{"non-ASCII", good[:30] + "é", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := idempotency.RecordID(test.id).Valid(); got != test.want {
				t.Errorf("RecordID(%q).Valid() is %t, want %t", test.id, got, test.want)
			}
		})
	}
}

func TestTokensDiffer(t *testing.T) {
	seen := map[idempotency.Token]bool{{}: true}
	for range 1000 {
		token := idempotency.NewToken()
		if seen[token] {
			t.Fatalf("token %x is zero or was drawn before", token)
		}
		seen[token] = true
	}
}

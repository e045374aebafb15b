package idempotency_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

func TestParseKey(t *testing.T) {
	visible := func() string {
		var b strings.Builder
		for c := byte('!'); c <= '~'; c++ {
			b.WriteByte(c)
		}
		return b.String()[2:] + `!"` // a bare key does not start with a quote
	}()
	long := strings.Repeat("k", idempotency.MaxKeyLength)
	tests := []struct {
		name string
		line string
		want idempotency.Key
	}{
		{"bare", "abc", "abc"},
		{"quoted", `"abc"`, "abc"},
		{"one byte", "k", "k"},
		{"one byte quoted", `"k"`, "k"},
		{"UUID", "8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{"case is kept", "aBc", "aBc"},
		{"comma in bare", "a,b", "a,b"},
		{"comma in quotes", `"a,b"`, "a,b"},
		{"semicolon in bare", "a;b=1", "a;b=1"},
		{"every visible character in bare", visible, idempotency.Key(visible)},
		{"other structured fields are text in bare", ":YWJj:", ":YWJj:"},
		{"number in bare", "42", "42"},
		{"single quotes are characters", "'abc'", "'abc'"},
		{"quote inside bare", `a"b`, `a"b`},
		{"backslash in bare", `a\\b`, `a\\b`},
		{"space in quotes", `"a b"`, "a b"},
		{"spaces around in quotes are kept", `" a "`, " a "},
		{"escaped quote", `"a\"b"`, `a"b`},
		{"escaped backslash", `"a\\b"`, `a\b`},
		{"longest bare", long, idempotency.Key(long)},
		{"longest quoted", `"` + long + `"`, idempotency.Key(long)},
		{"escapes count as one byte", `"` + strings.Repeat(`\"`, idempotency.MaxKeyLength) + `"`,
			idempotency.Key(strings.Repeat(`"`, idempotency.MaxKeyLength))},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := idempotency.ParseKey([]string{test.line})
			if err != nil || got != test.want {
				t.Errorf("ParseKey(%q) = %q, %v; want %q", test.line, got, err, test.want)
			}
		})
	}
}

func TestParseKeyInvalid(t *testing.T) {
	const secret = "s3cret"
	long := secret + strings.Repeat("k", idempotency.MaxKeyLength-len(secret))
	tests := []struct {
		name  string
		lines []string
	}{
		{"no line", nil},
		{"two equal lines", []string{secret, secret}},
		{"two equal quoted lines", []string{`"` + secret + `"`, `"` + secret + `"`}},
		{"bare and quoted line of one key", []string{secret, `"` + secret + `"`}},
		{"two different lines", []string{secret, secret + "2"}},
		{"second line empty", []string{secret, ""}},
		{"empty", []string{""}},
		{"empty in quotes", []string{`""`}},
		{"only a space", []string{" "}},
		{"space in bare", []string{secret + " b"}},
		{"space before bare", []string{" " + secret}},
		{"space after bare", []string{secret + " "}},
		{"comma and space in bare", []string{secret + ", b"}},
		{"tab in bare", []string{secret + "\tb"}},
		{"tab in quotes", []string{`"` + secret + "\t\""}},
		{"NUL in bare", []string{secret + "\x00"}},
		{"NUL in quotes", []string{`"` + secret + "\x00\""}},
		{"line feed in bare", []string{secret + "\nb"}},
		{"line feed in quotes", []string{`"` + secret + "\nb\""}},
		{"DEL in bare", []string{secret + "\x7f"}},
		{"DEL in quotes", []string{`"` + secret + "\x7f\""}},
		{"UTF-8 in bare", []string{secret + "ключ"}},
		{"UTF-8 in quotes", []string{`"` + secret + `ключ"`}},
		{"Latin-1 in bare", []string{secret + "\xe9"}},
		{"Latin-1 in quotes", []string{`"` + secret + "\xe9\""}},
		{"only a quote", []string{`"`}},
		{"unterminated quote", []string{`"` + secret}},
		{"escaped closing quote", []string{`"` + secret + `\"`}},
		{"ends in an escape", []string{`"` + secret + `\`}},
		{"unknown escape", []string{`"` + secret + `\n"`}},
		{"text after the quotes", []string{`"` + secret + `"abc`}},
		{"list", []string{`"` + secret + `", "b"`}},
		{"parameter", []string{`"` + secret + `";a=1`}},
		{"parameter without value", []string{`"` + secret + `";a`}},
		{"broken parameter", []string{`"` + secret + `";`}},
		{"too long bare", []string{long + "k"}},
		{"too long quoted", []string{`"` + long + `k"`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := idempotency.ParseKey(test.lines)
			var keyError *idempotency.KeyError
			if !errors.As(err, &keyError) || got != "" {
				t.Fatalf("ParseKey(%q) = %q, %v; want a *KeyError", test.lines, got, err)
			}
			if keyError.Reason == "" {
				t.Error("the error gives no reason")
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error shows the key: %v", err)
			}
		})
	}
}

// quoted returns the structured-field string of a key (RFC 9651 section
// 4.1.6).
func quoted(key idempotency.Key) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(string(key)) + `"`
}

func FuzzParseKey(f *testing.F) {
	for _, line := range []string{
		"", "abc", `"abc"`, `"a b"`, "a b", "a,b", `"a\"b\\"`, `"a`, `"a";p=1`, `""`, "\x00", "\x7f", "é", `"é"`,
		strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat("k", 255) + `"`,
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := idempotency.ParseKey([]string{line})
		bare := line != "" && line[0] != '"'
		if bare {
			valid := len(line) <= idempotency.MaxKeyLength &&
				!strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r > '~' })
			if (err == nil) != valid || valid && string(key) != line {
				t.Errorf("ParseKey(%q) = %q, %v; valid %t", line, key, err, valid)
			}
		}
		if err == nil {
			if len(key) < 1 || len(key) > idempotency.MaxKeyLength {
				t.Errorf("a key of %d bytes is accepted", len(key))
			}
			if again, err := idempotency.ParseKey([]string{quoted(key)}); err != nil || again != key {
				t.Errorf("the quoted form %s of %q parses to %q, %v", quoted(key), key, again, err)
			}
		} else {
			var keyError *idempotency.KeyError
			if !errors.As(err, &keyError) || key != "" {
				t.Errorf("ParseKey(%q) = %q, %v; want a *KeyError", line, key, err)
			}
		}

		const secret = "s3cret-0123456789"
		for _, lines := range [][]string{{secret + line}, {`"` + secret + line}, {secret + line, line}} {
			if _, err := idempotency.ParseKey(lines); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error shows the key: %v", err)
			}
		}
	})
}

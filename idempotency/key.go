package idempotency

import (
	"fmt"
	"strings"

	"github.com/dunglas/httpsfv"
)

// MaxKeyLength is the longest key that is accepted, in bytes and without
// the quotes of its structured-field form.
const MaxKeyLength = 255

// Key is the value of an Idempotency-Key header: 1 to 255 bytes of visible
// ASCII, and spaces if it was sent as a quoted string. Keys are
// case-sensitive and never trimmed into one another.
//
// A Key is a caller's secret as far as logs, metrics and error texts go.
type Key string

// ParseKey reads the lines of one key header. The structured-field string of
// draft-ietf-httpapi-idempotency-key-header ("abc", RFC 9651 section 3.3.3)
// and the bare form that most APIs document (abc) name the same key. In the
// bare form every visible character stands for itself, a comma included.
//
// Anything but exactly one well-formed line is a *KeyError, never "no key": a
// caller that tried to send a key must not have its submit forwarded without
// protection.
func ParseKey(lines []string) (Key, error) {
	if len(lines) != 1 {
		return "", &KeyError{Reason: fmt.Sprintf("it is sent %d times, and must be sent once", len(lines))}
	}
	text := lines[0]
	if text == "" {
		return "", &KeyError{Reason: "it is empty"}
	}
	if text[0] == '"' {
		item, err := httpsfv.UnmarshalItem(lines)
		if err != nil && strings.Contains(text, `",`) {
			return "", &KeyError{Reason: reasonJoined}
		}
		if err != nil {
			return "", &KeyError{Reason: "it starts with a quote but is not one quoted string"}
		}
		if len(item.Params.Names()) > 0 {
			return "", &KeyError{Reason: "it has parameters after the quoted string"}
		}
		text = item.Value.(string) // what starts with a quote parses as a string or not at all
		if text == "" {
			return "", &KeyError{Reason: "it is empty"}
		}
	} else if !isVisible(text) {
		if strings.Contains(text, ", ") {
			return "", &KeyError{Reason: reasonJoined}
		}
		return "", &KeyError{Reason: "it has a character other than visible ASCII; spaces are allowed only in a quoted string"}
	}
	if len(text) > MaxKeyLength {
		return "", &KeyError{Reason: fmt.Sprintf("it has %d bytes, and may have %d", len(text), MaxKeyLength)}
	}
	return Key(text), nil
}

// reasonJoined is what a proxy makes of two lines of one header (RFC 9110
// section 5.3).
const reasonJoined = "it looks like two header lines that were joined into one: it has a comma and then another key. " +
	"The header may be set twice on the way, by the client and by a proxy; it must be sent once"

func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

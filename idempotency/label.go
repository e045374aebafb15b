package idempotency

import (
	"strings"
	"unicode/utf8"
)

// MaxLabel is the longest label that a record keeps, in bytes.
const MaxLabel = 200

// NewLabel returns a text as it is kept in Details.Label: without space around
// it, as UTF-8, and cut before the character that would make it longer than
// MaxLabel. What else it holds is up to a caller: show it as text.
func NewLabel(text string) string {
	text = strings.TrimSpace(strings.ToValidUTF8(text, string(utf8.RuneError)))
	if len(text) <= MaxLabel {
		return text
	}
	end := MaxLabel
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.TrimSpace(text[:end])
}

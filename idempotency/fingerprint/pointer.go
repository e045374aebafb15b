package fingerprint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Pointer names a value within a JSON document (RFC 6901). The zero Pointer is
// the whole document.
type Pointer struct {
	text   string
	tokens []string
}

// ParsePointer reads a JSON pointer such as /base_resp/status_code.
func ParsePointer(text string) (Pointer, error) {
	if text == "" {
		return Pointer{}, nil
	}
	if text[0] != '/' {
		return Pointer{}, fmt.Errorf("JSON pointer %q does not start with a slash", text)
	}
	tokens := strings.Split(text[1:], "/")
	for i, token := range tokens {
		rest := strings.NewReplacer("~0", "", "~1", "").Replace(token)
		if strings.Contains(rest, "~") {
			return Pointer{}, fmt.Errorf("JSON pointer %q has a ~ that is followed by neither 0 nor 1", text)
		}
		// The order of the two matters: ~01 is ~1.
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	return Pointer{text, tokens}, nil
}

// MustPointer is ParsePointer for a pointer that is a constant. It panics if it is
// none.
func MustPointer(text string) Pointer {
	p, err := ParsePointer(text)
	if err != nil {
		panic(err)
	}
	return p
}

// String returns the pointer as ParsePointer reads it.
func (p Pointer) String() string { return p.text }

// Tokens returns the unescaped reference tokens.
func (p Pointer) Tokens() []string { return p.tokens }

// Find returns the JSON text of the value that the pointer names. The second
// result is false if there is none, or if the document is not valid JSON. Of
// members with one name the last counts.
func (p Pointer) Find(document []byte) (json.RawMessage, bool) {
	value, found, _ := p.Resolve(document)
	return value, found
}

// Resolve  Find. twice is true if an object on the way has the wanted member more
// than once, as far as the way goes.
func (p Pointer) Resolve(document []byte) (value json.RawMessage, found, twice bool) {
	if !json.Valid(document) {
		return nil, false, false
	}
	value = bytes.TrimSpace(document)
	for _, token := range p.tokens {
		var again bool
		value, found, again = child(value, token)
		twice = twice || again
		if !found {
			return nil, false, twice
		}
	}
	return value, true, twice
}

// child returns the member or element of a valid JSON value that a token names,
// and whether there are several: then it is the last one.
func child(value json.RawMessage, token string) (child json.RawMessage, found, again bool) {
	switch value[0] {
	case '{':
		decoder := json.NewDecoder(bytes.NewReader(value))
		_, err := decoder.Token() // the brace
		for err == nil && decoder.More() {
			var name json.Token
			var member json.RawMessage
			if name, err = decoder.Token(); err == nil {
				err = decoder.Decode(&member)
			}
			if err == nil && name == token {
				again = found
				child, found = member, true
			}
		}
		return child, found && err == nil, again
	case '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(value, &elements); err != nil {
			return nil, false, false
		}
		i, ok := arrayIndex(token)
		if !ok || i >= len(elements) {
			return nil, false, false
		}
		return elements[i], true, false
	default:
		return nil, false, false
	}
}

// arrayIndex reads a reference token as the index of an array's element, which
// has no sign and no leading zeros (RFC 6901 section 4).
func arrayIndex(token string) (i int, ok bool) {
	i, err := strconv.Atoi(token)
	return i, err == nil && i >= 0 && strconv.Itoa(i) == token
}

package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of what is compared by meaning. What is over them is compared by its
// bytes.
const (
	// maxJSONDepth is how deep objects and arrays may be nested.
	maxJSONDepth = 1000
	// maxJSONNumber is how many characters a number may have.
	maxJSONNumber = 1000
	// maxJSONHeld is how many bytes may be held for the objects that are open:
	// their members have to be there before they can be put in order.
	maxJSONHeld = 4 << 20
	// maxJSONValue is the length from which on a value's form is a digest. It
	// lets arrays and strings of any length pass in constant memory, and keeps
	// the cost of moving the members of nested objects linear.
	maxJSONValue = 1 << 10
)

// errNotSemantic means that a body must not be compared by its meaning.
var errNotSemantic = errors.New("not comparable by meaning")

// jsonForm reads a JSON text and writes its form: equal for two texts that
// mean the same, and different for any two others.
//
// The form is the text without white space, the members of each object in the
// order of their names' bytes, each string with the shortest escapes and only
// where JSON demands one, and numbers as they are written. In the place of a
// value whose form is longer than maxJSONValue stands a zero byte, which JSON
// cannot have, and the form's SHA-256 digest.
//
// What parsers are known to read in different ways has no form: errNotSemantic
// for anything that is not one JSON value (RFC 8259), a name that is twice in
// an object, a byte order mark, invalid UTF-8, and half a surrogate pair. Two
// such texts must not be taken for one.
//
// Why this is not a library: RFC 8785 (JSON canonicalization) and encoding/json
// round numbers over 2^53, so that two seeds become one; encoding/json takes
// the last of two equal names and repairs invalid strings silently.
// go-json-experiment/json/jsontext keeps all the rules, but holds each string
// whole, and a base64 upload is one string; its checking alone takes 3 times as
// long as SHA-256 of the same bytes, and its canonical form 8 times. The tests
// compare this reader with encoding/json.
//
// Text that is in its form already is not copied: in[run:pos] is the part of
// the form that follows out. Offsets into the form (see at) count both.
type jsonForm struct {
	window
	safe    int // tokens that start before it are in view
	run     int
	out     []byte
	members []jsonMember // of all open objects
	err     error        // of the body's file
	scratch []byte
	hashes  []hash.Hash // to be used again
}

// jsonMember is a member of an open object. The offsets are where in the form
// it begins, its name ends, and it ends. Four bytes are enough for maxJSONHeld.
type jsonMember struct {
	start, named, end uint32
	dropped           bool
}

const jsonMemberSize = 16

// writeJSON writes the form of a body, without what the pointers name, to h.
func writeJSON(h hash.Hash, body window, ignore *pointerSet) error {
	f := jsonForm{window: body, members: make([]jsonMember, 0, 16)}
	whole := f.value(f.next(), ignore, maxJSONDepth) && f.next() == 0 && f.pos == len(f.in)
	switch {
	case f.err != nil: // it looks like an end, whatever came before
		return f.err
	case !whole:
		return errNotSemantic
	}
	_, _ = h.Write(f.out) // a hash.Hash never returns an error
	_, _ = h.Write(f.in[f.run:f.pos])
	return nil
}

// at returns the length of the form so far.
func (f *jsonForm) at() int { return len(f.out) + f.pos - f.run }

// flush copies what is only in the window.
func (f *jsonForm) flush() {
	f.out = append(f.out, f.in[f.run:f.pos]...)
	f.run = f.pos
}

// skip passes over n bytes that are not part of the form.
func (f *jsonForm) skip(n int) {
	f.flush()
	f.pos += n
	f.run = f.pos
}

// cut takes back what the form has after an offset.
func (f *jsonForm) cut(at int) {
	f.flush()
	f.out = f.out[:at]
}

// text returns a part of the form, valid until the next change.
func (f *jsonForm) text(from, to int) []byte {
	if from < len(f.out) && to > len(f.out) {
		f.flush()
	}
	if to <= len(f.out) {
		return f.out[from:to]
	}
	shift := f.run - len(f.out)
	return f.in[from+shift : to+shift]
}

// more moves the window. It reports false if nothing may follow: f.err says
// why, or the form has grown too large.
func (f *jsonForm) more() bool {
	f.flush()
	f.safe = 0
	if len(f.out) > maxJSONHeld {
		return false
	}
	f.err = f.window.more()
	f.run = f.pos
	return f.err == nil
}

// jsonAhead is what has to be in view at the start of a token that is read as a
// whole: a number, a word or an escape.
const jsonAhead = maxJSONNumber + 2

// next passes over white space and returns the byte that follows, or 0, which
// starts no token, at the end and if the window does not move. The whole token
// is in view, unless it is a string.
func (f *jsonForm) next() byte {
	if i := f.pos; i < f.safe {
		if c := f.in[i]; c > ' ' {
			return c
		}
	}
	return f.afterSpace()
}

func (f *jsonForm) afterSpace() byte {
	for {
		if len(f.in)-f.pos < jsonAhead && !f.end && !f.more() {
			return 0
		}
		f.safe = len(f.in)
		if !f.end {
			f.safe -= jsonAhead - 1
		}
		in, i := f.in, f.pos
		for i < len(in) && (in[i] == ' ' || in[i] == '\n' || in[i] == '\r' || in[i] == '\t') {
			i++
		}
		if i > f.pos {
			f.skip(i - f.pos)
		}
		if i < f.safe {
			return in[i]
		}
		if f.end {
			return 0
		}
	}
}

// value reads the value that starts with c. depth is how many more objects and
// arrays may be nested.
func (f *jsonForm) value(c byte, ignore *pointerSet, depth int) bool {
	switch c {
	case '"':
		return f.string(true)
	case '{':
		if depth == 0 {
			return false
		}
		return f.object(ignore, depth-1)
	case '[':
		if depth == 0 {
			return false
		}
		return f.array(ignore, depth-1)
	case 't':
		return f.word("true")
	case 'f':
		return f.word("false")
	case 'n':
		return f.word("null")
	default:
		return f.number()
	}
}

func (f *jsonForm) word(word string) bool {
	if len(f.in)-f.pos < len(word) || string(f.in[f.pos:f.pos+len(word)]) != word {
		return false
	}
	f.pos += len(word)
	return true
}

// number reads a number (RFC 8259 section 6). What follows it is the caller's.
func (f *jsonForm) number() bool {
	in := f.in[f.pos:min(len(f.in), f.pos+maxJSONNumber+1)]
	i := 0
	digits := func() bool {
		start := i
		for i < len(in) && in[i]-'0' <= 9 {
			i++
		}
		return i > start
	}
	if i < len(in) && in[i] == '-' {
		i++
	}
	if i < len(in) && in[i] == '0' {
		i++
	} else if !digits() {
		return false
	}
	if i < len(in) && in[i] == '.' {
		i++
		if !digits() {
			return false
		}
	}
	if i < len(in) && in[i]|0x20 == 'e' {
		i++
		if i < len(in) && (in[i] == '+' || in[i] == '-') {
			i++
		}
		if !digits() {
			return false
		}
	}
	if i > maxJSONNumber {
		return false
	}
	f.pos += i
	return true
}

func (f *jsonForm) array(ignore *pointerSet, depth int) bool {
	start := f.at()
	f.pos++
	c := f.next()
	if c == ']' {
		f.pos++
		return true
	}
	var h hash.Hash
	before := f.at() // where the element starts, its comma included
	for i := 0; ; i++ {
		element := ignore.element(i)
		if !f.value(c, element, depth) {
			return false
		}
		if element != nil && element.whole {
			// If it was the first one, the next one's comma stays, as in every
			// other array at this place.
			f.cut(before)
		}
		if f.at()-start > maxJSONValue {
			h = f.spill(start, h)
		}
		if c = f.next(); c == ']' {
			f.pos++
			f.digest(start, h)
			return true
		}
		if c != ',' {
			return false
		}
		before = f.at()
		f.pos++
		c = f.next()
	}
}

func (f *jsonForm) object(ignore *pointerSet, depth int) bool {
	start, first := f.at(), len(f.members)
	f.pos++
	c := f.next()
	if c == '}' {
		f.pos++
		return true
	}
	ordered := true
	for {
		if c != '"' {
			return false
		}
		m := jsonMember{start: uint32(f.at())}
		if !f.string(false) {
			return false
		}
		m.named = uint32(f.at())
		member := ignore.member(f.text(int(m.start), int(m.named)))
		if ordered && len(f.members) > first {
			ordered = f.compare(f.members[len(f.members)-1], m) < 0
		}

		c = f.next()
		if c != ':' {
			return false
		}
		f.pos++
		c = f.next()
		if !f.value(c, member, depth) {
			return false
		}
		if member != nil && member.whole {
			// The name stays until it is known to be there only once.
			f.cut(int(m.named))
			m.dropped, ordered = true, false
		}
		m.end = uint32(f.at())
		f.members = append(f.members, m)
		if f.at()+len(f.members)*jsonMemberSize > maxJSONHeld {
			return false
		}

		if c = f.next(); c == '}' {
			break
		}
		if c != ',' {
			return false
		}
		f.pos++
		c = f.next()
	}
	f.pos++
	if ordered {
		f.digest(start, nil)
	} else if !f.arrange(start, f.members[first:]) {
		return false
	}
	f.members = f.members[:first]
	return true
}

// arrange puts the members of the object that starts at an offset in order.
func (f *jsonForm) arrange(start int, members []jsonMember) bool {
	slices.SortFunc(members, f.compare)
	for i := 1; i < len(members); i++ {
		if f.compare(members[i-1], members[i]) == 0 {
			return false
		}
	}
	// What is only in the window need not be moved out of the way.
	inWindow := start >= len(f.out)
	var text, form []byte
	if inWindow {
		text = f.text(start, f.at())
		form = append(f.out, f.in[f.run:f.pos-len(text)]...)
		f.run = f.pos
	} else {
		f.flush()
		text, form = f.out[start:], f.scratch[:0]
	}
	separator := byte('{')
	for i := range members {
		if m := &members[i]; !m.dropped {
			form = append(form, separator)
			form = append(form, text[int(m.start)-start:int(m.end)-start]...)
			separator = ','
		}
	}
	if separator == '{' {
		form = append(form, separator)
	}
	form = append(form, '}')
	if inWindow {
		f.out = form
	} else {
		f.out = append(f.out[:start], form...)
		f.scratch = form
	}
	f.digest(start, nil)
	return true
}

// compare orders two members by the bytes of their names, without the quotes at
// their ends: none is longer than a name that it begins.
func (f *jsonForm) compare(a, b jsonMember) int {
	return bytes.Compare(f.text(int(a.start), int(a.named)-1), f.text(int(b.start), int(b.named)-1))
}

// digest ends a value that starts at an offset. If its form is longer than
// maxJSONValue, its digest takes its place. h has what was spilled.
func (f *jsonForm) digest(start int, h hash.Hash) {
	if h == nil && f.at()-start <= maxJSONValue {
		return
	}
	h = f.spill(start, h)
	f.out = h.Sum(append(f.out, 0))
	f.hashes = append(f.hashes, h)
}

// spill moves what the form has from an offset on to the hash.
func (f *jsonForm) spill(start int, h hash.Hash) hash.Hash {
	if start > len(f.out) {
		before := f.run + start - len(f.out)
		f.out = append(f.out, f.in[f.run:before]...)
		f.run = before
	}
	h = f.write(h, f.out[start:])
	_, _ = h.Write(f.in[f.run:f.pos]) // a hash.Hash never returns an error
	f.out = f.out[:start]
	f.run = f.pos
	return h
}

// write writes to a hash, which is made if it is nil.
func (f *jsonForm) write(h hash.Hash, p []byte) hash.Hash {
	if last := len(f.hashes) - 1; h == nil && last >= 0 {
		h, f.hashes = f.hashes[last], f.hashes[:last]
		h.Reset()
	}
	if h == nil {
		h = sha256.New()
	}
	_, _ = h.Write(p)
	return h
}

// string reads a string. Only that of a value may become a digest: names are
// compared.
func (f *jsonForm) string(value bool) bool {
	start := f.at()
	in, i := f.in, f.pos+1
	var h hash.Hash
	for {
		i = plain(in, i)
		if i < len(in) {
			switch c := in[i]; {
			case c == '"':
				f.pos = i + 1
				if value && f.at()-start > maxJSONValue || h != nil {
					f.digest(start, h)
				}
				return true
			case c >= utf8.RuneSelf:
				if n := runes(in[i:]); n > 0 {
					i += n
					continue
				}
				if f.end || utf8.FullRune(in[i:]) {
					return false
				}
			case c != '\\':
				return false // a control character
			case i+1 < len(in) && isShortEscape(in[i+1]):
				i += 2 // as in the form
				continue
			}
		} else if f.end {
			return false
		}

		// The rest of the string or character is not in view, or a character is
		// escaped in another way than in the form.
		f.pos = i
		if value && f.at()-start > maxJSONValue {
			h = f.spill(start, h)
		}
		if len(in)-i < len(`\ud800\udc00`) && !f.end {
			if !f.more() {
				return false
			}
		}
		if f.pos < len(f.in) && f.in[f.pos] == '\\' {
			if !f.escape() {
				return false
			}
		}
		in, i = f.in, f.pos
	}
}

// plain returns where the ASCII characters end that stand for themselves in a
// string, from i on.
func plain(in []byte, i int) int {
	// Eight at a time: stop has the top bit of each byte that is none. Above the
	// first one, carries may set others.
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(in); i += 8 {
		x := binary.LittleEndian.Uint64(in[i:])
		quote, backslash := x^'"'*ones, x^'\\'*ones
		if stop := (x | (x - ' '*ones) | (quote - ones) | (backslash - ones)) & tops; stop != 0 {
			return i + bits.TrailingZeros64(stop)/8
		}
	}
	for i < len(in) && in[i] >= ' ' && in[i] != '"' && in[i] != '\\' && in[i] < utf8.RuneSelf {
		i++
	}
	return i
}

// runes returns the length of the whole characters above ASCII that b starts
// with.
func runes(b []byte) int {
	n := 0
	for n < len(b) && b[n] >= utf8.RuneSelf {
		r, size := utf8.DecodeRune(b[n:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		n += size
	}
	return n
}

func isShortEscape(c byte) bool {
	switch c {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return true
	}
	return false
}

// escape reads an escape, which is in view unless the text ends in it.
func (f *jsonForm) escape() bool {
	rest := f.in[f.pos:]
	if len(rest) < 2 {
		return false
	}
	switch {
	case isShortEscape(rest[1]):
		f.pos += 2 // as in the form
		return true
	case rest[1] == '/':
		f.skip(2)
		f.out = append(f.out, '/')
		return true
	case rest[1] != 'u':
		return false
	}
	r, size := hex4(rest[2:]), len(`\u0000`)
	if utf16.IsSurrogate(r) {
		if len(rest) < 8 || rest[6] != '\\' || rest[7] != 'u' {
			return false
		}
		r, size = utf16.DecodeRune(r, hex4(rest[8:])), len(`\ud800\udc00`)
		if r == utf8.RuneError {
			return false
		}
	}
	if r < 0 {
		return false
	}
	f.skip(size)
	f.out = appendCharacter(f.out, r)
	return true
}

// hex4 returns the code unit that four hexadecimal digits stand for, or -1.
func hex4(digits []byte) rune {
	if len(digits) < 4 {
		return -1
	}
	var r rune
	for _, c := range digits[:4] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return r
}

// appendCharacter appends the form of a character of a string.
func appendCharacter(form []byte, r rune) []byte {
	const short = "\"\"\\\\\bb\ff\nn\rr\tt"
	switch {
	case r == '"' || r == '\\' || r < ' ':
		for i := 0; i < len(short); i += 2 {
			if rune(short[i]) == r {
				return append(form, '\\', short[i+1])
			}
		}
		const hex = "0123456789abcdef"
		return append(form, '\\', 'u', '0', '0', hex[r>>4], hex[r&0xf])
	default:
		return utf8.AppendRune(form, r)
	}
}

// quote returns the form of a string.
func quote(s string) string {
	form := []byte{'"'}
	for _, r := range s {
		form = appendCharacter(form, r)
	}
	return string(append(form, '"'))
}

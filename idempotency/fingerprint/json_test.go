package fingerprint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

func sumJSON(t testing.TB, config fingerprint.Config, body string) fingerprint.Digest {
	t.Helper()
	return sum(t, config, "POST", &url.URL{Path: "/v1/videos"}, http.Header{"Content-Type": {"application/json"}}, strings.NewReader(body))
}

// What means the same has one fingerprint, and what does not has another.
func TestJSONFingerprint(t *testing.T) {
	long := strings.Repeat("long ", 1000)
	shortMembers := `"m0":0`
	for i := range 300 {
		shortMembers += fmt.Sprintf(`,"x%d":%d`, i, i)
	}
	for _, test := range []struct {
		name, a, b string
		same       bool
	}{
		{"order of members", `{"a":1,"b":2}`, `{"b":2,"a":1}`, true},
		{"order of members in depth", `[{"a":{"x":1,"y":[]},"b":{}}]`, `[{"b":{},"a":{"y":[],"x":1}}]`, true},
		{"order of names of which one starts another", `{"a":1,"ab":2,"":3}`, `{"ab":2,"":3,"a":1}`, true},
		{"order of long names", `{"aaaaaaaa1":1,"aaaaaaaa2":2,"aaaaaaaa":3}`, `{"aaaaaaaa2":2,"aaaaaaaa":3,"aaaaaaaa1":1}`, true},
		{"order of long members", `{"a":"` + long + `","b":2}`, `{"b":2,"a":"` + long + `"}`, true},
		{"white space", `{"a":[1,2,{}],"b":null}`, " \t\r\n{ \"a\" : [ 1 , 2 , { } ] ,\n\"b\" : null }\n", true},
		{"white space in a long array", "[" + strings.Repeat("1,", 2000) + "1]", "[ " + strings.Repeat("1 ,\n", 2000) + "1 ]", true},
		{"order of many short members", `{"b":1,` + shortMembers + `,"c":[{"y":1,` + shortMembers + `}]}`, `{"c":[{` + shortMembers + `,"y":1}],` + shortMembers + `,"b":1}`, true},
		{"escapes", `{"a\/\u0062":"\u00e9\ud83d\ude00\"\u005c\u000a\u001F"}`, `{"a/b":"é😀\u0022\\\n\u001f"}`, true},
		{"escapes in a long string", `["` + long + `\/` + long + `"]`, `["` + long + `/` + long + `"]`, true},
		{"names in other escapes and order", `{"\u0062":1,"a":2}`, `{"a":2,"b":1}`, true},

		{"64-bit integer", `{"seed":9007199254740993}`, `{"seed":9007199254740992}`, false},
		{"number with a fraction", `1`, `1.0`, false},
		{"number with an exponent", `100`, `1e2`, false},
		{"case of an exponent", `1e2`, `1E2`, false},
		{"minus zero", `0`, `-0`, false},
		{"number and string", `1`, `"1"`, false},
		{"words", `[true]`, `[false]`, false},
		{"null and missing", `{"a":null}`, `{}`, false},
		{"empty object and array", `{}`, `[]`, false},
		{"order of elements", `[1,2]`, `[2,1]`, false},
		{"nesting", `[[1],2]`, `[[1,2]]`, false},
		{"names and values", `{"a":"b"}`, `{"b":"a"}`, false},
		{"values of two members", `{"a":1,"b":2}`, `{"a":2,"b":1}`, false},
		{"case of a name", `{"a":1}`, `{"A":1}`, false},
		{"normal forms of Unicode", `"é"`, `"e\u0301"`, false},
		{"end of a long string", `"` + long + `a"`, `"` + long + `b"`, false},
		{"end of a long array", "[" + strings.Repeat("1,", 2000) + "1]", "[" + strings.Repeat("1,", 2000) + "2]", false},
		{"a long string and its array", `["` + long + `"]`, `"` + long + `"`, false},

		// What has no meaning that all parsers agree on counts by its bytes.
		{"a name twice", `{"a":1,"a":2}`, `{"a":2,"a":1}`, false},
		{"a name twice, in white space", `{"a":1,"a":2}`, `{"a":1, "a":2}`, false},
		{"a name twice, escaped", `{"a":1,"\u0061":2}`, `{"\u0061":2,"a":1}`, false},
		{"a name twice, not side by side", `{"b":1,"a":1,"b":2}`, `{"b":2,"a":1,"b":1}`, false},
		{"a long name twice", `{"aaaaaaaaa":1,"aaaaaaaaa":2}`, `{"aaaaaaaaa":2,"aaaaaaaaa":1}`, false},
		{"a name twice in depth", `[{"x":{"a":1,"a":2}}]`, `[{"x":{"a":2,"a":1}}]`, false},
		{"half a surrogate pair", `{"a":"\ud800","b":1}`, `{"b":1,"a":"\ud800"}`, false},
		{"the other half", `{"a":"\udc00","b":1}`, `{"b":1,"a":"\udc00"}`, false},
		{"two first halves", `{"a":"\ud800\ud800","b":1}`, `{"b":1,"a":"\ud800\ud800"}`, false},
		{"half a pair and U+FFFD", `"\ud800"`, `"\ufffd"`, false},
		{"invalid UTF-8", "{\"a\":\"\xff\",\"b\":1}", "{\"b\":1,\"a\":\"\xff\"}", false},
		{"invalid UTF-8 and U+FFFD", "\"\xff\"", `"\ufffd"`, false},
		{"an overlong character", "\"\xc0\xaf\"", `"/"`, false},
		{"byte order mark", "\ufeff[1,2]", "\ufeff[1, 2]", false},
		{"something behind", `[1,2]x`, `[1, 2]x`, false},
		{"two values", `[1] [2]`, `[1]  [2]`, false},
		{"NUL behind", "[1,2]\x00", "[1, 2]\x00", false},
		{"comma behind", `[1,2,]`, `[1, 2,]`, false},
		{"comments", `[1,2]//`, `[1, 2]//`, false},
		{"leading zero", `[01,2]`, `[01, 2]`, false},
		{"plus sign", `[+1,2]`, `[+1, 2]`, false},
		{"fraction without digits", `[1.,2]`, `[1., 2]`, false},
		{"exponent without digits", `[1e,2]`, `[1e, 2]`, false},
		{"not a number", `[NaN,2]`, `[NaN, 2]`, false},
		{"cut off in a character", "[1,\"\xc3", "[1, \"\xc3", false},
		{"control character", "[\"a\nb\",2]", "[\"a\nb\", 2]", false},
		{"unknown escape", `["\x41",2]`, `["\x41", 2]`, false},
		{"short escape", `["\u00e",2]`, `["\u00e", 2]`, false},
		{"single quotes", `['a',2]`, `['a', 2]`, false},
		{"other white space", "[1,2]", "[1,\u00a02]", false},
		{"empty and white space", "", " ", false},
		{"not closed", `[1,2`, `[1, 2`, false},
		{"closed otherwise", `[1,2}`, `[1, 2}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := sumJSON(t, fingerprint.Config{}, test.a), sumJSON(t, fingerprint.Config{}, test.b)
			if (a == b) != test.same {
				t.Errorf("one fingerprint: %t, want %t", a == b, test.same)
			}
			if raw := (fingerprint.Config{Raw: true}); sumJSON(t, raw, test.a) == sumJSON(t, raw, test.b) {
				t.Error("with Raw the bytes do not count")
			}
		})
	}
}

// No body that is compared in one way agrees with one that is compared in
// another.
func TestKindsOfBodiesDiffer(t *testing.T) {
	if sumJSON(t, fingerprint.Config{}, `{"a":1}`) == sumJSON(t, fingerprint.Config{Raw: true}, `{"a":1}`) {
		t.Error("bytes that are the form of a JSON text count as that text")
	}
}

func TestJSONMediaTypes(t *testing.T) {
	for contentType, byMeaning := range map[string]bool{
		"application/json":                  true,
		"Application/JSON; charset=utf-8":   true,
		"application/vnd.api+json; x=y":     true,
		"application/problem+json":          true,
		"application/jsonl":                 false,
		"application/json-seq":              false,
		"application/x-ndjson":              false,
		"text/plain":                        false,
		"text/json":                         false,
		"":                                  false,
		"application/json, text/plain":      false,
		"application/x-www-form-urlencoded": false,
	} {
		if got := sumBody(t, contentType, `{"a":1,"b":2}`) == sumBody(t, contentType, `{"b":2,"a":1}`); got != byMeaning {
			t.Errorf("%q is compared by meaning: %t, want %t", contentType, got, byMeaning)
		}
	}
	encoded := http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}
	of := func(body string) fingerprint.Digest {
		return sum(t, fingerprint.Config{}, "POST", &url.URL{Path: "/"}, encoded, strings.NewReader(body))
	}
	if of(`[1]`) == of(`[ 1]`) {
		t.Error("a body with a content encoding is taken for JSON")
	}
}

func TestFingerprintIgnore(t *testing.T) {
	for _, test := range []struct {
		name    string
		ignore  []string
		a, b    string
		same    bool
		another bool // the two differ without the option, too
	}{
		{"a member", []string{"/trace"}, `{"a":1,"trace":"x"}`, `{"trace":"y","a":1}`, true, true},
		{"a missing member", []string{"/trace"}, `{"a":1,"trace":"x"}`, `{"a":1}`, true, true},
		{"the only member", []string{"/trace"}, `{"trace":"x"}`, `{}`, true, true},
		{"in depth", []string{"/m/t/id"}, `{"m":{"t":{"id":1,"x":2}}}`, `{"m":{"t":{"x":2,"id":[2]}}}`, true, true},
		{"an object as a whole", []string{"/m"}, `{"m":{"b":1,"a":[1,2]},"z":1}`, `{"z":1,"m":3}`, true, true},
		{"two", []string{"/a", "/b"}, `{"a":1,"b":2,"c":3}`, `{"c":3}`, true, true},
		{"one within the other", []string{"/a/b", "/a"}, `{"a":{"b":1,"c":2}}`, `{"a":{"b":1,"c":3}}`, true, true},
		{"an element", []string{"/a/1"}, `{"a":[1,2,3]}`, `{"a":[1,9,3]}`, true, true},
		{"the first elements", []string{"/0", "/1"}, `[1,2,3]`, `[[],{},3]`, true, true},
		{"the last element", []string{"/2"}, `[1,2,3]`, `[1,2]`, true, true},
		{"all elements", []string{"/0"}, `[1]`, `[]`, true, true},
		{"a member of an element", []string{"/a/0/url"}, `{"a":[{"url":1,"x":1}]}`, `{"a":[{"x":1}]}`, true, true},
		{"a member named as a number", []string{"/1"}, `{"1":1,"2":2}`, `{"2":2}`, true, true},
		{"a name with an escape", []string{"/a~1b~0c"}, `{"a/b~c":1}`, `{"a\/b\u007ec":2}`, true, true},
		{"an empty name", []string{"/"}, `{"":1,"a":2}`, `{"a":2}`, true, true},
		{"an empty name below", []string{"/a/"}, `{"a":{"":1}}`, `{"a":{"":2}}`, true, true},
		{"a name beyond ASCII", []string{"/ü\n"}, `{"ü\n":1}`, `{"\u00fc\u000a":2}`, true, true},
		{"a long member", []string{"/a"}, `{"a":"` + strings.Repeat("x", 5000) + `","b":1}`, `{"b":1}`, true, true},
		{"a long element", []string{"/0"}, `["` + strings.Repeat("x", 5000) + `",1]`, `[0,1]`, true, true},

		{"another member", []string{"/trace"}, `{"a":1,"trace":"x"}`, `{"a":2,"trace":"x"}`, false, true},
		{"the same name elsewhere", []string{"/trace"}, `{"a":{"trace":1}}`, `{"a":{"trace":2}}`, false, true},
		{"another element", []string{"/a/1"}, `{"a":[1,2,3]}`, `{"a":[1,2,4]}`, false, true},
		{"an index with a zero", []string{"/01"}, `[1,2]`, `[1,3]`, false, true},
		{"the end of an array", []string{"/-"}, `[1,2]`, `[1]`, false, true},
		{"a member of a string", []string{"/a/0"}, `{"a":"bc"}`, `{"a":"bd"}`, false, true},
		{"a part of a name", []string{"/tra"}, `{"trace":1}`, `{"trace":2}`, false, true},
		{"twice", []string{"/a"}, `{"a":1,"a":2}`, `{"a":1,"a":3}`, false, true},
		{"invalid JSON", []string{"/a"}, `{"a":1,}`, `{"a":2,}`, false, true},
		{"a repeat", []string{"/a"}, `{"a":1,"b":2}`, `{"b":2,"a":1}`, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := fingerprint.Config{Ignore: pointers(t, test.ignore...)}
			if same := sumJSON(t, config, test.a) == sumJSON(t, config, test.b); same != test.same {
				t.Errorf("one fingerprint: %t, want %t", same, test.same)
			}
			none := fingerprint.Config{}
			if another := sumJSON(t, none, test.a) != sumJSON(t, none, test.b); another != test.another {
				t.Errorf("without pointers they differ: %t, want %t", another, test.another)
			}
		})
	}
	for text, reason := range map[string]string{"": "whole body", "/a/\xff": "UTF-8"} {
		config := fingerprint.Config{Ignore: pointers(t, "/fine", text)}
		if _, err := fingerprint.New(config); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("pointer %q gave %v, want %q", text, err, reason)
		}
	}
}

func pointers(t testing.TB, texts ...string) (list []fingerprint.Pointer) {
	t.Helper()
	for _, text := range texts {
		pointer, err := fingerprint.ParsePointer(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, pointer)
	}
	return list
}

func TestFingerprintHeader(t *testing.T) {
	of := func(names []string, header http.Header) fingerprint.Digest {
		return sum(t, fingerprint.Config{Header: names}, "POST", &url.URL{Path: "/"}, header, strings.NewReader("x"))
	}
	names := []string{"x-model", "X-Region"}
	base := http.Header{"X-Model": {"a"}, "X-Region": {"b"}}
	if of(names, base) != of([]string{"X-REGION", "X-Model", "x-region"}, http.Header{"X-Model": {"a"}, "X-Region": {"b"}, "X-Trace": {"c"}}) {
		t.Error("the order or the case of the names counts, or a field that is not named")
	}
	seen := map[fingerprint.Digest]string{of(names, base): "the request"}
	for name, header := range map[string]http.Header{
		"another value":     {"X-Model": {"c"}, "X-Region": {"b"}},
		"no value":          {"X-Region": {"b"}},
		"an empty value":    {"X-Model": {""}, "X-Region": {"b"}},
		"values exchanged":  {"X-Model": {"b"}, "X-Region": {"a"}},
		"two values":        {"X-Model": {"a", "c"}, "X-Region": {"b"}},
		"two other values":  {"X-Model": {"c", "a"}, "X-Region": {"b"}},
		"joined values":     {"X-Model": {"a, c"}, "X-Region": {"b"}},
		"values in a field": {"X-Model": {"a", "b"}},
		"in another field":  {"X-Region": {"a", "b"}},
		"a name as a value": {"X-Model": {"X-Region"}},
		"a name elsewhere":  {"X-Region": {"X-Region"}},
	} {
		got := of(names, header)
		if other, there := seen[got]; there {
			t.Errorf("%s gives the fingerprint of %s", name, other)
		}
		seen[got] = name
	}
}

// meaning is what a JSON text means, written down in one way; ok is false if
// the text is to be compared by its bytes. It is made from encoding/json, and
// shares nothing with what it is compared with.
func meaning(text []byte) (string, bool) {
	if !json.Valid(text) || !utf8.Valid(text) || hasHalfPair(text) {
		return "", false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	tree, err := readTree(d, 0)
	if err != nil {
		return "", false
	}
	return describe(tree), true
}

type object map[string]any

func readTree(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Number:
		if len(token) > fingerprint.MaxJSONNumber {
			return nil, errors.New("long number")
		}
	case json.Delim:
		if depth == fingerprint.MaxJSONDepth {
			return nil, errors.New("too deep")
		}
		var list []any
		members := object{}
		for d.More() {
			name := any("")
			if token == '{' {
				if name, err = d.Token(); err != nil {
					return nil, err
				}
				if _, twice := members[name.(string)]; twice {
					return nil, errors.New("twice")
				}
			}
			value, err := readTree(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
			members[name.(string)] = value
		}
		if _, err := d.Token(); err != nil {
			return nil, err
		}
		if token == '{' {
			return members, nil
		}
		return list, nil
	}
	return token, nil
}

func describe(tree any) string {
	switch v := tree.(type) {
	case object:
		var b strings.Builder
		var names []string
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		b.WriteString("object(")
		for _, name := range names {
			b.WriteString(strconv.Quote(name) + "=" + describe(v[name]) + ";")
		}
		return b.String() + ")"
	case []any:
		var b strings.Builder
		b.WriteString("array(")
		for _, element := range v {
			b.WriteString(describe(element) + ";")
		}
		return b.String() + ")"
	case string:
		return strconv.Quote(v)
	default:
		return fmt.Sprintf("%T %v", v, v)
	}
}

var escapes = regexp.MustCompile(`\\(?:u[0-9a-fA-F]{4}|.)`)

// hasHalfPair reports whether a valid text has half a surrogate pair.
func hasHalfPair(text []byte) bool {
	end, first := 0, false // where a first half ended
	for _, at := range escapes.FindAllIndex(text, -1) {
		var unit uint64
		if text[at[0]+1] == 'u' {
			unit, _ = strconv.ParseUint(string(text[at[0]+2:at[1]]), 16, 16)
		}
		second := 0xdc00 <= unit && unit <= 0xdfff
		if first != second || second && at[0] != end {
			return true
		}
		first, end = 0xd800 <= unit && unit <= 0xdbff, at[1]
	}
	return first
}

// rewrite writes a tree as a text of the same meaning: members in any order,
// white space and escapes anywhere.
func rewrite(b *bytes.Buffer, r *rand.Rand, tree any) {
	space := func() {
		for r.IntN(4) == 0 {
			b.WriteByte(" \t\r\n"[r.IntN(4)])
		}
	}
	text := func(s string) {
		b.WriteByte('"')
		for _, c := range s {
			switch {
			case r.IntN(8) == 0 || c < ' ' || c == '"' || c == '\\':
				if c > 0xffff {
					hi, lo := utf16.EncodeRune(c)
					fmt.Fprintf(b, `\u%04X\u%04x`, hi, lo)
				} else if c == '\n' && r.IntN(2) == 0 {
					b.WriteString(`\n`)
				} else {
					fmt.Fprintf(b, []string{`\u%04x`, `\u%04X`}[r.IntN(2)], c)
				}
			case c == '/' && r.IntN(2) == 0:
				b.WriteString(`\/`)
			default:
				b.WriteRune(c)
			}
		}
		b.WriteByte('"')
	}
	space()
	switch v := tree.(type) {
	case object:
		var names []string
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		b.WriteByte('{')
		space()
		for i, name := range names {
			if i > 0 {
				b.WriteByte(',')
				space()
			}
			text(name)
			space()
			b.WriteByte(':')
			rewrite(b, r, v[name])
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		space()
		for i, element := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			rewrite(b, r, element)
		}
		b.WriteByte(']')
	case string:
		text(v)
	case nil:
		b.WriteString("null")
	default:
		fmt.Fprint(b, v)
	}
	space()
}

// agree compares two texts with what they mean.
func agree(t *testing.T, a, b []byte) {
	t.Helper()
	wantA, okA := meaning(a)
	wantB, okB := meaning(b)
	want := okA && okB && wantA == wantB || bytes.Equal(a, b)
	got := sumJSON(t, fingerprint.Config{}, string(a)) == sumJSON(t, fingerprint.Config{}, string(b))
	if got != want {
		t.Errorf("one fingerprint: %t, want %t, of %d and %d bytes:\n%.3000q\n%.3000q", got, want, len(a), len(b), a, b)
	}
	for _, text := range [][]byte{a, b} {
		_, want := meaning(text)
		whole, ok := fingerprint.DigestJSON(text, 0)
		if ok != want {
			t.Errorf("compared by meaning: %t, want %t: %.3000q", ok, want, text)
		}
		for _, size := range []int{fingerprint.SmallestJSONWindow, fingerprint.SmallestJSONWindow + 7} {
			if moved, okMoved := fingerprint.DigestJSON(text, size); moved != whole || okMoved != ok {
				t.Errorf("through a window of %d bytes it counts as another text: %.3000q", size, text)
			}
		}
	}
}

// randomTree draws a tree with short and long values.
func randomTree(r *rand.Rand, depth int) any {
	text := func() string {
		alphabet := []rune("ab/\"\\\n\x00\x1f\x7f é灯😀\u2028\ufffd")
		n := r.IntN(12)
		if r.IntN(60) == 0 {
			n = r.IntN(3000)
		}
		s := make([]rune, n)
		for i := range s {
			s[i] = alphabet[r.IntN(len(alphabet))]
		}
		return string(s)
	}
	size := r.IntN(6)
	if r.IntN(60) == 0 {
		size = r.IntN(200)
	}
	kind := r.IntN(6)
	if depth == 0 {
		kind = r.IntN(3)
		size = 0
	}
	switch kind {
	case 0:
		return text()
	case 1:
		return json.Number([]string{"0", "-0", "1.0", "9007199254740993", "-1.5E+10", strings.Repeat("9", 1000)}[r.IntN(6)])
	case 2:
		return []any{nil, true, false, object{}, []any(nil)}[r.IntN(5)]
	case 3:
		list := make([]any, size)
		for i := range list {
			list[i] = randomTree(r, depth-1)
		}
		return list
	default:
		members := object{}
		for range size {
			members[text()] = randomTree(r, depth-1)
		}
		return members
	}
}

// mutate changes something of a text, whatever it is.
func mutate(r *rand.Rand, text []byte) []byte {
	text = bytes.Clone(text)
	if len(text) == 0 {
		return []byte("1")
	}
	i := r.IntN(len(text))
	j := min(len(text), i+1+r.IntN(8))
	switch r.IntN(5) {
	case 0:
		text[i] ^= 1 << r.IntN(8)
	case 1:
		text = slices.Delete(text, i, j)
	case 2:
		text = slices.Insert(text, j, text[i:j]...)
	case 3:
		text = slices.Insert(text, i, "\"\\{}[],:0-. \x00"[r.IntN(13)])
	default:
		k := r.IntN(len(text))
		text[i], text[k] = text[k], text[i]
	}
	return text
}

func TestRandomJSON(t *testing.T) {
	for seed := range 200 {
		r := rand.New(rand.NewPCG(uint64(seed), 0))
		tree := randomTree(r, 4)
		var a, b bytes.Buffer
		rewrite(&a, r, tree)
		rewrite(&b, r, tree)
		agree(t, a.Bytes(), b.Bytes())
		agree(t, a.Bytes(), mutate(r, a.Bytes()))
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// Two texts have one fingerprint if and only if encoding/json, asked carefully,
// says that they mean the same.
func FuzzJSONFingerprint(f *testing.F) {
	for i, text := range []string{
		`{"model":"video-1","seed":9007199254740993,"clips":[{"a":1.0,"b":null},{"b":"\u00e9\/"}]}`,
		`{"a":1,"\u0061":2}`, `"\ud83d\ude00\ud83d"`, "\"\xff\"", "\ufeff{}", `[-0,0,1e2,1E2,1E+2]`, `{"":{"":[]}}`, `[1,2]x`, "", ` `,
		`{"aaaaaaaaab":1,"aaaaaaaaaa":2}`, `{"b":{"d":1,"c":2},"a":[true,false,null]}`, `["\"\\\/\b\f\n\r\t\u001f"]`, "[[[[[[]]]]]]",
	} {
		f.Add([]byte(text), uint64(i))
	}
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		if len(text) > 64<<10 {
			return
		}
		r := rand.New(rand.NewPCG(seed, 1))
		agree(t, text, mutate(r, text))
		if _, ok := meaning(text); !ok {
			return
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		tree, err := readTree(d, 0)
		if err != nil {
			t.Fatal(err)
		}
		var again bytes.Buffer
		rewrite(&again, r, tree)
		agree(t, text, again.Bytes())
		agree(t, again.Bytes(), mutate(r, again.Bytes()))
	})
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Whatever the size and shape of a body, little of it is held, and two bodies
// that are too much to be compared by meaning are still told apart.
func TestHugeJSON(t *testing.T) {
	repeat := func(s string, n int) func() io.Reader {
		return func() io.Reader { return &repeated{s, n, 0} }
	}
	names := func(n int) func() io.Reader {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"%d":0,`, i)
		}
		return func() io.Reader { return strings.NewReader(b.String()) }
	}
	for _, test := range []struct {
		name          string
		before, after string
		middle        func() io.Reader
		byMeaning     bool
	}{
		{"a string of 64 MiB", `{"a":"`, `","b":1}`, repeat("0123456789abcdef", 4<<20), true},
		{"a string of 16 MiB in escapes", `{"a":"`, `","b":1}`, repeat(`\/\u00e9`, 2<<20), true},
		{"an array of 32 MiB", `{"a":[`, `0],"b":1}`, repeat(`{"y":1,"x":2},`, 32<<20/14), true},
		{"arrays without end", ``, ``, repeat(`[`, 16<<20), false},
		{"100,000 levels", strings.Repeat(`{"a":[`, 50_000), strings.Repeat(`]}`, 50_000), repeat(` `, 1<<20), false},
		{"100,000 levels in memory", strings.Repeat(`[`, 100_000), strings.Repeat(`]`, 100_000), repeat(` `, 1), false},
		{"the deepest levels", strings.Repeat(`[`, 1000), strings.Repeat(`]`, 1000), repeat(` `, 1<<20), true},
		{"a level more", strings.Repeat(`[`, 1001), strings.Repeat(`]`, 1001), repeat(` `, 1<<20), false},
		{"a million members", `{`, `"x":0}`, names(1_000_000), false},
		{"10,000 members", `{`, `"x":0}`, names(10_000), true},
		{"a name of 16 MiB", `{"`, `":1}`, repeat("0123456789abcdef", 1<<20), false},
		{"a number of 16 MiB", `{"a":1`, `,"b":1}`, repeat("0123456789012345", 1<<20), false},
		{"white space of 16 MiB", `{"a":1,`, `"b":1}`, repeat("    \n", 16<<20/5), true},
		{"nested objects of many members", strings.Repeat(`{"a":1,"b":"`+strings.Repeat("x", 1000)+`","c":`, 1000), strings.Repeat(`}`, 1000), repeat(`1`, 1), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := func(space string) (fp fingerprint.Digest) {
				f, err := fingerprint.New(fingerprint.Config{})
				if err != nil {
					t.Fatal(err)
				}
				pending := f.Start("POST", &url.URL{Path: "/"}, http.Header{"Content-Type": {"application/json"}})
				body, err := fingerprint.ReadBody(io.MultiReader(strings.NewReader(test.before), test.middle(), strings.NewReader(test.after+space)), -1, 1<<30, plenty(), pending)
				if err != nil {
					t.Fatal(err)
				}
				defer body.Close()
				held := allocated(func() {
					if fp, err = pending.SumBody(body); err != nil {
						t.Error(err)
					}
				})
				if held > 32<<20 {
					t.Errorf("%d bytes were allocated for the fingerprint of %d", held, body.Size())
				}
				return fp
			}
			if same := of("") == of(" "); same != test.byMeaning {
				t.Errorf("compared by meaning: %t, want %t", same, test.byMeaning)
			}
		})
	}
}

// repeated is a text that is repeated n times.
type repeated struct {
	text string
	n    int
	at   int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && r.n > 0 {
		c := copy(p[n:], r.text[r.at:])
		n += c
		if r.at += c; r.at == len(r.text) {
			r.at = 0
			r.n--
		}
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// A file that fails is never taken for one that ends, wherever it fails.
func TestJSONOfFailingFile(t *testing.T) {
	for name, text := range map[string]string{
		"at once":              "",
		"within a value":       `{"a":`,
		"behind a value":       `{"a":1}`,
		"behind a full window": `{"a":1}` + strings.Repeat(" ", 64<<10-7),
		"behind two windows":   `{"a":1}` + strings.Repeat(" ", 128<<10-7),
	} {
		t.Run(name, func(t *testing.T) {
			failure := errors.New("injected: the disk is broken")
			err := fingerprint.JSONOfFailingFile([]byte(text), failure)
			if !errors.Is(err, fingerprint.ErrBodyNotKept) || !errors.Is(err, failure) {
				t.Errorf("the error is %v, want the file's as ErrBodyNotKept", err)
			}
		})
	}
}

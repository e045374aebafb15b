package fingerprint_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

func parsePointer(t testing.TB, text string) fingerprint.Pointer {
	t.Helper()
	p, err := fingerprint.ParsePointer(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParsePointer(t *testing.T) {
	for text, want := range map[string][]string{
		"":                       nil,
		"/":                      {""},
		"//":                     {"", ""},
		"/a":                     {"a"},
		"/a/":                    {"a", ""},
		"/base_resp/status_code": {"base_resp", "status_code"},
		"/~0":                    {"~"},
		"/~1":                    {"/"},
		"/~01":                   {"~1"},
		"/~10":                   {"/0"},
		"/~0~1~1~0":              {"~//~"},
		"/~00":                   {"~0"},
		"/ /é/\"":                {" ", "é", `"`},
	} {
		t.Run(text, func(t *testing.T) {
			if got := parsePointer(t, text).Tokens(); !slices.Equal(got, want) {
				t.Errorf("the tokens are %q, want %q", got, want)
			}
		})
	}
}

func TestParsePointerRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"a":       "does not start with a slash",
		"id/0":    "does not start with a slash",
		" /a":     "does not start with a slash",
		"#/a":     "does not start with a slash",
		"~1a":     "does not start with a slash",
		"$.a":     "does not start with a slash",
		"/~":      "followed by neither 0 nor 1",
		"/a~":     "followed by neither 0 nor 1",
		"/~2":     "followed by neither 0 nor 1",
		"/~/0":    "followed by neither 0 nor 1",
		"/~~0":    "followed by neither 0 nor 1",
		"/~~01":   "followed by neither 0 nor 1",
		"/a/b~c":  "followed by neither 0 nor 1",
		"/~0/~1~": "followed by neither 0 nor 1",
	} {
		t.Run(text, func(t *testing.T) {
			_, err := fingerprint.ParsePointer(text)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"`+text+`"`) {
				t.Errorf("ParsePointer(%q) gave %v, want an error that quotes it and says %q", text, err, want)
			}
		})
	}
}

// rfc6901 is the document of RFC 6901 section 5.
const rfc6901 = ` {
	"foo": ["bar", "baz"],
	"": 0,
	"a/b": 1,
	"c%d": 2,
	"e^f": 3,
	"g|h": 4,
	"i\\j": 5,
	"k\"l": 6,
	" ": 7,
	"m~n": 8
} `

func TestPointerFind(t *testing.T) {
	const list = `["zero", [10, 11, {"x": 12}], null, 3, 4, 5, 6, 7, 8, 9, "ten"]`
	const absent = "absent"
	tests := []struct {
		name, document, pointer, want string
	}{
		{"whole document", rfc6901, "", strings.TrimSpace(rfc6901)},
		{"array", rfc6901, "/foo", `["bar", "baz"]`},
		{"element", rfc6901, "/foo/0", `"bar"`},
		{"empty name", rfc6901, "/", "0"},
		{"slash in a name", rfc6901, "/a~1b", "1"},
		{"percent sign", rfc6901, "/c%d", "2"},
		{"caret", rfc6901, "/e^f", "3"},
		{"bar", rfc6901, "/g|h", "4"},
		{"backslash", rfc6901, `/i\j`, "5"},
		{"quote", rfc6901, `/k"l`, "6"},
		{"space", rfc6901, "/ ", "7"},
		{"tilde", rfc6901, "/m~0n", "8"},

		{"no such member", rfc6901, "/bar", absent},
		{"name in another case", rfc6901, "/Foo", absent},
		{"escape of a URI", rfc6901, "/c%25d", absent},
		{"below a number", rfc6901, "//0", absent},
		{"below a string", rfc6901, "/foo/0/0", absent},
		{"empty name of an array", rfc6901, "/foo/", absent},

		{"first element", list, "/0", `"zero"`},
		{"nested", list, "/1/2/x", "12"},
		{"null is a value", list, "/2", "null"},
		{"below null", list, "/2/0", absent},
		{"last element", list, "/10", `"ten"`},
		{"one past the end", list, "/11", absent},
		{"far past the end", list, "/99999999999999999999", absent},
		{"end of the array", list, "/-", absent},
		{"negative index", list, "/-1", absent},
		{"negative zero", list, "/-0", absent},
		{"plus sign", list, "/+1", absent},
		{"leading zero", list, "/01", absent},
		{"two zeros", list, "/00", absent},
		{"fraction", list, "/1.0", absent},
		{"exponent", list, "/1e0", absent},
		{"hexadecimal", list, "/0x1", absent},
		{"underscore", list, "/1_0", absent},
		{"space before an index", list, "/ 1", absent},
		{"digits of another script", list, "/١", absent},
		{"name of an array's property", list, "/length", absent},
		{"empty array", "[]", "/0", absent},
		{"an index of an object is a name", `{"0":"a","01":"b","-":"c"}`, "/01", `"b"`},
		{"the end of an object is a name", `{"-":"c"}`, "/-", `"c"`},

		{"duplicates", `{"a":1,"a":{"b":2},"a":{"c":3}}`, "/a", `{"c":3}`},
		{"only the last of duplicates", `{"a":{"b":2},"a":{"c":3}}`, "/a/b", absent},
		{"duplicates, one escaped", `{"a":1,"\u0061":2}`, "/a", "2"},
		{"escaped name", `{"\u00e9\/":1}`, "/é~1", "1"},
		{"null as a member", `{"a":null}`, "/a", "null"},
		{"empty string", `{"a":""}`, "/a", `""`},
		{"number as written", `{"a":-1.50E+2}`, "/a", "-1.50E+2"},
		{"large number", `{"a":12345678901234567890123}`, "/a", "12345678901234567890123"},
		{"string as written", `{"a":"\u0041\/"}`, "/a", `"\u0041\/"`},
		{"white space around values", "{ \"a\" :\r\n\t[ 1 , 2 ]\n}", "/a", "[ 1 , 2 ]"},
		{"a scalar document", " true\n", "", "true"},
		{"below a scalar document", "true", "/0", absent},

		{"empty document", "", "", absent},
		{"empty document, below it", "", "/a", absent},
		{"white space only", " \n", "", absent},
		{"not JSON", "OK", "", absent},
		{"cut off", `{"a":1`, "/a", absent},
		{"more after it", `{"a":1} x`, "/a", absent},
		{"two documents", `{"a":1}{"a":1}`, "/a", absent},
		{"trailing comma", `{"a":1,}`, "/a", absent},
		{"byte order mark", "\ufeff{\"a\":1}", "/a", absent},
		{"not JSON far from the value", `{"a":1,"b":[tru]}`, "/a", absent},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, found := parsePointer(t, test.pointer).Find([]byte(test.document))
			if !found {
				got = json.RawMessage(absent)
			}
			if string(got) != test.want {
				t.Errorf("%s names %s, want %s", test.pointer, got, test.want)
			}
		})
	}
}

// What a pointer names is the same for whoever decodes the document whole.
func FuzzPointer(f *testing.F) {
	for _, pointer := range []string{"", "/", "/foo/0", "/a~1b", "/m~0n", "/-", "/foo/01", "foo", "/~2"} {
		f.Add(pointer, []byte(rfc6901))
	}
	f.Add("/a/b", []byte(`{"a":1,"a":{"b":[null,1e2]}}`))
	f.Add("/a", []byte(`{"a":1`))
	f.Add("", []byte(""))
	f.Fuzz(func(t *testing.T, text string, document []byte) {
		p, err := fingerprint.ParsePointer(text)
		if valid := validPointer(text); valid != (err == nil) {
			t.Fatalf("ParsePointer(%q) gave %v", text, err)
		}
		if err != nil {
			return
		}
		if got := escaped(p.Tokens()); got != text {
			t.Errorf("%q is read as %q", text, got)
		}
		before := bytes.Clone(document)
		got, found := p.Find(document)
		if !bytes.Equal(document, before) {
			t.Error("Find changed the document")
		}
		want, wantFound := findDecoded(p.Tokens(), document)
		if found != wantFound {
			t.Fatalf("%q in %q is found %t, want %t", text, document, found, wantFound)
		}
		if !found {
			return
		}
		if !bytes.Contains(document, got) || !bytes.Equal(got, bytes.TrimSpace(got)) {
			t.Errorf("%q is not a text of the document %q", got, document)
		}
		if value, ok := decode(got); !ok || !reflect.DeepEqual(value, want) {
			t.Errorf("%q in %q is %q, want %v", text, document, got, want)
		}
	})
}

// validPointer is the grammar of RFC 6901 section 3, read byte by byte.
func validPointer(text string) bool {
	for i := range len(text) {
		switch {
		case i == 0 && text[i] != '/':
			return false
		case text[i] == '~' && (i+1 == len(text) || text[i+1] != '0' && text[i+1] != '1'):
			return false
		}
	}
	return true
}

func escaped(tokens []string) (text string) {
	for _, token := range tokens {
		text += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(token)
	}
	return text
}

// decode reads a whole document, with numbers as written.
func decode(document []byte) (value any, ok bool) {
	if !json.Valid(document) {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	return value, d.Decode(&value) == nil
}

func findDecoded(tokens []string, document []byte) (value any, found bool) {
	value, found = decode(document)
	for _, token := range tokens {
		if !found {
			return nil, false
		}
		found = false
		switch whole := value.(type) {
		case map[string]any:
			value, found = whole[token]
		case []any:
			for i := range whole {
				if digits, err := json.Marshal(i); err == nil && string(digits) == token {
					value, found = whole[i], true
				}
			}
		}
	}
	return value, found
}

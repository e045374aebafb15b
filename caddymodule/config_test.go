package caddymodule_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-idempotency/caddy-idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// adaptAndValidate does what caddy validate does.
func adaptAndValidate(text string) (adapted []byte, err error) {
	adapted, _, err = caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return nil, err
	}
	var config caddy.Config
	if err := json.Unmarshal(adapted, &config); err != nil {
		return nil, err
	}
	return adapted, caddy.Validate(&config)
}

func site(options string) string {
	return "{\n\tadmin off\n\tpersist_config off\n}\nhttp://localhost:1 {\n\tidempotency {\n" + options + "\n\t}\n\treverse_proxy localhost:2\n}\n"
}

func global(options string) string {
	return "{\n\tadmin off\n\tpersist_config off\n\tidempotency {\n" + options + "\n\t}\n}\nhttp://localhost:1 {\n\tidempotency\n\treverse_proxy localhost:2\n}\n"
}

// padded returns an encryption key that begins with a word, and keyOf its
// hexadecimal form.
func padded(word string) string { return word + strings.Repeat(".", 32-len(word)) }
func keyOf(word string) string  { return hex.EncodeToString([]byte(padded(word))) }

// An encryption key can be written in any common form.
func TestEncryptionKeyForms(t *testing.T) {
	key := []byte("\xfb\xff" + padded("k")[2:]) // has both letters in which the alphabets differ
	t.Setenv("KEY", base64.StdEncoding.EncodeToString(key)+"\n")
	for name, text := range map[string]string{
		"base64":              base64.StdEncoding.EncodeToString(key),
		"without padding":     base64.RawStdEncoding.EncodeToString(key),
		"for URLs":            base64.URLEncoding.EncodeToString(key),
		"for URLs, unpadded":  base64.RawURLEncoding.EncodeToString(key),
		"hexadecimal":         hex.EncodeToString(key),
		"upper hexadecimal":   strings.ToUpper(hex.EncodeToString(key)),
		"from an environment": "{env.KEY}",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := adaptAndValidate(global("encryption_key " + text)); err != nil {
				t.Errorf("rejected: %v", err)
			}
			// It is the same key in each of them.
			_, err := adaptAndValidate(global("encryption_key " + hex.EncodeToString(key) + " " + text))
			if err == nil || !strings.Contains(err.Error(), "key 2 is key 1 again") {
				t.Errorf("next to itself it gives %v", err)
			}
		})
	}
}

// The Caddyfiles of testdata/caddyfile, in the form of Caddy's own tests: behind
// the dashes is the JSON that a Caddyfile is adapted to, and then it loads, or
// what is said of it when it is rejected, be it by the adapter or when it is
// loaded. A new one is written with caddy adapt --pretty.
func TestCaddyfiles(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	for name, value := range map[string]string{
		"EMPTY": "", "WAIT": "10s", "LEASE": "5s", "SECRET": "word", "ENCRYPTION_KEY": keyOf("new"),
		"CA": certificates.CA, "CERT": certificates.Client, "KEY": certificates.ClientKey,
	} {
		t.Setenv(name, value)
	}
	files, err := filepath.Glob("testdata/caddyfile/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are %d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, want, found := strings.Cut(string(text), "\n----------\n")
			if want = strings.TrimSpace(want); !found || want == "" {
				t.Fatal("nothing stands behind a line of dashes")
			}
			adapted, err := adaptAndValidate(caddyfile + "\n")
			if strings.HasPrefix(want, "{") {
				var pretty bytes.Buffer
				if err != nil || json.Indent(&pretty, adapted, "", "\t") != nil || pretty.String() != want {
					t.Errorf("got %v and\n%s\nwant\n%s", err, &pretty, want)
				}
				return
			}
			if err == nil {
				t.Fatalf("accepted:\n%s", caddyfile)
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %q, want it to have %q", err, want)
			}
			if strings.Contains(err.Error(), "hidden-word") {
				t.Error("the error has the password")
			}
			for word := range strings.FieldsSeq(caddyfile) {
				if len(word) > 60 && strings.Contains(err.Error(), word) {
					t.Error("the error has the encryption key")
				}
			}
		})
	}
}

// What can be said in JSON, which no Caddyfile parser has looked at.
func TestOptionsInJSON(t *testing.T) {
	const namespace = `"namespace":"6ba7b811-9dad-11d1-80b4-00c04fd430c8"`
	for name, test := range map[string]struct{ options, want string }{
		"all": {`"key_from":{` + namespace + `,"text":"{http.request.uuid}"},"accept_if":{"pointer":"/code","value":"0"},` +
			`"in_progress":"wait","in_progress_wait":10000000000,"upstream_key":"keep"`, ""},
		"in_progress reject":             {`"in_progress":"reject"`, ""},
		"key_from empty":                 {`"key_from":{}`, "key_from: the namespace"},
		"key_from without namespace":     {`"key_from":{"text":"{http.request.uuid}"}`, "key_from: the namespace"},
		"key_from without text":          {`"key_from":{` + namespace + `}`, "key_from: the text has no placeholder"},
		"key_from with an unknown field": {`"key_from":{` + namespace + `,"text":"{http.request.uuid}","uuid":"x"}`, `"uuid"`},
		"key_from a text":                {`"key_from":"{http.request.uuid}"`, "cannot unmarshal"},
		"accept_if empty":                {`"accept_if":{}`, "accept_if: it needs a pointer"},
		"accept_if pointer":              {`"accept_if":{"pointer":"code","value":"0"}`, "accept_if: JSON pointer"},
		"accept_if a number":             {`"accept_if":{"pointer":"/code","value":0}`, "cannot unmarshal"},
		"accept_if with a typo":          {`"accept_if":{"path":"/code","value":"0"}`, `"path"`},
		"in_progress unknown":            {`"in_progress":"queue"`, `in_progress: "queue"`},
		"in_progress wait bare":          {`"in_progress":"wait"`, "in_progress wait: it needs a duration"},
		"in_progress wait zero":          {`"in_progress":"wait","in_progress_wait":0`, "in_progress wait: it needs a duration"},
		"in_progress wait too long":      {`"in_progress":"wait","in_progress_wait":"6m"`, "longer than upstream_timeout"},
		"in_progress reject, long":       {`"in_progress":"reject","in_progress_wait":"10s"`, "in_progress_wait: it needs in_progress wait"},
		"in_progress_wait alone":         {`"in_progress_wait":"10s"`, "in_progress_wait: it needs in_progress wait"},
		"scope empty":                    {`"scope":[""]`, "scope: a value is empty"},
		"store_status empty":             {`"store_status":[]`, "store_status: it is empty"},
		"refused_status empty":           {`"refused_status":[]`, ""},
		"upstream_key":                   {`"upstream_key":"always"`, `upstream_key: "always"`},
	} {
		t.Run(name, func(t *testing.T) {
			var config caddy.Config
			err := json.Unmarshal([]byte(`{"admin":{"disabled":true},"apps":{"http":{"servers":{"s":{"listen":["localhost:1"],"routes":[{"handle":[
				{"handler":"idempotency",`+test.options+`}]}]}}}}}`), &config)
			if err == nil {
				err = caddy.Validate(&config)
			}
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("the error is %v, want it to have %q", err, test.want)
			}
		})
	}
}

// Numbers in JSON are nanoseconds and bytes, as everywhere in Caddy.
func TestNumbersInJSON(t *testing.T) {
	validate := func(lease, size string) error {
		var config caddy.Config
		err := json.Unmarshal([]byte(`{"admin":{"disabled":true},"apps":{"http":{"servers":{"s":{"listen":["localhost:1"],"routes":[{"handle":[
			{"handler":"idempotency","lease":`+lease+`,"max_request_body":`+size+`}]}]}}}}}`), &config)
		if err != nil {
			return err
		}
		return caddy.Validate(&config)
	}
	if err := validate("1000000000", "1024"); err != nil {
		t.Error(err)
	}
	if err := validate("1000", "1024"); err == nil || !strings.Contains(err.Error(), "lease: must be at least 100ms, got 1µs") {
		t.Errorf("a lease of 1000 ns gave %v", err)
	}
	for _, value := range []string{"true", "1.5", "[]"} {
		if err := validate(value, "1024"); err == nil {
			t.Errorf("lease %s was accepted", value)
		}
	}
}

// Loading a configuration touches neither the file nor the server.
func TestLoadingDoesNoIO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "not", "there", "idempotency.db")
	if _, err := adaptAndValidate(global("store embedded " + path)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(filepath.Dir(path))); !os.IsNotExist(err) {
		t.Errorf("validating made the directory of the embedded store: %v", err)
	}
	if _, err := adaptAndValidate(global("store redis 127.0.0.1:1")); err != nil {
		t.Errorf("an unreachable Redis fails the load: %v", err)
	}
}

// The example is a configuration that loads, and is formatted.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	if formatted := caddyfile.Format(text); string(formatted) != string(text) {
		t.Error("Caddyfile.example is not formatted: run caddy fmt --overwrite Caddyfile.example")
	}
	for _, store := range []string{"", "redis localhost:6379"} {
		t.Setenv("IDEMPOTENCY_STORE", store)
		if store == "" {
			os.Unsetenv("IDEMPOTENCY_STORE") // Setenv restores it
		}
		adapted, err := adaptAndValidate(string(text))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"": `"module":"embedded"`, "redis localhost:6379": `"module":"redis"`}[store]; !strings.Contains(string(adapted), want) {
			t.Errorf("with IDEMPOTENCY_STORE=%q the store is not %s", store, want)
		}
	}
}

package idempotency_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

func webToken(claims string) string {
	segment := base64.RawURLEncoding.EncodeToString
	return segment([]byte(`{"alg":"none"}`)) + "." + segment([]byte(claims)) + ".x"
}

func authorization(value string) http.Header { return http.Header{"Authorization": {value}} }

// A token may run out at the end of the retention, and not before.
func TestTokenExpiry(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	const retention = time.Hour
	for _, test := range []struct {
		claims   string
		unstable bool
	}{
		{fmt.Sprintf(`{"exp":%d}`, now.Unix()+3600), false},
		{fmt.Sprintf(`{"exp":%d}`, now.Unix()+3599), true},
		{fmt.Sprintf(`{"exp":%d.5}`, now.Unix()+3599), true},
		{fmt.Sprintf(`{"exp":"%d"}`, now.Unix()+3599), true},
		{fmt.Sprintf(`{"exp":"%d"}`, now.Unix()+3601), false},
		{`{"exp":1.8e9}`, true},
		{`{"exp":1e999}`, false},
		{`{"exp":-1e999}`, true},
		{`{"exp":0}`, true},
		{`{"exp":null}`, false},
		{`{"exp":"NaN"}`, false},
		{`{"exp":"soon"}`, false},
		{`{"exp":{}}`, false},
		{`{"EXP":0}`, false},
		{`{}`, false},
		{`[]`, false},
		{`no JSON`, false},
	} {
		u := idempotency.FindUnstableCredential(authorization("Bearer "+webToken(test.claims)), "", now, retention)
		if (u != nil) != test.unstable || u != nil && *u != (idempotency.UnstableCredential{Where: "Authorization", Kind: idempotency.ExpiringToken}) {
			t.Errorf("%s: %v, want unstable %v", test.claims, u, test.unstable)
		}
	}
}

func TestClaims(t *testing.T) {
	token := webToken(`{"sub":"caller \u00e9","n":18446744073709551616,"f":1.50,"b":false,"null":null,"o":{"a":1},"a":[1],"":"empty","x.y":"dotted"}`)
	for claim, want := range map[string]string{
		"sub": "caller é", "n": "18446744073709551616", "f": "1.50", "b": "false", "null": "", "o": "", "a": "", "": "empty",
		"x.y": "dotted", "SUB": "", "missing": "",
	} {
		if got := idempotency.CredentialClaim(authorization("Bearer "+token), claim); got != want {
			t.Errorf("claim %q is %q, want %q", claim, got, want)
		}
	}
	for name, header := range map[string]http.Header{
		"none":         {},
		"opaque":       authorization("Bearer abc"),
		"no base64":    authorization("Bearer a.!.c"),
		"four parts":   authorization("Bearer " + token + ".x"),
		"another name": {"Cookie": {token}},
	} {
		if got := idempotency.CredentialClaim(header, "sub"); got != "" {
			t.Errorf("%s: sub is %q", name, got)
		}
	}
	// Authorization comes before the others.
	both := http.Header{"X-Auth-Token": {webToken(`{"sub":"other"}`)}, "Authorization": {"Bearer " + token}}
	if got := idempotency.CredentialClaim(both, "sub"); got != "caller é" {
		t.Errorf("of two tokens, sub is %q", got)
	}
}

func TestAccessKey(t *testing.T) {
	for value, want := range map[string]string{
		"AWS4-HMAC-SHA256 Credential=AKIA/20250101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0": "AKIA",
		"AWS4-HMAC-SHA256 SignedHeaders=host,Signature=0,Credential=AKIB/x":                                    "AKIB",
		"AWS4-ECDSA-P256-SHA256 Credential=AKIC/20250101/s3/aws4_request, Signature=0":                         "AKIC",
		"aws4-hmac-sha256 credential=AKID/x":                                                                   "AKID",
		"AWS4-HMAC-SHA256 Credential=":                                                                         "",
		"AWS4-HMAC-SHA256 Signature=0":                                                                         "",
		"HMAC-SHA256 Credential=AKIE/x":                                                                        "",
		"Bearer Credential=AKIF/x":                                                                             "",
		"":                                                                                                     "",
	} {
		if got := idempotency.CredentialAccessKey(authorization(value)); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

// Nothing that a caller sends breaks the reader of credentials, and two requests
// have one scope only if all their credentials are equal.
func FuzzCredential(f *testing.F) {
	for _, value := range []string{
		"", "Bearer x", "Bearer " + webToken(`{"exp":1,"sub":"zq7"}`), webToken(`{"exp":1e400}`), "Basic " + base64.StdEncoding.EncodeToString([]byte("a:"+webToken(`{"exp":1,"sub":"a"}`))),
		"AWS4-HMAC-SHA256 Credential=zq7/1/2, Signature=0", `OAuth oauth_signature_method="PLAINTEXT",oauth_signature="a"`, "Digest nonce=\"", "vapid t=a.b.c,k=", "a.b.c,d.e.f", "= = =", ".." + strings.Repeat(".", 50),
	} {
		f.Add(value, "X", "xi", "X-Amz-Signature=1")
	}
	f.Fuzz(func(t *testing.T, auth, apiKey, other, query string) {
		now := time.Unix(1_800_000_000, 0)
		header := http.Header{"Authorization": {auth}, "X-Api-Key": {apiKey}, "Xi-Api-Key": {other}}
		u := idempotency.FindUnstableCredential(header, query, now, time.Hour)
		if u != nil && !slices.Contains([]string{"Authorization", "X-Api-Key", "Xi-Api-Key", "the query"}, u.Where) {
			t.Errorf("a credential is in %q", u.Where)
		}
		// What ends later is stable if what ends sooner is.
		if again := idempotency.FindUnstableCredential(header, query, now, time.Minute); again != nil && u == nil {
			t.Errorf("with a shorter retention it is unstable in %s", again.Where)
		}
		idempotency.CredentialClaim(header, "sub")
		if key := idempotency.CredentialAccessKey(header); !strings.Contains(auth, key) {
			t.Errorf("the access key %q is not in %q", key, auth)
		}

		id := func(header http.Header) idempotency.RecordID {
			return idempotency.NewRecordID("", idempotency.DefaultScope(header), "k")
		}
		mine := id(header)
		if other == "" && mine != idempotency.NewRecordID("", []string{auth, apiKey}, "k") {
			t.Error("without another field the record is not that of older versions")
		}
		for _, fields := range [][3]string{{"Authorization", "X-Api-Key", "Api-Key"}, {"X-Api-Key", "Authorization", "Xi-Api-Key"}, {"Authorization", "X-Auth-Token", "Xi-Api-Key"}} {
			moved := http.Header{fields[0]: {auth}, fields[1]: {apiKey}, fields[2]: {other}}
			same := moved.Get("Authorization") == auth && moved.Get("X-Api-Key") == apiKey && moved.Get("Xi-Api-Key") == other &&
				moved.Get("Api-Key") == "" && moved.Get("X-Auth-Token") == ""
			if (id(moved) == mine) != same {
				t.Errorf("%q and %q: one record %v, want %v", header, moved, id(moved) == mine, same)
			}
		}
	})
}

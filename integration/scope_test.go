package integration

import (
	"encoding/base64"
	"fmt"
	"os/exec"

	"net/http"

	"strings"
	"testing"
	"time"
)

// headerOf is a header of one line a field.
func headerOf(lines ...string) http.Header {
	header := make(http.Header)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		header.Add(name, value)
	}
	return header
}

// withoutAuthorization takes Authorization away, which send sets.
var withoutAuthorization = http.Header{"Authorization": nil}

// webToken is an unsigned JSON Web Token, with a signature that is another one each
// time.
func webToken(claims string) string {
	segment := base64.RawURLEncoding.EncodeToString
	return segment([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + segment([]byte(claims)) + "." + segment(fmt.Appendf(nil, "%d-mark-signature", time.Now().UnixNano()))
}

// expiringClaims are those of a token that expires so long from now.
func expiringClaims(in time.Duration, claims string) string {
	return fmt.Sprintf(`{"exp":%d%s}`, time.Now().Add(in).Unix(), claims)
}

// A request with no credential but Authorization and X-Api-Key has the record
// that every version gave it: an upgrade frees no key. The ids are those of the
// last version that knew only these two.
func TestRecordsOfOlderVersions(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{before: "header >X-Record {http.idempotency.record}"})
	explicit := startGateway(t, p.url, options{before: "header >X-Record {http.idempotency.record}",
		idempotency: "namespace videos\nscope {header.X-Tenant} fixed"})
	for name, test := range map[string]struct {
		gateway *gateway
		request request
		want    string
	}{
		"Authorization":  {g, request{auth: "Bearer sk-test"}, "fr2u86fmrvvqrrf1f5ivc3pl588ql7tk"},
		"X-Api-Key":      {g, request{header: headerOf("X-Api-Key: account-1")}, "b3pup3ep93shenu847npqkj04ii4dvci"},
		"both":           {g, request{auth: "Basic dXNlcjpwYXNz", header: headerOf("X-Api-Key: account-1")}, "0ok8r1d2hjl3q4u9fmr6fmrmf3ba6lq7"},
		"two lines":      {g, request{header: http.Header{"Authorization": {"Bearer a", "Bearer b"}}}, "42q2lejmor1r70ecgs6tifb8t6tfqnqg"},
		"none":           {g, request{header: withoutAuthorization}, "01ktg062vf9q7rchh8rjc1o0sefbv4n2"},
		"other, empty":   {g, request{auth: "Bearer sk-test-2", header: headerOf("Xi-Api-Key: ")}, "o3jggcamjr357u5vc0grnf8br2uggqt1"},
		"a scope option": {explicit, request{header: headerOf("X-Tenant: t1", "Xi-Api-Key: x")}, "f8q5eu926rj7i5r0hrc5j9rc0a2eq8gq"},
	} {
		if name == "X-Api-Key" {
			test.request.header["Authorization"] = nil
		}
		test.request.key, test.request.body = "key-1", "x"
		got := test.gateway.send(t, test.request)
		if got.status != 202 || got.header.Get("X-Record") != test.want {
			t.Errorf("%s: %v, record %s, want %s", name, got, got.header.Get("X-Record"), test.want)
		}
	}
	p.want(t, 7)
}

// E2: two accounts that differ only in a provider's own key header never see each
// other's jobs.
func TestCredentialHeadersOfProviders(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	n := 0
	for _, field := range []string{"Api-Key", "xi-api-key", "x-goog-api-key", "Ocp-Apim-Subscription-Key", "X-Auth-Token", "X-Api-Key"} {
		for name, auth := range map[string]http.Header{"alone": withoutAuthorization, "beside-Authorization": {}} {
			with := func(values ...string) request {
				header := auth.Clone()
				header[http.CanonicalHeaderKey(field)] = values
				return request{key: "k-" + field + "-" + name, body: "x", header: header}
			}
			a, b := g.send(t, with("account-a")), g.send(t, with("account-b"))
			n += 2
			p.want(t, n)
			if a.status != 202 || b.status != 202 || a.body == b.body || b.replayed() {
				t.Errorf("%s, %s: the accounts got %v and %v", field, name, a, b)
			}
			if again := g.send(t, with("account-a")); again.body != a.body || !again.replayed() {
				t.Errorf("%s, %s: again: %v", field, name, again)
			}
			p.want(t, n)
		}
	}
	// What one field says is not what another says.
	for _, field := range []string{"Api-Key", "Xi-Api-Key", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Auth-Token", "X-Api-Key", "Authorization"} {
		header := withoutAuthorization.Clone()
		header[field] = []string{"same"}
		if got := g.send(t, request{key: "k", body: "x", header: header}); got.replayed() {
			t.Errorf("%s shares a scope with another field: %v", field, got)
		}
		n++
		p.want(t, n)
	}
}

// signedV4 is an Authorization header of AWS, made anew for each request.
func signedV4(accessKey string) string {
	return fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/20250101/us-east-1/bedrock/aws4_request, SignedHeaders=host;x-amz-date, Signature=mark-%d", accessKey, time.Now().UnixNano())
}

// E1: a credential that is made for each request, or runs out within the
// retention, is no scope: nothing is sent, and the answer and the log say what to
// write.
func TestUnstableCredentials(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	problem := startGateway(t, p.url, options{idempotency: "errors problem"})
	auth := func(value string) func() request {
		return func() request {
			return request{auth: strings.Replace(value, "*", fmt.Sprintf("mark-%d", time.Now().UnixNano()), 1)}
		}
	}
	soon := func() string { return webToken(expiringClaims(30*time.Minute, `,"iss":"mark-claim"`)) }
	const aws, token = "scope {http.idempotency.aws_access_key}", "scope {http.idempotency.jwt.sub}"
	for name, test := range map[string]struct {
		request func() request
		line    string
	}{
		"SigV4":                 {func() request { return request{auth: signedV4("AKIAMARK")} }, aws},
		"SigV4A":                {auth("AWS4-ECDSA-P256-SHA256 Credential=AKIAMARK/20250101/bedrock/aws4_request, SignedHeaders=host;x-amz-region-set, Signature=*"), aws},
		"AWS, version 2":        {auth("AWS AKIAMARK:*"), ""},
		"Digest":                {auth(`Digest username="mark", realm="r", nonce="*", uri="/", response="0"`), ""},
		"OAuth 1.0":             {auth(`OAuth oauth_consumer_key="mark", oauth_signature_method="HMAC-SHA1", oauth_nonce="*", oauth_signature="x"`), ""},
		"OAuth 1.0, no nonce":   {auth(`OAuth oauth_consumer_key="mark",oauth_signature_method="RSA-SHA1",oauth_signature="*"`), ""},
		"HTTP signature":        {auth(`Signature keyId="mark",algorithm="hs2019",signature="*"`), ""},
		"Hawk":                  {auth(`Hawk id="mark", ts="1", nonce="*", mac="x"`), ""},
		"HMAC":                  {auth("HMAC mark:*"), ""},
		"HMAC-SHA256":           {auth("HMAC-SHA256 Credential=mark/20250101/cn/request, SignedHeaders=host, Signature=*"), ""},
		"TC3":                   {auth("TC3-HMAC-SHA256 Credential=mark/2025-01-01/x/tc3_request, SignedHeaders=host, Signature=*"), ""},
		"in lower case":         {auth("digest username=mark, nonce=*"), ""},
		"Negotiate":             {auth("Negotiate *"), ""},
		"a scheme of their own": {auth(`Acme key="mark", timestamp="*"`), ""},
		"Baidu":                 {auth("bce-auth-v1/mark/2025-01-01T00:00:00Z/1800/host/*"), ""},
		"JWT":                   {func() request { return request{auth: "Bearer " + soon()} }, token},
		"JWT, expired":          {func() request { return request{auth: "Bearer " + webToken(expiringClaims(-time.Hour, ""))} }, token},
		"JWT, an hour short":    {func() request { return request{auth: "Bearer " + webToken(expiringClaims(23*time.Hour, ""))} }, token},
		"JWT, a fraction":       {func() request { return request{auth: "Bearer " + webToken(`{"exp":1.7e9}`)} }, token},
		"JWT, exp a text":       {func() request { return request{auth: "Bearer " + webToken(`{"exp":"1700000000"}`)} }, token},
		"JWT, bearer":           {func() request { return request{auth: "bearer  " + soon()} }, token},
		"JWT, bare":             {func() request { return request{auth: soon()} }, token},
		"DPoP":                  {func() request { return request{auth: "DPoP " + soon()} }, token},
		"VAPID":                 {func() request { return request{auth: "vapid t=" + soon() + ", k=mark"} }, token},
		"JWT as a password": {func() request {
			return request{auth: "Basic " + base64.StdEncoding.EncodeToString([]byte("oauth2:"+soon()))}
		}, token},
		"JWT in X-Api-Key":    {func() request { return request{header: headerOf("X-Api-Key: " + soon())} }, token},
		"JWT in X-Auth-Token": {func() request { return request{header: headerOf("X-Auth-Token: " + soon())} }, token},
		"JWT in xi-api-key":   {func() request { return request{header: headerOf("Xi-Api-Key: " + soon())} }, token},
		"JWT on a second line": {func() request {
			return request{header: http.Header{"Authorization": {"Bearer mark", "Bearer " + soon()}}}
		}, token},
		"presigned query": {func() request {
			return request{header: withoutAuthorization, path: fmt.Sprintf("/v1/videos?X-Amz-Credential=mark&X-Amz-Signature=mark%d", time.Now().UnixNano())}
		}, ""},
	} {
		for _, on := range []*gateway{g, problem} {
			var got [2]answer
			for i := range got { // each with a credential of its own
				r := test.request()
				r.key, r.body = "k", `{"prompt":"mark"}`
				got[i] = on.send(t, r)
			}
			p.want(t, 0)
			for _, a := range got {
				if a.status != 500 || a.code() != "idempotency_scope_unstable" || a.header.Get("X-Should-Retry") != "false" ||
					a.header.Get("Cache-Control") != "no-store" {
					t.Fatalf("%s: got %v, %v", name, a, a.header)
				}
				for _, word := range []string{"`scope {http.auth.user.id}`", "`scope {http.request.header.X-Caller-Id}`", test.line, "Nothing was sent"} {
					if !strings.Contains(a.body, word) {
						t.Errorf("%s: the answer does not have %s: %s", name, word, a.body)
					}
				}
				if strings.Contains(a.body, "mark") || strings.Contains(a.body, "MARK") {
					t.Errorf("%s: the answer has the credential: %s", name, a.body)
				}
			}
		}
	}
	for _, text := range []string{"set the option scope", `"scope {http.idempotency.aws_access_key}"`, `"scope {http.idempotency.jwt.sub}"`, `"scope {http.auth.user.id}"`} {
		g.awaitLog(t, text)
	}
	for line := range strings.Lines(g.log.String()) {
		if strings.Contains(line, `"logger":"http.handlers.idempotency"`) && strings.Contains(strings.ToLower(line), "mark") {
			t.Errorf("the log has the credential: %s", line)
		}
	}
	// Without a key there is nothing to protect.
	if got := g.send(t, request{auth: signedV4("AKIAMARK"), body: "x"}); got.status != 202 {
		t.Errorf("without a key: %v", got)
	}
	p.want(t, 1)
}

// What does not change within the retention is a scope, whatever it looks like.
func TestStableCredentials(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	short := startGateway(t, p.url, options{idempotency: "retention 1h"})
	n := 0
	for name, test := range map[string]struct {
		gateway *gateway
		request request
	}{
		"an API key":             {g, request{auth: "Bearer sk-proj-aaaa.bbbb.cccc"}},
		"a key with a signature": {g, request{auth: "Bearer signature=hmac.nonce=1.x"}},
		"bare":                   {g, request{auth: "key-hmac-sha256"}},
		"Basic":                  {g, request{auth: "Basic " + base64.StdEncoding.EncodeToString([]byte("AKIA:"+strings.Repeat("secret.", 20)))}},
		"Token":                  {g, request{auth: `Token token="abc"`}},
		"Key":                    {g, request{auth: "Key id:secret"}},
		"OAuth 1.0, plain text":  {g, request{auth: `OAuth oauth_consumer_key="a", oauth_signature_method="PLAINTEXT", oauth_signature="a%26b"`}},
		"JWT without exp":        {g, request{auth: "Bearer " + webToken(`{"sub":"a"}`)}},
		"JWT, exp null":          {g, request{auth: "Bearer " + webToken(`{"exp":null}`)}},
		"JWT for a year":         {g, request{auth: "Bearer " + webToken(expiringClaims(365*24*time.Hour, ""))}},
		"JWT over the retention": {g, request{auth: "Bearer " + webToken(expiringClaims(25*time.Hour, ""))}},
		"JWT, short retention":   {short, request{auth: "Bearer " + webToken(expiringClaims(2*time.Hour, ""))}},
		"no JWT, two dots":       {g, request{auth: "Bearer a.b.c"}},
		"encrypted JWT":          {g, request{auth: "Bearer eyJhbGciOiJkaXIifQ..AAAA.BBBB.CCCC"}},
		"none":                   {g, request{header: withoutAuthorization}},
		"a query":                {g, request{path: "/v1/videos?signature=x&sig=y"}},
	} {
		r := test.request
		r.key, r.body = strings.ReplaceAll("k-"+name, " ", "-"), "x"
		first, again := test.gateway.send(t, r), test.gateway.send(t, r)
		n++
		p.want(t, n)
		if first.status != 202 || !again.replayed() || again.body != first.body {
			t.Errorf("%s: got %v, then %v", name, first, again)
		}
	}
}

// The lines that the answer offers keep signed and short-lived credentials apart
// by who they belong to.
func TestPlaceholdersOfCredentials(t *testing.T) {
	t.Parallel()
	bearer := func(claims string) func() request {
		return func() request { return request{auth: "Bearer " + webToken(claims)} }
	}
	const hash = "$2a$04$dGfM4SVaFXA9O89ujb5FPOfuq2ok88nmgZea/6kHi4UeDyLf2u6ti" // of hiccup
	const users = "basic_auth {\na " + hash + "\nb " + hash + "\n}"
	hiccup := func(user string) func() request {
		return func() request {
			return request{auth: "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":hiccup"))}
		}
	}
	for name, test := range map[string]struct {
		scope, before string
		a, b          func() request
	}{
		"sub": {"{http.idempotency.jwt.sub}", "", bearer(expiringClaims(time.Minute, `,"sub":"a"`)), bearer(expiringClaims(time.Minute, `,"sub":"b"`))},
		"iss of a signed token": {"{http.idempotency.jwt.iss}", "", bearer(expiringClaims(time.Minute, `,"iss":"ak-a"`)),
			bearer(expiringClaims(time.Minute, `,"iss":"ak-b"`))},
		"a number":           {"{http.idempotency.jwt.account}", "", bearer(`{"account":12345678901234567890}`), bearer(`{"account":12345678901234567891}`)},
		"a truth value":      {"{http.idempotency.jwt.admin}", "", bearer(`{"admin":true}`), bearer(`{"admin":false}`)},
		"a name with dots":   {"{http.idempotency.jwt.https://acme.example/tenant}", "", bearer(`{"https://acme.example/tenant":"a"}`), bearer(`{"https://acme.example/tenant":"b"}`)},
		"two":                {"{http.idempotency.jwt.iss} {http.idempotency.jwt.sub}", "", bearer(`{"iss":"i","sub":"a"}`), bearer(`{"iss":"j","sub":"a"}`)},
		"in X-Api-Key":       {"{http.idempotency.jwt.sub}", "", func() request { return request{header: headerOf("X-Api-Key: " + webToken(`{"sub":"a"}`))} }, bearer(`{"sub":"b"}`)},
		"access key":         {"{http.idempotency.aws_access_key}", "", func() request { return request{auth: signedV4("AKIAA")} }, func() request { return request{auth: signedV4("AKIAB")} }},
		"user of basic_auth": {"{http.auth.user.id}", users, hiccup("a"), hiccup("b")},
		"a header of callers": {"{http.request.header.X-Caller-Id}", "", func() request {
			return request{auth: signedV4("AKIA"), header: headerOf("X-Caller-Id: a")}
		}, func() request { return request{auth: signedV4("AKIA"), header: headerOf("X-Caller-Id: b")} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{before: test.before, idempotency: "scope " + test.scope})
			send := func(r request) answer {
				r.key, r.body = "k", "x"
				return g.send(t, r)
			}
			first, again := send(test.a()), send(test.a())
			p.want(t, 1)
			if first.status != 202 || !again.replayed() {
				t.Fatalf("got %v, then %v", first, again)
			}
			other := send(test.b())
			p.want(t, 2)
			if other.status != 202 || other.replayed() || other.body == first.body {
				t.Errorf("the other caller got %v", other)
			}
		})
	}
}

// E3: a configured scope that evaluates to nothing is no scope.
func TestEmptyScope(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scope string
		full  *request // a request for which it is not empty
	}{
		"a misspelt variable":   {"{vars.tennant}", nil},
		"a client certificate":  {"{http.request.tls.client.subject}", nil},
		"a header":              {"{header.X-Tenant}", &request{header: headerOf("X-Tenant: t")}},
		"one of two":            {"{header.X-Tenant} {header.X-Team}", &request{header: headerOf("X-Team: t")}},
		"beside a fixed text":   {"videos {header.X-Tenant}", &request{header: headerOf("X-Tenant: t")}},
		"within a fixed text":   {"tenant-{header.X-Tenant}", &request{header: headerOf("X-Tenant: t")}},
		"beside the hostname":   {"{system.hostname}-{header.X-Tenant}", &request{header: headerOf("X-Tenant: t")}},
		"a user":                {"{http.auth.user.id}", nil},
		"no token":              {"{http.idempotency.jwt.sub}", &request{auth: "Bearer " + webToken(`{"sub":"a"}`)}},
		"a claim that is a map": {"{http.idempotency.jwt.realm_access}", nil},
		"no signature":          {"{http.idempotency.aws_access_key}", &request{auth: signedV4("AKIA")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{idempotency: "scope " + test.scope})
			r := request{key: "k", body: "x", auth: "Bearer mark"}
			if name == "a claim that is a map" {
				r.auth = "Bearer " + webToken(`{"realm_access":{"roles":["mark"]}}`)
			}
			for range 2 {
				got := g.send(t, r)
				p.want(t, 0)
				if got.status != 500 || got.code() != "idempotency_scope_unstable" || got.header.Get("X-Should-Retry") != "false" ||
					!strings.Contains(got.body, "option scope") {
					t.Fatalf("got %v, %v", got, got.header)
				}
			}
			g.awaitLog(t, "keyed request rejected: ")
			if test.full != nil {
				test.full.key, test.full.body = "k", "x"
				first, again := g.send(t, *test.full), g.send(t, *test.full)
				p.want(t, 1)
				if first.status != 202 || !again.replayed() {
					t.Errorf("with a value: %v, then %v", first, again)
				}
			}
		})
	}
	// A scope without any placeholder of the request is one for all, and meant so.
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "scope video-team"})
	a, b := g.send(t, request{key: "k", body: "x", auth: "Bearer a"}), g.send(t, request{key: "k", body: "x", auth: "Bearer b"})
	p.want(t, 1)
	if a.status != 202 || !b.replayed() {
		t.Errorf("a fixed scope: %v, then %v", a, b)
	}
}

// What key_from derives may come from the credential, too.
func TestKeyFromCredential(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "scope {http.idempotency.jwt.sub}\n" +
		`key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 "{http.idempotency.jwt.job}"`})
	send := func(claims string) answer { return g.send(t, request{auth: "Bearer " + webToken(claims), body: "x"}) }
	send(`{"sub":"a","job":1}`)
	again := send(`{"sub":"a","job":1}`)
	p.want(t, 1)
	if !again.replayed() {
		t.Errorf("again: %v", again)
	}
	send(`{"sub":"a","job":2}`)
	p.want(t, 2)
}

// find finds the record of a request with a credential of any field.
func TestFindCredential(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{before: "header >X-Record {http.idempotency.record}"})
	got := g.send(t, request{key: "k", body: "x", auth: "Bearer a", header: headerOf("Xi-Api-Key: b", "X-Auth-Token: c")})
	p.want(t, 1)
	find := func(input string, args ...string) string {
		cmd := exec.Command(caddyBinary, append([]string{"idempotency", "find", "--address", g.admin}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		output, _ := cmd.CombinedOutput() // what went wrong is in it
		return string(output)
	}
	record := got.header.Get("X-Record")
	if record == "" {
		t.Fatal("the record has no id")
	}
	// In any order: the gateway has its own.
	if output := find("Bearer a\n\nc\nb\nk\n", "--credential", "x-auth-token", "--credential", "xi-api-key"); !strings.Contains(output, record) {
		t.Errorf("find did not find %s: %s", record, output)
	}
	if output := find("Bearer a\n\nk\n"); strings.Contains(output, record) {
		t.Errorf("find finds it without its credentials: %s", output)
	}
	if output := find("", "--credential", "X-Tenant"); !strings.Contains(output, "no field X-Tenant") {
		t.Errorf("find takes any field: %s", output)
	}
}

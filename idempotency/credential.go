package idempotency

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The default scope is every header field in which requests to media APIs carry
// a credential. The values of the first two are always part of it, those of the
// others with their names and only if they are there: so the record of a request
// without the others is the one that versions before them gave it, and no value
// in one field is taken for a value in another.
var (
	firstCredentials = [...]string{"Authorization", "X-Api-Key"}
	otherCredentials = [...]string{"Api-Key", "Xi-Api-Key", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Auth-Token"}
)

// IsCredentialField reports whether the default scope has the field, whose name is in
// its canonical form.
func IsCredentialField(name string) bool {
	return slices.Contains(firstCredentials[:], name) || slices.Contains(otherCredentials[:], name)
}

// DefaultScope returns the values of the default scope of a request.
func DefaultScope(header http.Header) []string {
	scope := make([]string, len(firstCredentials), len(firstCredentials)+2)
	for i, name := range firstCredentials {
		scope[i] = strings.Join(header[name], ",")
	}
	for _, name := range otherCredentials {
		if value := strings.Join(header[name], ","); value != "" {
			scope = append(scope, name, value)
		}
	}
	return scope
}

// UnstableCredential is a credential that cannot say who a key belongs to: a retry
// would come with another one, find no record, and submit again. It holds nothing
// of the credential itself.
type UnstableCredential struct {
	// Where it is: the name of a header field, or "the query".
	Where string
	Kind  CredentialKind
}

// CredentialKind is why a credential does not stay as it is.
type CredentialKind int

const (
	// Signature is made for each request.
	Signature CredentialKind = iota
	// AWSSignature is a Signature of AWS, version 4, which names its access key.
	AWSSignature
	// ExpiringToken is a JSON Web Token that expires within the retention.
	ExpiringToken
	// SignedQuery is a signature in the query, which the fingerprint covers, too.
	SignedQuery
)

func (k CredentialKind) String() string {
	switch k {
	case Signature, AWSSignature:
		return "it is a signature, made for each request"
	case ExpiringToken:
		return "it is a JSON Web Token that expires before the retention is over"
	case SignedQuery:
		return "it is a signature, and the query is compared, too: sign in a header field"
	}
	return "unknown"
}

// FindUnstableCredential looks in the default scope of a request, and in its query,
// for a credential that a retry within the retention would come without. Without
// one it returns nil. An opaque token may run out, too, and nobody can see it.
func FindUnstableCredential(header http.Header, rawQuery string, now time.Time, retention time.Duration) *UnstableCredential {
	for _, value := range header["Authorization"] {
		if signed, aws := signature(value); aws {
			return &UnstableCredential{"Authorization", AWSSignature}
		} else if signed {
			return &UnstableCredential{"Authorization", Signature}
		}
	}
	if querySigned(rawQuery) {
		return &UnstableCredential{"the query", SignedQuery}
	}
	for name, value := range credentials(header) {
		for claims := range tokens(value) {
			if expiresWithin(claims, now, retention) {
				return &UnstableCredential{name, ExpiringToken}
			}
		}
	}
	return nil
}

// credentials are the lines of the credential headers, by their names.
func credentials(header http.Header) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, names := range [...][]string{firstCredentials[:], otherCredentials[:]} {
			for _, name := range names {
				for _, value := range header[name] {
					if !yield(name, value) {
						return
					}
				}
			}
		}
	}
}

// signature reports whether the value of Authorization is made for each request,
// and whether it is one of AWS that names its access key.
func signature(value string) (signed, aws bool) {
	scheme, params := splitScheme(value)
	switch {
	case strings.EqualFold(scheme, "Bearer"), strings.EqualFold(scheme, "Basic"):
		return false, false
	case params == "":
		// A bare key, or Baidu's form without a space: bce-auth-v1/<key>/<time>/...
		return strings.HasPrefix(scheme, "bce-auth-v"), false
	}
	scheme = strings.ToLower(scheme)
	if strings.HasPrefix(scheme, "aws4-") {
		return true, true
	}
	switch scheme {
	case "aws", "aws3", "aws3-https", "digest", "hawk", "hoba", "mac", "mutual", "negotiate", "ntlm", "sharedkey", "sharedkeylite", "signature":
		return true, false
	}
	// TC3-HMAC-SHA256, EG1-HMAC-SHA256, GOOG4-RSA-SHA256, SCRAM-SHA-256 and many
	// more.
	for _, part := range [...]string{"hmac", "ecdsa", "-sha"} {
		if strings.Contains(scheme, part) {
			return true, false
		}
	}
	// OAuth 1.0 can send a shared secret in the place of a signature (RFC 5849,
	// section 3.4.4). What has a nonce or a time is another one each time anyway.
	plain := false
	for name, value := range authParameters(params) {
		switch strings.ToLower(name) {
		case "signature", "mac", "nonce", "cnonce", "timestamp", "oauth_nonce", "oauth_timestamp":
			return true, false
		case "oauth_signature_method":
			plain = strings.EqualFold(value, "PLAINTEXT")
		case "oauth_signature":
			signed = true
		}
	}
	return signed && !plain, false
}

// splitScheme splits the value of Authorization into its scheme and the rest.
func splitScheme(value string) (scheme, rest string) {
	value = strings.TrimLeft(value, " \t")
	if i := strings.IndexAny(value, " \t"); i >= 0 {
		return value[:i], strings.TrimLeft(value[i:], " \t")
	}
	return value, ""
}

// authParameters are the name=value pairs of an Authorization header, without
// quotes.
func authParameters(text string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for field := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ';' || r == '&' || r == ' ' || r == '\t' }) {
			name, value, found := strings.Cut(field, "=")
			if found && !yield(name, strings.Trim(value, `"`)) {
				return
			}
		}
	}
}

// querySigned reports whether a request is signed by its query. With AWS, Google
// and OAuth 1.0 the signature covers a time that is in the query as well.
func querySigned(rawQuery string) bool {
	if !strings.Contains(rawQuery, "ignature") {
		return false
	}
	for pair := range strings.SplitSeq(rawQuery, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if unescaped, err := url.QueryUnescape(name); err == nil {
			name = unescaped
		}
		switch strings.ToLower(name) {
		case "x-amz-signature", "x-goog-signature", "oauth_signature":
			return true
		}
	}
	return false
}

// tokens returns the claims of the JSON Web Tokens in a credential, wherever in
// it they are: with a scheme, bare, as a parameter, or as the password of Basic.
// Nothing is verified: the provider does that.
func tokens(value string) iter.Seq[map[string]json.RawMessage] {
	return func(yield func(map[string]json.RawMessage) bool) {
		scheme, rest := splitScheme(value)
		// Below that length there is no token in it.
		if strings.EqualFold(scheme, "Basic") && len(rest) > 64 {
			if decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(rest, "=")); err == nil {
				value = string(decoded)
			}
		}
		if strings.Count(value, ".") < 2 {
			return
		}
		for candidate := range strings.FieldsFuncSeq(value, func(r rune) bool {
			return r == ' ' || r == '\t' || r == ',' || r == ';' || r == ':' || r == '"'
		}) {
			if name, rest, found := strings.Cut(candidate, "="); found && !strings.Contains(name, ".") {
				candidate = rest
			}
			if claims := claimsOf(candidate); claims != nil && !yield(claims) {
				return
			}
		}
	}
}

// claimsOf returns the claims of a JSON Web Token in its compact form (RFC 7519),
// nil if the text is none. Those of an encrypted one cannot be read.
func claimsOf(token string) map[string]json.RawMessage {
	if strings.Count(token, ".") != 2 {
		return nil
	}
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(payload, "="))
	if err != nil {
		return nil
	}
	var claims map[string]json.RawMessage
	if json.Unmarshal(decoded, &claims) != nil {
		return nil
	}
	return claims
}

// expiresWithin reports whether a token expires before the retention is over,
// from now on by the gateway's clock. One that says nothing of its end has none.
func expiresWithin(claims map[string]json.RawMessage, now time.Time, retention time.Duration) bool {
	// Some issuers write the number as a string.
	text := strings.Trim(string(claims["exp"]), `"`)
	exp, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || math.IsNaN(exp) {
		return false
	}
	return exp-float64(now.UnixMilli())/1000 < retention.Seconds()
}

// CredentialClaim returns a claim of the first JSON Web Token in the credential
// headers: a string as it is, a number or a truth value as it is written. Anything
// else is empty. Nobody has verified it.
func CredentialClaim(header http.Header, claim string) string {
	for _, value := range credentials(header) {
		for claims := range tokens(value) {
			return scalar(claims[claim])
		}
	}
	return ""
}

func scalar(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	switch raw[0] {
	case '"':
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return ""
		}
		return text
	case '{', '[', 'n':
		return ""
	default:
		return string(raw)
	}
}

// CredentialAccessKey returns the access key id of an AWS signature, version 4: what
// its Credential begins with. Nobody has verified it.
func CredentialAccessKey(header http.Header) string {
	for _, value := range header["Authorization"] {
		if _, aws := signature(value); !aws {
			continue
		}
		_, params := splitScheme(value)
		for name, value := range authParameters(params) {
			if strings.EqualFold(name, "Credential") {
				key, _, _ := strings.Cut(value, "/")
				return key
			}
		}
	}
	return ""
}

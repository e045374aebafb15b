package idempotency

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

// RecordID names the record of one (namespace, scope, key): 32 characters
// 0-9 and a-v. It is a digest, so no text of a caller becomes part of a store
// key, a log line or a URL, and it can be shown to callers and operators.
type RecordID string

// recordIDBytes is how much of the SHA-256 digest a RecordID keeps: 160 bits,
// so that neither a chance collision nor a second preimage lets one scope
// reach another's record, in a length that people can compare by eye.
const recordIDBytes = 20

const recordIDAlphabet = "0123456789abcdefghijklmnopqrstuv"

var recordIDEncoding = base32.NewEncoding(recordIDAlphabet).WithPadding(base32.NoPadding)

// NewRecordID digests the parts that name a record. Each part is prefixed by
// its length, so that no part can be moved across a border: scope "ab" with
// key "c" is another record than scope "a" with key "bc".
func NewRecordID(namespace string, scope []string, key Key) RecordID {
	f := make(fingerprint.Fields, 0, 512)
	f.Add("record")
	f.Add(namespace)
	f.Count(len(scope))
	for _, s := range scope {
		f.Add(s)
	}
	f.Add(string(key))
	sum := sha256.Sum256(f)
	return RecordID(recordIDEncoding.EncodeToString(sum[:recordIDBytes]))
}

// Valid reports whether id has the form that NewRecordID gives.
func (id RecordID) Valid() bool {
	if len(id) != recordIDEncoding.EncodedLen(recordIDBytes) {
		return false
	}
	return strings.Trim(string(id), recordIDAlphabet) == ""
}

// Token names one attempt: 128 random bits that the store checks on every
// transition.
type Token [16]byte

// NewToken draws a token from the system's random source.
func NewToken() Token {
	var t Token
	// crypto/rand.Read never returns an error; it ends the process instead.
	_, _ = rand.Read(t[:])
	return t
}

// Fingerprint is a digest of everything in a request that changes the job: two
// requests with one key must have one fingerprint, or the second has reused the
// key.
type Fingerprint = fingerprint.Digest

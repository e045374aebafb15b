package idempotency

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"
	"sync"
)

// EncryptionKeySize is the length of an encryption key in bytes.
const EncryptionKeySize = 32

// Keyring keeps what people could read in records from those who can read the
// store: the details, an answer among them, and the fingerprint, which would
// confirm a guess at a request's body. A nil Keyring leaves records readable.
//
// A record is claimed under the first key, and stays under that key as long as
// it lives. The other keys are old ones, or one that is going to be the first:
// records under them are as good as any other, in one round trip, too. A record
// under a key that is not in the ring is ErrUnreadable. A record that is not
// encrypted can be read with any ring: it is from the time before.
//
// # What it rests on
//
// A key is the input of HKDF (RFC 5869, SHA-256), and never used itself. Of it
// are derived the key's public name, the key of the fingerprints, and 1,024 keys
// that the records share. A stored fingerprint is the HMAC-SHA-256 of id and
// fingerprint, so that equal requests under two keys do not look alike; its
// first ten bits say which of the 1,024 is the record's. Details are encrypted
// under that one with AES-256-GCM and a random nonce, which is good for 2^32
// claims and endings, and so for 2^42 in all. The id and the stored fingerprint
// are authenticated along with the details (associated data): they cannot be
// read as those of another record, nor be the answer to another request.
//
// The rest of a record is what a store decides by, and is not secret: state,
// token, times. Nor is it authenticated: the store changes it, and has no key.
// Whoever can write to the store can remove a record, set its state, or put
// an earlier value of it back.
type Keyring struct{ keys []*encryptionKey }

// NewKeyring returns a ring of the keys, each of EncryptionKeySize random bytes.
// The first encrypts; all of them decrypt. Without keys it returns nil. Its
// errors name a key by its number, from 1.
func NewKeyring(keys ...[]byte) (*Keyring, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	ring := new(Keyring)
	for i, key := range keys {
		if len(key) != EncryptionKeySize {
			return nil, fmt.Errorf("key %d has %d bytes, and must have %d", i+1, len(key), EncryptionKeySize)
		}
		for j, other := range keys[:i] {
			if bytes.Equal(key, other) {
				return nil, fmt.Errorf("key %d is key %d again", i+1, j+1)
			}
		}
		derived, err := newEncryptionKey(key)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		ring.keys = append(ring.keys, derived)
	}
	return ring, nil
}

// Details reads what a record tells people. Anything that it does not
// understand or has no key for is ErrUnreadable.
func (k *Keyring) Details(id RecordID, r Record) (Details, error) {
	key, err := k.keyOf(r.Payload)
	if err != nil {
		return Details{}, err
	}
	return key.seal(id, r.Fingerprint).open(bytes.Clone(r.Payload))
}

// first returns the key of new records; nil leaves them readable.
func (k *Keyring) first() *encryptionKey {
	if k == nil {
		return nil
	}
	return k.keys[0]
}

// keyOf returns the key that a payload names; nil if it is readable.
func (k *Keyring) keyOf(payload []byte) (*encryptionKey, error) {
	if len(payload) == 0 || payload[0] != sealVersion {
		return nil, nil // DecodeDetails says if it is not understood
	}
	if k != nil {
		for _, key := range k.keys {
			if bytes.HasPrefix(payload, key.prefix) {
				return key, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: it is encrypted under a key that is not there", ErrUnreadable)
}

// recognise looks closer at a record with a fingerprint that the store found
// to be another one: under another key the same request has another. It returns
// the request's seal under the record's key if the record is of this request, and
// otherwise what the record tells of its own: then its payload is used up.
func (k *Keyring) recognise(s *Submit, r *Record) (same *seal, other Details, err error) {
	key, err := k.keyOf(r.Payload)
	if err != nil {
		return nil, Details{}, err
	}
	fingerprint := key.fingerprintOf(s.ID, s.Fingerprint)
	if hmac.Equal(fingerprint[:], r.Fingerprint[:]) {
		own := key.seal(s.ID, fingerprint)
		return &own, Details{}, nil
	}
	// Only a record that is whole can say that the key was used for another
	// request.
	other, err = key.seal(s.ID, r.Fingerprint).open(r.Payload)
	return nil, other, err
}

// The binary form of encrypted details. No readable payload begins so: those are
// CBOR maps.
//
//	offset  bytes  field
//	     0      1  version, 1
//	     1      8  name of the key
//	     9     12  nonce
//	    21         ciphertext, and a tag of 16 bytes
const (
	sealVersion = 1
	keyNameSize = 8
)

// encryptionKey is what is derived of one key. A nil encryptionKey leaves
// details and fingerprints as they are.
type encryptionKey struct {
	prefix       []byte // of every payload: version and name
	records      [recordKeys]cipher.AEAD
	fingerprints sync.Pool // of HMACs: to make one ready costs more than to use it
}

// recordKeys is how many keys the records of one encryption key share. They are
// ready because a key of AES costs more than a short answer.
const recordKeys = 1024

func newEncryptionKey(key []byte) (*encryptionKey, error) {
	secret, err := hkdf.Extract(sha256.New, key, nil)
	if err != nil {
		return nil, err
	}
	name, err := hkdf.Expand(sha256.New, secret, "idempotency name", keyNameSize)
	if err != nil {
		return nil, err
	}
	fingerprints, err := hkdf.Expand(sha256.New, secret, "idempotency fingerprints", sha256.Size)
	if err != nil {
		return nil, err
	}
	k := &encryptionKey{
		prefix:       append([]byte{sealVersion}, name...),
		fingerprints: sync.Pool{New: func() any { return hmac.New(sha256.New, fingerprints) }},
	}
	for i := range k.records {
		key, err := hkdf.Expand(sha256.New, secret, fmt.Sprint("idempotency records ", i), EncryptionKeySize)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		if k.records[i], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// fingerprintOf returns a request's fingerprint as it is stored.
func (k *encryptionKey) fingerprintOf(id RecordID, f Fingerprint) Fingerprint {
	if k == nil {
		return f
	}
	mac := k.fingerprints.Get().(hash.Hash)
	defer k.fingerprints.Put(mac)
	mac.Reset()
	_, _ = mac.Write([]byte(id)) // a hash.Hash never returns an error
	_, _ = mac.Write(f[:])
	mac.Sum(f[:0])
	return f
}

// seal returns the seal of a record with the given stored fingerprint.
func (k *encryptionKey) seal(id RecordID, stored Fingerprint) seal {
	if k == nil {
		return seal{fingerprint: stored}
	}
	return seal{
		fingerprint: stored,
		prefix:      k.prefix,
		associated:  slices.Concat(k.prefix, []byte(id), stored[:]),
		aead:        k.records[binary.BigEndian.Uint16(stored[:])/(1<<16/recordKeys)],
	}
}

// seal closes and opens the details of one record. Without a cipher they are
// readable.
type seal struct {
	fingerprint Fingerprint // of the request, as it is stored
	prefix      []byte
	associated  []byte
	aead        cipher.AEAD
}

// close returns the payload of a record.
func (s seal) close(d Details) ([]byte, error) {
	details, err := d.encode()
	if err != nil || s.aead == nil {
		return details, err
	}
	payload := make([]byte, len(s.prefix), len(s.prefix)+len(details)+s.aead.Overhead())
	copy(payload, s.prefix)
	return s.aead.Seal(payload, nil, details, s.associated), nil
}

// open reads the payload of a record, which must be under the same key. It
// decrypts in place: the payload is used up.
func (s seal) open(payload []byte) (Details, error) {
	if s.aead == nil {
		return DecodeDetails(payload)
	}
	sealed, found := bytes.CutPrefix(payload, s.prefix)
	if !found {
		return Details{}, fmt.Errorf("%w: its payload is not under the key of its fingerprint", ErrUnreadable)
	}
	details, err := s.aead.Open(sealed[:0], nil, sealed, s.associated)
	if err != nil {
		return Details{}, fmt.Errorf("%w: it was changed, or is another record's", ErrUnreadable)
	}
	return DecodeDetails(details)
}

package idempotency_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// encryptionKey returns a key that differs for each number.
func encryptionKey(n byte) []byte { return bytes.Repeat([]byte{n}, idempotency.EncryptionKeySize) }

// ringOf returns a ring of the keys with the numbers.
func ringOf(t testing.TB, numbers ...byte) *idempotency.Keyring {
	t.Helper()
	keys := make([][]byte, len(numbers))
	for i, n := range numbers {
		keys[i] = encryptionKey(n)
	}
	ring, err := idempotency.NewKeyring(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func under(ring *idempotency.Keyring) func(*idempotency.Policy) {
	return func(p *idempotency.Policy) { p.Keyring = ring }
}

func TestNewKeyring(t *testing.T) {
	if ring, err := idempotency.NewKeyring(); ring != nil || err != nil {
		t.Errorf("no keys give ring %v, %v; want nil", ring, err)
	}
	good := encryptionKey('g')
	tests := []struct {
		name string
		keys [][]byte
		want string
	}{
		{"empty", [][]byte{{}}, "key 1 has 0 bytes, and must have 32"},
		{"short", [][]byte{good, encryptionKey('s')[:31]}, "key 2 has 31 bytes, and must have 32"},
		{"long", [][]byte{append(encryptionKey('l'), 'l')}, "key 1 has 33 bytes, and must have 32"},
		{"twice", [][]byte{good, encryptionKey('x'), bytes.Clone(good)}, "key 3 is key 1 again"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := idempotency.NewKeyring(test.keys...)
			if err == nil || err.Error() != test.want {
				t.Errorf("NewKeyring gave error %v, want %s", err, test.want)
			}
		})
	}
}

// secretSubmit is a submit with a mark in everything that people could read.
func secretSubmit(key string) idempotency.Submit {
	s := submitOf(key)
	copy(s.Fingerprint[:], "mark-fingerprint-of-the-request-")
	s.Details = idempotency.Details{
		Namespace: "mark-namespace", Key: idempotency.Key("mark-" + key), Method: "mark-method", Path: "/mark-path",
	}
	return s
}

// Nothing of a request and nothing of an answer can be read in an encrypted
// record, and who has the key reads all of it.
func TestEncryptedRecord(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ring := ringOf(t, 1)
	p := policy(under(ring))
	stored := func(s idempotency.Submit) idempotency.Details {
		t.Helper()
		r, _ := h.get(s)
		if raw := marshal(t, r); bytes.Contains(raw, []byte("mark")) || bytes.Contains(raw, []byte("provider")) {
			t.Errorf("the %s record shows what it holds: %q", r.State, raw)
		}
		d, err := ring.Details(s.ID, r)
		if err != nil {
			t.Fatal(err)
		}
		if d.Key != s.Details.Key || d.Namespace != s.Details.Namespace || d.Path != s.Details.Path || d.Method != s.Details.Method {
			t.Errorf("the %s record has details %+v, want %+v", r.State, d, s.Details)
		}
		return d
	}

	s := secretSubmit("k")
	a := h.attempt(p, s)
	stored(s)
	h.conclude(a, accepted("mark-answer"), idempotency.ConcludedAccepted)
	if d := stored(s); d.Answer == nil || string(d.Answer.Body) != "mark-answer" {
		t.Errorf("the completed record has answer %+v", d.Answer)
	}
	lost := secretSubmit("lost")
	h.conclude(h.attempt(p, lost), idempotency.Result{Status: 500, Whole: true}, idempotency.ConcludedUnknown)
	if d := stored(lost); d.Error != "the provider answered with status 500" {
		t.Errorf("the uncertain record has error %q", d.Error)
	}

	// Equal requests and equal answers do not look alike.
	twin := secretSubmit("k-2")
	h.conclude(h.attempt(p, twin), accepted("mark-answer"), idempotency.ConcludedAccepted)
	r, _ := h.get(s)
	other, _ := h.get(twin)
	if r.Fingerprint == other.Fingerprint {
		t.Error("equal requests under two keys have one fingerprint")
	}
}

// The form that is documented, computed by other means.
func TestEncryptedForm(t *testing.T) {
	h := newHarness(t)
	ring, s := ringOf(t, 7), submitOf("k")
	h.conclude(h.attempt(policy(under(ring)), s), refusal, idempotency.ConcludedRefused)
	a := h.attempt(policy(under(ring)), s)
	r, _ := h.get(s)

	secret, _ := hkdf.Extract(sha256.New, encryptionKey(7), nil)
	derive := func(secret []byte, info string, n int) []byte {
		derived, err := hkdf.Expand(sha256.New, secret, info, n)
		if err != nil {
			t.Fatal(err)
		}
		return derived
	}
	mac := hmac.New(sha256.New, derive(secret, "idempotency fingerprints", 32))
	fmt.Fprintf(mac, "%s%s", s.ID, s.Fingerprint[:])
	if !bytes.Equal(mac.Sum(nil), r.Fingerprint[:]) {
		t.Error("the stored fingerprint is not the documented one")
	}
	prefix := append([]byte{1}, derive(secret, "idempotency name", 8)...)
	if !bytes.HasPrefix(r.Payload, prefix) {
		t.Fatalf("the payload begins with %x, want %x", r.Payload[:9], prefix)
	}
	group := int(r.Fingerprint[0])<<2 | int(r.Fingerprint[1])>>6
	block, err := aes.NewCipher(derive(secret, fmt.Sprint("idempotency records ", group), 32))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	associated := slices.Concat(prefix, []byte(s.ID), r.Fingerprint[:])
	details, err := gcm.Open(nil, r.Payload[9:21], r.Payload[21:], associated)
	if err != nil || !bytes.Equal(details, encodeCBOR(t, s.Details)) {
		t.Errorf("the payload holds %q, %v; want the details", details, err)
	}
	h.conclude(a, refusal, idempotency.ConcludedRefused)
}

// What was changed, cut, or taken from another record or another request cannot
// be read.
func TestEncryptedRecordChanged(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ring := ringOf(t, 1)
	p := policy(under(ring))
	s, twin := submitOf("s3cret"), submitOf("s3cret-2")
	h.conclude(h.attempt(p, s), accepted("s3cret"), idempotency.ConcludedAccepted)
	h.conclude(h.attempt(p, twin), accepted("s3cret"), idempotency.ConcludedAccepted)
	whole, _ := h.get(s)
	if _, err := ring.Details(s.ID, whole); err != nil {
		t.Fatal(err)
	}
	unreadable := func(what string, id idempotency.RecordID, r idempotency.Record) {
		t.Helper()
		d, err := ring.Details(id, r)
		if !errors.Is(err, idempotency.ErrUnreadable) || !reflect.DeepEqual(d, idempotency.Details{}) {
			t.Errorf("%s: Details gave %+v, %v; want ErrUnreadable", what, d, err)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error shows the record: %v", what, err)
		}
	}
	for i := range whole.Payload {
		changed := whole
		changed.Payload = bytes.Clone(whole.Payload)
		changed.Payload[i] ^= 1
		unreadable(fmt.Sprintf("byte %d changed", i), s.ID, changed)
		changed.Payload = whole.Payload[:i]
		unreadable(fmt.Sprintf("cut after byte %d", i), s.ID, changed)
	}
	for i := range whole.Fingerprint {
		changed := whole
		changed.Fingerprint[i] ^= 1
		unreadable(fmt.Sprintf("byte %d of the fingerprint changed", i), s.ID, changed)
	}
	unreadable("moved to another record", twin.ID, whole)
	foreign, _ := h.get(twin)
	foreign.Fingerprint = whole.Fingerprint
	unreadable("the payload of another record", s.ID, foreign)
}

// Only a record that is whole is replayed, or said to be another request's.
func TestEncryptedRecordSwapped(t *testing.T) {
	t.Parallel()
	p := policy(under(ringOf(t, 1)))
	s, twin := submitOf("k"), submitOf("k-2")
	writer := newHarness(t)
	a := writer.attempt(p, s)
	claimed, _ := writer.get(s)
	writer.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	whole, _ := writer.get(s)
	writer.conclude(writer.attempt(p, twin), accepted("answer"), idempotency.ConcludedAccepted)
	foreign, _ := writer.get(twin)

	with := func(payload []byte) idempotency.Record {
		r := whole
		r.Payload = payload
		return r
	}
	changed := bytes.Clone(whole.Payload)
	changed[len(changed)-1] ^= 1
	other := s
	other.Fingerprint[0]++
	tests := []struct {
		name    string
		record  idempotency.Record
		request idempotency.Submit
	}{
		{"another record's answer", with(foreign.Payload), s},
		{"another record's answer, other request", with(foreign.Payload), other},
		{"another record", foreign, s},
		{"one bit", with(changed), s},
		{"one bit, other request", with(changed), other},
		{"no answer", with(claimed.Payload), s},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "idempotency.db")
			h := newHarness(t, func(_ *idempotency.EngineConfig, c *embedded.Config) { c.Path = path })
			putValue(t, path, s.ID, marshal(t, test.record))
			a, err := h.engine.Begin(context.Background(), p, test.request)
			if !errors.Is(err, idempotency.ErrUnreadable) || !errors.Is(err, idempotency.ErrStoreUnavailable) || set(a) != 0 {
				t.Errorf("Begin gave %+v, %v; want ErrUnreadable", a, err)
			}
			if o := h.observed.so(); !slices.Equal(o.storeErrors, []string{"claim"}) {
				t.Errorf("observed store errors %v, want one of claim", o.storeErrors)
			}
		})
	}
}

// Records under any key of the ring, and from before there was one, are as good
// as those under the first. Records under other keys are errors.
func TestRotation(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name           string
		writer, reader []byte
		readable       bool
	}{
		{"no key", nil, nil, true},
		{"one key", []byte{1}, []byte{1}, true},
		{"encryption turned on", nil, []byte{1}, true},
		{"turned on with old keys", nil, []byte{1, 2}, true},
		{"rotated", []byte{1}, []byte{2, 1}, true},
		{"rotated twice", []byte{1}, []byte{3, 2, 1}, true},
		{"not rotated yet", []byte{2, 1}, []byte{1, 2}, true},
		{"next key not known yet", []byte{2, 1}, []byte{1}, false},
		{"old key dropped", []byte{1}, []byte{2}, false},
		{"encryption turned off", []byte{1}, nil, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			writer, reader := ringOf(t, test.writer...), ringOf(t, test.reader...)
			s := submitOf("k")
			// repeats sends the request and another one, under the reader's keys.
			repeats := func(want idempotency.Code, change ...func(*idempotency.Policy)) {
				t.Helper()
				p := policy(append(change, under(reader))...)
				other := s
				other.Fingerprint[0]++
				for _, r := range []idempotency.Submit{s, other} {
					before, _ := h.get(s)
					h.store.spoil("claim", nil)
					a, err := h.engine.Begin(context.Background(), p, r)
					if n := h.store.count("claim"); n != 1 {
						t.Errorf("a repeat cost %d claims", n)
					}
					if after, _ := h.get(s); !reflect.DeepEqual(after, before) {
						t.Errorf("a repeat changed the record from %+v to %+v", before, after)
					}
					expected := want
					if r == other {
						expected = idempotency.CodeReuse
					}
					switch {
					case !test.readable:
						if !errors.Is(err, idempotency.ErrUnreadable) || !errors.Is(err, idempotency.ErrStoreUnavailable) || set(a) != 0 {
							t.Errorf("Begin gave %+v, %v; want ErrUnreadable", a, err)
						}
					case err != nil:
						t.Errorf("Begin: %v", err)
					case expected == "":
						if a.Replay == nil || string(a.Replay.Body) != "answer" {
							t.Errorf("Begin gave %+v, want the replay", a)
						}
					case a.Problem == nil || a.Problem.Code != expected:
						t.Errorf("Begin gave %+v, want problem %s", a, expected)
					}
				}
				if r, found := h.get(s); found {
					if _, err := reader.Details(s.ID, r); errors.Is(err, idempotency.ErrUnreadable) == test.readable {
						t.Errorf("Details gave %v", err)
					}
				}
			}

			a := h.attempt(policy(under(writer)), s)
			repeats(idempotency.CodeInProgress)
			repeats(idempotency.CodeInProgress, resubmit)
			h.conclude(a, broken, idempotency.ConcludedUnknown)
			repeats(idempotency.CodeOutcomeUnknown)
			if test.readable {
				// Who takes the record over can give it back, and end it.
				h.store.spoil("claim", nil)
				h.conclude(h.attempt(policy(under(reader), resubmit), s), refusal, idempotency.ConcludedRefused)
				want := 2
				if bytes.Equal(test.writer[:min(1, len(test.writer))], test.reader[:min(1, len(test.reader))]) {
					want = 1
				}
				if n := h.store.count("claim"); n != want {
					t.Errorf("taking over cost %d claims, want %d", n, want)
				}
				repeats(idempotency.CodeOutcomeUnknown)
				h.conclude(h.attempt(policy(under(reader), resubmit), s), accepted("answer"), idempotency.ConcludedAccepted)
			} else {
				repeats("", resubmit)
				h.conclude(h.attempt(policy(under(writer), resubmit), s), accepted("answer"), idempotency.ConcludedAccepted)
			}
			repeats("")
			repeats("", resubmit)
			// The writer reads what the reader has made of it.
			if replay := h.begin(policy(under(writer)), s).Replay; replay == nil || string(replay.Body) != "answer" {
				t.Errorf("the writer gets %+v, want the replay", replay)
			}
		})
	}
}

// An attempt ends under the keys that it began with.
func TestKeysOfARunningAttempt(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(under(ringOf(t, 1))), s)
	rotated := policy(under(ringOf(t, 2, 1)))
	h.conclude(h.attempt(rotated, submitOf("k-2")), refusal, idempotency.ConcludedRefused)
	h.wantProblem(rotated, s, idempotency.CodeInProgress)
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	if admission := h.begin(rotated, s); admission.Replay == nil {
		t.Errorf("the repeat gets %+v, want the replay", admission)
	}
}

// A record under an old key that changes between the two claims of a take-over
// is not taken.
func TestTakeOverUnderOldKeyRace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(h *harness, a *idempotency.Attempt)
		want idempotency.Code // none: an error
	}{
		"in progress under the first key": {func(*harness, *idempotency.Attempt) {}, idempotency.CodeInProgress},
		"uncertain under the first key": {func(h *harness, a *idempotency.Attempt) {
			h.conclude(a, broken, idempotency.ConcludedUnknown)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			p := policy(under(ringOf(t, 2, 1)), resubmit)
			first := h.attempt(policy(under(ringOf(t, 1))), s)
			h.conclude(first, broken, idempotency.ConcludedUnknown)
			var meanwhile *idempotency.Attempt
			h.store.spoil("claim", func(call int) fault {
				if call != 2 {
					return nil
				}
				return func(ctx context.Context, apply func(context.Context) error) error {
					r, _, err := h.store.Store.Get(ctx, s.ID)
					if err != nil {
						return err
					}
					if _, err := h.store.Store.Release(ctx, s.ID, r.Token); err != nil {
						return err
					}
					meanwhile = h.attempt(p, s)
					test.end(h, meanwhile)
					return apply(ctx)
				}
			})
			a, err := h.engine.Begin(context.Background(), p, s)
			switch {
			case test.want == "":
				if !errors.Is(err, idempotency.ErrStoreUnavailable) || set(a) != 0 {
					t.Errorf("Begin gave %+v, %v; want ErrStoreUnavailable", a, err)
				}
			case err != nil || a.Problem == nil || a.Problem.Code != test.want:
				t.Errorf("Begin gave %+v, %v; want problem %s", a, err, test.want)
			}
			if test.want != "" {
				h.conclude(meanwhile, refusal, idempotency.ConcludedRefused)
			}
		})
	}
}

func FuzzEncryptedDetails(f *testing.F) {
	ring := ringOf(f, 1, 2)
	store := embedded.New(embedded.Config{Path: filepath.Join(f.TempDir(), "idempotency.db")})
	engine := idempotency.NewEngine(idempotency.EngineConfig{Store: store, StoreTimeout: patience})
	s := submitOf("k")
	admission, err := engine.Begin(context.Background(), policy(under(ring)), s)
	if err != nil {
		f.Fatal(err)
	}
	r, _, err := store.Get(context.Background(), s.ID)
	admission.Attempt.Conclude(refusal)
	engine.Drain(context.Background())
	engine.Close()
	if err := errors.Join(err, store.Close()); err != nil {
		f.Fatal(err)
	}
	sealed := r.Payload
	f.Add(sealed)
	f.Add(sealed[:9])
	f.Add(sealed[:36])
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add(encodeCBOR(f, sampleDetails))
	f.Fuzz(func(t *testing.T, payload []byte) {
		r := idempotency.Record{Fingerprint: r.Fingerprint, Payload: payload}
		d, err := ring.Details(s.ID, r)
		switch {
		case err != nil:
			if !errors.Is(err, idempotency.ErrUnreadable) {
				t.Errorf("error %v is not ErrUnreadable", err)
			}
			if len(err.Error()) > 100 {
				t.Errorf("the error is long: %v", err)
			}
		case payload[0] == 1 && !reflect.DeepEqual(d, s.Details): // the fuzzer's processes encrypt each for itself
			t.Errorf("%x was never encrypted, and holds %+v", payload, d)
		}
	})
}

package idempotency_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

func sampleRecord(state idempotency.State) idempotency.Record {
	r := idempotency.Record{
		State:      state,
		CreatedAt:  time.UnixMilli(1_700_000_000_001),
		ChangedAt:  time.UnixMilli(1_700_000_000_002),
		LeaseUntil: time.UnixMilli(1_700_000_030_003),
		Retention:  24 * time.Hour,
		Payload:    []byte("payload"),
	}
	for i := range r.Token {
		r.Token[i] = byte(0x10 + i)
	}
	for i := range r.Fingerprint {
		r.Fingerprint[i] = byte(0x80 + i)
	}
	return r
}

func marshal(t testing.TB, r idempotency.Record) []byte {
	t.Helper()
	data, err := r.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRecordRoundTrip(t *testing.T) {
	for _, state := range []idempotency.State{idempotency.InProgress, idempotency.Completed, idempotency.Uncertain} {
		for name, payload := range map[string][]byte{"payload": []byte("payload"), "empty": nil, "large": make([]byte, 1<<20)} {
			t.Run(state.String()+"/"+name, func(t *testing.T) {
				want := sampleRecord(state)
				want.Payload = payload
				data := marshal(t, want)
				var got idempotency.Record
				if err := got.UnmarshalBinary(data); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("record comes back as %+v, want %+v", got, want)
				}
				clear(data) // the record keeps no reference to it
				if !reflect.DeepEqual(got, want) {
					t.Error("the record changes with the bytes that it was read from")
				}
			})
		}
	}

	t.Run("appends", func(t *testing.T) {
		got, err := sampleRecord(idempotency.Completed).AppendBinary([]byte("before"))
		if want := append([]byte("before"), marshal(t, sampleRecord(idempotency.Completed))...); err != nil || !bytes.Equal(got, want) {
			t.Errorf("AppendBinary gave %q, %v; want %q", got, err, want)
		}
	})
}

// The binary form is shared with other programs and with records that were
// written before an upgrade.
func TestRecordBinaryForm(t *testing.T) {
	want := "01" + "63" +
		"101112131415161718191a1b1c1d1e1f" +
		"808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f" +
		"0000018bcfe56801" + "0000018bcfe56802" + "0000018bcfe5dd33" +
		"0000000005265c00" +
		hex.EncodeToString([]byte("payload"))
	if got := hex.EncodeToString(marshal(t, sampleRecord(idempotency.Completed))); got != want {
		t.Errorf("binary form is\n%s, want\n%s", got, want)
	}
}

func TestRecordUnreadable(t *testing.T) {
	valid := marshal(t, sampleRecord(idempotency.Completed))
	with := func(offset int, value byte) []byte {
		data := bytes.Clone(valid)
		data[offset] = value
		return data
	}
	tests := []struct {
		name string
		data []byte
	}{
		{"nothing", nil},
		{"one byte", valid[:1]},
		{"cut in the header", valid[:81]},
		{"text", []byte("OK")},
		{"long text", []byte(strings.Repeat("text ", 100))},
		{"version 0", with(0, 0)},
		{"later version", with(0, 2)},
		{"state 0", with(1, 0)},
		{"unknown state", with(1, 'x')},
		{"state in other case", with(1, 'C')},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			untouched := sampleRecord(idempotency.Uncertain)
			got := untouched
			if err := got.UnmarshalBinary(test.data); !errors.Is(err, idempotency.ErrUnreadable) {
				t.Errorf("UnmarshalBinary gave %v, want ErrUnreadable", err)
			}
			if !reflect.DeepEqual(got, untouched) {
				t.Error("an unreadable value changed the record")
			}
		})
	}
}

func TestStateAt(t *testing.T) {
	lease := sampleRecord(idempotency.InProgress).LeaseUntil
	tests := []struct {
		name  string
		state idempotency.State
		at    time.Time
		want  idempotency.State
	}{
		{"in progress, lease running", idempotency.InProgress, lease.Add(-time.Millisecond), idempotency.InProgress},
		{"in progress, lease just over", idempotency.InProgress, lease, idempotency.Uncertain},
		{"in progress, lease long over", idempotency.InProgress, lease.Add(time.Hour), idempotency.Uncertain},
		{"completed before the lease's end", idempotency.Completed, lease.Add(-time.Hour), idempotency.Completed},
		{"completed after the lease's end", idempotency.Completed, lease.Add(time.Hour), idempotency.Completed},
		{"uncertain before the lease's end", idempotency.Uncertain, lease.Add(-time.Hour), idempotency.Uncertain},
		{"uncertain after the lease's end", idempotency.Uncertain, lease.Add(time.Hour), idempotency.Uncertain},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := sampleRecord(test.state).StateAt(test.at); got != test.want {
				t.Errorf("state is %s, want %s", got, test.want)
			}
		})
	}
}

func TestExpiresAt(t *testing.T) {
	r := sampleRecord(idempotency.InProgress)
	for state, from := range map[idempotency.State]time.Time{
		idempotency.InProgress: r.LeaseUntil,
		idempotency.Completed:  r.ChangedAt,
		idempotency.Uncertain:  r.ChangedAt,
	} {
		if got, want := sampleRecord(state).ExpiresAt(), from.Add(r.Retention); !got.Equal(want) {
			t.Errorf("%s record expires at %s, want %s", state, got, want)
		}
	}
}

func TestStateString(t *testing.T) {
	for state, want := range map[idempotency.State]string{
		idempotency.InProgress: "in_progress", idempotency.Completed: "completed", idempotency.Uncertain: "uncertain", 7: "State(7)",
	} {
		if got := state.String(); got != want {
			t.Errorf("state is shown as %q, want %q", got, want)
		}
	}
}

func encodeCBOR(t testing.TB, v any) []byte {
	t.Helper()
	data, err := cbor.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var sampleDetails = idempotency.Details{
	Namespace: "namespace", Key: "key", Method: "POST", Path: "/v1/jobs", Error: "why",
	Answer: &idempotency.Answer{
		Status: 202, Header: http.Header{"Content-Type": {"application/json"}, "Link": {"a", "b"}},
		Body: []byte(`{"id":"job_1"}`), Unavailable: true, Replaced: []string{"X-Own"},
	},
}

func TestDecodeDetails(t *testing.T) {
	for name, want := range map[string]idempotency.Details{
		"all": sampleDetails, "none": {}, "no answer": {Key: "key"},
		"body of any bytes": {Answer: &idempotency.Answer{Status: 200, Body: []byte("\x00\xff")}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := idempotency.DecodeDetails(encodeCBOR(t, want))
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("details come back as %+v, %v; want %+v", got, err, want)
			}
		})
	}
}

func TestDecodeDetailsUnreadable(t *testing.T) {
	const secret = "s3cret-0123456789"
	answer := func(status any) []byte { return encodeCBOR(t, map[int]any{2: secret, 6: map[int]any{1: status}}) }
	valid := encodeCBOR(t, idempotency.Details{Key: secret, Answer: &idempotency.Answer{Status: 200, Body: []byte(secret)}})
	tests := []struct {
		name    string
		payload []byte
	}{
		{"nothing", nil},
		{"text", []byte(secret)},
		{"JSON", []byte(`{"key":"` + secret + `"}`)},
		{"CBOR text", encodeCBOR(t, secret)},
		{"array", encodeCBOR(t, []string{secret})},
		{"cut", valid[:len(valid)-1]},
		{"bytes after it", append(bytes.Clone(valid), secret...)},
		{"unknown member", encodeCBOR(t, map[int]any{2: secret, 99: 1})},
		{"unknown member by name", encodeCBOR(t, map[string]any{secret: 1})},
		{"unknown member of the answer", encodeCBOR(t, map[int]any{6: map[int]any{1: 200, 99: secret}})},
		{"member of another type", encodeCBOR(t, map[int]any{2: 1, 3: secret})},
		{"repeated member", []byte("\xa2\x02\x61a\x02\x61b")},
		{"indefinite length", []byte("\xbf\x02\x61a\xff")},
		{"tag", []byte("\xc1\xa0")},
		{"no status", answer(0)},
		{"status below 100", answer(99)},
		{"status above 999", answer(1000)},
		{"negative status", answer(-200)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := idempotency.DecodeDetails(test.payload)
			if !errors.Is(err, idempotency.ErrUnreadable) || !reflect.DeepEqual(got, idempotency.Details{}) {
				t.Fatalf("DecodeDetails gave %+v, %v; want ErrUnreadable", got, err)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error shows the payload: %v", err)
			}
		})
	}
}

func FuzzRecordUnmarshal(f *testing.F) {
	for _, state := range []idempotency.State{idempotency.InProgress, idempotency.Completed, idempotency.Uncertain, 0} {
		f.Add(marshal(f, sampleRecord(state)))
	}
	f.Add(marshal(f, idempotency.Record{State: idempotency.Completed}))
	f.Add([]byte{})
	f.Add([]byte("OK"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r idempotency.Record
		if err := r.UnmarshalBinary(data); err != nil {
			if !errors.Is(err, idempotency.ErrUnreadable) {
				t.Errorf("error %v is not ErrUnreadable", err)
			}
			return
		}
		if ms := int64(binary.BigEndian.Uint64(data[74:])); ms != r.Retention.Milliseconds() {
			return // more than a Duration holds
		}
		// Nothing of what was read is lost or invented.
		if again := marshal(t, r); !bytes.Equal(again, data) {
			t.Errorf("%x comes back as %x", data, again)
		}
		r.ExpiresAt()
		r.StateAt(time.Now())
	})
}

func FuzzDecodeDetails(f *testing.F) {
	f.Add(encodeCBOR(f, sampleDetails))
	f.Add(encodeCBOR(f, idempotency.Details{}))
	f.Add([]byte{})
	f.Add([]byte("\xa2\x02\x61a\x02\x61b"))
	f.Add([]byte("\xbf\x02\x61a\xff"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		d, err := idempotency.DecodeDetails(payload)
		if err != nil {
			if !errors.Is(err, idempotency.ErrUnreadable) {
				t.Errorf("error %v is not ErrUnreadable", err)
			}
			if len(err.Error()) > 100 || len(payload) > 20 && strings.Contains(err.Error(), string(payload)) {
				t.Errorf("the error shows the payload: %v", err)
			}
			return
		}
		again, err := idempotency.DecodeDetails(encodeCBOR(t, d))
		if err != nil {
			t.Fatalf("%+v cannot be read back: %v", d, err)
		}
		ordered := d.Answer == nil || len(d.Answer.Header) < 2 // a map has no order
		if ordered && !bytes.Equal(encodeCBOR(t, again), encodeCBOR(t, d)) {
			t.Errorf("%+v comes back as %+v", d, again)
		}
	})
}

// A retention that is no duration does not make a record that is absent.
func TestRecordRetentionUnreadable(t *testing.T) {
	for name, ms := range map[string]int64{"negative": -1, "lowest": math.MinInt64, "overflow": math.MaxInt64/1_000_000 + 1, "highest": math.MaxInt64} {
		t.Run(name, func(t *testing.T) {
			data := bytes.Clone(marshal(t, sampleRecord(idempotency.Completed)))
			binary.BigEndian.PutUint64(data[74:], uint64(ms))
			var r idempotency.Record
			if err := r.UnmarshalBinary(data); !errors.Is(err, idempotency.ErrUnreadable) {
				t.Errorf("UnmarshalBinary gave %v and a record that expires at %s, want ErrUnreadable", err, r.ExpiresAt())
			}
		})
	}
}

func TestDecodeDetailsNull(t *testing.T) {
	for _, payload := range [][]byte{{0xf6}, {0xf7}} {
		if d, err := idempotency.DecodeDetails(payload); !errors.Is(err, idempotency.ErrUnreadable) {
			t.Errorf("DecodeDetails(%x) gave %+v, %v; want ErrUnreadable", payload, d, err)
		}
	}
}

// A time that no date can say is not read: it could not be shown to anybody.
func TestRecordTimesUnreadable(t *testing.T) {
	ms := func(year int) int64 { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() }
	hour := time.Hour.Milliseconds()
	for _, test := range []struct {
		name       string
		state      idempotency.State
		field      int
		ms         int64
		unreadable bool
	}{
		{"created in the year 9135627", idempotency.Uncertain, 50, ms(9135627), true},
		{"created in the year 10000", idempotency.Uncertain, 50, ms(10000), true},
		{"created in the year 9999", idempotency.Uncertain, 50, ms(10000) - 1, false},
		{"created in the year 0", idempotency.Uncertain, 50, ms(0), false},
		{"created before the year 0", idempotency.Uncertain, 50, ms(0) - 1, true},
		{"changed in the year 10000", idempotency.InProgress, 58, ms(10000), true},
		{"changed in the year 9999", idempotency.InProgress, 58, ms(10000) - 1, false},
		{"lease until the year 10000", idempotency.Completed, 66, ms(10000), true},
		{"lease until the year 9999", idempotency.Completed, 66, ms(10000) - 1, false},
		{"expires in the year 10000", idempotency.Completed, 58, ms(10000) - hour, true},
		{"expires in the year 9999", idempotency.Completed, 58, ms(10000) - hour - 1, false},
		{"lease and retention until the year 10000", idempotency.InProgress, 66, ms(10000) - hour, true},
		{"the highest number", idempotency.Completed, 58, math.MaxInt64, true},
		{"the lowest number", idempotency.Completed, 58, math.MinInt64, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			sample := sampleRecord(test.state)
			sample.Retention = time.Hour
			data := marshal(t, sample)
			binary.BigEndian.PutUint64(data[test.field:], uint64(test.ms))
			var r idempotency.Record
			err := r.UnmarshalBinary(data)
			if errors.Is(err, idempotency.ErrUnreadable) != test.unreadable {
				t.Fatalf("UnmarshalBinary gave %v", err)
			}
			for _, at := range []time.Time{r.CreatedAt, r.ChangedAt, r.LeaseUntil, r.ExpiresAt()} {
				if _, err := at.UTC().MarshalJSON(); err != nil {
					t.Errorf("a time cannot be shown: %v", err)
				}
			}
		})
	}
}

package idempotency

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// State is what a record says about its key. Absence is not a State: it is
// the lack of a record.
type State byte

const (
	// InProgress: an attempt was claimed and has not ended. Once its lease is
	// over the record counts as Uncertain, see Record.StateAt.
	InProgress State = 'p'
	// Completed: the provider accepted; the answer is in the record.
	Completed State = 'c'
	// Uncertain: the submit was sent and no trustworthy answer came back.
	Uncertain State = 'u'
)

// String returns the state as operators read it.
func (s State) String() string {
	switch s {
	case InProgress:
		return "in_progress"
	case Completed:
		return "completed"
	case Uncertain:
		return "uncertain"
	default:
		return fmt.Sprintf("State(%d)", byte(s))
	}
}

// Record is what a store holds for one key. Its fixed fields are what the
// stores decide by; what people and replays read is in Payload, which stores
// do not look into. Times are the store's clock, in whole milliseconds.
type Record struct {
	State State
	// Resubmitted: the record is in progress for an attempt that took it over
	// from another one, whose outcome is unknown.
	Resubmitted bool
	// Token of the attempt that the record belongs to; zero if it is nobody's.
	Token Token
	// Fingerprint of the request; keyed if the record is encrypted.
	Fingerprint Fingerprint
	// CreatedAt is when the record's first attempt was claimed.
	CreatedAt time.Time
	// ChangedAt is when the record came into its state.
	ChangedAt time.Time
	// LeaseUntil is how long the attempt is believed alive. It is kept as it
	// was when the record leaves InProgress.
	LeaseUntil time.Time
	// Retention is how long the record lives after its last transition.
	Retention time.Duration
	// Payload is an encoded Details, encrypted if there is a Keyring.
	Payload []byte
}

// StateAt returns the state at a moment of the store's clock: an attempt
// whose lease is over is uncertain, because nobody can tell whether it was
// sent, even before anything writes so.
func (r Record) StateAt(now time.Time) State {
	if r.State == InProgress && !now.Before(r.LeaseUntil) {
		return Uncertain
	}
	return r.State
}

// ExpiresAt returns when the record vanishes. The end of a lease is a
// transition like any other, so the retention of an attempt that is never
// heard of again is counted from there.
func (r Record) ExpiresAt() time.Time {
	if r.State == InProgress {
		return r.LeaseUntil.Add(r.Retention)
	}
	return r.ChangedAt.Add(r.Retention)
}

// The binary form of a record, which the Redis scripts build and read too
// (store/redis/lua/record.lua): a fixed header, then the payload.
//
//	offset  bytes  field
//	     0      1  version, 1
//	     1      1  state: p, c or u; r for in progress and resubmitted
//	     2     16  token
//	    18     32  fingerprint
//	    50      8  created at, Unix milliseconds, big endian
//	    58      8  changed at
//	    66      8  lease until
//	    74      8  retention, milliseconds
//	    82         payload
const (
	recordVersion    = 1
	resubmittedState = 'r'

	// RecordHeaderSize is how many bytes of the binary form come before the
	// payload. They read as a record without one.
	RecordHeaderSize = 82
)

// AppendBinary appends the binary form of r to b.
func (r Record) AppendBinary(b []byte) ([]byte, error) {
	state := byte(r.State)
	if r.State == InProgress && r.Resubmitted {
		state = resubmittedState
	}
	b = append(b, recordVersion, state)
	b = append(b, r.Token[:]...)
	b = append(b, r.Fingerprint[:]...)
	for _, ms := range []int64{
		r.CreatedAt.UnixMilli(), r.ChangedAt.UnixMilli(), r.LeaseUntil.UnixMilli(), r.Retention.Milliseconds(),
	} {
		b = binary.BigEndian.AppendUint64(b, uint64(ms))
	}
	return append(b, r.Payload...), nil
}

// UnmarshalBinary reads the binary form. Anything that it does not understand
// is ErrUnreadable. The record keeps no reference to data.
func (r *Record) UnmarshalBinary(data []byte) error {
	if len(data) < RecordHeaderSize {
		return fmt.Errorf("%w: it has %d bytes, fewer than its header", ErrUnreadable, len(data))
	}
	if data[0] != recordVersion {
		return fmt.Errorf("%w: it has version %d, and this gateway reads version %d", ErrUnreadable, data[0], recordVersion)
	}
	state := State(data[1])
	resubmitted := data[1] == resubmittedState
	if resubmitted {
		state = InProgress
	}
	switch state {
	case InProgress, Completed, Uncertain:
	default:
		return fmt.Errorf("%w: its state is %d", ErrUnreadable, data[1])
	}
	milliseconds := func(offset int) int64 { return int64(binary.BigEndian.Uint64(data[offset:])) }
	if ms := milliseconds(74); ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return fmt.Errorf("%w: its retention is no duration", ErrUnreadable)
	}
	record := Record{
		State:       state,
		Resubmitted: resubmitted,
		Token:       Token(data[2:18]),
		Fingerprint: Fingerprint(data[18:50]),
		CreatedAt:   time.UnixMilli(milliseconds(50)),
		ChangedAt:   time.UnixMilli(milliseconds(58)),
		LeaseUntil:  time.UnixMilli(milliseconds(66)),
		Retention:   time.Duration(milliseconds(74)) * time.Millisecond,
	}
	for _, t := range []time.Time{record.CreatedAt, record.ChangedAt, record.LeaseUntil, record.ExpiresAt()} {
		if t.Before(firstTime) || t.After(lastTime) {
			return fmt.Errorf("%w: it has a time that is no date", ErrUnreadable)
		}
	}
	record.Payload = append([]byte(nil), data[RecordHeaderSize:]...)
	*r = record
	return nil
}

// The times that a record may have are those that RFC 3339 can write: years 0
// to 9999.
var (
	firstTime = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Millisecond)
)

package embedded

import (
	"bytes"
	"context"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// scanSize bounds how many records one Scan reads: a transaction that
// reads for long keeps pages from being used again, and makes a write that
// has to grow the file wait.
const scanSize = 1000

var (
	recordsBucket = []byte("records") // record id -> record
	// expiryBucket: when to look whether a record has expired, in Unix ms, big
	// endian, and the record's id -> for how many ms, big endian, to keep a record
	// that cannot be read then. Each record has an entry, and the record decides: so
	// that hardly anything but what makes and removes a record writes here, the
	// first look is at the earliest moment that can be its end. An entry of an
	// earlier version has no value.
	expiryBucket = []byte("expiry")

	recordBuckets = [][]byte{recordsBucket, expiryBucket}
)

// Now returns the machine's clock, and opens the file if it is not open.
func (s *Store) Now(context.Context) (time.Time, error) {
	_, err := s.open()
	return s.now().Truncate(time.Millisecond), err
}

// Claim implements idempotency.Store. One that is not granted changes nothing
// and waits for no commit.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.ClaimReply, error) {
	file, err := s.open()
	if err != nil {
		return idempotency.ClaimReply{}, err
	}
	var reply idempotency.ClaimReply
	err = s.lookAt(file, func(tx *bolt.Tx, now time.Time) error {
		r := recordsAt(tx, now)
		record, found, err := r.get(c.ID)
		if err != nil {
			return err
		}
		reply = judge(c, record, found, r.now)
		return nil
	})
	if err != nil {
		return idempotency.ClaimReply{}, err
	}
	switch reply.Verdict {
	case idempotency.AlreadyCompleted, idempotency.StillInProgress, idempotency.AlreadyUncertain, idempotency.OtherRequest:
		return reply, nil
	case idempotency.Claimed, idempotency.TooLate: // decided when it is its turn to be written
	}
	return changeRecords(ctx, s, func(r *records) (idempotency.ClaimReply, error) { return claim(r, c) })
}

// judge decides a claim by the record that there is.
func judge(c idempotency.Claim, record idempotency.Record, found bool, now time.Time) idempotency.ClaimReply {
	reply := idempotency.ClaimReply{Now: now}
	if found && !isMine(c, record) {
		switch state := record.StateAt(now); {
		case record.Fingerprint != c.Fingerprint:
			reply.Verdict, reply.Record = idempotency.OtherRequest, record
			return reply
		case state == idempotency.Completed:
			reply.Verdict, reply.Record = idempotency.AlreadyCompleted, record
			return reply
		case state == idempotency.InProgress:
			reply.Verdict, reply.Record = idempotency.StillInProgress, record
			return reply
		case !c.TakeOver:
			reply.Verdict, reply.Record = idempotency.AlreadyUncertain, record
			return reply
		}
	}
	if now.After(c.NotAfter) {
		reply.Verdict = idempotency.TooLate
		return reply
	}
	reply.Verdict = idempotency.Claimed
	reply.TookOver = found && (!isMine(c, record) || record.Resubmitted)
	return reply
}

// isMine reports whether the claim was granted before.
func isMine(c idempotency.Claim, record idempotency.Record) bool {
	return record.Token == c.Token && record.State == idempotency.InProgress
}

func claim(r *records, c idempotency.Claim) (idempotency.ClaimReply, error) {
	record, found, err := r.get(c.ID)
	if err != nil {
		return idempotency.ClaimReply{}, err
	}
	reply := judge(c, record, found, r.now)
	if reply.Verdict != idempotency.Claimed {
		return reply, nil
	}
	claimed := idempotency.Record{
		State:       idempotency.InProgress,
		Token:       c.Token,
		Fingerprint: c.Fingerprint,
		CreatedAt:   r.now,
		ChangedAt:   r.now,
		LeaseUntil:  r.now.Add(c.Lease),
		Retention:   c.Retention,
		Payload:     c.Payload,
	}
	if found {
		claimed.CreatedAt, claimed.Resubmitted = record.CreatedAt, reply.TookOver
		return reply, r.replace(c.ID, record, claimed)
	}
	return reply, r.create(c.ID, claimed)
}

// Renew implements idempotency.Store. The renewals share one commit.
func (s *Store) Renew(ctx context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	return changeRecords(ctx, s, func(r *records) ([]idempotency.Reply, error) {
		replies := make([]idempotency.Reply, len(renewals))
		for i, renewal := range renewals {
			replies[i].Now = r.now
			record, found, err := r.get(renewal.ID)
			if err != nil {
				continue // one record that cannot be read must not cost the others their lease
			}
			if !found || record.Token != renewal.Token || record.StateAt(r.now) != idempotency.InProgress {
				continue
			}
			record.LeaseUntil = r.now.Add(renewal.Lease)
			if err := r.put(renewal.ID, record); err != nil {
				return nil, err
			}
			replies[i].Applied = true
		}
		return replies, nil
	})
}

// Complete implements idempotency.Store.
func (s *Store) Complete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.end(ctx, e.ID, e.Token, func(r *records, record idempotency.Record) (bool, error) {
		if record.State == idempotency.Completed {
			return true, nil
		}
		record.State, record.ChangedAt, record.Payload = idempotency.Completed, r.now, e.Payload
		return true, r.put(e.ID, record)
	})
}

// MarkUncertain implements idempotency.Store.
func (s *Store) MarkUncertain(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.end(ctx, e.ID, e.Token, func(r *records, record idempotency.Record) (bool, error) {
		if record.State != idempotency.InProgress {
			return record.State == idempotency.Uncertain, nil
		}
		record.State, record.ChangedAt, record.Payload = idempotency.Uncertain, r.now, e.Payload
		return true, r.put(e.ID, record)
	})
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return s.end(ctx, id, token, func(r *records, record idempotency.Record) (bool, error) {
		if record.State == idempotency.Completed {
			return false, nil
		}
		if record.Resubmitted {
			record.State, record.Resubmitted = idempotency.Uncertain, false
			record.Token, record.ChangedAt = idempotency.Token{}, r.now
			return true, r.put(id, record)
		}
		return true, r.delete(id, record)
	})
}

// DecideComplete implements idempotency.Store.
func (s *Store) DecideComplete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.end(ctx, e.ID, e.Token, func(r *records, record idempotency.Record) (bool, error) {
		if record.StateAt(r.now) != idempotency.Uncertain {
			return false, nil
		}
		record.State, record.Resubmitted, record.Token = idempotency.Completed, false, idempotency.Token{}
		record.ChangedAt, record.Payload = r.now, e.Payload
		return true, r.put(e.ID, record)
	})
}

// DecideRelease implements idempotency.Store.
func (s *Store) DecideRelease(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return s.end(ctx, id, token, func(r *records, record idempotency.Record) (bool, error) {
		if record.StateAt(r.now) != idempotency.Uncertain {
			return false, nil
		}
		return true, r.delete(id, record)
	})
}

// end carries out a transition on a record that has the token.
func (s *Store) end(
	ctx context.Context, id idempotency.RecordID, token idempotency.Token,
	transition func(*records, idempotency.Record) (applied bool, err error),
) (idempotency.Reply, error) {
	return changeRecords(ctx, s, func(r *records) (idempotency.Reply, error) {
		reply := idempotency.Reply{Now: r.now}
		record, found, err := r.get(id)
		if err != nil || !found || record.Token != token {
			return reply, err
		}
		reply.Applied, err = transition(r, record)
		return reply, err
	})
}

// Get implements idempotency.Store.
func (s *Store) Get(_ context.Context, id idempotency.RecordID) (idempotency.Record, bool, error) {
	file, err := s.open()
	if err != nil {
		return idempotency.Record{}, false, err
	}
	var record idempotency.Record
	var found bool
	err = file.read(file.begin, func(tx *bolt.Tx) error {
		var err error
		record, found, err = s.view(tx).get(id)
		return err
	})
	return record, found, err
}

// Scan implements idempotency.Store. A page is one transaction; the cursor is
// the last record id that it has read.
func (s *Store) Scan(_ context.Context, cursor string) (idempotency.ScanPage, error) {
	if cursor != "" && !idempotency.RecordID(cursor).Valid() {
		return idempotency.ScanPage{}, fmt.Errorf("%w: the cursor is not one of this store's", idempotency.ErrNotApplied)
	}
	file, err := s.open()
	if err != nil {
		return idempotency.ScanPage{}, err
	}
	var page idempotency.ScanPage
	err = file.read(file.begin, func(tx *bolt.Tx) error {
		page = s.view(tx).scan(cursor)
		return nil
	})
	return page, err
}

// scan reads the records that come after an id.
func (r *records) scan(after string) (page idempotency.ScanPage) {
	c := r.byID.Cursor()
	key, value := c.Seek([]byte(after))
	if key != nil && string(key) == after {
		key, value = c.Next()
	}
	for range scanSize {
		if key == nil {
			return page
		}
		id := idempotency.RecordID(key)
		var record idempotency.Record
		if err := record.UnmarshalBinary(value[:min(len(value), idempotency.RecordHeaderSize)]); err != nil {
			page.Unreadable = append(page.Unreadable, id)
		} else if r.now.Before(record.ExpiresAt()) {
			page.Headers = append(page.Headers, idempotency.Header{ID: id, Record: record})
		}
		page.Next = string(id)
		key, value = c.Next()
	}
	if key == nil {
		page.Next = ""
	}
	return page
}

// records are the buckets within one transaction, at one moment.
type records struct {
	byID, byExpiry *bolt.Bucket
	now            time.Time
}

// changeRecords is change for the records.
func changeRecords[T any](ctx context.Context, s *Store, f func(*records) (T, error)) (T, error) {
	return change(ctx, &s.database, func(tx *bolt.Tx, now time.Time) (T, error) { return f(recordsAt(tx, now)) })
}

func (s *Store) view(tx *bolt.Tx) *records { return recordsAt(tx, s.moment()) }

func recordsAt(tx *bolt.Tx, now time.Time) *records {
	return &records{tx.Bucket(recordsBucket), tx.Bucket(expiryBucket), now}
}

// get returns the record, if there is one that has not expired.
func (r *records) get(id idempotency.RecordID) (idempotency.Record, bool, error) {
	record, found, err := r.stored(id)
	if err != nil || !found || !r.now.Before(record.ExpiresAt()) {
		return idempotency.Record{}, false, err
	}
	return record, true, nil
}

func (r *records) stored(id idempotency.RecordID) (idempotency.Record, bool, error) {
	value := r.byID.Get([]byte(id))
	if value == nil {
		return idempotency.Record{}, false, nil
	}
	var record idempotency.Record
	if err := record.UnmarshalBinary(value); err != nil {
		return idempotency.Record{}, false, &idempotency.UnreadableError{Seen: idempotency.DigestOf(value), Err: err}
	}
	return record, true, nil
}

// put writes a record over the one that is there.
func (r *records) put(id idempotency.RecordID, record idempotency.Record) error {
	value, err := record.AppendBinary(make([]byte, 0, idempotency.RecordHeaderSize+len(record.Payload)))
	if err != nil {
		return err
	}
	return r.byID.Put([]byte(id), value)
}

// create writes the first record of a key.
func (r *records) create(id idempotency.RecordID, record idempotency.Record) error {
	if err := r.put(id, record); err != nil {
		return err
	}
	return r.byExpiry.Put(firstLook(id, record), keepUnreadable(record))
}

// replace writes a record over one that may have another retention.
func (r *records) replace(id idempotency.RecordID, before, after idempotency.Record) error {
	if err := r.put(id, after); err != nil {
		return err
	}
	was, is := firstLook(id, before), firstLook(id, after)
	if bytes.Equal(was, is) {
		return nil
	}
	if err := r.byExpiry.Delete(was); err != nil {
		return err
	}
	return r.byExpiry.Put(is, keepUnreadable(after))
}

// delete removes a record. An entry that a look has moved stays behind until it
// is due.
func (r *records) delete(id idempotency.RecordID, record idempotency.Record) error {
	if err := r.byID.Delete([]byte(id)); err != nil {
		return err
	}
	return r.byExpiry.Delete(firstLook(id, record))
}

package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// sweepSize bounds how many records one commit of the sweeper deletes, so
// that it holds the file for a few milliseconds at most.
const sweepSize = 256

// unknownRetention is how long a record is kept that cannot be read, and whose
// entry does not say.
const unknownRetention = 24 * time.Hour

// firstLook is the expiry entry that a record gets when it is made, and when it
// is taken over with another retention: no record ends before its retention is
// over, counted from when it was made.
func firstLook(id idempotency.RecordID, record idempotency.Record) []byte {
	// As precise as it is stored, so that the entry can be found again.
	return expiryKey(record.CreatedAt.Add(record.Retention.Truncate(time.Millisecond)), id)
}

func expiryKey(at time.Time, id idempotency.RecordID) []byte {
	return append(milliseconds(at.UnixMilli()), id...)
}

func milliseconds(ms int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(ms)) }

// keepUnreadable is the value of a record's expiry entry. What cannot be read
// does not say when it has changed. That was before the look at the latest, so
// its retention, after a lease, is over this much later.
func keepUnreadable(record idempotency.Record) []byte {
	lease := max(0, record.LeaseUntil.Sub(record.ChangedAt))
	return milliseconds(lease.Milliseconds() + record.Retention.Milliseconds())
}

// sweepLoop deletes expired records until Close.
func (s *Store) sweepLoop() {
	ticker := time.NewTicker(s.sweep)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.done:
			return
		}
		// Each commit deletes a few, and lets the traffic in between. An error is
		// met again by the next request, and reported there.
		for {
			swept, err := changeRecords(context.Background(), s, func(r *records) (int, error) { return r.sweep(sweepSize) })
			if err != nil || swept < sweepSize {
				break
			}
		}
	}
}

// sweep looks at up to n entries of the expiry bucket that are due, deletes
// the records that have expired, and returns how many entries it has looked at.
// One that lives is looked at again at its end, and one that cannot be read once
// more, when its retention must be over.
func (r *records) sweep(n int) (int, error) {
	type entry struct {
		key  []byte
		keep int64 // milliseconds
	}
	due := make([]entry, 0, n)
	cursor := r.byExpiry.Cursor()
	for key, value := cursor.First(); key != nil && len(due) < n; key, value = cursor.Next() {
		if len(key) < 8 || time.UnixMilli(int64(binary.BigEndian.Uint64(key))).After(r.now) {
			break
		}
		keep := unknownRetention.Milliseconds()
		if len(value) == 8 {
			keep = int64(binary.BigEndian.Uint64(value))
		}
		due = append(due, entry{append([]byte(nil), key...), keep})
	}
	for _, e := range due {
		id := idempotency.RecordID(e.key[8:])
		record, found, err := r.stored(id)
		switch {
		case errors.Is(err, idempotency.ErrUnreadable) && e.keep > 0:
			err = r.byExpiry.Put(append(milliseconds(r.now.UnixMilli()+e.keep), id...), milliseconds(0))
		case errors.Is(err, idempotency.ErrUnreadable):
			err = r.byID.Delete(e.key[8:])
		case err != nil || !found:
		case r.now.Before(record.ExpiresAt()):
			err = r.byExpiry.Put(expiryKey(record.ExpiresAt(), id), keepUnreadable(record))
		default:
			err = r.byID.Delete(e.key[8:])
		}
		if err != nil {
			return 0, err
		}
		if err := r.byExpiry.Delete(e.key); err != nil {
			return 0, err
		}
	}
	return len(due), nil
}

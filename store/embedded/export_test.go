package embedded

import (
	"context"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Corrupt puts a value under a record's name.
func Corrupt(s *Store, id idempotency.RecordID, value []byte) error {
	file, err := s.open()
	if err != nil {
		return err
	}
	return file.update(func(tx *bolt.Tx) error {
		return tx.Bucket(recordsBucket).Put([]byte(id), value)
	})
}

// Stored returns the number of records and of expiry entries in the file.
func Stored(s *Store) (n [2]int) {
	_ = s.file.db.View(func(tx *bolt.Tx) error {
		n = [2]int{tx.Bucket(recordsBucket).Stats().KeyN, tx.Bucket(expiryBucket).Stats().KeyN}
		return nil
	})
	return n
}

// DiskWrites returns the number of writes to the file, of which each commit
// takes at least two.
func DiskWrites(s *Store) int64 {
	stats := s.file.db.Stats()
	return stats.TxStats.GetWrite()
}

// Unsync makes the store forget that its last commit is on the disk.
func Unsync(s *Store) { s.commits.end(0, true) }

// Sweep does what the sweeper does now and then, for all that is due.
func Sweep(s *Store) {
	_, _ = changeRecords(context.Background(), s, func(r *records) (int, error) { return r.sweep(1 << 20) })
}

// ForgetLastTry lets the file be opened again at once.
func ForgetLastTry(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openedAt = time.Time{}
}

// DuringCommit calls f in the middle of a commit that changes a record, and
// returns what the commit gives.
func DuringCommit(s *Store, c idempotency.Claim, f func()) error {
	_, err := changeRecords(context.Background(), s, func(r *records) (idempotency.ClaimReply, error) {
		f()
		return claim(r, c)
	})
	return err
}

// DuringRead calls f in the middle of a transaction that reads a record then.
func DuringRead(s *Store, id idempotency.RecordID, f func()) error {
	file, err := s.open()
	if err != nil {
		return err
	}
	return file.read(file.begin, func(tx *bolt.Tx) error {
		f()
		_, _, err := s.view(tx).get(id)
		return err
	})
}

// BeginAfter begins a transaction that reads on a file that f changes when it
// has just been looked at.
func BeginAfter(s *Store, f func()) error {
	return guarded(func() error {
		tx, err := s.file.beginAfter(func() error { f(); return nil })
		if err != nil {
			return err
		}
		return s.file.finish(tx)
	})
}

// StripExpiry takes the values of the expiry entries away, as an earlier version
// wrote them.
func StripExpiry(s *Store) error {
	return s.file.update(func(tx *bolt.Tx) error {
		b := tx.Bucket(expiryBucket)
		return b.ForEach(func(key, _ []byte) error { return b.Put(append([]byte(nil), key...), nil) })
	})
}

// AddBucket lets the file have one bucket more. It is called before the first use.
func AddBucket(s *Store, name string) {
	s.buckets = append(s.buckets[:len(s.buckets):len(s.buckets)], []byte(name))
}

// PutInto commits a value in a bucket, and returns it as it is read then.
func PutInto(s *Store, bucket, key, value string) (read string, err error) {
	_, err = change(context.Background(), &s.database, func(tx *bolt.Tx, _ time.Time) (struct{}, error) {
		return struct{}{}, tx.Bucket([]byte(bucket)).Put([]byte(key), []byte(value))
	})
	if err != nil {
		return "", err
	}
	err = s.lookAt(s.file, func(tx *bolt.Tx, _ time.Time) error {
		read = string(tx.Bucket([]byte(bucket)).Get([]byte(key)))
		return nil
	})
	return read, err
}

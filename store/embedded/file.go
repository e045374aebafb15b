package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

const (
	// lockTimeout is how long opening waits for another process to let go of
	// the file.
	lockTimeout = 100 * time.Millisecond
	// reopenInterval is how long a failure to open the file is remembered, so
	// that a burst of requests does not queue up behind the lock.
	reopenInterval = time.Second
)

// open returns the file, and opens it if it is not open. One that is lost stays
// open: whether to go on with what is under its path is not for the store to
// decide.
func (s *Store) open() (*guardedFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		return s.file, nil
	}
	if s.closed {
		return nil, fmt.Errorf("%w: embedded store is closed", idempotency.ErrNotApplied)
	}
	if s.openErr != nil && time.Since(s.openedAt) < reopenInterval {
		return nil, s.openErr
	}
	var damaged *damagedError
	if errors.As(s.openErr, &damaged) && damaged.lasts() {
		s.openedAt = time.Now()
		return nil, s.openErr
	}
	file, err := openFile(s.path, s.report)
	s.openedAt = time.Now()
	if err != nil {
		s.openErr = fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
		return nil, s.openErr
	}
	s.file, s.openErr = file, nil
	s.work.Go(func() { s.commitLoop(file) })
	s.work.Go(s.sweepLoop)
	return file, nil
}

// openFile opens the database, and makes what it lacks.
func openFile(path string, report func(idempotency.Finding, bool)) (*guardedFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create directory of embedded store: %w", err)
	}
	db, file, err := openBolt(path)
	var damaged *damagedError
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("embedded store %s is in use by another process: the file can be used by one gateway at a time", path)
	case errors.As(err, &damaged):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("open embedded store %s: %w", path, err)
	}
	f, err := guard(db, file, path, report)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open embedded store %s: %w", path, err), db.Close())
	}
	created := false
	err = f.update(func(tx *bolt.Tx) error {
		if tx.Size() > f.size {
			return &panicError{fmt.Sprintf("it has %d bytes of %d", f.size, tx.Size())}
		}
		created = tx.Bucket(recordsBucket) == nil
		if _, err := tx.CreateBucketIfNotExists(recordsBucket); err != nil {
			return err
		}
		_, err := tx.CreateBucketIfNotExists(expiryBucket)
		return err
	})
	var broken *panicError
	switch {
	case errors.As(err, &broken):
		damaged := &damagedError{path: path, reason: broken.reason}
		var statErr error
		damaged.was, statErr = file.Stat()
		return nil, errors.Join(damaged, statErr, f.close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("prepare embedded store %s: %w", path, err), f.close())
	}
	if created {
		report(findingOf(path, Created,
			"if there was a file before, its records are lost, and a repeat of their submit is sent again"), true)
	}
	return f, nil
}

// openBolt is bolt.Open for a file that may be damaged: bbolt panics then, and
// leaves the file open and locked.
func openBolt(path string) (db *bolt.DB, file *os.File, err error) {
	err = guarded(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout: lockTimeout,
			OpenFile: func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
				file, err = os.OpenFile(name, flag, mode)
				return file, err
			},
		})
		return err
	})
	var broken *panicError
	if !errors.As(err, &broken) {
		return db, file, err
	}
	damaged := &damagedError{path: path, reason: broken.reason}
	if file == nil {
		return nil, nil, damaged
	}
	var statErr error
	damaged.was, statErr = file.Stat()
	return nil, nil, errors.Join(damaged, statErr, unlock(file), file.Close())
}

// damagedError means that bbolt panicked on the file.
type damagedError struct {
	path   string
	reason any
	was    os.FileInfo // nil if it is not known
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("embedded store %s is damaged: %v", e.path, e.reason)
}

// lasts reports whether the file is as it was. The same file is not tried
// again: each try leaves its bytes mapped into memory for good.
func (e *damagedError) lasts() bool {
	is, err := os.Stat(e.path)
	return err == nil && e.was != nil && os.SameFile(is, e.was) &&
		is.Size() == e.was.Size() && is.ModTime().Equal(e.was.ModTime())
}

package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// openFile opens the database, and makes what it lacks.
func openFile(path string) (*bolt.DB, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create directory of embedded store: %w", err)
	}
	db, err := openBolt(path)
	var damaged *damagedError
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("embedded store %s is in use by another process: the file can be used by one gateway at a time", path)
	case errors.As(err, &damaged):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("open embedded store %s: %w", path, err)
	}
	err = update(db, func(tx *bolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists(recordsBucket); err != nil {
			return err
		}
		_, err := tx.CreateBucketIfNotExists(expiryBucket)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare embedded store %s: %w", path, err), db.Close())
	}
	return db, nil
}

// openBolt is bolt.Open for a file that may be damaged: bbolt panics then, and
// leaves the file open and locked.
func openBolt(path string) (db *bolt.DB, err error) {
	var file *os.File
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		damaged := &damagedError{path: path, reason: p}
		db, err = nil, damaged
		if file == nil {
			return
		}
		var statErr error
		damaged.was, statErr = file.Stat()
		err = errors.Join(err, statErr, unlock(file), file.Close())
	}()
	return bolt.Open(path, 0o600, &bolt.Options{
		Timeout: lockTimeout,
		OpenFile: func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
			file, err = os.OpenFile(name, flag, mode)
			return file, err
		},
	})
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

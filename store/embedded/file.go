package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

// database is the file, and the transactions on it, whatever is in them. Each of
// its tenants has its own buckets.
type database struct {
	path    string
	buckets [][]byte
	loops   []func() // run from when the file is open until done is closed
	now     func() time.Time
	report  func(f idempotency.Finding, present bool)

	mu       sync.Mutex
	file     *guardedFile
	openErr  error
	openedAt time.Time // last try
	closed   bool

	commits commits

	writes chan *write
	done   chan struct{} // closed by close
	work   sync.WaitGroup
}

// open returns the file, and opens it if it is not open. One that is lost stays
// open: whether to go on with what is under its path is not for the store to
// decide.
func (d *database) open() (*guardedFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != nil {
		return d.file, nil
	}
	if d.closed {
		return nil, fmt.Errorf("%w: embedded store is closed", idempotency.ErrNotApplied)
	}
	if d.openErr != nil && time.Since(d.openedAt) < reopenInterval {
		return nil, d.openErr
	}
	var damaged *damagedError
	if errors.As(d.openErr, &damaged) && damaged.lasts() {
		d.openedAt = time.Now()
		return nil, d.openErr
	}
	file, err := openFile(d.path, d.buckets, d.report)
	d.openedAt = time.Now()
	if err != nil {
		d.openErr = fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
		return nil, d.openErr
	}
	d.file, d.openErr = file, nil
	d.work.Go(func() { d.commitLoop(file) })
	for _, loop := range d.loops {
		d.work.Go(loop)
	}
	return file, nil
}

// close is Store.Close.
func (d *database) close() error {
	d.mu.Lock()
	d.closed = true
	file := d.file
	d.file = nil
	d.mu.Unlock()
	close(d.done)
	if file == nil {
		return nil
	}
	stopped := make(chan struct{})
	go func() {
		d.work.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-file.stuck:
		if file.isWriting() {
			return fmt.Errorf("a commit does not end, and the file stays locked until the process does: %w", file.check())
		}
		<-stopped
	}
	return file.close()
}

// openFile opens the database, and makes the buckets that it lacks. It is new if
// it has none of them: one that a later version adds is missing in a file that is
// in use.
func openFile(path string, buckets [][]byte, report func(idempotency.Finding, bool)) (*guardedFile, error) {
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
	created := true
	err = f.update(func(tx *bolt.Tx) error {
		if tx.Size() > f.size {
			return &panicError{fmt.Sprintf("it has %d bytes of %d", f.size, tx.Size())}
		}
		for _, name := range buckets {
			created = created && tx.Bucket(name) == nil
		}
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
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

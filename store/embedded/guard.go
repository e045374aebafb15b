package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Change is what has become of the file.
type Change string

const (
	// Created: there was no file, or one without records; it is new and empty.
	Created Change = "created"
	// Removed: nothing is under the path.
	Removed Change = "removed"
	// Replaced: another file is under the path, because of a rename, or of a
	// symbolic link or a directory on the way to it.
	Replaced Change = "replaced"
	// Unreachable: the system does not say what is under the path.
	Unreachable Change = "unreachable"
	// Cut: the file is shorter than it was.
	Cut Change = "cut"
	// Overwritten: the file has content that this process has not written, such
	// as that of an older copy.
	Overwritten Change = "overwritten"
	// Damaged: bbolt broke off in the middle of its work on the file.
	Damaged Change = "damaged"
)

// lasts reports whether the store stays unusable whatever becomes of the file.
// A file that was away and is back, as this process has left it, can be used:
// nobody else could lock it meanwhile.
func (c Change) lasts() bool { return c == Cut || c == Overwritten || c == Damaged }

// settingFile is the Setting of each finding; its Value is the Change.
const settingFile = "file"

// LostError means that the file is no longer the one that this process has
// opened and written. While it is not, nothing is read and nothing is written.
type LostError struct {
	Path   string
	Change Change
	Err    error // the cause, if there is one to tell
}

func (e *LostError) Error() string {
	text := "embedded store file " + e.Path
	switch e.Change {
	case Unreachable:
		text += " cannot be examined"
	case Damaged:
		text += " cannot be used"
	default:
		text += " was " + string(e.Change) + " while it was open"
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *LostError) Unwrap() error { return e.Err }

func (e *LostError) finding() idempotency.Finding {
	loss := "submits with a key get 503 until this very file is back under its path, or until a restart, which uses what is there then"
	if e.Change.lasts() {
		loss = "submits with a key get 503 until a restart, which uses what is there then"
	}
	if e.Err != nil {
		loss = e.Err.Error() + ": " + loss
	}
	return findingOf(e.Path, e.Change, loss)
}

func findingOf(path string, change Change, loss string) idempotency.Finding {
	return idempotency.Finding{Server: path, Setting: settingFile, Value: string(change), Loss: loss}
}

// guardedFile is an open database that knows its file: the inode, its size,
// and the two meta pages, of which each commit writes the older one. Nobody else
// writes to it, so all of that is known to the byte, and whatever differs was
// not done by this process.
//
// It is compared before anything is read or written, and again before what was
// read or written is believed.
type guardedFile struct {
	db       *bolt.DB
	file     *os.File // bbolt's own
	inode    os.FileInfo
	path     string
	pageSize int64
	report   func(f idempotency.Finding, present bool)

	mu      sync.RWMutex
	size    int64
	metas   [2]meta
	writing bool // the older meta may be changing
	lost    *LostError

	beginning sync.Mutex
	// stuck is closed when bbolt has broken off with its locks held. Whoever takes
	// one then waits for ever, so the database is not touched any more.
	stuck     chan struct{}
	stuckOnce sync.Once
}

// meta is the start of a meta page, up to the meta's checksum.
type meta [16 + 64]byte

// txid is the number of the transaction that wrote the page.
func (m *meta) txid() uint64 { return binary.NativeEndian.Uint64(m[16+48:]) }

// guard begins to watch over a database that was just opened and locked.
func guard(db *bolt.DB, file *os.File, path string, report func(idempotency.Finding, bool)) (*guardedFile, error) {
	f := &guardedFile{
		db: db, file: file, path: path, report: report,
		pageSize: int64(db.Info().PageSize),
		stuck:    make(chan struct{}),
	}
	var err error
	if f.inode, err = file.Stat(); err != nil {
		return nil, err
	}
	f.size = f.inode.Size()
	f.metas, err = f.readMetas()
	return f, err
}

func (f *guardedFile) readMetas() (metas [2]meta, err error) {
	for i := range metas {
		if _, err := f.file.ReadAt(metas[i][:], int64(i)*f.pageSize); err != nil {
			return metas, err
		}
	}
	return metas, nil
}

// older is the meta page that the next commit writes.
func (f *guardedFile) older() int {
	if f.metas[0].txid() < f.metas[1].txid() {
		return 0
	}
	return 1
}

// look compares the file with what is known of it. The caller holds mu.
func (f *guardedFile) look() *LostError {
	_, lost := f.measure()
	return lost
}

// measure is look, and returns the file's size.
func (f *guardedFile) measure() (size int64, lost *LostError) {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, f.loss(Removed, nil)
	case err != nil:
		return 0, f.loss(Unreachable, err)
	case !os.SameFile(info, f.inode):
		return 0, f.loss(Replaced, nil)
	}
	lost = f.lookInside() // an older copy may be shorter, too
	if lost == nil && info.Size() < f.size {
		lost = f.loss(Cut, nil)
	}
	return info.Size(), lost
}

// lookInside compares the content alone. The caller holds mu.
func (f *guardedFile) lookInside() *LostError {
	metas, err := f.readMetas()
	switch {
	case errors.Is(err, io.EOF):
		return f.loss(Cut, nil)
	case err != nil:
		return f.loss(Unreachable, err)
	}
	for i := range metas {
		mayChange := f.writing && i == f.older()
		if metas[i] != f.metas[i] && !mayChange {
			return f.loss(Overwritten, nil)
		}
	}
	return nil
}

func (f *guardedFile) loss(change Change, err error) *LostError {
	return &LostError{Path: f.path, Change: change, Err: err}
}

// check returns an error if the file cannot be used.
func (f *guardedFile) check() error { return f.confirm(f.look) }

// confirm is a look of which many can go on at the same time. What is news is
// looked at again alone, and kept.
func (f *guardedFile) confirm(look func() *LostError) error {
	f.mu.RLock()
	known := f.lost
	found := known
	if known == nil || !known.Change.lasts() {
		found = look()
	}
	f.mu.RUnlock()
	switch {
	case found == nil && known == nil:
		return nil
	case found != nil && known != nil && found.Change == known.Change:
		return known
	}
	return f.settle(f.look)
}

// settle keeps what is found, reports it if it is news, and returns it as an
// error.
func (f *guardedFile) settle(find func() *LostError) error {
	f.mu.Lock()
	before := f.lost
	now := find()
	if before != nil && before.Change.lasts() {
		now = before
	}
	f.lost = now
	f.mu.Unlock()
	switch {
	case now == nil && before == nil:
		return nil
	case now == nil:
		f.report(before.finding(), false)
		return nil
	case before == nil || before.Change != now.Change:
		f.report(now.finding(), true)
	}
	return now
}

// findings returns what is wrong with the file, as far as it is known.
func (f *guardedFile) findings() []idempotency.Finding {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.lost == nil {
		return nil
	}
	return []idempotency.Finding{f.lost.finding()}
}

// update commits a change. After an error that wraps ErrNotApplied nothing was
// written. After any other one, what was written may be in the file, and the
// file may not be the one that the next process opens.
func (f *guardedFile) update(change func(*bolt.Tx) error) error {
	if err := f.check(); err != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
	}
	if err := f.startWriting(); err != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
	}
	var tx *bolt.Tx
	var id uint64
	err := guarded(func() error {
		return f.db.Update(func(t *bolt.Tx) error {
			tx, id = t, uint64(t.ID())
			return change(t)
		})
	})
	var broken *panicError
	if errors.As(err, &broken) && (tx == nil || tx.DB() != nil) {
		return f.abandon(broken.reason, true) // it could not roll back
	}
	lost := f.settle(func() *LostError {
		f.writing = false
		written := f.learn(id)
		size, lost := f.measure()
		switch {
		case lost == nil && err == nil && !written:
			return f.loss(Overwritten, nil) // by what was there before the commit
		case lost == nil:
			f.size = size
		}
		return lost
	})
	if lost != nil {
		return lost
	}
	return err
}

// startWriting lets the older meta change, unless the file was found lost
// meanwhile.
func (f *guardedFile) startWriting() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost != nil {
		return f.lost
	}
	f.writing = true
	return nil
}

// isWriting reports whether a commit is under way.
func (f *guardedFile) isWriting() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.writing
}

// learn takes over the meta page of a transaction, and reports whether it is
// there. That of a commit that failed may be there too. The caller holds mu.
func (f *guardedFile) learn(id uint64) bool {
	metas, err := f.readMetas()
	i := f.older()
	if err != nil || metas[i].txid() != id {
		return false
	}
	f.metas[i] = metas[i]
	return true
}

// read lets a function read. The transaction comes from begin, if need be by
// way of somebody who wants to know more about it.
func (f *guardedFile) read(begin func() (*bolt.Tx, error), look func(*bolt.Tx) error) error {
	if err := f.check(); err != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
	}
	err := guarded(func() (err error) {
		tx, err := begin()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.finish(tx)) }()
		return look(tx)
	})
	still := f.check
	if err == nil { // to have read to the end, only the content need have been there
		still = func() error { return f.confirm(f.lookInside) }
	}
	if lost := still(); lost != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrNotApplied, lost)
	}
	return err
}

// begin begins a transaction that reads. It is called inside of guarded. One at
// a time, so that none meets the locks of one that broke off.
func (f *guardedFile) begin() (*bolt.Tx, error) {
	return f.beginAfter(func() error { return f.confirm(f.lookInside) })
}

// beginAfter begins if a look at the content finds nothing. It is the last moment
// for it: what bbolt does not find after it makes it break off with its locks
// held.
func (f *guardedFile) beginAfter(look func() error) (tx *bolt.Tx, err error) {
	f.beginning.Lock()
	defer f.beginning.Unlock()
	if f.isStuck() {
		return nil, f.check()
	}
	if err := look(); err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			tx, err = nil, f.abandon(p, false)
		}
	}()
	return f.db.Begin(false)
}

// finish ends a transaction that reads. For that bbolt takes a lock that a
// beginning one holds, and keeps if it breaks off; so nobody waits for it while
// one begins. The beginning one cannot be waited for either: it may wait for this
// one to end, if a commit has to map more of the file.
func (f *guardedFile) finish(tx *bolt.Tx) error {
	if !f.beginning.TryLock() {
		go func() { _ = tx.Rollback() }() // it has no error but that it has ended
		return nil
	}
	defer f.beginning.Unlock()
	if f.isStuck() {
		return nil
	}
	return tx.Rollback()
}

// abandon gives the database up: its locks may be held for ever. It returns the
// reason, which is the file's if that explains it. With byWriter it is a commit
// that broke off, and is under way no more.
func (f *guardedFile) abandon(reason any, byWriter bool) error {
	err := f.settle(func() *LostError {
		f.writing = f.writing && !byWriter
		if lost := f.look(); lost != nil && lost.Change.lasts() {
			return lost
		}
		return f.loss(Damaged, &panicError{reason})
	})
	f.stuckOnce.Do(func() { close(f.stuck) })
	return err
}

func (f *guardedFile) isStuck() bool {
	select {
	case <-f.stuck:
		return true
	default:
		return false
	}
}

// close closes the file when nobody works with it.
func (f *guardedFile) close() error {
	if f.isStuck() {
		return errors.Join(unlock(f.file), f.file.Close())
	}
	return f.db.Close()
}

// panicError means that bbolt panicked on what it found in the file.
type panicError struct{ reason any }

func (e *panicError) Error() string {
	return fmt.Sprintf("the embedded store is damaged: %v", e.reason)
}

// guarded runs what touches a file that may be damaged, or cut while it is
// mapped into memory: bbolt panics then, or its goroutine gets a fault that ends
// the process if it is not made a panic. Keyless traffic must not end with it.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p}
		}
	}()
	return f()
}

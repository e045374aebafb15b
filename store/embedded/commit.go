package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// commitSize bounds how many writes share a commit.
const commitSize = 512

// write is a change that waits for its commit. The change must read before it
// writes, and must not fail between two writes: what it has written when it
// returns an error is committed with the others.
type write struct {
	ctx    context.Context
	change func(tx *bolt.Tx, now time.Time) error
	result chan error
}

// errClosed is what a write gets that meets the end of the store.
var errClosed = errors.New("embedded store is closed")

// change runs a change in a transaction and returns its value when it is on
// the disk. It returns earlier if ctx ends; the change may be committed all
// the same then. Whatever shares the commit has the same moment.
//
// bolt.DB.Batch is not used: it makes a lone write wait for company.
func change[T any](ctx context.Context, d *database, f func(tx *bolt.Tx, now time.Time) (T, error)) (T, error) {
	var none T
	file, err := d.open()
	if err != nil {
		return none, err
	}
	if file.isStuck() { // and nobody may take the write
		return none, fmt.Errorf("%w: %w", idempotency.ErrNotApplied, file.check())
	}
	var value T // read only after the result is there
	w := &write{
		ctx:    ctx,
		result: make(chan error, 1),
		change: func(tx *bolt.Tx, now time.Time) (err error) {
			value, err = f(tx, now)
			return err
		},
	}
	select {
	case d.writes <- w:
	case <-d.done:
		return none, fmt.Errorf("%w: %w", idempotency.ErrNotApplied, errClosed)
	case <-file.stuck:
		return none, fmt.Errorf("%w: %w", idempotency.ErrNotApplied, file.check())
	case <-ctx.Done():
		return none, fmt.Errorf("%w: embedded store is busy: %w", idempotency.ErrNotApplied, ctx.Err())
	}
	select {
	case err := <-w.result:
		if err != nil {
			return none, err
		}
		return value, nil
	case <-d.done:
		return none, errClosed
	case <-file.stuck: // and perhaps the commit with it
		return none, file.check()
	case <-ctx.Done():
		return none, fmt.Errorf("embedded store has not committed yet: %w", ctx.Err())
	}
}

// commitLoop commits what is waiting, all of it together, until Close.
func (d *database) commitLoop(file *guardedFile) {
	for {
		var batch []*write
		select {
		case w := <-d.writes:
			batch = append(batch, w)
		case <-d.done:
			return
		}
	gather:
		for len(batch) < commitSize {
			select {
			case w := <-d.writes:
				batch = append(batch, w)
			default:
				break gather
			}
		}
		d.commit(file, batch)
	}
}

func (d *database) commit(file *guardedFile, batch []*write) {
	results := make([]error, len(batch))
	var id int
	now := d.commits.begin(d.moment)
	err := file.update(func(tx *bolt.Tx) error {
		id = tx.ID()
		for i, w := range batch {
			if err := w.ctx.Err(); err != nil {
				results[i] = fmt.Errorf("%w: embedded store is slow: %w", idempotency.ErrNotApplied, err)
				continue
			}
			results[i] = w.change(tx, now)
		}
		return nil
	})
	d.commits.end(id, err == nil)
	for i, w := range batch {
		if err != nil {
			results[i] = fmt.Errorf("commit to embedded store: %w", err)
		}
		w.result <- results[i]
	}
}

// commits knows what is on the disk, and since when more is on its way there.
type commits struct {
	mu     sync.Mutex
	synced int       // the last transaction that is on the disk
	since  time.Time // when the running commit began; zero if none runs
}

// begin notes that a commit begins, and returns its moment.
func (c *commits) begin(moment func() time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = moment()
	return c.since
}

// end notes that the commit of a transaction is over.
func (c *commits) end(id int, synced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Time{}
	if synced {
		c.synced = id
	}
}

// lookAt lets f read what is on the disk, and waits for no commit. While one
// runs, it is the moment of its beginning: what is read is what was before it.
//
// f is not called if there is nothing to be sure of. A commit can be seen
// already while it is being synced, and what it says may be gone after a loss
// of power; it is not known of a file that was just opened, either.
func (d *database) lookAt(file *guardedFile, f func(tx *bolt.Tx, now time.Time) error) error {
	var now time.Time
	var sure bool
	begin := func() (tx *bolt.Tx, err error) {
		tx, now, sure, err = d.snapshot(file)
		return tx, err
	}
	return file.read(begin, func(tx *bolt.Tx) error {
		if !sure {
			return nil
		}
		return f(tx, now)
	})
}

// snapshot begins a transaction that reads, and says what moment it shows and
// whether all of it is on the disk.
func (d *database) snapshot(file *guardedFile) (tx *bolt.Tx, now time.Time, sure bool, err error) {
	d.commits.mu.Lock()
	defer d.commits.mu.Unlock()
	if now = d.commits.since; now.IsZero() {
		now = d.moment()
	}
	tx, err = file.begin()
	return tx, now, err == nil && tx.ID() <= d.commits.synced, err
}

// moment returns the clock as precisely as it is stored.
func (d *database) moment() time.Time { return d.now().Truncate(time.Millisecond) }

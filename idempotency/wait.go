package idempotency

import (
	"context"
	"time"
)

const (
	// MaxWaitersPerKey is how many duplicates of one submit are held at a time,
	// and MaxWaiters how many of all. One more is answered at once with
	// idempotency_key_in_progress.
	MaxWaitersPerKey = 100
	MaxWaiters       = 2000

	// waitPoll is how often a record is read that another gateway's attempt
	// belongs to.
	waitPoll = 50 * time.Millisecond
)

// room is where the duplicates of one running submit wait.
type room struct {
	waiters int
	// changed is closed when it is worth asking the store again.
	changed chan struct{}
	// turn is held by the one waiter that reads the record for all.
	turn chan struct{}
}

// awaitChange waits until the record is worth another claim, and returns false
// when there is nothing left to wait for: ctx is done, or there is no place. With
// here only the end of this engine's own attempt is a change.
func (e *Engine) awaitChange(ctx context.Context, id RecordID, here bool) bool {
	r, ok := e.enter(id)
	if !ok {
		return false
	}
	defer e.exit(id, r)
	turn := r.turn
	if here {
		if !e.runs(id) {
			return ctx.Err() == nil
		}
		turn = nil
	}
	select {
	case <-r.changed:
		// A caller that has hung up must not be the one that submits.
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	case turn <- struct{}{}:
		defer func() { <-r.turn }()
	}

	ticker := time.NewTicker(waitPoll)
	defer ticker.Stop()
	for {
		var again <-chan time.Time
		if e.needsLook(id, r) {
			e.look(ctx, id, r)
			again = ticker.C
		}
		select {
		case <-r.changed:
			return ctx.Err() == nil
		case <-ctx.Done():
			return false
		case <-again:
		}
	}
}

// enter gives a waiter a place in the record's room.
func (e *Engine) enter(id RecordID) (*room, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rooms[id]
	if e.waiters >= MaxWaiters || r != nil && r.waiters >= MaxWaitersPerKey {
		return nil, false
	}
	if r == nil {
		r = &room{changed: make(chan struct{}), turn: make(chan struct{}, 1)}
		e.rooms[id] = r
	}
	r.waiters++
	e.waiters++
	return r, true
}

func (e *Engine) exit(id RecordID, r *room) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.waiters--
	e.waiters--
	if r.waiters == 0 && e.rooms[id] == r {
		delete(e.rooms, id)
	}
}

// wakeRoomLocked sends the waiters of a record to ask the store again.
func (e *Engine) wakeRoomLocked(id RecordID) {
	if r := e.rooms[id]; r != nil {
		close(r.changed)
		delete(e.rooms, id) // who comes from now on waits for the next change
	}
}

// needsLook reports whether only the store can tell when the waiters are to be
// woken. They are already, or an attempt of this engine will do it, by its end
// or when it loses its lease.
func (e *Engine) needsLook(id RecordID, r *room) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rooms[id] != r {
		return false
	}
	a := e.own[id].holder
	return a == nil || !e.livesLocked(a) || a.lost
}

// look wakes the waiters if the record is no longer in progress.
func (e *Engine) look(ctx context.Context, id RecordID, r *room) {
	record, found, err := e.read(ctx, id)
	if err != nil {
		return // the store is away: the next look, or the deadline, decides
	}
	if now, known := e.clock.now(); found && (!known || record.StateAt(now) == InProgress) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rooms[id] == r {
		e.wakeRoomLocked(id)
	}
}

package idempotency

import "slices"

// Waiters returns how many submits an engine holds in all, how many of one
// record, and how many rooms it has.
func Waiters(e *Engine, id RecordID) (all, ofRecord, rooms int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.rooms[id]; r != nil {
		ofRecord = r.waiters
	}
	return e.waiters, ofRecord, len(e.rooms)
}

// Owed returns what an engine goes on trying to store for a record: "complete",
// "uncertain", or nothing.
func Owed(e *Engine, id RecordID) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, u := range slices.Concat(e.settling, e.pending) {
		if u.id == id && (u.op == opComplete || u.op == opUncertain) {
			return u.op.String()
		}
	}
	return ""
}

// Known returns of how many records an engine knows something by itself.
func Known(e *Engine) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.own)
}

// MaxWithdrawals is how many claims wait to be taken back at most.
const MaxWithdrawals = maxWithdrawals

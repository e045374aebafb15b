package idempotency

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

// MaxWithdrawals is how many claims wait to be taken back at most.
const MaxWithdrawals = maxWithdrawals

// Left returns how many bytes a budget still has.
func (m *BodyMemory) Left() int64 { return m.left.Load() }

// MaxBodyInMemory is how many bytes of one body are held in memory.
const MaxBodyInMemory = maxBodyInMemory

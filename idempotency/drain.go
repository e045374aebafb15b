package idempotency

import (
	"context"
	"slices"
	"sync"
)

// Drain waits until no attempt is alive and no outcome waits to be stored, or
// until ctx is done. It returns the records that are left behind then: if the
// process ends now, those of live attempts become uncertain when their lease
// is over.
func (e *Engine) Drain(ctx context.Context) (alive, unstored []RecordID) {
	for {
		e.mu.Lock()
		idle := e.idle
		e.mu.Unlock()
		if idle == nil {
			return nil, nil
		}
		select {
		case <-idle:
			continue // or it runs again already
		case <-ctx.Done():
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		for a := range e.live {
			alive = append(alive, a.id)
		}
		for _, u := range slices.Concat(e.settling, e.pending) {
			unstored = append(unstored, u.id)
		}
		return alive, unstored
	}
}

// Abandon is for the end of the process, after Drain: the records of the attempts
// that are still alive become uncertain at once, and not only when their leases
// are over. It returns those for which that did not succeed before ctx was done.
// An attempt that comes to its end all the same can still be concluded.
func (e *Engine) Abandon(ctx context.Context) (left []RecordID) {
	e.mu.Lock()
	var alive []*Attempt
	for a := range e.live {
		if !a.ended {
			a.ended = true // its lease is not renewed any more
			alive = append(alive, a)
		}
	}
	e.mu.Unlock()

	var mu sync.Mutex
	for chunk := range slices.Chunk(alive, settleAtOnce) {
		var wg sync.WaitGroup
		for _, a := range chunk {
			wg.Go(func() {
				details := a.details
				details.Error = "the gateway was stopped before the provider had answered"
				if err := e.settle(ctx, &unsettled{op: opUncertain, id: a.id, attempt: a, details: details}); err != nil {
					mu.Lock()
					defer mu.Unlock()
					left = append(left, a.id)
				}
			})
		}
		wg.Wait()
	}
	return left
}

// InFlight returns the number of attempts that are being forwarded.
func (e *Engine) InFlight() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for a := range e.live {
		if !a.ended {
			n++
		}
	}
	return n
}

// Unstored returns the number of outcomes that the store has not acknowledged
// and that the engine goes on trying to store: what this process alone knows of
// submits that were sent. Claims to take back do not count. Nothing was sent for
// them, and a store that takes no write leaves any number of them: an operator
// who is told to keep the process must not be told so because of them.
func (e *Engine) Unstored() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, u := range slices.Concat(e.settling, e.pending) {
		if u.op != opWithdraw {
			n++
		}
	}
	return n
}

package idempotency

import (
	"context"
	"sync/atomic"
	"time"
)

// Attempt is one forwarding of a submit. Its lease is renewed from Begin to
// Conclude.
type Attempt struct {
	engine  *Engine
	policy  Policy
	id      RecordID
	token   Token
	details Details

	concluded atomic.Bool
	// Guarded by engine.mu.
	renewAt time.Time
	lost    bool
}

// ID returns the record's id.
func (a *Attempt) ID() RecordID { return a.id }

// Conclusion is what an attempt came to.
type Conclusion int

const (
	// ConcludedAccepted: the acceptance is stored, or will be.
	ConcludedAccepted Conclusion = iota + 1
	// ConcludedRefused: the provider answered that it did not accept; the key
	// is free.
	ConcludedRefused
	// ConcludedNotAccepted: as refused, by a 2xx that the configuration does
	// not count as acceptance.
	ConcludedNotAccepted
	// ConcludedNeverSent: nothing reached the provider; the key is free.
	ConcludedNeverSent
	// ConcludedUnknown: the record is uncertain.
	ConcludedUnknown
)

// Conclude classifies what came of the attempt and stores it, in one round
// trip. It must be called once, before the caller sees the end of the answer,
// and does not depend on any request's context.
//
// If the store fails, Conclude returns after its timeout and the engine goes
// on trying in the background for as long as the record would live. An
// acceptance is never released, whatever happens.
//
// Reason says why an outcome is unknown, in words that can be logged.
func (a *Attempt) Conclude(r Result) (c Conclusion, reason string) {
	if !a.concluded.CompareAndSwap(false, true) {
		panic("idempotency: attempt concluded twice")
	}
	// Renewal stops first: a lease must not be renewed after the record has
	// become somebody else's.
	a.engine.leave(a)

	switch a.policy.classify(r) {
	case meansAccepted:
		answer := &Answer{Status: r.Status, Unavailable: r.BodyNotKept}
		if !answer.Unavailable {
			answer.Header, answer.Body = replayHeader(r.Header), r.Body
		}
		details := a.details
		details.Answer = answer
		a.store(opComplete, details, r.Status)
		return ConcludedAccepted, ""
	case meansRefused:
		a.store(opRelease, Details{}, 0)
		return ConcludedRefused, ""
	case meansNotAccepted:
		a.store(opRelease, Details{}, 0)
		return ConcludedNotAccepted, ""
	case meansNeverSent:
		a.store(opRelease, Details{}, 0)
		return ConcludedNeverSent, ""
	case meansUnknown:
	}
	details := a.details
	details.Error = unknownReason(r)
	a.store(opUncertain, details, 0)
	return ConcludedUnknown, details.Error
}

// store does one transition now, and leaves it to the keeper if that fails.
func (a *Attempt) store(op operation, details Details, status int) {
	u := &unsettled{op: op, id: a.id, token: a.token, status: status}
	if op != opRelease {
		payload, err := details.encode()
		if err != nil {
			// Nothing in Details can fail to encode; if it does, the record
			// stays as it is and becomes uncertain when its lease is over.
			a.engine.observer.StoreError(op.String(), a.id, err)
			return
		}
		u.payload = payload
	}
	if err := a.engine.settle(context.Background(), u); err != nil {
		a.engine.settleLater(u, a.policy.Lease+a.policy.Retention)
	}
}

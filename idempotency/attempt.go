package idempotency

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// Attempt is one forwarding of a submit. Its lease is renewed from Begin to
// Conclude.
type Attempt struct {
	engine  *Engine
	policy  *Policy
	id      RecordID
	request Fingerprint // as the request has it, not as it is stored
	details Details
	began   time.Time
	// tookOver: the record was another attempt's, whose outcome is unknown.
	tookOver bool

	concluded atomic.Bool
	stored    bool // set by the one call that concludes

	// Guarded by engine.mu.

	// token and seal are those of the record that is the attempt's now. A record
	// that the store has lost is made anew with others.
	token Token
	seal  seal
	// strayUntil is when another try of its claim can no longer be granted, on
	// the store's clock; zero if there is none.
	strayUntil time.Time
	renewAt    time.Time
	lost       bool
	ended      bool // it runs no longer, or the process ends
	// outcome is what it came to, until the store has it.
	outcome *unsettled
	// disowned: the record was taken from it by a decision, for good.
	disowned bool
}

// ID returns the record's id.
func (a *Attempt) ID() RecordID { return a.id }

// Conclude classifies what came of the attempt and stores it, in one round
// trip. An attempt is concluded once, before the caller sees the end of the
// answer. Conclude does not depend on any request's context.
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
	a.engine.stopRenewal(a)
	// Not before the outcome is stored, or left to the keeper: until then the
	// engine is not idle, and the store must stay open.
	defer a.engine.leave(a)

	c = a.policy.Classify(r)
	switch c {
	case ConcludedAccepted:
		answer := Answer{Status: r.Status, Unavailable: r.BodyNotKept}
		if !answer.Unavailable {
			answer.Header, answer.Body = replayHeader(r.Header), r.Body
			answer.Replaced = slices.DeleteFunc(slices.Clone(r.Replaced), func(name string) bool { return notReplayed[name] })
		}
		details := a.details
		details.Answer = &answer
		a.store(opComplete, details, r.Status)
	case ConcludedRefused, ConcludedNotAccepted, ConcludedNeverSent:
		a.store(opRelease, Details{}, 0)
	case ConcludedUnknown:
		reason = a.policy.unknownReason(r)
		details := a.details
		details.Error = reason
		a.store(opUncertain, details, 0)
	}
	return c, reason
}

// Stored reports, after the attempt is concluded, whether the store has
// acknowledged the outcome. If not, the engine goes on trying.
func (a *Attempt) Stored() bool { return a.stored }

// TookOver reports whether the record was another attempt's before, and
// uncertain. Then a refusal leaves it so: it says nothing about the attempt
// before.
func (a *Attempt) TookOver() bool { return a.tookOver }

// ConcludeStream is for an answer that has to be passed on before its end,
// because its body is over the maximum or a stream. What is known of it apart from
// its body decides now: an acceptance, whose result is not kept, and an unknown
// outcome. A refusal is one only when it has come to its end; then the last
// result is false, and Conclude is still to be called. Until then nothing of the
// answer may be passed on: a caller that does not read it would keep the end away.
func (a *Attempt) ConcludeStream(r Result) (c Conclusion, reason string, concluded bool) {
	r.Whole, r.BodyNotKept = true, true
	switch c := a.policy.Classify(r); c {
	case ConcludedAccepted, ConcludedUnknown:
		c, reason = a.Conclude(r)
		return c, reason, true
	case ConcludedRefused, ConcludedNotAccepted, ConcludedNeverSent:
	}
	return 0, "", false
}

// store does one transition now, and leaves it to the keeper if that fails.
func (a *Attempt) store(op operation, details Details, status int) {
	u := &unsettled{op: op, id: a.id, attempt: a, details: details, status: status}
	a.engine.owe(a, u)
	err := a.engine.settle(context.Background(), u)
	if err != nil {
		a.engine.settleLater(u, a.policy.Lease+a.policy.Retention)
	}
	a.stored = err == nil || errors.Is(err, errClaimMayCome)
}

package idempotency

import (
	"errors"
)

var (
	// ErrNotApplied marks a store error after which it is certain that the
	// operation was not done and never will be: the store could not be
	// reached at all, or answered that it refuses. An error without it leaves
	// that open.
	ErrNotApplied = errors.New("the store did not apply the operation")

	// ErrUnreadable means that the store holds something under a record's
	// name that this version does not understand. It is never treated as "no
	// record".
	ErrUnreadable = errors.New("record is unreadable")

	// ErrStoreUnavailable wraps every error of Engine.Begin: the store could
	// not say whether the key is free, so nothing may be sent. For operators it
	// means that the store did not answer.
	ErrStoreUnavailable = errors.New("idempotency store is unavailable")

	// ErrClaimTooLate means that a claim reached the store after it had been
	// given up, and was not carried out.
	ErrClaimTooLate = errors.New("claim reached the store too late")

	// ErrClaimedBefore means that the store had said that another attempt has
	// the key, before it failed: this submit is known to be a duplicate.
	ErrClaimedBefore = errors.New("another attempt has the key")

	// ErrNoRecord means that an operator asks for a record that is not there.
	ErrNoRecord = errors.New("there is no such record")

	// ErrAnotherAttempt means that an operator's decision is about an attempt
	// that the record does not belong to any more.
	ErrAnotherAttempt = errors.New("the record is another attempt's meanwhile")

	// ErrChanged means that what an operator wants to be forgotten is not what
	// the operator has seen any more.
	ErrChanged = errors.New("the record has changed meanwhile")

	// errClaimMayCome means that a claim to be taken back is not in the store,
	// and that its time is not over yet.
	errClaimMayCome = errors.New("the claim may still be granted")

	// errRecordVanishes means that the store loses a record as often as it is made.
	errRecordVanishes = errors.New("the record vanishes as soon as it is made")

	// errMayBeOwn means that the record of an outcome has another token, which
	// may be that of a claim of this process that is under way.
	errMayBeOwn = errors.New("the record may be a claim's of this process")
)

// StateError means that an operator's decision needs a record that is
// uncertain, or, to forget it, one whose attempt is not alive or that is in the
// state that the operator has seen.
type StateError struct {
	// State of the record.
	State State
}

func (e *StateError) Error() string {
	switch e.State {
	case InProgress:
		return "the record is in_progress: its attempt is alive"
	case Completed:
		return "the record is completed: it has its answer"
	case Uncertain:
		return "the record is uncertain, and was not when you looked"
	}
	return "the record is " + e.State.String()
}

// KeyError says why a key header is not a key. It never holds the key.
type KeyError struct {
	// Reason completes the sentence "The key is not valid: ".
	Reason string
}

func (e *KeyError) Error() string { return "invalid idempotency key: " + e.Reason }

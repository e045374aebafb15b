package idempotency

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis' scripts know no other digest, and it secures nothing.
	"encoding/hex"
	"errors"
	"fmt"
)

// Digest names a value that a store holds, so that nothing but what an operator
// has judged is removed: the SHA-1 of its binary form. It is zero for a value
// that has none, such as a list in Redis. It protects against what happens
// meanwhile, and against nobody who can write to the store.
type Digest [sha1.Size]byte

// DigestOf returns the digest of a stored value.
func DigestOf(value []byte) Digest { return sha1.Sum(value) } //nolint:gosec // see above

// String returns the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// UnreadableError means that what is under a record's name cannot be read. It
// wraps ErrUnreadable. Store.Get returns it for what the store cannot read, and
// Engine.Lookup also for details that nobody can read.
type UnreadableError struct {
	// Seen names the value.
	Seen Digest
	// Err wraps ErrUnreadable and says why, with nothing of the value.
	Err error
}

func (e *UnreadableError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UnreadableError) Unwrap() error { return e.Err }

// Forgetting is an operator's word that what a record says is not to count any
// more: a failure that was stored as an acceptance, or a value that nobody can
// read.
//
// Attempt, State, Unreadable and Seen are what the operator has seen; each counts
// only if it is set, and the first two do not go together with the others. A
// record that says something else meanwhile is not forgotten.
type Forgetting struct {
	ID RecordID
	// Keyring decrypts the record.
	Keyring *Keyring
	// Attempt is the token of the record.
	Attempt *Token
	// State of the record. An attempt keeps its token when its acceptance is
	// stored: with the token alone, a record that was uncertain when the operator
	// looked may be the provider's acceptance by now.
	State State
	// Unreadable: the record could not be read.
	Unreadable bool
	// Seen names the value that could not be read.
	Seen *Digest
}

// Forget removes a record in any state but in progress, also one that cannot be
// read: the next repeat submits. It returns the state that the record had; zero
// if it could not be read.
//
// Nothing is changed if the error is ErrNoRecord, a *StateError, because the
// attempt is alive or the record is not in the state that the operator has seen,
// ErrAnotherAttempt, or ErrChanged. After an error that wraps ErrStoreUnavailable
// but not ErrNotApplied nobody knows whether it was carried out.
//
// What the attempt finds out later changes nothing any more, as after a release.
func (e *Engine) Forget(ctx context.Context, f Forgetting) (State, error) {
	seen, state, err := e.judged(ctx, f)
	if err != nil {
		return 0, err
	}
	mine := e.holding(f.ID)
	reply, err := call(context.WithoutCancel(ctx), e, nameForget, func(ctx context.Context) (Reply, error) {
		return e.store.Forget(ctx, f.ID, seen)
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: forget record: %w", ErrStoreUnavailable, err)
	case reply.Applied:
		e.disown(mine)
		return state, nil
	}
	// It has changed, or its attempt is alive, which the details of a record that
	// cannot be read do not keep the store from knowing.
	now, _, err := e.judged(ctx, f)
	switch {
	case err != nil:
		return 0, err
	case now == seen:
		return 0, &StateError{State: InProgress}
	default:
		return 0, ErrChanged
	}
}

// judged looks at what is to be forgotten, and says whether it is what the
// operator has seen.
func (e *Engine) judged(ctx context.Context, f Forgetting) (Digest, State, error) {
	view, err := e.Lookup(ctx, f.Keyring, f.ID)
	var unreadable *UnreadableError
	switch {
	case errors.As(err, &unreadable):
		if f.Attempt != nil || f.State != 0 || f.Seen != nil && *f.Seen != unreadable.Seen {
			return Digest{}, 0, ErrChanged
		}
		return unreadable.Seen, 0, nil
	case errors.Is(err, ErrStoreUnavailable):
		return Digest{}, 0, fmt.Errorf("%w: %w", ErrNotApplied, err)
	case err != nil:
		return Digest{}, 0, err
	case f.Unreadable || f.Seen != nil:
		return Digest{}, 0, ErrChanged
	case f.Attempt != nil && *f.Attempt != view.Record.Token:
		return Digest{}, 0, ErrAnotherAttempt
	case view.State == InProgress, f.State != 0 && f.State != view.State:
		return Digest{}, 0, &StateError{State: view.State}
	}
	value, err := view.Record.AppendBinary(nil)
	return DigestOf(value), view.State, err
}

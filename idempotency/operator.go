package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// View is a record as an operator sees it at one moment.
type View struct {
	ID RecordID
	// State is the record's state at that moment: an attempt whose lease is
	// over is uncertain.
	State  State
	Record Record
	// Details of the record's payload.
	Details Details
	// JobID names the job at the provider, as the answer's body has it; empty if
	// there is none.
	JobID string
}

// Decision is an operator's word on an uncertain record.
type Decision struct {
	ID RecordID
	// Keyring decrypts the record. Its answer is encrypted under the record's
	// own key.
	Keyring *Keyring
	// Attempt, if set, is the token of the record that the operator has seen.
	// A record that has another one meanwhile is ErrAnotherAttempt.
	Attempt *Token
	// Answer is the acceptance that the provider gave, to be replayed from now
	// on; nil means that the record is to be removed, so that the next repeat
	// submits.
	Answer *Answer
	// Reason of the decision, and the address that it came from, for those who
	// look at the record later.
	Reason, By string
}

// Lookup returns a record, decrypted with a key of the ring, ErrNoRecord if
// there is none, and an *UnreadableError if nobody can read it.
func (e *Engine) Lookup(ctx context.Context, keyring *Keyring, id RecordID) (View, error) {
	now, err := e.askNow(ctx)
	if err != nil {
		return View{}, fmt.Errorf("%w: read its clock: %w", ErrStoreUnavailable, err)
	}
	record, err := e.get(ctx, id)
	if err != nil {
		return View{}, err
	}
	view, err := newView(keyring, id, record, now)
	if errors.Is(err, ErrUnreadable) {
		value, _ := record.AppendBinary(nil) // as it was stored
		return View{}, &UnreadableError{Seen: DigestOf(value), Err: err}
	}
	return view, err
}

func newView(keyring *Keyring, id RecordID, record Record, now time.Time) (View, error) {
	details, err := keyring.Details(id, record)
	if err != nil {
		return View{}, err
	}
	v := View{ID: id, State: record.StateAt(now), Record: record, Details: details, JobID: details.jobID()}
	switch {
	case v.State != Uncertain || details.Error != "":
	case record.State == InProgress:
		v.Details.Error = "the gateway was not heard of before the lease was over"
	default:
		v.Details.Error = "the submit was taken over by one that was refused or never sent; what came of the first is not known"
	}
	return v, nil
}

func (e *Engine) get(ctx context.Context, id RecordID) (Record, error) {
	record, found, err := e.read(ctx, id)
	switch {
	case errors.Is(err, ErrUnreadable):
		return Record{}, err
	case err != nil:
		return Record{}, fmt.Errorf("%w: get record: %w", ErrStoreUnavailable, err)
	case !found:
		return Record{}, ErrNoRecord
	}
	return record, nil
}

// Decide carries out an operator's decision and returns the record as it was
// decided on.
//
// Nothing is changed if the error is ErrNoRecord, a *StateError, because the
// record is not uncertain, or ErrAnotherAttempt. So of two operators who decide
// at once one gets an error. After an error that wraps ErrStoreUnavailable but
// not ErrNotApplied nobody knows whether the decision was carried out; it can be
// looked up.
//
// What the attempt itself finds out later changes nothing any more. An
// acceptance that comes late is reported to Observer.LateAcceptance. An attempt
// of another process does not know of the decision: to it, a record that was
// released and not claimed again is one that the store has lost, so it gets its
// record back (Observer.RecordLost), and repeats get its answer.
func (e *Engine) Decide(ctx context.Context, d Decision) (View, error) {
	view, err := e.lookupFor(ctx, d)
	if err != nil {
		return View{}, err
	}
	if d.Attempt != nil && view.Record.Token != *d.Attempt {
		return View{}, ErrAnotherAttempt
	}
	if view.State != Uncertain {
		return View{}, &StateError{State: view.State}
	}
	mine := e.holding(d.ID)
	reply, err := e.decide(ctx, d, view)
	switch {
	case errors.Is(err, ErrUnreadable):
		return View{}, err
	case err != nil:
		return View{}, fmt.Errorf("%w: decide about record: %w", ErrStoreUnavailable, err)
	case reply.Applied:
		e.disown(mine)
		return view, nil
	}
	// Somebody was faster.
	after, err := e.lookupFor(ctx, d)
	switch {
	case err != nil:
		return View{}, err
	case after.State != Uncertain:
		return View{}, &StateError{State: after.State}
	default:
		return View{}, ErrAnotherAttempt
	}
}

// lookupFor looks at a record while a decision about it is not carried out.
func (e *Engine) lookupFor(ctx context.Context, d Decision) (View, error) {
	view, err := e.Lookup(ctx, d.Keyring, d.ID)
	if errors.Is(err, ErrStoreUnavailable) {
		err = fmt.Errorf("%w: %w", ErrNotApplied, err)
	}
	return view, err
}

func (e *Engine) decide(ctx context.Context, d Decision, v View) (Reply, error) {
	ctx = context.WithoutCancel(ctx)
	if d.Answer == nil {
		return call(ctx, e, nameDecideRelease, func(ctx context.Context) (Reply, error) {
			return e.store.DecideRelease(ctx, v.ID, v.Record.Token)
		})
	}
	replayed := *d.Answer
	replayed.Header = replayHeader(replayed.Header)
	key, err := d.Keyring.keyOf(v.Record.Payload)
	if err != nil {
		return Reply{}, err
	}
	now, err := e.storeNow(ctx)
	if err != nil {
		return Reply{}, err
	}
	details := v.Details
	details.Answer = &replayed
	details.Decision = &Decided{What: Completed.String(), Reason: d.Reason, By: d.By, At: now.UnixMilli()}
	payload, err := key.seal(v.ID, v.Record.Fingerprint).close(details)
	if err != nil {
		return Reply{}, err
	}
	return call(ctx, e, nameDecideComplete, func(ctx context.Context) (Reply, error) {
		return e.store.DecideComplete(ctx, Ending{ID: v.ID, Token: v.Record.Token, Payload: payload})
	})
}

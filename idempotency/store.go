package idempotency

import (
	"context"
	"time"
)

// Store keeps records. It is the one place where it is decided who may send.
//
// # Atomicity
//
// Each method that changes a record is one atomic compare-and-set: it reads
// the record, decides by the rules below, and writes or does not. Two
// concurrent calls for one record behave as if one came after the other. A
// method returns without an error only after the store has acknowledged the
// write in the way its configuration promises to survive.
//
// # Clock
//
// The store's own clock decides about leases and is reported as Now. It must
// be one clock for all processes that share the store. A record vanishes when
// Record.ExpiresAt is reached on that clock and never earlier; it may be
// reported for a short time longer.
//
// # Errors
//
// After an error that wraps ErrNotApplied the operation was not done and will
// not be done later. After any other error it may have been done, or may still
// be done when a stopped server goes on. A value under the record's name that
// cannot be read is ErrUnreadable and is left alone until its retention must be
// over. Absence is never an error, and an error never means absence. Error texts
// hold nothing of a record.
//
// # Retries and contexts
//
// A store sends each operation once; whether to send again is the engine's
// decision. Every operation can be repeated with the same token without harm.
// Every context has a deadline, which the store honours.
//
// # Concurrency
//
// All methods may be called at the same time from many goroutines. Close may
// be called once, after all other calls have returned.
//
// A Store is not a cache and not a lock service: it must not evict, must not
// answer from a copy that may be stale, and must not expire anything but whole
// records. Package store/storetest has the suite that every Store passes.
type Store interface {
	// Now returns the store's clock.
	Now(ctx context.Context) (time.Time, error)

	// Claim asks for the right to send. By the state of the record:
	//
	//	record                              verdict           written
	//	absent                              Claimed           in progress, new attempt
	//	in progress, same token             Claimed           the lease, from now
	//	other fingerprint                   OtherRequest      nothing
	//	completed                           AlreadyCompleted  nothing
	//	in progress, lease running          StillInProgress   nothing
	//	uncertain, or in progress and its
	//	lease over: with TakeOver           Claimed           in progress, new attempt
	//	            without                 AlreadyUncertain  nothing
	//
	// A claim that is granted on a record that another attempt had, now or when
	// the same token was first granted it, is TookOver. The rows are tried from the top. A claim that would write after
	// Claim.NotAfter gets TooLate and writes nothing: so a claim that was given
	// up cannot come true later.
	Claim(ctx context.Context, c Claim) (ClaimReply, error)

	// Renew sets the lease of each attempt to its length from now, if the
	// record is in progress with that token and its lease is not over. One
	// call costs one round trip, whatever the number. The replies come in the
	// order of the renewals, with Applied false for a lease that is lost.
	Renew(ctx context.Context, renewals []Renewal) ([]Reply, error)

	// Complete stores an acceptance, if the record has that token and is in
	// progress (its lease over or not) or uncertain. It is Applied also if
	// this token has completed the record before.
	Complete(ctx context.Context, e Ending) (Reply, error)

	// MarkUncertain ends an attempt whose outcome is unknown, if the record
	// has that token and is in progress (its lease over or not). It is Applied
	// also if the record is uncertain with that token already.
	MarkUncertain(ctx context.Context, e Ending) (Reply, error)

	// Release removes the record, if it has that token and is not completed. A
	// record that the attempt had taken over becomes uncertain again instead,
	// with a zero token: the outcome of the attempt before it is as unknown as
	// it was, and nothing that this attempt has found out says otherwise.
	Release(ctx context.Context, id RecordID, token Token) (Reply, error)

	// DecideComplete stores an answer by an operator's word, if the record has
	// that token and is uncertain, or in progress and its lease over. The
	// record is nobody's from then on: what the attempt itself finds out later
	// is not stored any more.
	DecideComplete(ctx context.Context, e Ending) (Reply, error)

	// DecideRelease removes a record by an operator's word, if it has that
	// token and is uncertain, or in progress and its lease over. Unlike Release
	// it also removes what was taken over: the word is on all attempts.
	//
	// The token is that of the record that the operator has judged, zero if it
	// is nobody's. So of two decisions, and of a decision and a new attempt,
	// one wins.
	DecideRelease(ctx context.Context, id RecordID, token Token) (Reply, error)

	// Forget removes by an operator's word what is under a record's name: a
	// record, unless it is in progress and its lease runs, or a value that cannot
	// be read, for which this method alone gives no ErrUnreadable.
	//
	// Seen is the digest of the value that the operator has judged. Any other
	// value stays, so what has changed meanwhile is not removed.
	Forget(ctx context.Context, id RecordID, seen Digest) (Reply, error)

	// Get returns a record as it is. The second result is false if there is
	// none. A value that cannot be read is an *UnreadableError.
	Get(ctx context.Context, id RecordID) (Record, bool, error)

	// Scan returns a part of the records, in no order, without their payloads.
	// The cursor is empty at first and then ScanPage.Next. It is the store's own
	// and says nothing to anybody else; one that the store cannot read is an
	// error.
	//
	// A record that lives from the first call to the last is in one page at
	// least; one that comes, goes or changes meanwhile may be in any number of
	// them. A part is so small that others do not wait longer than a few
	// milliseconds for it, however many records there are.
	Scan(ctx context.Context, cursor string) (ScanPage, error)

	// Close frees what the store holds. It does not change records.
	Close() error
}

// Claim is the wish to send one submit.
type Claim struct {
	ID    RecordID
	Token Token
	// Fingerprint as it is stored, which a Keyring makes of the request's.
	Fingerprint Fingerprint
	Lease       time.Duration
	Retention   time.Duration
	// TakeOver hands an uncertain record to this attempt: the operator decided
	// to risk a second submit.
	TakeOver bool
	// NotAfter is the moment of the store's clock after which the claim must
	// not take effect any more.
	NotAfter time.Time
	// Payload of the record if the claim is granted.
	Payload []byte
}

// Verdict is a store's decision about a claim.
type Verdict int

const (
	// Claimed: the attempt may be sent, and nobody else's.
	Claimed Verdict = iota + 1
	// AlreadyCompleted: the record has the answer.
	AlreadyCompleted
	// StillInProgress: another attempt is believed alive.
	StillInProgress
	// AlreadyUncertain: another attempt ended, and nobody knows how.
	AlreadyUncertain
	// OtherRequest: the key belongs to a request with another fingerprint.
	OtherRequest
	// TooLate: the claim came after its NotAfter.
	TooLate
)

// ClaimReply is a store's answer to a claim.
type ClaimReply struct {
	Verdict Verdict
	// Record is the record that stands in the way: set with AlreadyCompleted,
	// StillInProgress, AlreadyUncertain and OtherRequest. It is the caller's own,
	// and shares no memory with anything.
	Record Record
	// TookOver, with Claimed: the record was there, and another attempt's. Without
	// it there was none.
	TookOver bool
	Now      time.Time
}

// Renewal asks for more time for one attempt.
type Renewal struct {
	ID    RecordID
	Token Token
	// Lease is counted from the store's now.
	Lease time.Duration
}

// Ending is the end of one attempt.
type Ending struct {
	ID      RecordID
	Token   Token
	Payload []byte
}

// ScanPage is a part of what a store holds.
type ScanPage struct {
	Headers []Header
	// Unreadable are the records of this part that cannot be read. They are
	// no reason not to show the others.
	Unreadable []RecordID
	// Next is the cursor of the next part; empty if there is none.
	Next string
}

// Header is a record without its payload.
type Header struct {
	ID     RecordID
	Record Record
}

// Reply is a store's answer to a transition.
type Reply struct {
	// Applied is false if the record is gone, belongs to another attempt or is
	// in a state that does not allow the transition.
	Applied bool
	Now     time.Time
}

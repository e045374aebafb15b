package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Submit is one request that wants to start a job.
type Submit struct {
	ID          RecordID
	Fingerprint Fingerprint
	Details     Details
}

// Admission is the engine's word on a submit. Exactly one of Attempt, Replay and
// Problem is set.
type Admission struct {
	// Attempt may be sent, and must be concluded.
	Attempt *Attempt
	// Replay is the answer that the first submit got.
	Replay *Answer
	// Problem is to be answered instead.
	Problem *Problem
	// Unknown, with CodeOutcomeUnknown, is the record in the way: who finds out what
	// became of its submit decides with it, by its token (Decision.Attempt). It is
	// nil if the store has no such record yet, or one that cannot be read.
	Unknown *View

	// here, with CodeInProgress: this process runs the attempt, whatever its
	// record says.
	here bool
}

// Begin asks the store whether a submit may be sent. It costs one round trip,
// and another one to take over a record that is under an old key.
//
// An error wraps ErrStoreUnavailable: nothing may be sent. If the store may
// have granted the claim all the same, or may still do so, the engine takes it
// back in the background. The error wraps ErrClaimedBefore, too, if the store
// failed after the submit had waited.
//
// With Policy.Wait a submit whose first is running is held until that has come
// to its end or the time is over, and costs a round trip more. Only this wait
// ends with ctx. Asking the store takes two store timeouts at most, and three
// until it has been reached for the first time, for each round trip.
func (e *Engine) Begin(ctx context.Context, policy Policy, s Submit) (Admission, error) {
	if pointer := policy.JobID.String(); pointer != DefaultJobPointer {
		s.Details.JobPointer = pointer
	}
	if policy.Wait <= 0 {
		return e.begin(ctx, &policy, &s)
	}
	ctx, cancel := context.WithTimeout(ctx, policy.Wait)
	defer cancel()
	for waited := false; ; waited = true {
		admission, err := e.begin(ctx, &policy, &s)
		if err != nil && waited {
			return admission, fmt.Errorf("%w: %w", ErrClaimedBefore, err)
		}
		running := err == nil && admission.Problem != nil && admission.Problem.Code == CodeInProgress
		if !running || !e.awaitChange(ctx, s.ID, admission.here) {
			return admission, err
		}
	}
}

// begin claims under the first key, and once more if an uncertain record under
// another key may be taken over: it stays under that key.
func (e *Engine) begin(ctx context.Context, policy *Policy, s *Submit) (Admission, error) {
	ctx = context.WithoutCancel(ctx)
	key := policy.Keyring.first()
	first := key.seal(s.ID, key.fingerprintOf(s.ID, s.Fingerprint))
	own := &first
	for range 2 {
		admission, other, err := e.beginUnder(ctx, policy, s, own)
		if other == nil {
			return admission, err
		}
		own = other
	}
	return Admission{}, fmt.Errorf("%w: the record has changed hands", ErrStoreUnavailable)
}

// beginUnder claims once. If the record can be had under another seal alone, it
// returns that one and nothing else.
func (e *Engine) beginUnder(ctx context.Context, policy *Policy, s *Submit, own *seal) (Admission, *seal, error) {
	payload, err := own.close(s.Details)
	if err != nil {
		return Admission{}, nil, errors.Join(ErrStoreUnavailable, err)
	}
	claim := Claim{
		ID:          s.ID,
		Token:       NewToken(),
		Fingerprint: own.fingerprint,
		Lease:       policy.Lease,
		Retention:   policy.Retention,
		Payload:     payload,
	}
	claim.TakeOver = e.startClaim(s.ID) && policy.ResubmitUncertain
	g := grant{claim: &claim, seal: own, sentAt: time.Now()}
	var reply ClaimReply
	reply, g.strayUntil, err = e.claim(ctx, &claim)
	if err == nil && reply.Verdict == Claimed {
		g.tookOver = reply.TookOver
		return e.granted(ctx, policy, s, g), nil, nil
	}
	holder := e.endClaim(s.ID)
	if err != nil {
		e.observer.StoreError(nameClaim, s.ID, err)
		return Admission{}, nil, fmt.Errorf("%w: claim record: %w", ErrStoreUnavailable, err)
	}

	switch reply.Verdict {
	case AlreadyUncertain:
		if policy.ResubmitUncertain && !claim.TakeOver {
			if !holder.known {
				return Admission{}, own, nil // it has ended meanwhile: the record may be taken over
			}
			return holder.tell(s.ID), nil, nil
		}
		fallthrough
	case AlreadyCompleted, StillInProgress:
		admission, err := e.repeat(s.ID, own, &reply)
		return admission, nil, err
	case OtherRequest:
		return e.compare(policy, s, &reply)
	case Claimed, TooLate:
		// granted has dealt with the one; claim reports the other as an error.
	}
	return Admission{}, nil, fmt.Errorf("%w: the store gave verdict %d", ErrStoreUnavailable, reply.Verdict)
}

// compare finds out whether a record with another stored fingerprint is of
// another request, or of the same one and under another key.
func (e *Engine) compare(policy *Policy, s *Submit, reply *ClaimReply) (Admission, *seal, error) {
	same, details, err := policy.Keyring.recognise(s, &reply.Record)
	if err != nil {
		e.observer.StoreError(nameClaim, s.ID, err)
		return Admission{}, nil, fmt.Errorf("%w: compare requests: %w", ErrStoreUnavailable, err)
	}
	if same == nil {
		detail := "What differs: " + s.Details.difference(details) + ". " + recordDetail(s.ID)
		return Admission{Problem: &Problem{Code: CodeReuse, Detail: detail}}, nil, nil
	}
	if policy.ResubmitUncertain && reply.Record.StateAt(reply.Now) == Uncertain {
		return Admission{}, same, nil
	}
	admission, err := e.repeat(s.ID, same, reply)
	return admission, nil, err
}

// repeat answers a repeat of the request that the record is of.
func (e *Engine) repeat(id RecordID, s *seal, reply *ClaimReply) (Admission, error) {
	r := &reply.Record
	switch state := r.StateAt(reply.Now); state {
	case Completed:
		answer, err := answerOf(r, s)
		if err != nil {
			e.observer.StoreError(nameClaim, id, err)
			return Admission{}, fmt.Errorf("%w: read stored answer: %w", ErrStoreUnavailable, err)
		}
		return replay(id, answer), nil
	case InProgress:
		return Admission{Problem: &Problem{
			Code:       CodeInProgress,
			Detail:     recordDetail(id),
			RetryAfter: retryAfterInProgress(reply.Now.Sub(r.ChangedAt), r.LeaseUntil.Sub(reply.Now)),
		}}, nil
	case Uncertain:
		problem := OutcomeUnknown(id)
		admission := Admission{Problem: &problem}
		if details, err := s.open(r.Payload); err == nil {
			admission.Unknown = &View{ID: id, State: Uncertain, Record: *r, Details: details}
		}
		return admission, nil
	default:
		return Admission{}, fmt.Errorf("%w: the record in the way is %s", ErrStoreUnavailable, state)
	}
}

// replay answers a repeat of a submit that was accepted.
func replay(id RecordID, answer Answer) Admission {
	if answer.Unavailable {
		return Admission{Problem: &Problem{Code: CodeResultUnavailable, Detail: recordDetail(id)}}
	}
	return Admission{Replay: &answer}
}

func recordDetail(id RecordID) string { return "Record: " + string(id) + "." }

// claim sends the claim, and once more if it is not known what became of the
// first: the token makes the store recognise it. What may still come true after
// an error, or beside somebody else's record, is taken back. strayUntil is when
// another try of a claim that was granted can no longer be granted, on the
// store's clock; zero if there is none.
func (e *Engine) claim(ctx context.Context, c *Claim) (reply ClaimReply, strayUntil time.Time, err error) {
	mayBeGranted := false
	var failure error
	var nodeNow time.Time // by the record's own node, if it has just said so
	for range 2 {
		storeNow, err := e.storeNow(ctx)
		if err != nil {
			failure = err
			break
		}
		if !nodeNow.IsZero() {
			storeNow = nodeNow
		}
		// Both tries together take two timeouts at most. A claim that the store
		// gets to see later, because it or the network stood still, must not be
		// granted: nobody would send it, and it would block the key.
		c.NotAfter = storeNow.Add(2 * e.timeout)
		reply, err := e.claimOnce(ctx, c)
		if err == nil && reply.Verdict != TooLate {
			if mayBeGranted && reply.Verdict != Claimed {
				e.withdrawLater(c, strayUntil)
			}
			return reply, strayUntil, nil
		}
		if err == nil {
			// Our idea of the store's clock was off. The reply has corrected it, but
			// that of another node may have taken its place meanwhile.
			nodeNow = reply.Now
			err = ErrClaimTooLate
		} else if !errors.Is(err, ErrNotApplied) && !errors.Is(err, ErrUnreadable) {
			mayBeGranted = true
			if c.NotAfter.After(strayUntil) { // of two tries, the clock of another node may be ahead
				strayUntil = c.NotAfter
			}
		}
		failure = err
		if errors.Is(err, ErrNotApplied) || errors.Is(err, ErrUnreadable) {
			break
		}
	}
	if mayBeGranted {
		e.withdrawLater(c, strayUntil)
	}
	return ClaimReply{}, time.Time{}, failure
}

// withdrawLater takes back a claim that may be granted until a moment of the
// store's clock.
func (e *Engine) withdrawLater(c *Claim, until time.Time) {
	e.settleLater(&unsettled{op: opWithdraw, id: c.ID, token: c.Token, notAfter: until}, c.Lease+c.Retention)
}

// claimOnce is a call without the closure: the stack of a submit that waits for
// the provider is as deep as this one was.
func (e *Engine) claimOnce(ctx context.Context, c *Claim) (reply ClaimReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	began := time.Now()
	reply, err = e.store.Claim(ctx, *c)
	e.observer.StoreCall(nameClaim, time.Since(began), err)
	if err == nil {
		e.clock.learn(reply.Now)
	}
	return reply, err
}

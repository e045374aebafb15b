package idempotency

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// own is what this process knows of one record without the store. It is there
// from before a claim is sent until nothing is left to be known.
type own struct {
	// claims are those of this process that the store may have granted without
	// the engine knowing: under way, or to be taken back.
	claims int
	// holder is the attempt that the record belongs to, as far as this process
	// knows, until the store has its outcome; nil if there is none. There is
	// never more than one: a claim that is granted while there is one does not
	// make another.
	holder *Attempt
}

// grant is a claim that the store has granted, and all that came with it.
type grant struct {
	claim      *Claim
	seal       *seal
	sentAt     time.Time
	strayUntil time.Time
	tookOver   bool
}

// startClaim notes that a claim is under way, and reports whether it may take a
// record over: not while this process works on it, or knows its answer.
func (e *Engine) startClaim(id RecordID) (mayTakeOver bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.startClaimLocked(id)
	return !e.own[id].holder.keepsLocked()
}

func (e *Engine) startClaimLocked(id RecordID) {
	o := e.own[id]
	o.claims++
	e.own[id] = o
}

// endClaim notes that a claim has left nothing behind that is not known, and
// returns what this process knows of the record.
func (e *Engine) endClaim(id RecordID) knowledge {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endClaimLocked(id)
	return e.own[id].holder.knowledgeLocked()
}

func (e *Engine) endClaimLocked(id RecordID) {
	o := e.own[id]
	o.claims--
	e.putLocked(id, o)
}

func (e *Engine) putLocked(id RecordID, o own) {
	if o == (own{}) {
		delete(e.own, id)
		return
	}
	e.own[id] = o
}

// holdsLocked reports whether the attempt says what a repeat is told: it runs,
// or its outcome is not in the store. One that was refused or never sent says
// that the key is free.
func (a *Attempt) holdsLocked() bool {
	return a != nil && (a.outcome == nil || a.outcome.op == opComplete || a.outcome.op == opUncertain)
}

// keepsLocked reports whether the attempt keeps its record from being taken
// over: on_uncertain resubmit is a decision about what nobody knows.
func (a *Attempt) keepsLocked() bool {
	return a.holdsLocked() && (a.outcome == nil || a.outcome.op == opComplete)
}

func (a *Attempt) owesLocked() bool { return a.outcome != nil && a.holdsLocked() }

func (e *Engine) livesLocked(a *Attempt) bool {
	_, alive := e.live[a]
	return alive
}

// runs reports whether this process has a live attempt at a record.
func (e *Engine) runs(id RecordID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.own[id].holder
	return a != nil && e.livesLocked(a)
}

// knowledge is what this process can tell a repeat by itself.
type knowledge struct {
	known   bool
	outcome operation // 0 while the attempt runs
	answer  Answer    // with opComplete
	age     time.Duration
	lease   time.Duration
}

func (a *Attempt) knowledgeLocked() knowledge {
	if !a.holdsLocked() {
		return knowledge{}
	}
	k := knowledge{known: true, age: time.Since(a.began), lease: a.policy.Lease}
	if a.outcome == nil {
		return k
	}
	k.outcome = a.outcome.op
	if answer := a.outcome.details.Answer; answer != nil {
		k.answer = *answer
		k.answer.Header = answer.Header.Clone() // callers may change theirs
	}
	return k
}

// tell answers a repeat by what this process knows.
func (k knowledge) tell(id RecordID) Admission {
	switch k.outcome {
	case opComplete:
		return replay(id, k.answer)
	case opUncertain:
		problem := OutcomeUnknown(id)
		return Admission{Problem: &problem}
	case opRelease, opWithdraw:
		// The key is free: nothing is known then.
	}
	return Admission{here: true, Problem: &Problem{Code: CodeInProgress, RetryAfter: retryAfterInProgress(k.age, k.lease)}}
}

// granted makes an attempt of a claim that the store has granted, if this
// process does not know better: then the record that the store has now becomes
// that of the attempt that this process has.
func (e *Engine) granted(ctx context.Context, policy *Policy, s *Submit, g grant) Admission {
	e.mu.Lock()
	holder := e.own[s.ID].holder
	if g.tookOver && holder.holdsLocked() && !holder.keepsLocked() {
		e.disownLocked(holder) // by on_uncertain resubmit
	}
	switch holder = e.own[s.ID].holder; {
	case !holder.holdsLocked():
		a := &Attempt{
			engine: e, policy: policy, id: s.ID, request: s.Fingerprint, details: s.Details, began: g.sentAt,
			token: g.claim.Token, seal: *g.seal, strayUntil: g.strayUntil, tookOver: g.tookOver,
		}
		e.own[s.ID] = own{claims: e.own[s.ID].claims - 1, holder: a}
		e.attendLocked(a, g.sentAt)
		e.mu.Unlock()
		return Admission{Attempt: a}
	case holder.request != s.Fingerprint:
		e.mu.Unlock()
		e.withdraw(ctx, g)
		e.endClaim(s.ID)
		return Admission{Problem: &Problem{Code: CodeReuse}}
	}
	stray := e.adoptLocked(holder, g)
	k := holder.knowledgeLocked()
	e.endClaimLocked(s.ID)
	e.mu.Unlock()
	e.adopted(stray, g)
	return k.tell(s.ID)
}

// adoptLocked gives an attempt the record that the store has granted: its lease
// is renewed there from now on, and its outcome is stored there. What it returns
// is for adopted.
func (e *Engine) adoptLocked(a *Attempt, g grant) (stray *unsettled) {
	if !a.strayUntil.IsZero() {
		stray = &unsettled{op: opWithdraw, id: a.id, token: a.token, notAfter: a.strayUntil}
	}
	a.token, a.seal, a.strayUntil, a.lost = g.claim.Token, *g.seal, g.strayUntil, false
	a.renewAt = g.sentAt.Add(min(a.policy.Lease, g.claim.Lease) / 3)
	if e.livesLocked(a) && !a.ended {
		e.keepLocked(a.renewAt)
	}
	if a.owesLocked() && slices.Contains(e.pending, a.outcome) {
		a.outcome.nextTry = time.Now()
		e.keepLocked(a.outcome.nextTry)
	}
	return stray
}

// adopted takes back another try of the claim that the attempt had before, and
// tells that its record was lost.
func (e *Engine) adopted(stray *unsettled, g grant) {
	if stray != nil {
		e.settleLater(stray, g.claim.Lease+g.claim.Retention)
	}
	if !g.tookOver {
		e.observer.RecordLost(g.claim.ID)
	}
}

// withdraw takes back a claim that was granted and is not used.
func (e *Engine) withdraw(ctx context.Context, g grant) {
	u := &unsettled{op: opWithdraw, id: g.claim.ID, token: g.claim.Token, notAfter: g.strayUntil}
	if e.settle(ctx, u) != nil {
		e.settleLater(u, g.claim.Lease+g.claim.Retention)
	}
}

// owe notes what an attempt came to, before the store is told. A release goes to
// the record that is the attempt's now: nobody gives it another one any more.
func (e *Engine) owe(a *Attempt, u *unsettled) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.outcome = u
	if u.op == opRelease {
		u.attempt, u.token, u.notAfter = nil, a.token, a.strayUntil
	}
}

// stored notes that the store has an outcome in the record with the token. It
// returns false if the attempt has got another record meanwhile.
func (e *Engine) stored(u *unsettled, token Token) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if u.attempt.token != token {
		return false
	}
	e.settledLocked(u)
	return true
}

// settledLocked notes that there is nothing left to do about an outcome, or about
// a claim that was queued to be taken back.
func (e *Engine) settledLocked(u *unsettled) {
	switch {
	case u.attempt == nil:
		e.endClaimLocked(u.id)
	case u.attempt.outcome == u:
		e.dropLocked(u.attempt)
	}
}

// dropLocked ends what this process knows of a record by an attempt.
func (e *Engine) dropLocked(a *Attempt) {
	if o := e.own[a.id]; o.holder == a {
		o.holder = nil
		e.putLocked(a.id, o)
	}
}

// holding is an attempt, and the record that was its own at one moment.
type holding struct {
	attempt *Attempt
	token   Token
}

// holding returns the attempt that this process believes to have the record.
func (e *Engine) holding(id RecordID) holding {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.own[id].holder
	if a == nil {
		return holding{}
	}
	return holding{a, a.token}
}

// disown takes an attempt's record away from it for good, unless it has got
// another one meanwhile.
func (e *Engine) disown(h holding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h.attempt != nil && h.attempt.token == h.token {
		e.disownLocked(h.attempt)
	}
}

func (e *Engine) disownLocked(a *Attempt) {
	a.disowned, a.lost = true, true
	e.dropLocked(a)
	e.wakeRoomLocked(a.id)
}

// ending returns what is to be written to the record that is the attempt's now.
func (e *Engine) ending(u *unsettled) (Ending, error) {
	e.mu.Lock()
	token, seal := u.attempt.token, u.attempt.seal
	e.mu.Unlock()
	payload, err := seal.close(u.details)
	return Ending{ID: u.id, Token: token, Payload: payload}, err
}

// restore makes the record of an outcome anew, under the token that the store
// did not know, if the store has lost it. It reports whether the outcome is to be
// stored again: the record is there, or the attempt has another one by now. If
// not, the record is somebody else's, or was taken away by a decision, and there
// is nothing left to do.
//
// The token makes a claim whose reply was lost recognise itself.
func (e *Engine) restore(ctx context.Context, u *unsettled, token Token) (again bool, err error) {
	a := u.attempt
	e.mu.Lock()
	seal, disowned, moved := a.seal, a.disowned, a.token != token
	e.mu.Unlock()
	if disowned || moved {
		return moved, nil
	}
	reply, err := e.reclaimOnce(ctx, a, &seal, token)
	if err != nil {
		e.observer.StoreError(nameClaim, a.id, fmt.Errorf("make the record of an outcome anew: %w", err))
		return false, err
	}
	if reply.Verdict == Claimed {
		e.observer.RecordLost(a.id)
		return true, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if a.token != token {
		return true, nil
	}
	if reply.Record.State == InProgress && e.own[a.id].claims > 0 {
		// If it is one of those, the attempt gets it as soon as that is known.
		return false, errMayBeOwn
	}
	e.settledLocked(u)
	return false, nil
}

func (e *Engine) reclaimOnce(ctx context.Context, a *Attempt, s *seal, token Token) (ClaimReply, error) {
	claim, err := a.claim(s, token)
	if err != nil {
		return ClaimReply{}, err
	}
	now, err := e.storeNow(ctx)
	if err != nil {
		return ClaimReply{}, err
	}
	claim.NotAfter = now.Add(2 * e.timeout)
	reply, err := e.claimOnce(ctx, &claim)
	if err == nil && reply.Verdict == TooLate {
		err = ErrClaimTooLate
	}
	return reply, err
}

// claim returns the claim that makes an attempt's record anew.
func (a *Attempt) claim(s *seal, token Token) (Claim, error) {
	payload, err := s.close(a.details)
	return Claim{
		ID: a.id, Token: token, Fingerprint: s.fingerprint,
		Lease: a.policy.Lease, Retention: a.policy.Retention, Payload: payload,
	}, err
}

// reclaim is for attempts whose lease the store did not renew. Those whose record
// the store has lost get it back. The others have lost their lease.
func (e *Engine) reclaim(attempts []*Attempt) {
	for chunk := range slices.Chunk(attempts, settleAtOnce) {
		var wg sync.WaitGroup
		for _, a := range chunk {
			wg.Go(func() { e.reclaimLease(a) })
		}
		wg.Wait()
	}
}

// reclaimLease claims under a token of its own: the record may be there under
// the attempt's, and a lease that is over is not had back.
func (e *Engine) reclaimLease(a *Attempt) {
	e.mu.Lock()
	token, seal := a.token, a.seal
	if a.disowned {
		e.mu.Unlock()
		return
	}
	e.startClaimLocked(a.id)
	e.mu.Unlock()

	g := grant{seal: &seal, sentAt: time.Now()}
	claim, err := a.claim(&seal, NewToken())
	var reply ClaimReply
	if err == nil {
		g.claim = &claim
		reply, g.strayUntil, err = e.claim(context.Background(), &claim)
	}
	if err != nil {
		e.observer.StoreError(nameClaim, a.id, fmt.Errorf("claim a record that was not renewed: %w", err))
	}

	e.mu.Lock()
	adopted := err == nil && reply.Verdict == Claimed && e.own[a.id].holder == a && a.holdsLocked()
	unused := err == nil && reply.Verdict == Claimed && !adopted
	lost := false
	var stray *unsettled
	switch {
	case adopted:
		stray = e.adoptLocked(a, g)
	case !e.renewableLocked(a, token):
	case err != nil:
		a.renewLaterLocked()
	default:
		a.lost, lost = true, true
		e.wakeRoomLocked(a.id)
	}
	if !unused {
		e.endClaimLocked(a.id)
	}
	e.mu.Unlock()

	if adopted {
		e.adopted(stray, g)
	}
	if lost {
		e.observer.LeaseLost(a.id)
	}
	if unused {
		e.withdraw(context.Background(), g)
		e.endClaim(a.id)
	}
}

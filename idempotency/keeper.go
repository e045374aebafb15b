package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// operation is a transition that the engine carries out, now or later.
type operation int

const (
	opComplete operation = iota + 1
	opUncertain
	opRelease
	// opWithdraw takes back a claim that nobody sends: it may have been granted
	// although its reply was lost, or the store may still see it.
	opWithdraw
)

func (op operation) String() string {
	switch op {
	case opComplete:
		return "complete"
	case opUncertain:
		return "uncertain"
	case opRelease:
		return "release"
	case opWithdraw:
		return "withdraw"
	default:
		return "unknown"
	}
}

// unsettled is a transition that the store has not acknowledged yet.
type unsettled struct {
	op operation // changes under engine.mu
	id RecordID
	// token of opRelease and opWithdraw. What an attempt came to goes to the
	// record that is the attempt's then.
	token   Token
	attempt *Attempt // of opComplete and opUncertain
	details Details
	status  int // of the acceptance, with opComplete
	// notAfter is when the claim, or another try of it, can no longer be granted,
	// on the store's clock; zero if it cannot anyway. Of opRelease and opWithdraw.
	notAfter time.Time

	tries   int
	nextTry time.Time
	giveUp  time.Time
}

const (
	// renewalsPerCall bounds one Renew call, so that it stays far below a
	// store timeout.
	renewalsPerCall = 256
	// settleAtOnce bounds how many transitions are carried out at a time when
	// a store that was away is back.
	settleAtOnce = 32
	// maxWithdrawals bounds how many claims wait to be taken back. A store that
	// takes no write and does not say so leaves one for each submit.
	maxWithdrawals = 10_000

	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

func backoff(tries int) time.Duration {
	return min(minBackoff<<min(tries, 10), maxBackoff)
}

// attendLocked puts an attempt under the keeper's care. Its lease began at the
// earliest when the claim was sent.
func (e *Engine) attendLocked(a *Attempt, claimSent time.Time) {
	e.live[a] = struct{}{}
	a.renewAt = claimSent.Add(a.policy.Lease / 3)
	e.keepLocked(a.renewAt)
}

// stopRenewal ends the renewal of an attempt's lease.
func (e *Engine) stopRenewal(a *Attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.ended = true
}

// leave takes an attempt out of the keeper's care.
func (e *Engine) leave(a *Attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.live, a)
	if !a.owesLocked() {
		e.dropLocked(a)
	}
	e.wakeRoomLocked(a.id)
	if len(e.live) == 0 && len(e.pending) == 0 {
		e.wakeLocked()
	}
}

// settleLater leaves a transition to the keeper, for as long as the record
// would live.
func (e *Engine) settleLater(u *unsettled, lifetime time.Duration) {
	if dropped := e.queue(u, lifetime); dropped != nil {
		e.observer.GaveUp(dropped.op.String(), dropped.id)
	}
}

// queue adds a transition to the pending ones. If too many claims wait to be
// taken back, it returns the oldest of them, which is dropped: a record that it
// may have left is uncertain when its lease is over. What became of a submit
// that was sent is never dropped.
func (e *Engine) queue(u *unsettled, lifetime time.Duration) (dropped *unsettled) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	u.giveUp = now.Add(lifetime)
	u.nextTry = now.Add(backoff(0))
	e.pending = append(e.pending, u)
	if u.attempt == nil {
		e.startClaimLocked(u.id) // the store may have granted it
	}
	e.keepLocked(u.nextTry)
	if u.op != opWithdraw || len(e.pending) <= maxWithdrawals {
		return nil
	}
	withdrawals, oldest := 0, 0
	for i, p := range e.pending {
		if p.op != opWithdraw {
			continue
		}
		if withdrawals++; withdrawals == 1 || p.notAfter.Before(e.pending[oldest].notAfter) {
			oldest = i
		}
	}
	if withdrawals <= maxWithdrawals {
		return nil
	}
	dropped = e.pending[oldest]
	e.pending = slices.Delete(e.pending, oldest, oldest+1)
	e.settledLocked(dropped)
	return dropped
}

// keepLocked makes sure that the keeper runs and looks again at the given time.
func (e *Engine) keepLocked(at time.Time) {
	if !e.running {
		e.running = true
		e.wakeAt = at
		e.idle = make(chan struct{})
		go e.keep(e.hold(), e.idle)
		return
	}
	if at.Before(e.wakeAt) {
		e.wakeAt = at
		e.wakeLocked()
	}
}

func (e *Engine) wakeLocked() {
	select {
	case e.wake <- struct{}{}:
	default: // it is about to wake anyway
	}
}

// keep renews the leases of all live attempts and settles what the store has
// not acknowledged, and ends when there is nothing left of either.
func (e *Engine) keep(release func(), idle chan struct{}) {
	defer close(idle)
	defer release()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-e.wake:
		}
		// However long the queue of a store that was away, no lease waits for
		// more than one batch of it.
		atOnce := 1 // until one has gone well
		for more := true; more; atOnce = settleAtOnce {
			e.renewDue()
			more = e.settleDue(atOnce)
		}

		e.mu.Lock()
		if len(e.live) == 0 && len(e.pending) == 0 {
			e.running = false
			e.idle = nil
			e.mu.Unlock()
			return
		}
		e.wakeAt = e.nextLocked()
		timer.Reset(time.Until(e.wakeAt))
		e.mu.Unlock()
	}
}

// nextLocked returns when something is due. With nothing due it is far away;
// whatever comes then wakes the keeper.
func (e *Engine) nextLocked() time.Time {
	next := time.Now().Add(time.Hour)
	for a := range e.live {
		if !a.lost && !a.ended && a.renewAt.Before(next) {
			next = a.renewAt
		}
	}
	for _, u := range e.pending {
		if u.nextTry.Before(next) {
			next = u.nextTry
		}
	}
	return next
}

// renewDue renews what is due, and what is nearly due along with it: 1,000
// attempts that began at different moments cost a few calls per lease.
func (e *Engine) renewDue() {
	now := time.Now()
	var due []*Attempt
	e.mu.Lock()
	for a := range e.live {
		if !a.lost && !a.ended && !a.renewAt.After(now.Add(a.policy.Lease/10)) {
			due = append(due, a)
		}
	}
	// The others can wait for their own time if nobody is due right now.
	if !slices.ContainsFunc(due, func(a *Attempt) bool { return !a.renewAt.After(now) }) {
		due = nil
	}
	e.mu.Unlock()

	for chunk := range slices.Chunk(due, renewalsPerCall) {
		e.renew(chunk)
	}
}

func (e *Engine) renew(attempts []*Attempt) {
	renewals := make([]Renewal, len(attempts))
	e.mu.Lock()
	for i, a := range attempts {
		renewals[i] = Renewal{ID: a.id, Token: a.token, Lease: a.policy.Lease}
	}
	e.mu.Unlock()
	sent := time.Now()
	replies, err := call(context.Background(), e, nameRenew, func(ctx context.Context) ([]Reply, error) {
		return e.store.Renew(ctx, renewals)
	})
	if err == nil && len(replies) != len(attempts) {
		err = fmt.Errorf("store answered %d of %d renewals", len(replies), len(attempts))
	}
	if err != nil {
		e.observer.StoreError(nameRenew, attempts[0].id, err)
	}
	e.reclaim(e.noteRenewals(attempts, renewals, sent, replies, err))
}

// noteRenewals notes when each attempt is to be renewed next, and returns those
// that were not renewed.
func (e *Engine) noteRenewals(attempts []*Attempt, renewals []Renewal, sent time.Time, replies []Reply, err error) (refused []*Attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, a := range attempts {
		switch {
		case !e.renewableLocked(a, renewals[i].Token):
		case err != nil:
			a.renewLaterLocked()
		case replies[i].Applied:
			a.renewAt = sent.Add(a.policy.Lease / 3)
		default:
			refused = append(refused, a)
		}
	}
	return refused
}

// renewableLocked reports whether what the store says of a lease is still of
// interest: the attempt has neither concluded meanwhile nor got another record.
func (e *Engine) renewableLocked(a *Attempt, token Token) bool {
	_, alive := e.live[a]
	return alive && !a.ended && !a.lost && a.token == token
}

func (a *Attempt) renewLaterLocked() {
	a.renewAt = time.Now().Add(min(a.policy.Lease/10, time.Second))
}

// settleDue carries out up to n of the transitions that are due, and reports
// whether more may follow at once: there were some, and the store is there.
func (e *Engine) settleDue(n int) (more bool) {
	batch := e.takeDue(n)
	if len(batch) == 0 {
		return false
	}
	var wg sync.WaitGroup
	failed := make([]bool, len(batch))
	var away atomic.Bool
	for i, u := range batch {
		wg.Go(func() {
			err := e.settle(context.Background(), u)
			failed[i] = err != nil
			if err != nil && !errors.Is(err, errClaimMayCome) && !errors.Is(err, errMayBeOwn) {
				away.Store(true)
			}
		})
	}
	wg.Wait()

	var again []*unsettled
	for i, u := range batch {
		switch {
		case !failed[i]:
		case time.Now().After(u.giveUp):
			e.observer.GaveUp(u.op.String(), u.id)
		default:
			again = append(again, u)
		}
	}
	allFailed := len(again) == len(batch) && away.Load()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, u := range again {
		u.tries++
		u.nextTry = time.Now().Add(backoff(u.tries))
	}
	for _, u := range batch {
		if !slices.Contains(again, u) {
			e.settledLocked(u)
		}
	}
	e.settling = nil
	e.pending = append(e.pending, again...)
	if allFailed {
		// The store is away: let the rest wait as long as these.
		for _, u := range e.pending {
			if u.nextTry.Before(again[0].nextTry) {
				u.nextTry = again[0].nextTry
			}
		}
	}
	return !allFailed
}

// takeDue takes up to n transitions that are due out of the pending ones, and
// notes them as under way.
func (e *Engine) takeDue(n int) []*unsettled {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	var due []*unsettled
	e.pending = slices.DeleteFunc(e.pending, func(u *unsettled) bool {
		if len(due) < n && !u.nextTry.After(now) {
			due = append(due, u)
			return true
		}
		return false
	})
	e.settling = due
	return due
}

// settle carries out one transition. It returns nil when there is nothing
// left to do, be it that the transition was applied or that the record is no
// longer the attempt's own, and errClaimMayCome when only a try of the claim is
// left to be taken back.
//
// A record that the store has lost is made anew.
func (e *Engine) settle(ctx context.Context, u *unsettled) error {
	if u.attempt != nil {
		return e.settleOutcome(ctx, u)
	}
	reply, err := call(ctx, e, u.op.String(), func(ctx context.Context) (Reply, error) {
		return e.store.Release(ctx, u.id, u.token)
	})
	if err != nil {
		e.observer.StoreError(u.op.String(), u.id, err)
		return err
	}
	e.clock.learn(reply.Now)
	if !reply.Now.After(u.notAfter) {
		// A try of the claim may still be on its way, even if another was just
		// taken back. That is all that is left to do.
		e.mu.Lock()
		defer e.mu.Unlock()
		u.op = opWithdraw
		return errClaimMayCome
	}
	return nil
}

// mostRestores bounds how often a record is made anew at a time, for a store that
// loses it again at once.
const mostRestores = 3

// settleOutcome stores what an attempt came to.
func (e *Engine) settleOutcome(ctx context.Context, u *unsettled) error {
	for range mostRestores {
		ending, err := e.ending(u)
		var reply Reply
		if err == nil {
			reply, err = call(ctx, e, u.op.String(), func(ctx context.Context) (Reply, error) {
				if u.op == opComplete {
					return e.store.Complete(ctx, ending)
				}
				return e.store.MarkUncertain(ctx, ending)
			})
		}
		if err != nil {
			e.observer.StoreError(u.op.String(), u.id, err)
			return err
		}
		e.clock.learn(reply.Now)
		if reply.Applied {
			if e.stored(u, ending.Token) {
				return nil
			}
			continue
		}
		again, err := e.restore(ctx, u, ending.Token)
		switch {
		case err != nil:
			return err
		case again:
		case u.op == opComplete:
			e.observer.LateAcceptance(u.id, u.status)
			return nil
		default:
			return nil
		}
	}
	e.observer.StoreError(u.op.String(), u.id, errRecordVanishes)
	return errRecordVanishes
}

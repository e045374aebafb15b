package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// DefaultStoreTimeout bounds one store operation if EngineConfig has none.
const DefaultStoreTimeout = 500 * time.Millisecond

// EngineConfig configures an Engine.
type EngineConfig struct {
	// Store keeps the records. Required.
	Store Store
	// StoreTimeout bounds one store operation; 0 means DefaultStoreTimeout.
	StoreTimeout time.Duration
	// Observer hears what happens without a request to report it to; nil means
	// nobody.
	Observer Observer
	// Hold, if set, is called when the engine starts to work by itself (leases
	// to renew, outcomes to store), and what it returns when there is nothing
	// left to do. Between the two the store must stay open.
	Hold func() (release func())
}

// Observer hears what happens apart from the answer to a request. Its methods
// are called from many goroutines and must not block.
type Observer interface {
	// StoreCall reports each call of the store: one of Operations, how long it
	// took, and its error.
	StoreCall(op string, took time.Duration, err error)
	// StoreError reports that the engine could not do what it had to: a claim
	// after all its tries, one try of anything else. op is one of Operations.
	// The error's text holds nothing of a request.
	StoreError(op string, id RecordID, err error)
	// LeaseLost reports that an attempt could not be renewed in time, so
	// others are told that its outcome is unknown while it still runs.
	LeaseLost(id RecordID)
	// LateAcceptance reports an acceptance that could not be stored because the
	// record was no longer the attempt's own: an operator or an
	// on_uncertain resubmit decided otherwise, or the store lost it and another
	// gateway has submitted since.
	LateAcceptance(id RecordID, status int)
	// RecordLost reports that the store had no record of a submit that this
	// process works on, or whose outcome it owes the store. It has one again.
	// The reason is a store that was flushed, restarted empty, failed over or
	// evicts, or an operator who released the record through another gateway.
	RecordLost(id RecordID)
	// GaveUp reports an outcome that could not be stored as long as its record
	// lived; or, with the operation withdraw, a claim that was not taken back,
	// also because more than ten thousand waited for it. A record that it may have
	// left is uncertain, though nothing was sent.
	GaveUp(op string, id RecordID)
}

// Operations are the names by which an Observer hears of store operations.
func Operations() []string {
	return []string{
		nameNow, nameClaim, nameRenew, nameGet, nameScan, nameDecideComplete, nameDecideRelease, nameForget,
		opComplete.String(), opUncertain.String(), opRelease.String(), opWithdraw.String(),
	}
}

// Names of operations that are not transitions of an attempt's end.
const (
	nameNow   = "now"
	nameClaim = "claim"
	nameRenew = "renew"
	nameGet   = "get"
	nameScan  = "scan"

	nameDecideComplete = "decide_complete"
	nameDecideRelease  = "decide_release"
	nameForget         = "forget"
)

// Engine owns every transition of the records in one store: it claims,
// renews, and concludes, and it goes on trying where the store fails. One
// engine serves all handlers of a process that use the store.
//
// An engine has a goroutine only while an attempt is alive or an outcome waits
// to be stored, and while it counts records because somebody asked for their
// number.
type Engine struct {
	store    Store
	timeout  time.Duration
	observer Observer
	hold     func() func()

	clock  storeClock
	census census

	mu      sync.Mutex
	own     map[RecordID]own
	live    map[*Attempt]struct{}
	pending []*unsettled
	// settling are those that are taken out of pending and under way.
	settling []*unsettled
	running  bool          // the keeper goroutine exists
	wakeAt   time.Time     // when the keeper looks next
	idle     chan struct{} // closed when the keeper ends; nil if it does not run
	wake     chan struct{}
	rooms    map[RecordID]*room
	waiters  int // in all rooms
}

// NewEngine returns an engine. It does no I/O and starts nothing.
func NewEngine(config EngineConfig) *Engine {
	e := &Engine{
		store:    config.Store,
		timeout:  config.StoreTimeout,
		observer: config.Observer,
		hold:     config.Hold,
		own:      make(map[RecordID]own),
		live:     make(map[*Attempt]struct{}),
		wake:     make(chan struct{}, 1),
		rooms:    make(map[RecordID]*room),
	}
	if e.timeout <= 0 {
		e.timeout = DefaultStoreTimeout
	}
	if e.observer == nil {
		e.observer = silent{}
	}
	if e.hold == nil {
		e.hold = func() func() { return func() {} }
	}
	return e
}

// Submit is one request that wants to start a job.
type Submit struct {
	ID          RecordID
	Fingerprint Fingerprint
	Details     Details
}

// Admission is the engine's word on a submit. Exactly one of its fields is
// set.
type Admission struct {
	// Attempt may be sent, and must be concluded.
	Attempt *Attempt
	// Replay is the answer that the first submit got.
	Replay *Answer
	// Problem is to be answered instead.
	Problem *Problem

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
	own := key.seal(s.ID, key.fingerprintOf(s.ID, s.Fingerprint))
	admission, other, err := e.beginUnder(ctx, policy, s, &own)
	if other != nil {
		admission, other, err = e.beginUnder(ctx, policy, s, other)
	}
	if other != nil {
		return Admission{}, fmt.Errorf("%w: the record has changed hands", ErrStoreUnavailable)
	}
	return admission, err
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
		return Admission{Problem: &problem}, nil
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

// call does one call of the store, within the engine's timeout and seen by the
// observer.
func call[T any](ctx context.Context, e *Engine, op string, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	began := time.Now()
	reply, err := do(ctx)
	e.observer.StoreCall(op, time.Since(began), err)
	return reply, err
}

// read gets a record as it is stored.
func (e *Engine) read(ctx context.Context, id RecordID) (record Record, found bool, err error) {
	record, err = call(ctx, e, nameGet, func(ctx context.Context) (record Record, err error) {
		record, found, err = e.store.Get(ctx, id)
		return record, err
	})
	return record, found, err
}

// storeNow returns the store's clock. It asks the store once and reckons from
// there; every reply corrects it.
func (e *Engine) storeNow(ctx context.Context) (time.Time, error) {
	if now, known := e.clock.now(); known {
		return now, nil
	}
	return e.askNow(ctx)
}

// askNow asks the store for its clock.
func (e *Engine) askNow(ctx context.Context) (time.Time, error) {
	now, err := call(ctx, e, nameNow, e.store.Now)
	if err != nil {
		return time.Time{}, err
	}
	e.clock.learn(now)
	return now, nil
}

// storeClock reckons the store's clock from this process's monotonic one, so
// that the two machines' wall clocks need not agree.
type storeClock struct {
	mu    sync.Mutex
	store time.Time
	local time.Time
}

func (c *storeClock) learn(store time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store, c.local = store, time.Now()
}

func (c *storeClock) now() (now time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local.IsZero() {
		return time.Time{}, false
	}
	return c.store.Add(time.Since(c.local)), true
}

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

// Close ends a count of the records and closes the store. It may be called once,
// when the engine is idle.
func (e *Engine) Close() error {
	e.census.end()
	return e.store.Close()
}

type silent struct{}

func (silent) StoreCall(string, time.Duration, error) {}
func (silent) StoreError(string, RecordID, error)     {}
func (silent) LeaseLost(RecordID)                     {}
func (silent) LateAcceptance(RecordID, int)           {}
func (silent) RecordLost(RecordID)                    {}
func (silent) GaveUp(string, RecordID)                {}

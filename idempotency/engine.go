package idempotency

import (
	"context"
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

// Close ends a count of the records, and returns when the engine does not use the
// store any more. The store stays open: it is the caller's, and others may work on
// it. Close may be called once, when the engine is idle.
func (e *Engine) Close() { e.census.end() }

type silent struct{}

func (silent) StoreCall(string, time.Duration, error) {}
func (silent) StoreError(string, RecordID, error)     {}
func (silent) LeaseLost(RecordID)                     {}
func (silent) LateAcceptance(RecordID, int)           {}
func (silent) RecordLost(RecordID)                    {}
func (silent) GaveUp(string, RecordID)                {}

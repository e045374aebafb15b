package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// fault is how one call of the store goes wrong. apply does what the call would
// have done; a nil error passes its reply on.
type fault func(ctx context.Context, apply func(context.Context) error) error

var errInjected = errors.New("injected: no reply")

// refused: the store says that it did nothing.
func refused(context.Context, func(context.Context) error) error {
	return fmt.Errorf("%w: injected", idempotency.ErrNotApplied)
}

// requestLost: nothing is done, and nobody can tell.
func requestLost(context.Context, func(context.Context) error) error { return errInjected }

// replyLost: it is done, and nobody can tell.
func replyLost(ctx context.Context, apply func(context.Context) error) error {
	if err := apply(ctx); err != nil {
		return err
	}
	return errInjected
}

// hangs: no answer until the caller gives up.
func hangs(ctx context.Context, _ func(context.Context) error) error {
	<-ctx.Done()
	return ctx.Err()
}

// heldBy holds the call until the channel is closed, and then does it.
func heldBy(gate <-chan struct{}) fault {
	return func(ctx context.Context, apply func(context.Context) error) error {
		select {
		case <-gate:
			return apply(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// delayed are calls that got no reply and are carried out later.
type delayed struct {
	mu   sync.Mutex
	runs []func() error
}

func (d *delayed) fault(_ context.Context, apply func(context.Context) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs = append(d.runs, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return apply(ctx)
	})
	return errInjected
}

// run carries out the delayed calls, as a stopped server would that goes on.
func (d *delayed) run(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.runs) == 0 {
		t.Error("no call was delayed")
	}
	for _, run := range d.runs {
		if err := run(); err != nil {
			t.Error(err)
		}
	}
	d.runs = nil
}

// any reports whether a call waits to be carried out.
func (d *delayed) any() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.runs) > 0
}

// first spoils the first n calls, or all with n < 0.
func first(n int, f fault) func(call int) fault {
	return func(call int) fault {
		if n >= 0 && call > n {
			return nil
		}
		return f
	}
}

// faultyStore is a real store whose calls are counted and can be spoiled.
type faultyStore struct {
	idempotency.Store
	t *testing.T

	mu       sync.Mutex
	calls    map[string]int
	faults   map[string]func(call int) fault
	outcomes tally
	renewals [][]idempotency.Renewal
	longest  time.Duration // that a context gave a call
}

// tally counts calls by operation, and whether they failed.
type tally map[string]struct{ calls, failed int }

func (t tally) add(op string, err error) {
	n := t[op]
	n.calls++
	if err != nil {
		n.failed++
	}
	t[op] = n
}

// spoil decides about the calls of an operation, which are counted from 1.
func (s *faultyStore) spoil(op string, faults func(call int) fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[op] = 0
	s.faults[op] = faults
}

// count returns the number of calls of an operation since it was last spoiled.
func (s *faultyStore) count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[op]
}

// renewed returns the renewals of each call.
func (s *faultyStore) renewed() [][]idempotency.Renewal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.renewals)
}

// longestCall returns how much time the most patient call was given.
func (s *faultyStore) longestCall() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

func spoiled[T any](s *faultyStore, ctx context.Context, op string, apply func(context.Context) (T, error)) (reply T, err error) {
	var none T
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outcomes.add(op, err)
	}()
	s.mu.Lock()
	s.calls[op]++
	var f fault
	if faults := s.faults[op]; faults != nil {
		f = faults(s.calls[op])
	}
	deadline, bounded := ctx.Deadline()
	s.longest = max(s.longest, time.Until(deadline))
	s.mu.Unlock()
	if !bounded {
		s.t.Errorf("%s has a context without a deadline", op)
	}

	if f == nil {
		return apply(ctx)
	}
	var applied T // not reply: a call that is carried out late writes it when this one has returned
	err = f(ctx, func(ctx context.Context) (err error) {
		applied, err = apply(ctx)
		return err
	})
	if err != nil {
		return none, err
	}
	return applied, nil
}

func (s *faultyStore) Now(ctx context.Context) (time.Time, error) {
	return spoiled(s, ctx, "now", s.Store.Now)
}

func (s *faultyStore) Claim(ctx context.Context, c idempotency.Claim) (idempotency.ClaimReply, error) {
	return spoiled(s, ctx, "claim", func(ctx context.Context) (idempotency.ClaimReply, error) { return s.Store.Claim(ctx, c) })
}

func (s *faultyStore) Renew(ctx context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	s.mu.Lock()
	s.renewals = append(s.renewals, slices.Clone(renewals))
	s.mu.Unlock()
	return spoiled(s, ctx, "renew", func(ctx context.Context) ([]idempotency.Reply, error) { return s.Store.Renew(ctx, renewals) })
}

func (s *faultyStore) Complete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return spoiled(s, ctx, "complete", func(ctx context.Context) (idempotency.Reply, error) { return s.Store.Complete(ctx, e) })
}

func (s *faultyStore) MarkUncertain(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return spoiled(s, ctx, "uncertain", func(ctx context.Context) (idempotency.Reply, error) { return s.Store.MarkUncertain(ctx, e) })
}

func (s *faultyStore) Release(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return spoiled(s, ctx, "release", func(ctx context.Context) (idempotency.Reply, error) { return s.Store.Release(ctx, id, token) })
}

func (s *faultyStore) DecideComplete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return spoiled(s, ctx, "decide_complete", func(ctx context.Context) (idempotency.Reply, error) { return s.Store.DecideComplete(ctx, e) })
}

func (s *faultyStore) DecideRelease(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return spoiled(s, ctx, "decide_release", func(ctx context.Context) (idempotency.Reply, error) { return s.Store.DecideRelease(ctx, id, token) })
}

func (s *faultyStore) Forget(ctx context.Context, id idempotency.RecordID, seen idempotency.Digest) (idempotency.Reply, error) {
	return spoiled(s, ctx, "forget", func(ctx context.Context) (idempotency.Reply, error) { return s.Store.Forget(ctx, id, seen) })
}

func (s *faultyStore) Get(ctx context.Context, id idempotency.RecordID) (record idempotency.Record, found bool, err error) {
	record, err = spoiled(s, ctx, "get", func(ctx context.Context) (idempotency.Record, error) {
		var record idempotency.Record
		record, found, err = s.Store.Get(ctx, id)
		return record, err
	})
	return record, found, err
}

func (s *faultyStore) Scan(ctx context.Context, cursor string) (idempotency.ScanPage, error) {
	return spoiled(s, ctx, "scan", func(ctx context.Context) (idempotency.ScanPage, error) { return s.Store.Scan(ctx, cursor) })
}

// clock is a clock that stands still until the test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// observations is an Observer that remembers.
type observations struct {
	mu          sync.Mutex
	storeCalls  tally
	storeErrors []string // operations
	texts       []string
	lost, late  []idempotency.RecordID
	lateStatus  int
	recordsLost []idempotency.RecordID
	gaveUp      []string // operations
}

func (o *observations) StoreCall(op string, _ time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op == "withdraw" {
		op = "release" // as the store calls it
	}
	if o.storeCalls == nil {
		o.storeCalls = tally{}
	}
	o.storeCalls.add(op, err)
}

func (o *observations) StoreError(op string, _ idempotency.RecordID, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.storeErrors = append(o.storeErrors, op)
	o.texts = append(o.texts, err.Error())
}

func (o *observations) LeaseLost(id idempotency.RecordID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = append(o.lost, id)
}

func (o *observations) LateAcceptance(id idempotency.RecordID, status int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.late = append(o.late, id)
	o.lateStatus = status
}

func (o *observations) RecordLost(id idempotency.RecordID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recordsLost = append(o.recordsLost, id)
}

func (o *observations) GaveUp(op string, _ idempotency.RecordID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gaveUp = append(o.gaveUp, op)
}

// observed is what the observer heard so far.
type observed struct {
	storeErrors, texts, gaveUp []string
	lost, late                 []idempotency.RecordID
	lateStatus                 int
}

func (o *observations) so() observed {
	o.mu.Lock()
	defer o.mu.Unlock()
	return observed{
		slices.Clone(o.storeErrors), slices.Clone(o.texts), slices.Clone(o.gaveUp),
		slices.Clone(o.lost), slices.Clone(o.late), o.lateStatus,
	}
}

// patience bounds every wait of these tests. It is far more than a slow machine
// needs.
const patience = 60 * time.Second

// await polls until the condition holds.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// harness is an engine over a faulty store in a file.
type harness struct {
	t        *testing.T
	store    *faultyStore
	clock    *clock // the store's; it stands still, so no lease ends by itself
	engine   *idempotency.Engine
	observed *observations
	held     *atomic.Int64
}

type option func(*idempotency.EngineConfig, *embedded.Config)

// storeTimeout sets the engine's; the default is patience, which no fault of
// the machine exceeds.
func storeTimeout(d time.Duration) option {
	return func(e *idempotency.EngineConfig, _ *embedded.Config) { e.StoreTimeout = d }
}

// realTime gives the store the machine's clock.
func realTime(_ *idempotency.EngineConfig, s *embedded.Config) { s.Now = time.Now }

func newHarness(t *testing.T, options ...option) *harness {
	t.Helper()
	h := &harness{t: t, clock: &clock{now: time.Now()}, observed: &observations{}, held: new(atomic.Int64)}
	storeConfig := embedded.Config{Path: filepath.Join(t.TempDir(), "idempotency.db"), Now: h.clock.Now}
	engineConfig := idempotency.EngineConfig{
		StoreTimeout: patience,
		Observer:     h.observed,
		Hold: func() func() {
			h.held.Add(1)
			return func() { h.held.Add(-1) }
		},
	}
	for _, o := range options {
		o(&engineConfig, &storeConfig)
	}
	h.store = &faultyStore{
		Store: embedded.New(storeConfig), t: t, calls: make(map[string]int), faults: make(map[string]func(int) fault), outcomes: tally{},
	}
	engineConfig.Store = h.store
	h.engine = idempotency.NewEngine(engineConfig)
	t.Cleanup(func() {
		h.idle()
		if engineConfig.Observer != nil {
			h.wantEachCallObserved()
		}
		h.engine.Close()
		if err := engineConfig.Store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if n := h.held.Load(); n != 0 {
			t.Errorf("the store is held %d times by an engine that is idle", n)
		}
	})
	return h
}

// idle waits until the engine has nothing to do and has let go of the store.
func (h *harness) idle() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if alive, unstored := h.engine.Drain(ctx); len(alive)+len(unstored) > 0 {
		h.t.Fatalf("%d attempts and %d outcomes are left", len(alive), len(unstored))
	}
	await(h.t, "the store to be let go", func() bool { return h.held.Load() == 0 })
	if n := idempotency.Known(h.engine); n != 0 {
		h.t.Errorf("an engine that is idle knows of %d records", n)
	}
}

// wantEachCallObserved compares what the observer heard of the store's calls
// with what the store knows of them.
func (h *harness) wantEachCallObserved() {
	h.t.Helper()
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	h.observed.mu.Lock()
	defer h.observed.mu.Unlock()
	if !maps.Equal(h.observed.storeCalls, h.store.outcomes) {
		h.t.Errorf("the observer heard of %v, the store of %v", h.observed.storeCalls, h.store.outcomes)
	}
}

// policy is the default one.
func policy(change ...func(*idempotency.Policy)) idempotency.Policy {
	p := idempotency.DefaultPolicy()
	for _, c := range change {
		c(&p)
	}
	return p
}

func leaseOf(d time.Duration) func(*idempotency.Policy) {
	return func(p *idempotency.Policy) { p.Lease = d }
}

func retentionOf(d time.Duration) func(*idempotency.Policy) {
	return func(p *idempotency.Policy) { p.Retention = d }
}

func resubmit(p *idempotency.Policy) { p.ResubmitUncertain = true }

func submitOf(key string) idempotency.Submit {
	return idempotency.Submit{
		ID:          idempotency.NewRecordID("namespace", []string{"scope"}, idempotency.Key(key)),
		Fingerprint: idempotency.Fingerprint{1},
		Details:     idempotency.Details{Namespace: "namespace", Key: idempotency.Key(key), Method: "POST", Path: "/v1/jobs"},
	}
}

// begin admits a submit.
func (h *harness) begin(p idempotency.Policy, s idempotency.Submit) idempotency.Admission {
	h.t.Helper()
	a, err := h.engine.Begin(context.Background(), p, s)
	if err != nil {
		h.t.Fatalf("Begin: %v", err)
	}
	if n := set(a); n != 1 {
		h.t.Fatalf("the admission has %d fields set, want one: %+v", n, a)
	}
	return a
}

// set returns how many fields of an admission are set.
func set(a idempotency.Admission) (n int) {
	for _, isSet := range []bool{a.Attempt != nil, a.Replay != nil, a.Problem != nil} {
		if isSet {
			n++
		}
	}
	return n
}

// attempt begins a submit that may be sent.
func (h *harness) attempt(p idempotency.Policy, s idempotency.Submit) *idempotency.Attempt {
	h.t.Helper()
	a := h.begin(p, s)
	if a.Attempt == nil {
		h.t.Fatalf("the submit may not be sent: %+v", a)
	}
	if a.Attempt.ID() != s.ID {
		h.t.Errorf("the attempt has record %s, want %s", a.Attempt.ID(), s.ID)
	}
	return a.Attempt
}

// wantProblem begins a submit that gets a problem.
func (h *harness) wantProblem(p idempotency.Policy, s idempotency.Submit, code idempotency.Code) idempotency.Problem {
	h.t.Helper()
	a := h.begin(p, s)
	if a.Problem == nil || a.Problem.Code != code {
		h.t.Fatalf("the submit gets %+v, want problem %s", a, code)
	}
	return *a.Problem
}

// wantReplay begins a submit that gets a stored answer.
func (h *harness) wantReplay(s idempotency.Submit, status int, body string) idempotency.Answer {
	h.t.Helper()
	a := h.begin(policy(), s)
	if a.Replay == nil || a.Replay.Status != status || string(a.Replay.Body) != body {
		h.t.Fatalf("the submit gets %+v, want a replay of %d %s", a, status, body)
	}
	return *a.Replay
}

// get returns a record as it is in the store.
func (h *harness) get(s idempotency.Submit) (idempotency.Record, bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, found, err := h.store.Store.Get(ctx, s.ID)
	if err != nil {
		h.t.Fatalf("Get: %v", err)
	}
	return r, found
}

// state returns a record's state now, or 0 if there is none.
func (h *harness) state(s idempotency.Submit) idempotency.State {
	h.t.Helper()
	r, found := h.get(s)
	if !found {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	now, err := h.store.Store.Now(ctx)
	if err != nil {
		h.t.Fatalf("Now: %v", err)
	}
	return r.StateAt(now)
}

const absent = idempotency.State(0)

func (h *harness) wantState(s idempotency.Submit, want idempotency.State) {
	h.t.Helper()
	if got := h.state(s); got != want {
		h.t.Fatalf("the record is %s, want %s (0 is absent)", got, want)
	}
}

func (h *harness) awaitState(s idempotency.Submit, want idempotency.State) {
	h.t.Helper()
	await(h.t, fmt.Sprintf("the record to be %s (0 is absent)", want), func() bool { return h.state(s) == want })
}

// details returns what a record tells people.
func (h *harness) details(s idempotency.Submit) idempotency.Details {
	h.t.Helper()
	r, found := h.get(s)
	if !found {
		h.t.Fatal("there is no record")
	}
	d, err := idempotency.DecodeDetails(r.Payload)
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

// conclude ends an attempt in a given way.
func (h *harness) conclude(a *idempotency.Attempt, r idempotency.Result, want idempotency.Conclusion) string {
	h.t.Helper()
	got, reason := a.Conclude(r)
	if got != want {
		h.t.Errorf("the conclusion is %d, want %d", got, want)
	}
	if (reason != "") != (want == idempotency.ConcludedUnknown) {
		h.t.Errorf("conclusion %d has reason %q", got, reason)
	}
	return reason
}

// accepted is an acceptance with a body.
func accepted(body string) idempotency.Result {
	return idempotency.Result{
		Status: 202, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(body), Whole: true,
	}
}

// refusal is an answer that proves that nothing was accepted.
var refusal = idempotency.Result{Status: 429, Whole: true}

// broken is a connection that broke before an answer.
var broken = idempotency.Result{}

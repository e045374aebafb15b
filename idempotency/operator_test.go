package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

func (h *harness) lookup(s idempotency.Submit) idempotency.View {
	h.t.Helper()
	v, err := h.engine.Lookup(context.Background(), nil, s.ID)
	if err != nil {
		h.t.Fatalf("Lookup: %v", err)
	}
	return v
}

// decide carries out a decision; the answer may be nil.
func (h *harness) decide(s idempotency.Submit, answer *idempotency.Answer) error {
	_, err := h.engine.Decide(context.Background(), idempotency.Decision{ID: s.ID, Answer: answer})
	return err
}

// operatorsAnswer is what the provider's console shows.
func operatorsAnswer(body string) *idempotency.Answer {
	return &idempotency.Answer{Status: 202, Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(body)}
}

func wantStateError(t *testing.T, err error, want idempotency.State) {
	t.Helper()
	var state *idempotency.StateError
	if !errors.As(err, &state) || state.State != want {
		t.Errorf("the decision gave %v, want the state %s", err, want)
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	if _, err := h.engine.Lookup(context.Background(), nil, s.ID); !errors.Is(err, idempotency.ErrNoRecord) {
		t.Errorf("without a record Lookup gave %v", err)
	}
	a := h.attempt(policy(), s)
	if v := h.lookup(s); v.State != idempotency.InProgress || v.ID != s.ID || v.Details.Path != "/v1/jobs" || v.Details.Error != "" {
		t.Errorf("in progress it is %+v", v)
	}
	h.conclude(a, broken, idempotency.ConcludedUnknown)
	if v := h.lookup(s); v.State != idempotency.Uncertain || v.Details.Error == "" {
		t.Errorf("uncertain it is %+v", v)
	}

	// The end of a lease says what is wrong, too; and so does what was taken
	// over in vain.
	s = submitOf("dead")
	dead := h.attempt(policy(), s)
	h.clock.advance(time.Hour)
	if v := h.lookup(s); v.State != idempotency.Uncertain || v.Details.Error == "" {
		t.Errorf("after its lease it is %+v", v)
	}
	other := h.gateway()
	other.conclude(other.attempt(policy(resubmit), s), refusal, idempotency.ConcludedRefused)
	if v := h.lookup(s); v.State != idempotency.Uncertain || v.Details.Error == "" {
		t.Errorf("taken over and refused it is %+v", v)
	}
	h.conclude(dead, broken, idempotency.ConcludedUnknown)
}

// What an operator completes is replayed, and the attempt itself, should it
// come to an end after all, changes nothing and is reported.
func TestDecideComplete(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(), s)
	h.clock.advance(time.Hour)
	given := operatorsAnswer(`{"id":"job_7"}`)
	given.Header.Set("Set-Cookie", "session=1")
	if err := h.decide(s, given); err != nil {
		t.Fatal(err)
	}
	if v := h.lookup(s); v.State != idempotency.Completed || v.JobID != "job_7" || v.Details.Answer.Status != 202 {
		t.Errorf("the record is %+v", v)
	}
	if replay := h.wantReplay(s, 202, `{"id":"job_7"}`); replay.Header.Get("Set-Cookie") != "" || replay.Header.Get("Content-Type") != "application/json" {
		t.Errorf("the replay has header %v", replay.Header)
	}
	h.conclude(a, accepted(`{"id":"job_8"}`), idempotency.ConcludedAccepted)
	h.wantReplay(s, 202, `{"id":"job_7"}`)
	if o := h.observed.so(); !slices.Equal(o.late, []idempotency.RecordID{s.ID}) || o.lateStatus != 202 {
		t.Errorf("observed %+v, want the late acceptance", o)
	}
	wantStateError(t, h.decide(s, given), idempotency.Completed)
	wantStateError(t, h.decide(s, nil), idempotency.Completed)
}

// What an operator releases is submitted again; a late acceptance of the first
// attempt is reported and changes nothing.
func TestDecideRelease(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	if err := h.decide(s, nil); !errors.Is(err, idempotency.ErrNoRecord) {
		t.Errorf("without a record the decision gave %v", err)
	}
	late := h.attempt(policy(), s)
	wantStateError(t, h.decide(s, nil), idempotency.InProgress) // its owner is alive
	wantStateError(t, h.decide(s, operatorsAnswer("{}")), idempotency.InProgress)
	h.clock.advance(time.Hour)
	seen := h.lookup(s).Record.Token
	if err := h.decide(s, nil); err != nil {
		t.Fatal(err)
	}
	h.wantState(s, absent)
	second := h.attempt(policy(), s)
	h.conclude(late, accepted("late"), idempotency.ConcludedAccepted)
	h.wantState(s, idempotency.InProgress)
	if o := h.observed.so(); !slices.Equal(o.late, []idempotency.RecordID{s.ID}) {
		t.Errorf("observed %+v, want the late acceptance", o)
	}
	h.conclude(second, broken, idempotency.ConcludedUnknown)

	// A decision about the first attempt is not one about the second.
	for _, answer := range []*idempotency.Answer{nil, operatorsAnswer("{}")} {
		_, err := h.engine.Decide(context.Background(), idempotency.Decision{ID: s.ID, Attempt: &seen, Answer: answer})
		if !errors.Is(err, idempotency.ErrAnotherAttempt) {
			t.Errorf("a decision about an attempt of the past gave %v", err)
		}
	}
	h.wantState(s, idempotency.Uncertain)
	current := h.lookup(s).Record.Token
	if _, err := h.engine.Decide(context.Background(), idempotency.Decision{ID: s.ID, Attempt: &current}); err != nil {
		t.Error(err)
	}
	h.wantState(s, absent)
}

// Of many operators who decide at once one wins, and the others are told.
func TestConcurrentDecisions(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for range 5 {
		s := submitOf("k")
		h.conclude(h.attempt(policy(), s), broken, idempotency.ConcludedUnknown)
		const operators = 16
		errs := make([]error, operators)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range operators {
			wg.Go(func() {
				<-start
				var answer *idempotency.Answer
				if i%2 == 1 {
					answer = operatorsAnswer("{}")
				}
				errs[i] = h.decide(s, answer)
			})
		}
		close(start)
		wg.Wait()
		won := 0
		for _, err := range errs {
			var state *idempotency.StateError
			switch {
			case err == nil:
				won++
			case !errors.Is(err, idempotency.ErrNoRecord) && !errors.As(err, &state):
				t.Errorf("a decision that came second gave %v", err)
			}
		}
		if won != 1 {
			t.Fatalf("%d of %d decisions were carried out, want one", won, operators)
		}
		h.clock.advance(48 * time.Hour) // the key is new
	}
}

// Somebody decides between the look and the decision.
func TestDecisionOvertaken(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := submitOf("k")
	h.conclude(h.attempt(policy(), s), broken, idempotency.ConcludedUnknown)
	overtake := func(by func()) func(int) fault {
		return first(1, func(ctx context.Context, apply func(context.Context) error) error {
			by()
			return apply(ctx)
		})
	}
	var heir *idempotency.Attempt
	h.store.spoil("decide_release", overtake(func() { heir = h.attempt(policy(resubmit), s) }))
	wantStateError(t, h.decide(s, nil), idempotency.InProgress)
	h.store.spoil("decide_complete", overtake(func() {
		h.conclude(heir, broken, idempotency.ConcludedUnknown)
	}))
	h.clock.advance(time.Hour)
	if err := h.decide(s, operatorsAnswer("{}")); err != nil {
		t.Fatal(err) // the heir's own end is no other attempt
	}
	h.wantReplay(s, 202, "{}")

	s = submitOf("k2")
	h.conclude(h.attempt(policy(), s), broken, idempotency.ConcludedUnknown)
	h.store.spoil("decide_release", overtake(func() {
		h.conclude(h.attempt(policy(resubmit), s), broken, idempotency.ConcludedUnknown)
	}))
	if err := h.decide(s, nil); !errors.Is(err, idempotency.ErrAnotherAttempt) {
		t.Errorf("the decision gave %v, want ErrAnotherAttempt", err)
	}
	h.wantState(s, idempotency.Uncertain)
}

func TestOperatorStoreErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault     fault
		carried   bool
		isRefused bool
	}{
		"refused":      {refused, false, true},
		"request lost": {requestLost, false, false},
		"reply lost":   {replyLost, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			h.conclude(h.attempt(policy(), s), broken, idempotency.ConcludedUnknown)
			h.store.spoil("decide_complete", first(1, test.fault))
			err := h.decide(s, operatorsAnswer("{}"))
			if !errors.Is(err, idempotency.ErrStoreUnavailable) || errors.Is(err, idempotency.ErrNotApplied) != test.isRefused {
				t.Errorf("the decision gave %v", err)
			}
			if n := h.store.count("decide_complete"); n != 1 {
				t.Errorf("a decision was sent %d times", n)
			}
			want := idempotency.Uncertain
			if test.carried {
				want = idempotency.Completed
			}
			h.wantState(s, want)
			h.store.spoil("get", first(1, test.fault))
			if err := h.decide(s, nil); !errors.Is(err, idempotency.ErrStoreUnavailable) || !errors.Is(err, idempotency.ErrNotApplied) {
				t.Errorf("a decision about a record that could not be looked up gave %v", err)
			}
			h.store.spoil("scan", first(1, test.fault))
			if _, err := h.engine.List(context.Background(), idempotency.Query{Limit: 1}); !errors.Is(err, idempotency.ErrStoreUnavailable) {
				t.Errorf("List gave %v", err)
			}
		})
	}
}

func TestUnreadableForOperators(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "idempotency.db")
	h := newHarness(t, func(_ *idempotency.EngineConfig, c *embedded.Config) { c.Path = path })
	header, payload := submitOf("header"), submitOf("payload")
	putValue(t, path, header.ID, []byte("x"))
	putValue(t, path, payload.ID, marshal(t, idempotency.Record{
		State: idempotency.Uncertain, CreatedAt: time.Now(), ChangedAt: time.Now(), LeaseUntil: time.Now(), Retention: time.Hour,
		Payload: []byte("s3cret"),
	}))
	good := submitOf("good")
	h.conclude(h.attempt(policy(), good), broken, idempotency.ConcludedUnknown)
	for _, s := range []idempotency.Submit{header, payload} {
		if _, err := h.engine.Lookup(context.Background(), nil, s.ID); !errors.Is(err, idempotency.ErrUnreadable) {
			t.Errorf("Lookup gave %v, want ErrUnreadable", err)
		}
		if err := h.decide(s, nil); !errors.Is(err, idempotency.ErrUnreadable) {
			t.Errorf("Decide gave %v, want ErrUnreadable", err)
		}
	}
	l, err := h.engine.List(context.Background(), idempotency.Query{Limit: 10})
	want := []idempotency.RecordID{header.ID, payload.ID}
	slices.Sort(want)
	if err != nil || len(l.Views) != 1 || l.Views[0].ID != good.ID || !slices.Equal(l.Unreadable, want) || l.UnreadableCount != 2 {
		t.Errorf("List gave %+v, %v; want the good record, and the others as unreadable", l, err)
	}
}

// However many records cannot be read, a listing names the first of them, each
// once, and says how many there are.
func TestUnreadableIsBounded(t *testing.T) {
	t.Parallel()
	const all, perPage = 250, 10
	var pages []idempotency.ScanPage
	for i := range all {
		if i%perPage == 0 {
			pages = append(pages, idempotency.ScanPage{Next: fmt.Sprint(len(pages) + 1)})
		}
		last := &pages[len(pages)-1]
		last.Unreadable = append(last.Unreadable, submitOf(fmt.Sprint(i)).ID)
	}
	pages[1].Unreadable = append(pages[1].Unreadable, pages[0].Unreadable...) // as a scan may
	pages[len(pages)-1].Next = ""
	engine := idempotency.NewEngine(idempotency.EngineConfig{Store: scanned{pages: pages}, StoreTimeout: patience})
	l, err := engine.List(context.Background(), idempotency.Query{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Unreadable) != idempotency.MaxUnreadable || !slices.IsSorted(l.Unreadable) || l.UnreadableCount != all {
		t.Errorf("%d of %d records are named, in order %t; want %d of %d",
			len(l.Unreadable), l.UnreadableCount, slices.IsSorted(l.Unreadable), idempotency.MaxUnreadable, all)
	}
	if len(slices.Compact(l.Unreadable)) != idempotency.MaxUnreadable {
		t.Error("a record is named twice")
	}
}

// scanned is a store of which a scan shows these pages.
type scanned struct {
	idempotency.Store // nothing else of it is asked
	pages             []idempotency.ScanPage
}

func (s scanned) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (s scanned) Scan(_ context.Context, cursor string) (idempotency.ScanPage, error) {
	if cursor == "" {
		return s.pages[0], nil
	}
	i, err := strconv.Atoi(cursor)
	return s.pages[i], err
}

// listed are the keys on all pages of a query.
func (h *harness) listed(q idempotency.Query) (keys []string, counts map[idempotency.State]int) {
	h.t.Helper()
	for {
		l, err := h.engine.List(context.Background(), q)
		if err != nil {
			h.t.Fatalf("List: %v", err)
		}
		if len(l.Views) > q.Limit {
			h.t.Fatalf("a page has %d records, over the limit of %d", len(l.Views), q.Limit)
		}
		for _, v := range l.Views {
			keys = append(keys, string(v.Details.Key))
			if v.Record.Payload != nil || v.Details.Answer != nil && (v.Details.Answer.Body != nil || v.Details.Answer.Header != nil) {
				h.t.Error("the listing holds an answer's body")
			}
		}
		if q.After = l.Next; l.Next == (idempotency.Position{}) {
			return keys, l.Counts
		}
		if len(l.Views) < q.Limit {
			h.t.Fatalf("a page that is not the last has %d records of %d", len(l.Views), q.Limit)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	// Their ids, and so the order of the store, are random against their age.
	var keys []string
	for i := range 30 {
		s := submitOf(fmt.Sprintf("%02d", i))
		s.Details.Namespace = []string{"a", "b"}[i%2]
		s.Details.Path = []string{"/v1/videos", "/v1/jobs/\xff", "/v2/videos"}[i%3]
		a := h.attempt(policy(leaseOf(time.Hour)), s)
		switch i % 5 {
		case 0:
			h.conclude(a, accepted(`{"id":"job"}`), idempotency.ConcludedAccepted)
		case 1:
			h.conclude(a, broken, idempotency.ConcludedUnknown)
		default:
			t.Cleanup(func() { h.conclude(a, broken, idempotency.ConcludedUnknown) })
		}
		keys = append(keys, string(s.Details.Key))
		h.clock.advance(time.Minute)
	}
	filtered := func(keep func(i int) bool) (kept []string) {
		for i, key := range keys {
			if keep(i) {
				kept = append(kept, key)
			}
		}
		return kept
	}
	for name, test := range map[string]struct {
		query idempotency.Query
		want  func(i int) bool
	}{
		"all":         {idempotency.Query{}, func(int) bool { return true }},
		"completed":   {idempotency.Query{State: idempotency.Completed}, func(i int) bool { return i%5 == 0 }},
		"uncertain":   {idempotency.Query{State: idempotency.Uncertain}, func(i int) bool { return i%5 == 1 }},
		"in progress": {idempotency.Query{State: idempotency.InProgress}, func(i int) bool { return i%5 > 1 }},
		"older than":  {idempotency.Query{OlderThan: 10 * time.Minute}, func(i int) bool { return 30-i >= 10 }},
		"namespace":   {idempotency.Query{Namespace: "b"}, func(i int) bool { return i%2 == 1 }},
		"path":        {idempotency.Query{Path: "/v1/videos"}, func(i int) bool { return i%3 == 0 }},
		"prefix":      {idempotency.Query{Path: "/v1/*"}, func(i int) bool { return i%3 < 2 }},
		"no path":     {idempotency.Query{Path: "/v1"}, func(int) bool { return false }},
		"together": {
			idempotency.Query{State: idempotency.InProgress, OlderThan: 7 * time.Minute, Namespace: "a", Path: "/v2*"},
			func(i int) bool { return i%5 > 1 && 30-i >= 7 && i%2 == 0 && i%3 == 2 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, limit := range []int{1, 7, 30, 1000} {
				test.query.Limit = limit
				got, counts := h.listed(test.query)
				if want := filtered(test.want); !slices.Equal(got, want) {
					t.Errorf("with limit %d the listing has %v, want %v", limit, got, want)
				}
				if counts[idempotency.Completed] != 6 || counts[idempotency.Uncertain] != 6 || counts[idempotency.InProgress] != 18 {
					t.Errorf("the counts are %v", counts)
				}
			}
		})
	}

	// A page reads what may be on it, not everything: of records in no order
	// far fewer payloads than there are records.
	h.store.spoil("get", nil)
	if _, err := h.engine.List(context.Background(), idempotency.Query{Limit: 1, State: idempotency.Completed}); err != nil {
		t.Fatal(err)
	}
	if n := h.store.count("get"); n > 6 {
		t.Errorf("a page of completed records read %d payloads, of 6 completed records", n)
	}

	// After their leases all are uncertain.
	h.clock.advance(2 * time.Hour)
	if got, counts := h.listed(idempotency.Query{State: idempotency.Uncertain, Limit: 100}); len(got) != 24 || counts[idempotency.InProgress] != 0 {
		t.Errorf("after their leases %d are uncertain and %d in progress", len(got), counts[idempotency.InProgress])
	}
}

// Records of one moment have an order, too, and none is lost between pages.
func TestListOfOneMoment(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for i := range 20 {
		h.conclude(h.attempt(policy(), submitOf(fmt.Sprint(i))), broken, idempotency.ConcludedUnknown)
	}
	got, _ := h.listed(idempotency.Query{Limit: 3})
	slices.Sort(got)
	if len(slices.Compact(got)) != 20 {
		t.Errorf("the pages have records %v, want each once", got)
	}
}

// The context of the operator ends a listing between two parts.
func TestListEnds(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := h.engine.List(ctx, idempotency.Query{Limit: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("a listing that nobody waits for gave %v", err)
	}
}

// An acceptance tells operators the job's id.
func TestJobID(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ pointer, body, want string }{
		"string":       {"/id", `{"id":"job_1"}`, "job_1"},
		"number":       {"/id", `{"id":12345678901234567890}`, "12345678901234567890"},
		"nested":       {"/data/0/id", `{"data":[{"id":"x/y"}]}`, "x/y"},
		"escapes":      {"/id", `{"id":"\u00e9\n"}`, "é\n"},
		"absent":       {"/id", `{"job":"job_1"}`, ""},
		"null":         {"/id", `{"id":null}`, ""},
		"object":       {"/id", `{"id":{}}`, ""},
		"boolean":      {"/id", `{"id":true}`, ""},
		"too long":     {"/id", `{"id":"` + strings.Repeat("x", 256) + `"}`, ""},
		"no JSON":      {"/id", `id`, ""},
		"empty":        {"/id", ``, ""},
		"no pointer":   {"", `{"id":"job_1"}`, "job_1"},
		"whole number": {"", `17`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			pointer, err := fingerprint.ParsePointer(test.pointer)
			if err != nil {
				t.Fatal(err)
			}
			p := policy(func(p *idempotency.Policy) { p.JobID = pointer })
			byProvider, byOperator := submitOf("provider"), submitOf("operator")
			h.conclude(h.attempt(p, byProvider), accepted(test.body), idempotency.ConcludedAccepted)
			h.conclude(h.attempt(p, byOperator), broken, idempotency.ConcludedUnknown)
			if err := h.decide(byOperator, operatorsAnswer(test.body)); err != nil {
				t.Fatal(err)
			}
			for _, s := range []idempotency.Submit{byProvider, byOperator} {
				if got := h.lookup(s).JobID; got != test.want {
					t.Errorf("the job's id is %q, want %q", got, test.want)
				}
			}
			list, err := h.engine.List(context.Background(), idempotency.Query{Limit: 10})
			if err != nil || len(list.Views) != 2 || list.Views[0].JobID != test.want || list.Views[1].JobID != test.want {
				t.Errorf("the listing is %+v, %v; want both with the job's id %q", list.Views, err, test.want)
			}
		})
	}
}

func TestAnswerValidate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer idempotency.Answer
		valid  bool
	}{
		"accepted":             {idempotency.Answer{Status: 202, Body: []byte("x")}, true},
		"no content":           {idempotency.Answer{Status: 204}, true},
		"no content, and body": {idempotency.Answer{Status: 204, Body: []byte("x")}, false},
		"not modified, body":   {idempotency.Answer{Status: 304, Body: []byte("x")}, false},
		"interim":              {idempotency.Answer{Status: 199}, false},
		"none":                 {idempotency.Answer{}, false},
		"over":                 {idempotency.Answer{Status: 600}, false},
	} {
		if err := test.answer.Validate(); (err == nil) != test.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Package storetest is the suite that every idempotency.Store passes.
//
// A store's own test calls Run with a function that opens the store on a
// resource that is empty, and shared between the stores that one test opens:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Fixture { … })
//	}
//
// The suite waits for real time where a lease or a retention must end, because
// a store's clock is its own; it uses leases of tens of milliseconds.
package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Fixture is a store under test.
type Fixture struct {
	Store idempotency.Store
	// Lossy is a store on the same records, on the way to which requests are
	// late and replies lost, now and then; nil if there is no way on which they
	// could be.
	Lossy idempotency.Store
	// Corrupt puts a value under a record's name that is no record.
	Corrupt func(t *testing.T, id idempotency.RecordID, value []byte)
	// Reopen closes the store and opens the same records again; nil if the
	// resource cannot be opened anew.
	Reopen func(t *testing.T) idempotency.Store
	// Reports has what Store reports about its server; nil if it reports nothing.
	Reports *Reports
	// Harm does something to the server of Store that is a finding; nil if there is
	// one already, or none can be made. Store is not used for records afterwards.
	Harm func(t *testing.T)
}

// Run runs the whole suite, with a new fixture for each test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	tests := []struct {
		name string
		run  func(t *testing.T, f Fixture)
	}{
		{"Claim", testClaim},
		{"ClaimByToken", testClaimByToken},
		{"ClaimTooLate", testClaimTooLate},
		{"LeaseEnds", testLeaseEnds},
		{"Renew", testRenew},
		{"Complete", testComplete},
		{"MarkUncertain", testMarkUncertain},
		{"Release", testRelease},
		{"TakeOver", testTakeOver},
		{"DecideComplete", testDecideComplete},
		{"DecideRelease", testDecideRelease},
		{"OneDecisionOfMany", testOneDecisionOfMany},
		{"Forget", testForget},
		{"ForgetUnreadable", testForgetUnreadable},
		{"ForgetOnce", testForgetOnce},
		{"Scan", testScan},
		{"ScanWhileRecordsChange", testScanWhileRecordsChange},
		{"OtherRequest", testOtherRequest},
		{"Retention", testRetention},
		{"Unreadable", testUnreadable},
		{"OneClaimOfMany", testOneClaimOfMany},
		{"LargePayload", testLargePayload},
		{"EndedContext", testEndedContext},
		{"Reopen", testReopen},
		{"Findings", testFindings},
		{"Model", testModel},
		{"Linearizable", testLinearizable},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// session calls one store for one record, and fails the test on errors.
type session struct {
	t     *testing.T
	store idempotency.Store
	id    idempotency.RecordID
}

func newSession(t *testing.T, store idempotency.Store) session {
	t.Helper()
	token := idempotency.NewToken()
	return session{t, store, idempotency.NewRecordID(t.Name(), nil, idempotency.Key(fmt.Sprintf("%x", token)))}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (s session) request(body string) idempotency.Claim {
	s.t.Helper()
	now, err := s.store.Now(testContext(s.t))
	if err != nil {
		s.t.Fatalf("Now: %v", err)
	}
	var fingerprint idempotency.Fingerprint
	copy(fingerprint[:], body)
	return idempotency.Claim{
		ID:          s.id,
		Token:       idempotency.NewToken(),
		Fingerprint: fingerprint,
		Lease:       time.Minute,
		Retention:   time.Hour,
		NotAfter:    now.Add(time.Minute),
		Payload:     []byte("claimed " + body),
	}
}

func (s session) claim(c idempotency.Claim, want idempotency.Verdict) idempotency.ClaimReply {
	s.t.Helper()
	reply, err := s.store.Claim(testContext(s.t), c)
	if err != nil {
		s.t.Fatalf("Claim: %v", err)
	}
	if reply.Verdict != want {
		s.t.Fatalf("Claim gave verdict %d, want %d", reply.Verdict, want)
	}
	if reply.Now.IsZero() {
		s.t.Error("Claim's reply has no time")
	}
	return reply
}

func (s session) ending(c idempotency.Claim, payload string) idempotency.Ending {
	return idempotency.Ending{ID: s.id, Token: c.Token, Payload: []byte(payload)}
}

func (s session) applied(name string, want bool, reply idempotency.Reply, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	if reply.Applied != want {
		s.t.Fatalf("%s applied is %t, want %t", name, reply.Applied, want)
	}
	if reply.Now.IsZero() {
		s.t.Errorf("%s's reply has no time", name)
	}
}

func (s session) complete(c idempotency.Claim, payload string, want bool) {
	s.t.Helper()
	reply, err := s.store.Complete(testContext(s.t), s.ending(c, payload))
	s.applied("Complete", want, reply, err)
}

func (s session) uncertain(c idempotency.Claim, payload string, want bool) {
	s.t.Helper()
	reply, err := s.store.MarkUncertain(testContext(s.t), s.ending(c, payload))
	s.applied("MarkUncertain", want, reply, err)
}

func (s session) release(c idempotency.Claim, want bool) {
	s.t.Helper()
	reply, err := s.store.Release(testContext(s.t), s.id, c.Token)
	s.applied("Release", want, reply, err)
}

func (s session) decideComplete(token idempotency.Token, payload string, want bool) {
	s.t.Helper()
	reply, err := s.store.DecideComplete(testContext(s.t), idempotency.Ending{ID: s.id, Token: token, Payload: []byte(payload)})
	s.applied("DecideComplete", want, reply, err)
}

func (s session) decideRelease(token idempotency.Token, want bool) {
	s.t.Helper()
	reply, err := s.store.DecideRelease(testContext(s.t), s.id, token)
	s.applied("DecideRelease", want, reply, err)
}

func (s session) renew(c idempotency.Claim, lease time.Duration, want bool) {
	s.t.Helper()
	replies, err := s.store.Renew(testContext(s.t), []idempotency.Renewal{{ID: s.id, Token: c.Token, Lease: lease}})
	if err != nil || len(replies) != 1 {
		s.t.Fatalf("Renew gave %d replies and error %v", len(replies), err)
	}
	s.applied("Renew", want, replies[0], nil)
}

func (s session) get() idempotency.Record {
	s.t.Helper()
	record, found, err := s.store.Get(testContext(s.t), s.id)
	if err != nil {
		s.t.Fatalf("Get: %v", err)
	}
	if !found {
		s.t.Fatal("Get found no record")
	}
	return record
}

func (s session) absent() {
	s.t.Helper()
	_, found, err := s.store.Get(testContext(s.t), s.id)
	if err != nil {
		s.t.Fatalf("Get: %v", err)
	}
	if found {
		s.t.Fatal("Get found a record, want none")
	}
}

// await polls until the condition holds, for at most ten seconds.
func (s session) await(what string, condition func() bool) {
	s.t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("waited ten seconds for %s", what)
		}
	}
}

// awaitLeaseEnd waits until the record's lease is over on the store's clock.
func (s session) awaitLeaseEnd() {
	s.t.Helper()
	until := s.get().LeaseUntil
	s.await("the lease to end", func() bool {
		now, err := s.store.Now(testContext(s.t))
		return err == nil && !now.Before(until)
	})
}

func (s session) wantRecord(state idempotency.State, c idempotency.Claim, payload string) idempotency.Record {
	s.t.Helper()
	r := s.get()
	if r.State != state || r.Token != c.Token || r.Fingerprint != c.Fingerprint || string(r.Payload) != payload {
		s.t.Fatalf("record is %s with payload %q (same token %t, same fingerprint %t), want %s with payload %q",
			r.State, r.Payload, r.Token == c.Token, r.Fingerprint == c.Fingerprint, state, payload)
	}
	if r.Retention != c.Retention {
		s.t.Errorf("record has retention %s, want %s", r.Retention, c.Retention)
	}
	return r
}

func testClaim(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	s.absent()
	first := s.request("a")
	first.TakeOver = true
	reply := s.claim(first, idempotency.Claimed)
	if reply.TookOver {
		t.Error("the reply says that a record was taken over, and there was none")
	}
	r := s.wantRecord(idempotency.InProgress, first, "claimed a")
	if !r.CreatedAt.Equal(reply.Now) || !r.ChangedAt.Equal(reply.Now) || !r.LeaseUntil.Equal(reply.Now.Add(first.Lease)) {
		t.Errorf("record has created %s, changed %s, lease until %s; want now %s and lease %s",
			r.CreatedAt, r.ChangedAt, r.LeaseUntil, reply.Now, first.Lease)
	}

	reply = s.claim(s.request("a"), idempotency.StillInProgress)
	if reply.Record.Token != first.Token || !reply.Record.LeaseUntil.Equal(r.LeaseUntil) {
		t.Error("the reply's record is not the first attempt's")
	}
	s.wantRecord(idempotency.InProgress, first, "claimed a")

	s.complete(first, "done", true)
	reply = s.claim(s.request("a"), idempotency.AlreadyCompleted)
	if string(reply.Record.Payload) != "done" {
		t.Errorf("the reply's record has payload %q, want the completion's", reply.Record.Payload)
	}
}

// A claim whose reply was lost is sent again and recognised.
func testClaimByToken(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	c.Lease = 20 * time.Millisecond
	s.claim(c, idempotency.Claimed)
	s.claim(c, idempotency.Claimed)
	s.awaitLeaseEnd()
	reply := s.claim(c, idempotency.Claimed)
	if r := s.get(); !r.LeaseUntil.Equal(reply.Now.Add(c.Lease)) {
		t.Errorf("lease is until %s, want %s after %s", r.LeaseUntil, c.Lease, reply.Now)
	}

	// Once the attempt has ended, its token claims nothing any more.
	s.uncertain(c, "lost", true)
	s.claim(c, idempotency.AlreadyUncertain)
	s.complete(c, "done", true)
	s.claim(c, idempotency.AlreadyCompleted)
}

func testClaimTooLate(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	late := s.request("a")
	late.NotAfter = late.NotAfter.Add(-2 * time.Minute)
	s.claim(late, idempotency.TooLate)
	s.absent()

	// What is there is reported even to a late claim: nothing is written.
	first := s.request("a")
	s.claim(first, idempotency.Claimed)
	s.claim(late, idempotency.StillInProgress)
	s.uncertain(first, "lost", true)
	s.claim(late, idempotency.AlreadyUncertain)
	late.TakeOver = true
	s.claim(late, idempotency.TooLate)
	s.wantRecord(idempotency.Uncertain, first, "lost")
}

func testLeaseEnds(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	c.Lease = 20 * time.Millisecond
	s.claim(c, idempotency.Claimed)
	s.awaitLeaseEnd()
	reply := s.claim(s.request("a"), idempotency.AlreadyUncertain)
	if got := reply.Record.StateAt(reply.Now); got != idempotency.Uncertain {
		t.Errorf("the reply's record is %s, want uncertain", got)
	}
	// The lease cannot be had back, and late truth is welcome.
	s.renew(c, time.Minute, false)
	s.claim(s.request("a"), idempotency.AlreadyUncertain)
	s.complete(c, "late", true)
	s.claim(s.request("a"), idempotency.AlreadyCompleted)
}

func testRenew(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.renew(c, time.Minute, false) // absent
	s.claim(c, idempotency.Claimed)
	before := s.get()
	s.renew(c, time.Hour, true)
	after := s.wantRecord(idempotency.InProgress, c, "claimed a")
	if !after.LeaseUntil.After(before.LeaseUntil.Add(50 * time.Minute)) {
		t.Errorf("lease moved from %s to %s, want about an hour from now", before.LeaseUntil, after.LeaseUntil)
	}
	if !after.ChangedAt.Equal(before.ChangedAt) || !after.CreatedAt.Equal(before.CreatedAt) {
		t.Error("a renewal is not a transition, and moved the record's times")
	}
	s.renew(s.request("a"), time.Minute, false) // another token

	// Many at once, some of them lost, answered in their order.
	var renewals []idempotency.Renewal
	for range 300 {
		other := newSession(t, f.Store)
		oc := other.request("a")
		if len(renewals)%3 != 0 {
			other.claim(oc, idempotency.Claimed)
		}
		renewals = append(renewals, idempotency.Renewal{ID: other.id, Token: oc.Token, Lease: time.Hour})
	}
	replies, err := f.Store.Renew(testContext(t), renewals)
	if err != nil || len(replies) != len(renewals) {
		t.Fatalf("Renew gave %d replies and error %v", len(replies), err)
	}
	for i, reply := range replies {
		if reply.Applied != (i%3 != 0) {
			t.Fatalf("renewal %d applied is %t", i, reply.Applied)
		}
	}

	s.complete(c, "done", true)
	s.renew(c, time.Minute, false)
	s.wantRecord(idempotency.Completed, c, "done")
}

func testComplete(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.complete(c, "nobody's", false)
	s.absent()
	s.claim(c, idempotency.Claimed)
	created := s.get().CreatedAt
	s.complete(s.request("a"), "another token's", false)
	s.wantRecord(idempotency.InProgress, c, "claimed a")
	s.complete(c, "done", true)
	r := s.wantRecord(idempotency.Completed, c, "done")
	if !r.CreatedAt.Equal(created) {
		t.Errorf("completion moved the creation from %s to %s", created, r.CreatedAt)
	}

	// Completed never changes.
	s.complete(c, "done again", true) // a repetition after a lost reply
	s.uncertain(c, "lost", false)
	s.release(c, false)
	s.wantRecord(idempotency.Completed, c, "done")
}

func testMarkUncertain(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.uncertain(c, "nobody's", false)
	s.absent()
	s.claim(c, idempotency.Claimed)
	s.uncertain(s.request("a"), "another token's", false)
	s.uncertain(c, "lost", true)
	s.wantRecord(idempotency.Uncertain, c, "lost")
	s.uncertain(c, "lost again", true)
	s.wantRecord(idempotency.Uncertain, c, "lost")
	s.complete(c, "late truth", true)
	s.wantRecord(idempotency.Completed, c, "late truth")
}

func testRelease(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.release(c, false)
	s.claim(c, idempotency.Claimed)
	s.release(s.request("a"), false)
	s.wantRecord(idempotency.InProgress, c, "claimed a")
	s.release(c, true)
	s.absent()
	s.release(c, false)

	// The key is free, for any request.
	other := s.request("b")
	s.claim(other, idempotency.Claimed)
	s.release(c, false)
	s.complete(c, "too late", false)
	s.wantRecord(idempotency.InProgress, other, "claimed b")

	// A refusal that comes after the lease is evidence, too.
	s.uncertain(other, "lost", true)
	s.release(other, true)
	s.absent()
}

func testTakeOver(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	tookOver := func(reply idempotency.ClaimReply, want bool) {
		t.Helper()
		if reply.TookOver != want {
			t.Errorf("the claim took over: %t, want %t", reply.TookOver, want)
		}
	}
	first := s.request("a")
	first.TakeOver = true
	tookOver(s.claim(first, idempotency.Claimed), false)
	tookOver(s.claim(first, idempotency.Claimed), false) // its reply was lost
	second := s.request("a")
	second.TakeOver = true
	s.claim(second, idempotency.StillInProgress)
	s.uncertain(first, "lost", true)
	created := s.get().CreatedAt
	tookOver(s.claim(second, idempotency.Claimed), true)
	for range 2 { // the second time it is recognised
		if reply := s.claim(second, idempotency.Claimed); !reply.TookOver {
			t.Error("the reply does not say that a record was taken over")
		}
	}
	if r := s.wantRecord(idempotency.InProgress, second, "claimed a"); !r.CreatedAt.Equal(created) {
		t.Errorf("taking over moved the creation from %s to %s", created, r.CreatedAt)
	}
	// The first attempt has lost the record for good.
	s.complete(first, "late", false)
	s.uncertain(first, "late", false)
	s.release(first, false)
	s.renew(first, time.Minute, false)
	s.wantRecord(idempotency.InProgress, second, "claimed a")
	s.complete(second, "done", true)
	third := s.request("a")
	third.TakeOver = true
	s.claim(third, idempotency.AlreadyCompleted)

	// The end of a lease can be taken over like a mark.
	expired := newSession(t, f.Store)
	c := expired.request("a")
	c.Lease = 20 * time.Millisecond
	expired.claim(c, idempotency.Claimed)
	expired.awaitLeaseEnd()
	heir := expired.request("a")
	heir.TakeOver = true
	expired.claim(heir, idempotency.Claimed)
	expired.wantRecord(idempotency.InProgress, heir, "claimed a")

	// Who gives up what was taken over does not free it: the first attempt's
	// outcome is as unknown as it was.
	tookOver(expired.claim(heir, idempotency.Claimed), true) // its reply was lost
	expired.renew(heir, time.Minute, true)
	expired.release(heir, true)
	nobody := heir
	nobody.Token = idempotency.Token{}
	expired.wantRecord(idempotency.Uncertain, nobody, "claimed a")
	expired.release(heir, false)
	expired.complete(c, "late", false)
	expired.claim(expired.request("a"), idempotency.AlreadyUncertain)
	expired.claim(expired.request("b"), idempotency.OtherRequest)
	again := expired.request("a")
	again.TakeOver = true
	expired.claim(again, idempotency.Claimed)
	expired.uncertain(again, "lost again", true)
	expired.complete(again, "done", true)
}

func testOtherRequest(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c, other := s.request("a"), s.request("b")
	other.TakeOver = true
	refused := func(state idempotency.State, payload string) {
		t.Helper()
		reply := s.claim(other, idempotency.OtherRequest)
		want := s.wantRecord(state, c, payload)
		if !reflect.DeepEqual(reply.Record, want) {
			t.Errorf("the reply's record is %+v, want the one in the store, %+v", reply.Record, want)
		}
	}
	s.claim(c, idempotency.Claimed)
	refused(idempotency.InProgress, "claimed a")
	s.uncertain(c, "lost", true)
	refused(idempotency.Uncertain, "lost")
	s.complete(c, "done", true)
	refused(idempotency.Completed, "done")
}

func testRetention(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	gone := func() bool {
		_, found, err := s.store.Get(testContext(t), s.id)
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		return !found
	}
	vanishes := func(why string, expiry time.Time) {
		t.Helper()
		s.await("the record to vanish: "+why, gone)
		now, err := s.store.Now(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		// Clocks of milliseconds: the moment itself may be cut off.
		if now.Add(2 * time.Millisecond).Before(expiry) {
			t.Errorf("%s: the record vanished at %s, before its expiry %s", why, now, expiry)
		}
	}

	c := s.request("a")
	c.Lease, c.Retention = 60*time.Millisecond, 80*time.Millisecond
	s.claim(c, idempotency.Claimed)
	vanishes("the lease and then the retention", s.get().ExpiresAt())

	c = s.request("b")
	c.Retention = 80 * time.Millisecond
	s.claim(c, idempotency.Claimed)
	s.complete(c, "done", true)
	r := s.get()
	if want := r.ChangedAt.Add(c.Retention); !r.ExpiresAt().Equal(want) {
		t.Errorf("a completed record expires at %s, want %s", r.ExpiresAt(), want)
	}
	vanishes("the retention after the completion", r.ExpiresAt())
	s.complete(c, "done", false)
	s.claim(s.request("c"), idempotency.Claimed)
}

func testUnreadable(t *testing.T, f Fixture) {
	good := newSession(t, f.Store)
	c := good.request("a")
	good.claim(c, idempotency.Claimed)
	r := good.get()
	valid, err := r.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	future := append([]byte{2}, valid[1:]...)
	unknownState := bytes.Clone(valid)
	unknownState[1] = 'x'
	at := func(offset int, ms int64) []byte {
		return append(binary.BigEndian.AppendUint64(bytes.Clone(valid[:offset]), uint64(ms)), valid[offset+8:]...)
	}
	lastDay := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC).UnixMilli()

	for name, value := range map[string][]byte{
		"empty": {}, "text": []byte("OK"), "cut": valid[:81], "a later version": future, "an unknown state": unknownState,
		"created in the year 10000": at(50, lastDay+86_400_000),
		"changed before the year 0": at(58, math.MinInt64),
		"a lease without end":       at(66, math.MaxInt64),
		"a retention without end":   at(74, math.MaxInt64),
		"an end in the year 10000":  at(66, lastDay+86_399_999),
		"a retention below nothing": at(74, -1),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t, f.Store)
			c := s.request("a")
			c.Token = r.Token
			f.Corrupt(t, s.id, value)
			ctx := testContext(t)
			calls := map[string]func() error{
				"Claim":          func() error { _, err := f.Store.Claim(ctx, c); return err },
				"Complete":       func() error { _, err := f.Store.Complete(ctx, s.ending(c, "x")); return err },
				"MarkUncertain":  func() error { _, err := f.Store.MarkUncertain(ctx, s.ending(c, "x")); return err },
				"Release":        func() error { _, err := f.Store.Release(ctx, s.id, c.Token); return err },
				"Get":            func() error { _, _, err := f.Store.Get(ctx, s.id); return err },
				"DecideComplete": func() error { _, err := f.Store.DecideComplete(ctx, s.ending(c, "x")); return err },
				"DecideRelease":  func() error { _, err := f.Store.DecideRelease(ctx, s.id, c.Token); return err },
			}
			for call, do := range calls {
				if err := do(); !errors.Is(err, idempotency.ErrUnreadable) {
					t.Errorf("%s gave error %v, want ErrUnreadable", call, err)
				}
			}
			// It costs its own lease, not its neighbours'.
			replies, err := f.Store.Renew(ctx, []idempotency.Renewal{
				{ID: s.id, Token: c.Token, Lease: time.Minute}, {ID: good.id, Token: r.Token, Lease: time.Minute},
			})
			if err != nil || replies[0].Applied || !replies[1].Applied {
				t.Errorf("Renew gave %+v, error %v; want the second applied alone", replies, err)
			}
		})
	}
}

func testOneClaimOfMany(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	const callers = 64
	verdicts := make([]idempotency.Verdict, callers)
	claims := make([]idempotency.Claim, callers)
	for i := range claims {
		claims[i] = s.request("a")
	}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			<-start
			reply, err := f.Store.Claim(testContext(t), claims[i])
			if err != nil {
				t.Errorf("Claim: %v", err)
			}
			verdicts[i] = reply.Verdict
		})
	}
	close(start)
	wg.Wait()
	counts := map[idempotency.Verdict]int{}
	for _, v := range verdicts {
		counts[v]++
	}
	if counts[idempotency.Claimed] != 1 || counts[idempotency.StillInProgress] != callers-1 {
		t.Errorf("verdicts are %v, want one Claimed and the rest StillInProgress", counts)
	}
}

func testLargePayload(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.claim(c, idempotency.Claimed)
	payload := bytes.Repeat([]byte("0123456789abcdef\r\n\x00\xff"), 1<<20/20)
	s.complete(c, string(payload), true)
	reply := s.claim(s.request("a"), idempotency.AlreadyCompleted)
	if !bytes.Equal(reply.Record.Payload, payload) {
		t.Error("a payload of 1 MiB does not come back as it was")
	}
}

func testEndedContext(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.Store.Claim(ctx, c); err == nil {
		t.Error("Claim with an ended context gave no error")
	}
	if _, err := f.Store.Complete(ctx, s.ending(c, "x")); err == nil {
		t.Error("Complete with an ended context gave no error")
	}
}

func testReopen(t *testing.T, f Fixture) {
	if f.Reopen == nil {
		t.Skip("this store cannot be opened anew")
	}
	kept := newSession(t, f.Store)
	c := kept.request("a")
	kept.claim(c, idempotency.Claimed)
	kept.complete(c, "done", true)
	running := newSession(t, f.Store)
	rc := running.request("b")
	running.claim(rc, idempotency.Claimed)

	kept.store = f.Reopen(t)
	running.store = kept.store
	kept.wantRecord(idempotency.Completed, c, "done")
	running.wantRecord(idempotency.InProgress, rc, "claimed b")
	running.complete(rc, "done after all", true)
}

package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

func testDecideComplete(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.decideComplete(c.Token, "nobody's", false)
	s.absent()
	s.claim(c, idempotency.Claimed)
	s.decideComplete(c.Token, "too early", false)
	s.wantRecord(idempotency.InProgress, c, "claimed a")
	created := s.get().CreatedAt
	s.uncertain(c, "lost", true)
	s.decideComplete(s.request("a").Token, "another attempt's", false)
	s.decideComplete(idempotency.Token{}, "nobody's", false)
	s.wantRecord(idempotency.Uncertain, c, "lost")
	s.decideComplete(c.Token, "the operator's", true)

	// The record is nobody's, and what the attempt finds out changes nothing.
	nobody := c
	nobody.Token = idempotency.Token{}
	wantDecided := func() {
		t.Helper()
		if r := s.wantRecord(idempotency.Completed, nobody, "the operator's"); !r.CreatedAt.Equal(created) {
			t.Errorf("the decision moved the creation from %s to %s", created, r.CreatedAt)
		}
	}
	wantDecided()
	s.complete(c, "late", false)
	s.uncertain(c, "late", false)
	s.release(c, false)
	s.decideComplete(c.Token, "again", false)
	s.decideComplete(nobody.Token, "again", false)
	s.decideRelease(nobody.Token, false)
	heir := s.request("a")
	heir.TakeOver = true
	s.claim(heir, idempotency.AlreadyCompleted)
	s.claim(s.request("b"), idempotency.OtherRequest)
	wantDecided()

	// The end of a lease is uncertain, too; so is what was taken over.
	expired := newSession(t, f.Store)
	first, second := expired.request("a"), expired.request("a")
	first.Lease, second.Lease, second.TakeOver = 20*time.Millisecond, 20*time.Millisecond, true
	expired.claim(first, idempotency.Claimed)
	expired.awaitLeaseEnd()
	expired.claim(second, idempotency.Claimed)
	expired.decideComplete(first.Token, "another attempt's", false)
	expired.awaitLeaseEnd()
	expired.decideComplete(second.Token, "the operator's", true)
	second.Token = idempotency.Token{}
	expired.wantRecord(idempotency.Completed, second, "the operator's")
}

func testDecideRelease(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.decideRelease(c.Token, false)
	s.claim(c, idempotency.Claimed)
	s.decideRelease(c.Token, false) // the owner is alive
	s.wantRecord(idempotency.InProgress, c, "claimed a")
	s.uncertain(c, "lost", true)
	s.decideRelease(s.request("a").Token, false)
	s.wantRecord(idempotency.Uncertain, c, "lost")
	s.decideRelease(c.Token, true)
	s.absent()
	s.decideRelease(c.Token, false)

	// The key is free; the attempt that was released stays outside, and so does
	// a decision about it.
	next := s.request("b")
	s.claim(next, idempotency.Claimed)
	s.complete(c, "late", false)
	s.uncertain(next, "lost", true)
	s.decideRelease(c.Token, false)
	s.complete(c, "late", false)
	s.wantRecord(idempotency.Uncertain, next, "lost")
	s.complete(next, "done", true)
	s.decideRelease(next.Token, false)
	s.wantRecord(idempotency.Completed, next, "done")

	// Once a lease is over its record may be released.
	expired := newSession(t, f.Store)
	c = expired.request("a")
	c.Lease = 20 * time.Millisecond
	expired.claim(c, idempotency.Claimed)
	expired.awaitLeaseEnd()
	expired.decideRelease(c.Token, true)
	expired.absent()
	expired.complete(c, "late", false)
	expired.absent()

	// What was taken over is removed with all that came before, and also what
	// is nobody's.
	taken := newSession(t, f.Store)
	first, second := taken.request("a"), taken.request("a")
	second.Lease, second.TakeOver = 20*time.Millisecond, true
	for _, giveUp := range []bool{false, true} {
		taken.claim(first, idempotency.Claimed)
		taken.uncertain(first, "lost", true)
		taken.claim(second, idempotency.Claimed)
		token := second.Token
		if giveUp {
			taken.release(second, true)
			token = idempotency.Token{}
		} else {
			taken.awaitLeaseEnd()
		}
		taken.decideRelease(token, true)
		taken.absent()
	}
}

func testOneDecisionOfMany(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.claim(c, idempotency.Claimed)
	s.uncertain(c, "lost", true)
	const operators = 32
	applied := make([]bool, operators)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range operators {
		wg.Go(func() {
			<-start
			var reply idempotency.Reply
			var err error
			if i%2 == 0 {
				reply, err = f.Store.DecideComplete(testContext(t), s.ending(c, fmt.Sprint("operator ", i)))
			} else {
				reply, err = f.Store.DecideRelease(testContext(t), s.id, c.Token)
			}
			if err != nil {
				t.Errorf("operator %d: %v", i, err)
			}
			applied[i] = reply.Applied
		})
	}
	close(start)
	wg.Wait()
	winner := -1
	for i, won := range applied {
		if won && winner >= 0 {
			t.Fatalf("the decisions of operators %d and %d were both carried out", winner, i)
		}
		if won {
			winner = i
		}
	}
	switch {
	case winner < 0:
		t.Error("no decision was carried out")
	case winner%2 == 0:
		c.Token = idempotency.Token{}
		s.wantRecord(idempotency.Completed, c, fmt.Sprint("operator ", winner))
	default:
		s.absent()
	}
}

// scan returns the headers of all records of the ids, and fails the test if
// one has a payload.
func scan(t *testing.T, store idempotency.Store, ids map[idempotency.RecordID]bool) (found map[idempotency.RecordID]idempotency.Record, unreadable map[idempotency.RecordID]bool) {
	t.Helper()
	found, unreadable = map[idempotency.RecordID]idempotency.Record{}, map[idempotency.RecordID]bool{}
	for cursor, pages := "", 1; ; pages++ {
		page, err := store.Scan(testContext(t), cursor)
		if err != nil {
			t.Fatalf("Scan: %v", err)
		}
		for _, h := range page.Headers {
			if len(h.Record.Payload) > 0 {
				t.Fatalf("the scan has a payload of %d bytes", len(h.Record.Payload))
			}
			if ids[h.ID] {
				found[h.ID] = h.Record
			}
		}
		for _, id := range page.Unreadable {
			if ids[id] {
				unreadable[id] = true
			}
		}
		if cursor = page.Next; cursor == "" {
			return found, unreadable
		}
		if pages > 10000 {
			t.Fatal("a scan does not end")
		}
	}
}

func testScan(t *testing.T, f Fixture) {
	if found, _ := scan(t, f.Store, nil); len(found) > 0 {
		t.Fatalf("an empty store has %d records", len(found))
	}
	// More than a page of any store.
	ids := map[idempotency.RecordID]bool{}
	want := map[idempotency.RecordID]idempotency.Record{}
	for i := range 1200 {
		s := newSession(t, f.Store)
		c := s.request("a")
		c.Payload = []byte(fmt.Sprint("payload ", i))
		if i%3 == 1 {
			c.Retention = time.Millisecond
		}
		s.claim(c, idempotency.Claimed)
		switch i % 3 {
		case 0:
			s.uncertain(c, "lost", true)
		case 1:
			s.complete(c, "done", true)
			s.await("the record to expire", func() bool {
				_, found, err := f.Store.Get(testContext(t), s.id)
				return err == nil && !found
			})
		}
		if i%3 != 1 {
			r := s.get()
			r.Payload = nil
			want[s.id] = r
		}
		ids[s.id] = true
	}
	bad := newSession(t, f.Store)
	f.Corrupt(t, bad.id, []byte("no record"))
	empty := newSession(t, f.Store)
	f.Corrupt(t, empty.id, nil)
	ids[bad.id], ids[empty.id] = true, true

	found, unreadable := scan(t, f.Store, ids)
	if len(found) != len(want) {
		t.Errorf("the scan found %d records, want %d", len(found), len(want))
	}
	for id, r := range want {
		got, ok := found[id]
		if !ok {
			t.Fatalf("the scan does not have record %s", id)
		}
		if got.State != r.State || got.Token != r.Token || got.Fingerprint != r.Fingerprint || got.Retention != r.Retention ||
			!got.CreatedAt.Equal(r.CreatedAt) || !got.ChangedAt.Equal(r.ChangedAt) || !got.LeaseUntil.Equal(r.LeaseUntil) {
			t.Fatalf("the scan has record %+v, want %+v", got, r)
		}
	}
	if len(unreadable) != 2 || !unreadable[bad.id] || !unreadable[empty.id] {
		t.Errorf("the scan found %d unreadable records, want both", len(unreadable))
	}

	if _, err := f.Store.Scan(testContext(t), "no cursor"); err == nil {
		t.Error("a cursor that is none gave no error")
	}
}

// What is there all the time is found, whatever comes, changes and goes.
func testScanWhileRecordsChange(t *testing.T, f Fixture) {
	ids := map[idempotency.RecordID]bool{}
	var kept []session
	var claims []idempotency.Claim
	for range 1100 {
		s := newSession(t, f.Store)
		c := s.request("a")
		s.claim(c, idempotency.Claimed)
		ids[s.id] = true
		kept, claims = append(kept, s), append(claims, c)
	}
	done := make(chan struct{})
	ctx := testContext(t)
	passing := newSession(t, f.Store).request("b")
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i = (i + 1) % len(kept) {
			select {
			case <-done:
				return
			default:
			}
			passing.ID = idempotency.NewRecordID("passing", nil, idempotency.Key(fmt.Sprint(i)))
			_, err := f.Store.Claim(ctx, passing)
			if err == nil && i%2 == 0 {
				_, err = f.Store.Release(ctx, passing.ID, passing.Token)
			}
			if err == nil {
				_, err = f.Store.Renew(ctx, []idempotency.Renewal{{ID: kept[i].id, Token: claims[i].Token, Lease: time.Hour}})
			}
			if err != nil {
				t.Errorf("changing records: %v", err)
				return
			}
		}
	})
	for range 3 {
		if found, _ := scan(t, f.Store, ids); len(found) != len(ids) {
			t.Errorf("the scan found %d of %d records that were there all the time", len(found), len(ids))
		}
	}
	close(done)
	wg.Wait()
}

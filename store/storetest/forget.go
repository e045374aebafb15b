package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// forget removes the record if what was seen is what is there.
func (m model) forget(unchanged bool, now int64) (model, bool) {
	running := m.state == idempotency.InProgress && !m.leaseOver(now)
	if m.state == 0 || running || !unchanged {
		return m, false
	}
	return model{}, true
}

// digestOf returns the digest of what is under a record's name, and zero if
// there is nothing.
func digestOf(ctx context.Context, store idempotency.Store, id idempotency.RecordID) (idempotency.Digest, error) {
	record, found, err := store.Get(ctx, id)
	var unreadable *idempotency.UnreadableError
	if errors.As(err, &unreadable) {
		return unreadable.Seen, nil
	}
	if err != nil || !found {
		return idempotency.Digest{}, err
	}
	value, err := record.AppendBinary(nil)
	return idempotency.DigestOf(value), err
}

func (s session) digest() idempotency.Digest {
	s.t.Helper()
	d, err := digestOf(testContext(s.t), s.store, s.id)
	if err != nil {
		s.t.Fatalf("Get: %v", err)
	}
	return d
}

func (s session) forget(seen idempotency.Digest, want bool) {
	s.t.Helper()
	reply, err := s.store.Forget(testContext(s.t), s.id, seen)
	s.applied("Forget", want, reply, err)
}

func testForget(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	s.forget(idempotency.Digest{}, false)
	c := s.request("a")
	s.claim(c, idempotency.Claimed)
	s.forget(s.digest(), false) // its attempt is alive
	running := s.digest()
	s.uncertain(c, "lost", true)
	s.forget(running, false)
	s.forget(idempotency.Digest{}, false)
	s.wantRecord(idempotency.Uncertain, c, "lost")

	// What was seen before the acceptance came is not the acceptance, though it is
	// the same attempt's.
	lost := s.digest()
	s.complete(c, "done", true)
	s.forget(lost, false)
	s.wantRecord(idempotency.Completed, c, "done")
	s.forget(s.digest(), true)
	s.absent()

	// The key is free, and the attempt stays outside.
	s.complete(c, "late", false)
	next := s.request("b")
	s.claim(next, idempotency.Claimed)
	s.uncertain(next, "lost", true)
	s.forget(s.digest(), true)
	s.absent()

	// A lease that is over keeps nothing.
	expired := newSession(t, f.Store)
	first := expired.request("a")
	first.Lease = 20 * time.Millisecond
	expired.claim(first, idempotency.Claimed)
	expired.awaitLeaseEnd()
	expired.forget(expired.digest(), true)
	expired.absent()

	// What was taken over is removed with all that came before, and so is what is
	// nobody's.
	taken := newSession(t, f.Store)
	first, second := taken.request("a"), taken.request("a")
	second.TakeOver = true
	taken.claim(first, idempotency.Claimed)
	taken.uncertain(first, "lost", true)
	taken.claim(second, idempotency.Claimed)
	taken.forget(taken.digest(), false)
	taken.uncertain(second, "lost", true)
	taken.decideComplete(second.Token, "the operator's", true)
	taken.forget(taken.digest(), true)
	taken.absent()
}

// What cannot be read is removed as it was seen, and only so; the key is free
// then.
func testForgetUnreadable(t *testing.T, f Fixture) {
	good := newSession(t, f.Store)
	c := good.request("a")
	good.claim(c, idempotency.Claimed)
	r := good.get()
	valid, err := r.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string][]byte{
		"empty": {}, "text": []byte("OK"), "cut": valid[:81], "a later version": append([]byte{2}, valid[1:]...),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t, f.Store)
			f.Corrupt(t, s.id, value)
			seen := s.digest()
			if seen != idempotency.DigestOf(value) {
				t.Errorf("Get names the value %s, want %s", seen, idempotency.DigestOf(value))
			}
			f.Corrupt(t, s.id, []byte("another value"))
			s.forget(seen, false)
			if s.digest() != idempotency.DigestOf([]byte("another value")) {
				t.Error("a value that nobody has judged was changed")
			}
			f.Corrupt(t, s.id, value)
			s.forget(seen, true)
			s.absent()
			s.forget(seen, false)
			next := s.request("a")
			s.claim(next, idempotency.Claimed)
			s.complete(next, "done", true)
			s.wantRecord(idempotency.Completed, next, "done")
		})
	}
	good.wantRecord(idempotency.InProgress, c, "claimed a")
}

// Of many who forget, and one who takes the record over, one wins.
func testForgetOnce(t *testing.T, f Fixture) {
	s := newSession(t, f.Store)
	c := s.request("a")
	s.claim(c, idempotency.Claimed)
	s.uncertain(c, "lost", true)
	seen := s.digest()
	heir := s.request("a")
	heir.TakeOver = true
	const operators = 16
	applied := make([]bool, operators)
	var verdict idempotency.Verdict
	start := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		<-start
		reply, err := f.Store.Claim(testContext(t), heir)
		if err != nil {
			t.Errorf("Claim: %v", err)
		}
		verdict = reply.Verdict
	})
	for i := range operators {
		wg.Go(func() {
			<-start
			reply, err := f.Store.Forget(testContext(t), s.id, seen)
			if err != nil {
				t.Errorf("operator %d: %v", i, err)
			}
			applied[i] = reply.Applied
		})
	}
	close(start)
	wg.Wait()
	forgotten := 0
	for _, won := range applied {
		if won {
			forgotten++
		}
	}
	r := s.get()
	if verdict != idempotency.Claimed || r.Token != heir.Token {
		t.Fatalf("the claim got verdict %d, and the record is %s", verdict, r.State)
	}
	// The heir either found nothing, or took over what nobody could forget then.
	if want := map[bool]int{true: 0, false: 1}[r.Resubmitted]; forgotten != want {
		t.Errorf("%d operators have forgotten the record, want %d: %s", forgotten, want, fmt.Sprint(seen))
	}
}

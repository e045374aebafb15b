package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// This test is in the package itself: what it tests is not for the stores'
// tests, which see Run alone.

// Histories of a sound store are explained, and those of a store with any of
// these mistakes are not.
func TestFindViolation(t *testing.T) {
	tests := []struct {
		name   string
		store  func(*memory) idempotency.Store
		broken bool
	}{
		{"sound", func(m *memory) idempotency.Store { return m }, false},
		{"completes without the token", func(m *memory) idempotency.Store { return tokenIgnored{m} }, true},
		{"renews what is over", func(m *memory) idempotency.Store { return leaseRevived{m} }, true},
		{"releases what was taken over", func(m *memory) idempotency.Store { return takeOverFreed{m} }, true},
		{"reads and writes in two steps", func(m *memory) idempotency.Store { return twoSteps{m} }, true},
		{"reads from a replica that lags", func(m *memory) idempotency.Store { return &lagging{memory: m} }, true},
		{"acknowledges before it writes", func(m *memory) idempotency.Store { return acknowledgedEarly{m} }, true},
		{"says that nothing was applied", func(m *memory) idempotency.Store { return falselyNotApplied{m} }, true},
		{"has a clock that goes back", func(m *memory) idempotency.Store { return clockBack{m} }, true},
		{"grants a claim that is too late", func(m *memory) idempotency.Store { return lateGranted{m} }, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := &memory{records: make(map[idempotency.RecordID]model)}
			store := test.store(m)
			lossy := &losing{Store: store}
			t.Cleanup(lossy.late.Wait)
			seed := rand.Uint64()
			atMost := 20 * time.Second // one is found in far less
			if !test.broken {
				atMost = time.Second
			}
			found, count := findViolation(t, Fixture{Store: store, Lossy: lossy}, seed, atMost)
			if (found != nil) != test.broken {
				t.Errorf("with seed %d %+v gave a violation %t, want %t:\n%v", seed, count, found != nil, test.broken, found)
			}
			if !test.broken && count.unknown == 0 {
				t.Error("no call lost its reply")
			}
		})
	}
}

// memory is a store that is the reference itself.
type memory struct {
	mu      sync.Mutex
	records map[idempotency.RecordID]model
}

func (m *memory) change(id idempotency.RecordID, f func(r model, now int64) model) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now().Truncate(time.Millisecond)
	m.records[id] = f(m.records[id], now.UnixMilli())
	return now
}

func record(r model) idempotency.Record {
	return idempotency.Record{
		State: r.state, Resubmitted: r.resubmitted, Token: r.token, Fingerprint: r.fingerprint,
		LeaseUntil: time.UnixMilli(r.leaseUntil), Payload: []byte(r.payload),
	}
}

func (m *memory) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (m *memory) Claim(_ context.Context, c idempotency.Claim) (reply idempotency.ClaimReply, _ error) {
	reply.Now = m.change(c.ID, func(r model, now int64) model {
		after, result := claimCall(c).apply(r, now)
		reply.Verdict, reply.TookOver = result.(claimed).verdict, result.(claimed).tookOver
		reply.Record = record(result.(claimed).record)
		return after
	})
	return reply, nil
}

func (m *memory) Renew(_ context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	replies := make([]idempotency.Reply, len(renewals))
	for i, renewal := range renewals {
		replies[i].Now = m.change(renewal.ID, func(r model, now int64) (after model) {
			after, replies[i].Applied = r.renew(renewal, now)
			return after
		})
	}
	return replies, nil
}

func (m *memory) end(e idempotency.Ending, to idempotency.State) (reply idempotency.Reply) {
	reply.Now = m.change(e.ID, func(r model, _ int64) (after model) {
		after, reply.Applied = r.end(e, to)
		return after
	})
	return reply
}

func (m *memory) Complete(_ context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return m.end(e, idempotency.Completed), nil
}

func (m *memory) MarkUncertain(_ context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return m.end(e, idempotency.Uncertain), nil
}

func (m *memory) Release(_ context.Context, id idempotency.RecordID, token idempotency.Token) (reply idempotency.Reply, _ error) {
	reply.Now = m.change(id, func(r model, _ int64) (after model) {
		after, reply.Applied = r.release(token)
		return after
	})
	return reply, nil
}

func (m *memory) DecideComplete(_ context.Context, e idempotency.Ending) (reply idempotency.Reply, _ error) {
	reply.Now = m.change(e.ID, func(r model, now int64) (after model) {
		after, reply.Applied = r.decideComplete(e, now)
		return after
	})
	return reply, nil
}

func (m *memory) DecideRelease(_ context.Context, id idempotency.RecordID, token idempotency.Token) (reply idempotency.Reply, _ error) {
	reply.Now = m.change(id, func(r model, now int64) (after model) {
		after, reply.Applied = r.decideRelease(token, now)
		return after
	})
	return reply, nil
}

// Forget is not part of the histories.
func (m *memory) Forget(context.Context, idempotency.RecordID, idempotency.Digest) (idempotency.Reply, error) {
	return idempotency.Reply{}, errors.ErrUnsupported
}

// Scan is not part of the histories.
func (m *memory) Scan(context.Context, string) (idempotency.ScanPage, error) {
	return idempotency.ScanPage{}, errors.ErrUnsupported
}

func (m *memory) Get(_ context.Context, id idempotency.RecordID) (idempotency.Record, bool, error) {
	r := m.look(id)
	return record(r), r.state != 0, nil
}

func (m *memory) look(id idempotency.RecordID) model {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[id]
}

func (m *memory) Close() error { return nil }

// losing loses requests and replies, and delays requests whose client is gone.
type losing struct {
	idempotency.Store
	late sync.WaitGroup
}

var errLost = errors.New("injected: no reply")

func (l *losing) lose(do func()) error {
	switch rand.IntN(8) {
	case 0: // the request
		return errLost
	case 1: // the reply
		do()
		return errLost
	case 2:
		l.late.Go(func() {
			for range rand.IntN(100) { // the others may come first
				runtime.Gosched()
			}
			do()
		})
		return errLost
	default:
		return nil
	}
}

func (l *losing) Claim(ctx context.Context, c idempotency.Claim) (idempotency.ClaimReply, error) {
	if err := l.lose(func() { _, _ = l.Store.Claim(ctx, c) }); err != nil {
		return idempotency.ClaimReply{}, err
	}
	return l.Store.Claim(ctx, c)
}

func (l *losing) Renew(ctx context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	if err := l.lose(func() { _, _ = l.Store.Renew(ctx, renewals) }); err != nil {
		return nil, err
	}
	return l.Store.Renew(ctx, renewals)
}

func (l *losing) Complete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	if err := l.lose(func() { _, _ = l.Store.Complete(ctx, e) }); err != nil {
		return idempotency.Reply{}, err
	}
	return l.Store.Complete(ctx, e)
}

func (l *losing) MarkUncertain(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	if err := l.lose(func() { _, _ = l.Store.MarkUncertain(ctx, e) }); err != nil {
		return idempotency.Reply{}, err
	}
	return l.Store.MarkUncertain(ctx, e)
}

func (l *losing) Release(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	if err := l.lose(func() { _, _ = l.Store.Release(ctx, id, token) }); err != nil {
		return idempotency.Reply{}, err
	}
	return l.Store.Release(ctx, id, token)
}

type tokenIgnored struct{ *memory }

func (s tokenIgnored) Complete(_ context.Context, e idempotency.Ending) (reply idempotency.Reply, _ error) {
	reply.Now = s.change(e.ID, func(r model, _ int64) (after model) {
		e.Token = r.token
		after, reply.Applied = r.end(e, idempotency.Completed)
		return after
	})
	return reply, nil
}

type leaseRevived struct{ *memory }

func (s leaseRevived) Renew(_ context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	replies := make([]idempotency.Reply, len(renewals))
	for i, renewal := range renewals {
		replies[i].Now = s.change(renewal.ID, func(r model, now int64) (after model) {
			if r.leaseUntil > 0 && r.leaseOver(now) {
				r.leaseUntil = now + 1
			}
			after, replies[i].Applied = r.renew(renewal, now)
			return after
		})
	}
	return replies, nil
}

type takeOverFreed struct{ *memory }

func (s takeOverFreed) Release(_ context.Context, id idempotency.RecordID, token idempotency.Token) (reply idempotency.Reply, _ error) {
	reply.Now = s.change(id, func(r model, _ int64) (after model) {
		r.resubmitted = false
		after, reply.Applied = r.release(token)
		return after
	})
	return reply, nil
}

type twoSteps struct{ *memory }

func (s twoSteps) Claim(_ context.Context, c idempotency.Claim) (reply idempotency.ClaimReply, _ error) {
	before := s.look(c.ID)
	runtime.Gosched()
	reply.Now = s.change(c.ID, func(r model, now int64) model {
		after, result := claimCall(c).apply(before, now)
		reply.Verdict, reply.TookOver = result.(claimed).verdict, result.(claimed).tookOver
		reply.Record = record(result.(claimed).record)
		if reply.Verdict != idempotency.Claimed {
			return r
		}
		return after
	})
	return reply, nil
}

// lagging answers Get with the record before the last one that it saw.
type lagging struct {
	*memory
	copies sync.Map
}

func (s *lagging) Get(_ context.Context, id idempotency.RecordID) (idempotency.Record, bool, error) {
	r := s.look(id)
	if before, found := s.copies.Swap(id, r); found {
		r = before.(model)
	}
	return record(r), r.state != 0, nil
}

type acknowledgedEarly struct{ *memory }

func (s acknowledgedEarly) Complete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	_, applied := s.look(e.ID).end(e, idempotency.Completed)
	time.AfterFunc(100*time.Microsecond, func() { _, _ = s.memory.Complete(ctx, e) })
	return idempotency.Reply{Applied: applied, Now: time.Now()}, nil
}

type falselyNotApplied struct{ *memory }

func (s falselyNotApplied) MarkUncertain(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	reply, err := s.memory.MarkUncertain(ctx, e)
	if deadline, _ := ctx.Deadline(); time.Until(deadline) < time.Second {
		return idempotency.Reply{}, fmt.Errorf("%w: injected", idempotency.ErrNotApplied)
	}
	return reply, err
}

type clockBack struct{ *memory }

func (s clockBack) Release(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	reply, err := s.memory.Release(ctx, id, token)
	reply.Now = reply.Now.Add(-time.Second)
	return reply, err
}

type lateGranted struct{ *memory }

func (s lateGranted) Claim(ctx context.Context, c idempotency.Claim) (idempotency.ClaimReply, error) {
	c.NotAfter = c.NotAfter.Add(24 * time.Hour)
	return s.memory.Claim(ctx, c)
}

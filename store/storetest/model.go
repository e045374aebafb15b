package storetest

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// model is the reference: what the contract of idempotency.Store says about
// one record. It is a value, and each operation returns the record after it.
// The zero value is absence. Time is given: a reply says at which moment of its
// clock the store decided. Nothing expires.
type model struct {
	state       idempotency.State // as it is stored; 0 is absent
	resubmitted bool
	token       idempotency.Token
	fingerprint idempotency.Fingerprint
	payload     string
	leaseUntil  int64 // Unix ms; 0 when no attempt is in progress
}

func (m model) leaseOver(now int64) bool { return now >= m.leaseUntil }

func (m model) claim(c idempotency.Claim, now int64) (model, idempotency.Verdict) {
	found := m.state != 0
	mine := m.state == idempotency.InProgress && m.token == c.Token
	if found && !mine {
		switch {
		case m.fingerprint != c.Fingerprint:
			return m, idempotency.OtherRequest
		case m.state == idempotency.Completed:
			return m, idempotency.AlreadyCompleted
		case m.state == idempotency.InProgress && !m.leaseOver(now):
			return m, idempotency.StillInProgress
		case !c.TakeOver:
			return m, idempotency.AlreadyUncertain
		}
	}
	if now > c.NotAfter.UnixMilli() {
		return m, idempotency.TooLate
	}
	return model{
		state: idempotency.InProgress, resubmitted: found && (!mine || m.resubmitted),
		token: c.Token, fingerprint: c.Fingerprint, payload: string(c.Payload),
		leaseUntil: now + c.Lease.Milliseconds(),
	}, idempotency.Claimed
}

func (m model) renew(r idempotency.Renewal, now int64) (model, bool) {
	if m.state != idempotency.InProgress || m.token != r.Token || m.leaseOver(now) {
		return m, false
	}
	m.leaseUntil = now + r.Lease.Milliseconds()
	return m, true
}

// end is Complete and MarkUncertain.
func (m model) end(e idempotency.Ending, to idempotency.State) (model, bool) {
	if m.state == 0 || m.token != e.Token {
		return m, false
	}
	if m.state == to || m.state == idempotency.Completed {
		return m, m.state == to
	}
	m.state, m.payload, m.resubmitted, m.leaseUntil = to, string(e.Payload), false, 0
	return m, true
}

func (m model) release(token idempotency.Token) (model, bool) {
	if m.state == 0 || m.token != token || m.state == idempotency.Completed {
		return m, false
	}
	if !m.resubmitted {
		return model{}, true
	}
	m.state, m.token, m.resubmitted, m.leaseUntil = idempotency.Uncertain, idempotency.Token{}, false, 0
	return m, true
}

// seen is a record as a store shows it, without its times.
func seen(r idempotency.Record) model {
	return model{
		state: r.State, resubmitted: r.Resubmitted, token: r.Token, fingerprint: r.Fingerprint, payload: string(r.Payload),
	}
}

// shown is the record as seen gives it.
func (m model) shown() model {
	m.leaseUntil = 0
	return m
}

// String is for a history that a person reads. Tokens and fingerprints of these
// tests differ in their first byte.
func (m model) String() string {
	if m.state == 0 {
		return "absent"
	}
	text := fmt.Sprintf("%s of token %d, request %d, payload %s", m.state, m.token[0], m.fingerprint[0], m.payload)
	if m.resubmitted {
		text += ", resubmitted"
	}
	return text
}

// undecided tells whether an operator may decide about a record.
func (m model) undecided(token idempotency.Token, now int64) bool {
	return m.token == token &&
		(m.state == idempotency.Uncertain || m.state == idempotency.InProgress && m.leaseOver(now))
}

func (m model) decideComplete(e idempotency.Ending, now int64) (model, bool) {
	if !m.undecided(e.Token, now) {
		return m, false
	}
	m.state, m.token, m.payload = idempotency.Completed, idempotency.Token{}, string(e.Payload)
	m.resubmitted, m.leaseUntil = false, 0
	return m, true
}

func (m model) decideRelease(token idempotency.Token, now int64) (model, bool) {
	if !m.undecided(token, now) {
		return m, false
	}
	return model{}, true
}

// testModel does random operations on the store and on the reference, which
// must agree on every answer and on what is stored.
func testModel(t *testing.T, f Fixture) {
	ctx := testContext(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		now, err := f.Store.Now(ctx)
		if err != nil {
			t.Fatalf("Now: %v", err)
		}
		reference := map[idempotency.RecordID]model{}
		ids := make([]idempotency.RecordID, 3)
		for i := range ids {
			ids[i] = idempotency.NewRecordID("model", nil, idempotency.Key(fmt.Sprint(run, "-", i)))
		}
		tokens := make([]idempotency.Token, 4)
		for i := range tokens {
			tokens[i][0] = byte(i + 1)
		}
		id := rapid.SampledFrom(ids)
		token := rapid.SampledFrom(tokens)
		// An operator may also judge a record that is nobody's.
		judged := rapid.SampledFrom(append(tokens, idempotency.Token{}))
		// A lease of no length is over at once, and one of an hour runs: what
		// happens does not depend on how fast the test is.
		lease := rapid.SampledFrom([]time.Duration{0, time.Hour})
		looked := map[idempotency.RecordID]idempotency.Digest{} // what forget has seen of a record
		step := 0
		payload := func() []byte { step++; return fmt.Append(nil, "payload ", step) }
		agree := func(name string, got, want any) {
			t.Helper()
			if got != want {
				t.Fatalf("%s gave %v, and the reference %v", name, got, want)
			}
		}

		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				c := idempotency.Claim{
					ID: id.Draw(t, "id"), Token: token.Draw(t, "token"), Lease: lease.Draw(t, "lease"), Retention: time.Hour,
					TakeOver: rapid.Bool().Draw(t, "take over"), NotAfter: now.Add(time.Hour), Payload: payload(),
				}
				c.Fingerprint[0] = byte(rapid.IntRange(0, 1).Draw(t, "fingerprint"))
				if rapid.IntRange(0, 4).Draw(t, "late") == 0 {
					c.NotAfter = now.Add(-time.Hour)
				}
				reply, err := f.Store.Claim(ctx, c)
				if err != nil {
					t.Fatalf("Claim: %v", err)
				}
				after, verdict := reference[c.ID].claim(c, reply.Now.UnixMilli())
				agree("Claim", reply.Verdict, verdict)
				agree("Claim, took over", reply.TookOver, verdict == idempotency.Claimed && after.resubmitted)
				inTheWay := model{}
				if verdict != idempotency.Claimed && verdict != idempotency.TooLate {
					inTheWay = after.shown()
				}
				agree("Claim's take-over", reply.TookOver, verdict == idempotency.Claimed && after.resubmitted)
				agree("Claim's record", seen(reply.Record), inTheWay)
				reference[c.ID] = after
			},
			"renew": func(t *rapid.T) {
				r := idempotency.Renewal{ID: id.Draw(t, "id"), Token: token.Draw(t, "token"), Lease: lease.Draw(t, "lease")}
				replies, err := f.Store.Renew(ctx, []idempotency.Renewal{r})
				if err != nil {
					t.Fatalf("Renew: %v", err)
				}
				after, applied := reference[r.ID].renew(r, replies[0].Now.UnixMilli())
				agree("Renew", replies[0].Applied, applied)
				reference[r.ID] = after
			},
			"complete": func(t *rapid.T) {
				e := idempotency.Ending{ID: id.Draw(t, "id"), Token: token.Draw(t, "token"), Payload: payload()}
				reply, err := f.Store.Complete(ctx, e)
				if err != nil {
					t.Fatalf("Complete: %v", err)
				}
				after, applied := reference[e.ID].end(e, idempotency.Completed)
				agree("Complete", reply.Applied, applied)
				reference[e.ID] = after
			},
			"uncertain": func(t *rapid.T) {
				e := idempotency.Ending{ID: id.Draw(t, "id"), Token: token.Draw(t, "token"), Payload: payload()}
				reply, err := f.Store.MarkUncertain(ctx, e)
				if err != nil {
					t.Fatalf("MarkUncertain: %v", err)
				}
				after, applied := reference[e.ID].end(e, idempotency.Uncertain)
				agree("MarkUncertain", reply.Applied, applied)
				reference[e.ID] = after
			},
			"release": func(t *rapid.T) {
				id, token := id.Draw(t, "id"), token.Draw(t, "token")
				reply, err := f.Store.Release(ctx, id, token)
				if err != nil {
					t.Fatalf("Release: %v", err)
				}
				after, applied := reference[id].release(token)
				agree("Release", reply.Applied, applied)
				reference[id] = after
			},
			"decide complete": func(t *rapid.T) {
				e := idempotency.Ending{ID: id.Draw(t, "id"), Token: judged.Draw(t, "token"), Payload: payload()}
				reply, err := f.Store.DecideComplete(ctx, e)
				if err != nil {
					t.Fatalf("DecideComplete: %v", err)
				}
				after, applied := reference[e.ID].decideComplete(e, reply.Now.UnixMilli())
				agree("DecideComplete", reply.Applied, applied)
				reference[e.ID] = after
			},
			"decide release": func(t *rapid.T) {
				id, token := id.Draw(t, "id"), judged.Draw(t, "token")
				reply, err := f.Store.DecideRelease(ctx, id, token)
				if err != nil {
					t.Fatalf("DecideRelease: %v", err)
				}
				after, applied := reference[id].decideRelease(token, reply.Now.UnixMilli())
				agree("DecideRelease", reply.Applied, applied)
				reference[id] = after
			},
			"forget": func(t *rapid.T) {
				id := id.Draw(t, "id")
				current, err := digestOf(ctx, f.Store, id)
				if err != nil {
					t.Fatalf("Get: %v", err)
				}
				seen := current
				if earlier, found := looked[id]; found && rapid.Bool().Draw(t, "earlier") {
					seen = earlier
				}
				looked[id] = current
				reply, err := f.Store.Forget(ctx, id, seen)
				if err != nil {
					t.Fatalf("Forget: %v", err)
				}
				after, applied := reference[id].forget(seen == current, reply.Now.UnixMilli())
				agree("Forget", reply.Applied, applied)
				reference[id] = after
			},
			"": func(t *rapid.T) {
				for _, id := range ids {
					got, _, err := f.Store.Get(ctx, id)
					if err != nil {
						t.Fatalf("Get: %v", err)
					}
					agree("Get", seen(got), reference[id].shown())
				}
			},
		})
	})
}

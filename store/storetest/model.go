package storetest

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// model is the reference: what the contract of idempotency.Store says, without
// a clock. A lease is running or over; nothing expires.
type model map[idempotency.RecordID]*modelRecord

type modelRecord struct {
	state       idempotency.State
	leaseOver   bool
	resubmitted bool
	token       idempotency.Token
	fingerprint idempotency.Fingerprint
	payload     string
}

func (m model) claim(c idempotency.Claim, leaseOver, late bool) idempotency.Verdict {
	r := m[c.ID]
	mine := r != nil && r.state == idempotency.InProgress && r.token == c.Token
	if r != nil && !mine {
		switch {
		case r.fingerprint != c.Fingerprint:
			return idempotency.OtherRequest
		case r.state == idempotency.Completed:
			return idempotency.AlreadyCompleted
		case r.state == idempotency.InProgress && !r.leaseOver:
			return idempotency.StillInProgress
		case !c.TakeOver:
			return idempotency.AlreadyUncertain
		}
	}
	if late {
		return idempotency.TooLate
	}
	m[c.ID] = &modelRecord{
		state: idempotency.InProgress, leaseOver: leaseOver, resubmitted: r != nil && (!mine || r.resubmitted),
		token: c.Token, fingerprint: c.Fingerprint, payload: string(c.Payload),
	}
	return idempotency.Claimed
}

func (m model) renew(id idempotency.RecordID, token idempotency.Token, leaseOver bool) bool {
	r := m[id]
	if r == nil || r.token != token || r.state != idempotency.InProgress || r.leaseOver {
		return false
	}
	r.leaseOver = leaseOver
	return true
}

func (m model) end(id idempotency.RecordID, token idempotency.Token, to idempotency.State, payload string) bool {
	r := m[id]
	if r == nil || r.token != token {
		return false
	}
	if r.state == to || r.state == idempotency.Completed {
		return r.state == to
	}
	r.state, r.payload, r.resubmitted = to, payload, false
	return true
}

func (m model) release(id idempotency.RecordID, token idempotency.Token) bool {
	r := m[id]
	if r == nil || r.token != token || r.state == idempotency.Completed {
		return false
	}
	if r.resubmitted {
		r.state, r.token, r.resubmitted = idempotency.Uncertain, idempotency.Token{}, false
		return true
	}
	delete(m, id)
	return true
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
		reference := model{}
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
		over := rapid.Bool()
		// A lease of no length is over at once, and one of an hour runs.
		lease := map[bool]time.Duration{true: 0, false: time.Hour}
		step := 0
		payload := func() string { step++; return fmt.Sprint("payload ", step) }
		agree := func(name string, got, want any) {
			t.Helper()
			if got != want {
				t.Fatalf("%s gave %v, and the reference %v", name, got, want)
			}
		}

		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				leaseOver, late := over.Draw(t, "lease over"), rapid.IntRange(0, 4).Draw(t, "late") == 0
				c := idempotency.Claim{
					ID: id.Draw(t, "id"), Token: token.Draw(t, "token"), Lease: lease[leaseOver], Retention: time.Hour,
					TakeOver: over.Draw(t, "take over"), NotAfter: now.Add(time.Hour), Payload: []byte(payload()),
				}
				c.Fingerprint[0] = byte(rapid.IntRange(0, 1).Draw(t, "fingerprint"))
				if late {
					c.NotAfter = now.Add(-time.Hour)
				}
				reply, err := f.Store.Claim(ctx, c)
				if err != nil {
					t.Fatalf("Claim: %v", err)
				}
				agree("Claim", reply.Verdict, reference.claim(c, leaseOver, late))
			},
			"renew": func(t *rapid.T) {
				leaseOver := over.Draw(t, "lease over")
				r := idempotency.Renewal{ID: id.Draw(t, "id"), Token: token.Draw(t, "token"), Lease: lease[leaseOver]}
				replies, err := f.Store.Renew(ctx, []idempotency.Renewal{r})
				if err != nil {
					t.Fatalf("Renew: %v", err)
				}
				agree("Renew", replies[0].Applied, reference.renew(r.ID, r.Token, leaseOver))
			},
			"complete": func(t *rapid.T) {
				e := idempotency.Ending{ID: id.Draw(t, "id"), Token: token.Draw(t, "token"), Payload: []byte(payload())}
				reply, err := f.Store.Complete(ctx, e)
				if err != nil {
					t.Fatalf("Complete: %v", err)
				}
				agree("Complete", reply.Applied, reference.end(e.ID, e.Token, idempotency.Completed, string(e.Payload)))
			},
			"uncertain": func(t *rapid.T) {
				e := idempotency.Ending{ID: id.Draw(t, "id"), Token: token.Draw(t, "token"), Payload: []byte(payload())}
				reply, err := f.Store.MarkUncertain(ctx, e)
				if err != nil {
					t.Fatalf("MarkUncertain: %v", err)
				}
				agree("MarkUncertain", reply.Applied, reference.end(e.ID, e.Token, idempotency.Uncertain, string(e.Payload)))
			},
			"release": func(t *rapid.T) {
				id, token := id.Draw(t, "id"), token.Draw(t, "token")
				reply, err := f.Store.Release(ctx, id, token)
				if err != nil {
					t.Fatalf("Release: %v", err)
				}
				agree("Release", reply.Applied, reference.release(id, token))
			},
			"": func(t *rapid.T) {
				for _, id := range ids {
					got, found, err := f.Store.Get(ctx, id)
					if err != nil {
						t.Fatalf("Get: %v", err)
					}
					want := reference[id]
					if found != (want != nil) {
						t.Fatalf("the store has the record %t, and the reference %t", found, want != nil)
					}
					if want == nil {
						continue
					}
					agree("state", got.State, want.state)
					agree("token", got.Token, want.token)
					agree("fingerprint", got.Fingerprint, want.fingerprint)
					agree("payload", string(got.Payload), want.payload)
					agree("resubmitted", got.Resubmitted, want.state == idempotency.InProgress && want.resubmitted)
				}
			},
		})
	})
}

package idempotency_test

import (
	"context"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// A record keeps who decided about it, when and why, under its own key like the
// rest of it; and its label.
func TestRecordKeepsDecision(t *testing.T) {
	t.Parallel()
	for name, ring := range map[string]*idempotency.Keyring{"readable": nil, "encrypted": ringOf(t, 1)} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			s.Details.Label = "team a"
			h.conclude(h.attempt(policy(under(ring)), s), broken, idempotency.ConcludedUnknown)
			_, err := h.engine.Decide(context.Background(), idempotency.Decision{
				ID: s.ID, Keyring: ring, Answer: operatorsAnswer("{}"), Reason: "found in the console", By: "192.0.2.1:7",
			})
			if err != nil {
				t.Fatal(err)
			}
			v, err := h.engine.Lookup(context.Background(), ring, s.ID)
			if err != nil || v.Details.Label != "team a" || v.Details.Decision == nil {
				t.Fatalf("Lookup gave %+v, %v", v, err)
			}
			d := *v.Details.Decision
			if at := d.At; at != h.clock.Now().UnixMilli() {
				t.Errorf("it was decided at %d, want the store's clock, %d", at, h.clock.Now().UnixMilli())
			}
			d.At = 0
			if (d != idempotency.Decided{What: "completed", Reason: "found in the console", By: "192.0.2.1:7"}) {
				t.Errorf("the record keeps %+v", d)
			}
			l, err := h.engine.List(context.Background(), idempotency.Query{Keyring: ring, Limit: 1})
			if err != nil || len(l.Views) != 1 || l.Views[0].Details.Decision == nil {
				t.Errorf("List gave %+v, %v", l, err)
			}
		})
	}
}

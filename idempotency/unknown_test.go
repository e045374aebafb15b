package idempotency_test

import (
	"bytes"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// A repeat of a submit whose outcome is unknown gets to know the record, so that
// evidence can decide about the attempt that it has seen and about no other.
func TestUnknownAdmission(t *testing.T) {
	t.Parallel()
	ring, err := idempotency.NewKeyring(bytes.Repeat([]byte{'k'}, idempotency.EncryptionKeySize))
	if err != nil {
		t.Fatal(err)
	}
	for name, keyring := range map[string]*idempotency.Keyring{"readable": nil, "encrypted": ring} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			p := policy()
			p.Keyring = keyring
			s := submitOf("k")
			s.Details.Label = "the caller's own"
			h.conclude(h.attempt(p, s), broken, idempotency.ConcludedUnknown)
			admission := h.begin(p, s)
			if admission.Problem == nil || admission.Problem.Code != idempotency.CodeOutcomeUnknown {
				t.Fatalf("the repeat gets %+v", admission)
			}
			view := admission.Unknown
			if view == nil || view.ID != s.ID || view.State != idempotency.Uncertain || view.Details.Label != s.Details.Label {
				t.Fatalf("it comes with the record %+v", view)
			}
			answer := accepted("found").Body
			decision := idempotency.Decision{
				ID: s.ID, Keyring: keyring, Attempt: &view.Record.Token, Answer: &idempotency.Answer{Status: 202, Body: answer},
			}
			if _, err := h.engine.Decide(t.Context(), decision); err != nil {
				t.Fatal(err)
			}
			if again := h.begin(p, s); again.Replay == nil || !bytes.Equal(again.Replay.Body, answer) || again.Unknown != nil {
				t.Errorf("after the decision the repeat gets %+v", again)
			}
		})
	}
}

package integration

import (
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// Encryption keys are rotated by reloads of two gateways, one after the other,
// while callers submit and repeat: no key is submitted twice.
func TestKeyRotationUnderLoad(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	o := options{store: "redis " + redis.Address, app: encryptedBy("a")}
	a, b := startGateway(t, p.url, o), startGateway(t, p.url, o)
	l := startSteadyLoad(t, a, b)
	l.awaitAccepted(t, "jobs", 30)
	// A key is known to all before it is the first of one.
	for _, keys := range []string{"ab", "ba", "bac", "cba", "cb"} {
		if keys == "cb" {
			l.end() // nothing under a is repeated any more
			l.repeat(t)
		}
		for _, g := range []*gateway{a, b} {
			o.app = encryptedBy(keys)
			g.write(t, p.url, o)
			g.reload(t)
		}
		if keys != "cb" {
			l.awaitAccepted(t, "jobs with keys "+keys, 30)
		}
	}
	p.wantOnePerKey(t)
	if n, keys := p.count(), int(l.accepted.Load()); n > int(l.sent.Load()) || n < keys {
		t.Errorf("the provider has %d submits of %d keys, of which %d were accepted", n, l.sent.Load(), keys)
	}
	if unknown, busy := l.unknown.Load(), l.busy.Load(); unknown+busy > 0 {
		t.Errorf("%d outcomes are unknown, and %d answers are 503", unknown, busy)
	}
	if got := a.send(t, request{key: "last", body: "x"}); got.status != 202 {
		t.Errorf("in the end: %v", got)
	}
}

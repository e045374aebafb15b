package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// The slot of a running submit moves to another node of the Cluster, and first
// submits, repeats, renewals and the completion come while it is on its way
// (MIGRATING, IMPORTING, ASK): nothing is noticed.
func TestSlotMovesDuringClaim(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	ctx := context.Background()
	hold := newGate()
	p := startProvider(t, nil)
	p.now(holdFirst(p, hold))
	o := options{
		store:       fmt.Sprintf("redis %s {\ncluster\n}", c.Nodes[0].Address),
		idempotency: "lease 500ms\nscope fixed",
	}
	a, b := startGateway(t, p.url, o), startGateway(t, p.url, o)
	running := request{key: "running", body: "x"}
	done := a.sendLater(t, running)
	p.awaitSubmits(t, 1)
	record := func(key string) string {
		return "idempotency:" + string(idempotency.NewRecordID("", []string{"fixed"}, idempotency.Key(key)))
	}
	slot, err := c.Nodes[0].Client.ClusterKeySlot(ctx, record(running.key)).Result()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a.list(t, "").Records); n != 1 || !strings.HasSuffix(record(running.key), string(a.list(t, "").Records[0].ID)) {
		t.Fatalf("there are %d records, and not the one that is expected", n)
	}

	// Keys whose records are in the same slot, one for each moment of the move.
	const moments = 3
	var fresh []string
	for i := 0; len(fresh) < 2*moments; i++ {
		if key := fmt.Sprint("fresh", i); slotOf(record(key)) == slot {
			fresh = append(fresh, key)
		}
	}
	submits, next := 1, 0
	use := func() {
		t.Helper()
		if next < len(fresh) {
			r := request{key: fresh[next], body: "x"}
			next++
			submits++
			first := a.send(t, r)
			again := b.send(t, r)
			p.want(t, submits)
			if first.status != 202 || !again.replayed() || again.body != first.body {
				t.Errorf("a submit while the slot moves: %v, and again: %v", first, again)
			}
		}
		for _, g := range []*gateway{a, b} {
			if got := g.send(t, running); got.code() != "idempotency_key_in_progress" {
				t.Errorf("a repeat while the slot moves: %v", got)
			}
		}
		p.want(t, submits)
	}
	from := c.Owner(t, record(running.key))
	c.MoveSlot(t, slot, from, (from+1)%3, func() {
		if next < moments {
			use()
		}
	})
	if next == 0 {
		t.Fatal("nothing was sent while the slot moved")
	}
	var first answer
	c.MoveSlot(t, slot, (from+1)%3, from, func() {
		if first.status != 0 {
			return
		}
		use()
		hold.open()
		first = <-done
		if again := b.send(t, running); first.status != 202 || !again.replayed() || again.body != first.body {
			t.Errorf("the acceptance while the slot moves: %v, and again: %v", first, again)
		}
	})
	for _, key := range append(fresh[:next], running.key) {
		if got := b.send(t, request{key: key, body: "x"}); !got.replayed() {
			t.Errorf("in the end: %v", got)
		}
	}
	p.want(t, submits)
}

// slotOf returns the hash slot of a key without a hash tag.
func slotOf(key string) int64 {
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return int64(crc % 16384)
}

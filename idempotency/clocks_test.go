package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// cluster is a store whose records are on several nodes, each with a clock of
// its own.
type cluster []idempotency.Store

func (c cluster) node(id idempotency.RecordID) idempotency.Store {
	return c[int(id[len(id)-1])%len(c)]
}

func (c cluster) Now(ctx context.Context) (time.Time, error) { return c[0].Now(ctx) }

func (c cluster) Claim(ctx context.Context, claim idempotency.Claim) (idempotency.ClaimReply, error) {
	return c.node(claim.ID).Claim(ctx, claim)
}

func (c cluster) Renew(ctx context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	replies := make([]idempotency.Reply, 0, len(renewals))
	for _, r := range renewals {
		reply, err := c.node(r.ID).Renew(ctx, []idempotency.Renewal{r})
		if err != nil {
			return nil, err
		}
		replies = append(replies, reply...)
	}
	return replies, nil
}

func (c cluster) Complete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return c.node(e.ID).Complete(ctx, e)
}

func (c cluster) MarkUncertain(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return c.node(e.ID).MarkUncertain(ctx, e)
}

func (c cluster) Release(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return c.node(id).Release(ctx, id, token)
}

func (c cluster) DecideComplete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return c.node(e.ID).DecideComplete(ctx, e)
}

func (c cluster) DecideRelease(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return c.node(id).DecideRelease(ctx, id, token)
}

func (c cluster) Forget(ctx context.Context, id idempotency.RecordID, seen idempotency.Digest) (idempotency.Reply, error) {
	return c.node(id).Forget(ctx, id, seen)
}

// Scan is not part of these tests.
func (c cluster) Scan(context.Context, string) (idempotency.ScanPage, error) {
	return idempotency.ScanPage{}, errors.ErrUnsupported
}

func (c cluster) Get(ctx context.Context, id idempotency.RecordID) (idempotency.Record, bool, error) {
	return c.node(id).Get(ctx, id)
}

func (c cluster) Close() error {
	for _, store := range c {
		if err := store.Close(); err != nil {
			return err
		}
	}
	return nil
}

// A record's own node decides about its claim. Nodes whose clocks are far apart
// cost a second try, and never a submit.
func TestNodesWithClocksApart(t *testing.T) {
	t.Parallel()
	var c cluster
	for i, ahead := range []time.Duration{0, time.Hour} {
		c = append(c, embedded.New(embedded.Config{
			Path: filepath.Join(t.TempDir(), fmt.Sprint(i)),
			Now:  func() time.Time { return time.Now().Add(ahead) },
		}))
	}
	engine := idempotency.NewEngine(idempotency.EngineConfig{Store: c, StoreTimeout: patience})
	t.Cleanup(func() {
		engine.Close()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	var callers sync.WaitGroup
	for caller := range 16 {
		callers.Go(func() {
			for i := range 30 {
				admission, err := engine.Begin(context.Background(), policy(), submitOf(fmt.Sprint(caller, " ", i)))
				if err != nil || admission.Attempt == nil {
					t.Errorf("a claim gave %+v, %v", admission, err)
					return
				}
				if c, _ := admission.Attempt.Conclude(accepted("answer")); c != idempotency.ConcludedAccepted {
					t.Errorf("concluded %v", c)
				}
			}
		})
	}
	callers.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if alive, unstored := engine.Drain(ctx); len(alive)+len(unstored) > 0 {
		t.Errorf("%d attempts and %d outcomes are left", len(alive), len(unstored))
	}
}

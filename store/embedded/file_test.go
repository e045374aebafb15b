package embedded_test

import (
	"context"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// A file that is in use gets the bucket of another tenant, and is not new because
// of it; what is in the bucket is committed and read like the records.
func TestAnotherBucket(t *testing.T) {
	w, _ := openWatched(t)
	must(t, w.Close())
	again := &watched{path: w.path, completed: w.completed}
	again.Store = embedded.New(embedded.Config{Path: w.path, Report: again.report})
	embedded.AddBucket(again.Store, "items")
	read, err := embedded.PutInto(again.Store, "items", "key", "value")
	if err != nil || read != "value" {
		t.Errorf("read %q, error %v", read, err)
	}
	if _, found, err := again.Get(context.Background(), again.completed.ID); err != nil || !found {
		t.Errorf("the record: found %t, error %v", found, err)
	}
	again.wantReports(t)
	must(t, again.Close())

	// A store that does not know the bucket leaves it alone.
	w.Store = embedded.New(embedded.Config{Path: w.path})
	if verdict, err := w.repeat(); err != nil || verdict != idempotency.AlreadyCompleted {
		t.Errorf("a repeat got verdict %d, error %v", verdict, err)
	}
	must(t, w.Close())
}

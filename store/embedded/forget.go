package embedded

import (
	"context"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Forget implements idempotency.Store. The expiry entry of a value that cannot
// be read is not known; it stays behind until it is due.
func (s *Store) Forget(ctx context.Context, id idempotency.RecordID, seen idempotency.Digest) (idempotency.Reply, error) {
	return changeRecords(ctx, s, func(r *records) (idempotency.Reply, error) {
		reply := idempotency.Reply{Now: r.now}
		value := r.byID.Get([]byte(id))
		if value == nil || idempotency.DigestOf(value) != seen {
			return reply, nil
		}
		var record idempotency.Record
		if err := record.UnmarshalBinary(value); err != nil {
			reply.Applied = true
			return reply, r.byID.Delete([]byte(id))
		}
		if record.StateAt(r.now) == idempotency.InProgress || !r.now.Before(record.ExpiresAt()) {
			return reply, nil
		}
		reply.Applied = true
		return reply, r.delete(id, record)
	})
}

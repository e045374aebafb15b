package redis

import (
	"context"
	_ "embed"
	"encoding/hex"
	"fmt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

var (
	//go:embed lua/digest.lua
	digestLua string
	//go:embed lua/forget.lua
	forgetLua string
)

var forgetScript = newScript("forget", allowOOM+recordLua+digestLua+forgetLua)

// Forget implements idempotency.Store. Values that are no strings have one
// digest in common: a script that may do no more than the user of docs/redis.md cannot
// tell them apart, and the gateway writes none.
func (s *Store) Forget(ctx context.Context, id idempotency.RecordID, seen idempotency.Digest) (idempotency.Reply, error) {
	return s.transition(ctx, forgetScript, id, idempotency.NewToken(), seen.String())
}

// unreadable is what Get returns for a value that the script cannot read.
func unreadable(a answer) error {
	seen, err := hex.DecodeString(a.record)
	if err != nil || len(seen) != len(idempotency.Digest{}) {
		return errForeignReply
	}
	return &idempotency.UnreadableError{
		Seen: idempotency.Digest(seen),
		Err:  fmt.Errorf("%w: redis: %s", idempotency.ErrUnreadable, a.reason),
	}
}

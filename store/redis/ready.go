package redis

import (
	"context"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Ready implements idempotency.Readiness: the server answers, and strict has
// nothing against it.
func (s *Store) Ready(ctx context.Context) error {
	if _, err := s.Now(ctx); err != nil {
		return err
	}
	return s.fit(ctx)
}

var _ idempotency.Readiness = (*Store)(nil)

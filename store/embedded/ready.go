package embedded

import (
	"context"
	"fmt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Ready implements idempotency.Readiness: the file can be opened, and is the one
// that this process has written.
func (s *Store) Ready(context.Context) error {
	file, err := s.open()
	if err != nil {
		return err
	}
	if err := file.check(); err != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
	}
	return nil
}

var _ idempotency.Readiness = (*Store)(nil)

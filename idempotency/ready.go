package idempotency

import (
	"context"
	"fmt"
)

// Readiness is what a Store may implement to say more than that it answers.
type Readiness interface {
	// Ready returns an error if a claim could not be granted now, whatever its
	// record. It costs one round trip at most.
	Ready(ctx context.Context) error
}

// Ready reports whether submits could be claimed now: the store answers and, if
// it can tell, would grant a claim. An error wraps ErrStoreUnavailable.
func (e *Engine) Ready(ctx context.Context) error {
	var err error
	if store, ok := e.store.(Readiness); ok {
		_, err = call(ctx, e, nameNow, func(ctx context.Context) (struct{}, error) { return struct{}{}, store.Ready(ctx) })
	} else {
		_, err = e.askNow(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	return nil
}

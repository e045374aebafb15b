package redis

import (
	"context"
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"
)

// ErrUnconfirmed means that a claim was written, and that too few replicas or
// disks confirmed it in time. It does not count and has to be taken back, which
// is why it is not an idempotency.ErrNotApplied.
var ErrUnconfirmed = errors.New("redis: the claim was not confirmed")

// wait returns the command that says how many have the last write of its
// connection, nil if nobody has to.
//
// Behind a claim that wrote nothing it answers for an earlier write, and its
// answer is not looked at.
func (t *transport) wait(ctx context.Context) *goredis.Cmd {
	c := t.config
	switch {
	case c.Fsync:
		return goredis.NewCmd(ctx, "waitaof", 1, c.Replicas, c.ReplicasTimeout.Milliseconds())
	case c.Replicas > 0:
		return goredis.NewCmd(ctx, "wait", c.Replicas, c.ReplicasTimeout.Milliseconds())
	default:
		return nil
	}
}

// confirm looks at the reply to wait.
func (t *transport) confirm(wait *goredis.Cmd) error {
	if err := wait.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	if t.config.Fsync {
		disks, err := wait.Int64Slice()
		switch {
		case err != nil || len(disks) != 2:
			return fmt.Errorf("%w: WAITAOF gave %d numbers", ErrUnconfirmed, len(disks))
		case disks[0] < 1:
			return fmt.Errorf("%w: it was not on the server's disk within %s", ErrUnconfirmed, t.config.ReplicasTimeout)
		case disks[1] < int64(t.config.Replicas):
			return fmt.Errorf("%w: it was on the disks of %d of %d replicas within %s",
				ErrUnconfirmed, disks[1], t.config.Replicas, t.config.ReplicasTimeout)
		}
		return nil
	}
	replicas, err := wait.Int64()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	if replicas < int64(t.config.Replicas) {
		return fmt.Errorf("%w: %d of %d replicas had it within %s", ErrUnconfirmed, replicas, t.config.Replicas, t.config.ReplicasTimeout)
	}
	return nil
}

package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

var (
	//go:embed lua/record.lua
	recordLua string
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/complete.lua
	completeLua string
	//go:embed lua/uncertain.lua
	uncertainLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/decide_complete.lua
	decideCompleteLua string
	//go:embed lua/decide_release.lua
	decideReleaseLua string
	//go:embed lua/get.lua
	getLua string
)

var (
	claimScript     = newScript("claim", recordLua+claimLua).awaitedAt(claimedResult, takenOverResult)
	renewScript     = newScript("renew", allowOOM+recordLua+renewLua)
	completeScript  = newScript("complete", allowOOM+recordLua+completeLua)
	uncertainScript = newScript("uncertain", allowOOM+recordLua+uncertainLua)
	releaseScript   = newScript("release", allowOOM+recordLua+releaseLua)

	decideCompleteScript = newScript("decide_complete", allowOOM+recordLua+decideCompleteLua)
	decideReleaseScript  = newScript("decide_release", allowOOM+recordLua+decideReleaseLua)

	getScript = newScript("get", noWrites+recordLua+digestLua+getLua)
)

// Results of the script of a claim that was granted.
const (
	claimedResult   = "claimed"
	takenOverResult = "taken_over"
)

func (s *Store) key(id idempotency.RecordID) string { return s.prefix + string(id) }

// Claim implements idempotency.Store.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.ClaimReply, error) {
	s.Watch()
	if err := s.fit(ctx); err != nil {
		return idempotency.ClaimReply{}, fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
	}
	takeOver := "0"
	if c.TakeOver {
		takeOver = "1"
	}
	markerKey, markerID, err := s.markerOfClaim(ctx)
	if err != nil {
		return idempotency.ClaimReply{}, fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
	}
	keys := []string{s.key(c.ID)}
	args := []any{
		c.Fingerprint[:], c.Lease.Milliseconds(), c.Retention.Milliseconds(), takeOver, c.NotAfter.UnixMilli(), c.Payload,
	}
	if markerKey != "" {
		keys, args = append(keys, markerKey), append(args, markerID)
	}
	a, err := s.transport.call(ctx, claimScript, keys, string(c.Token[:]), args...)
	if err == nil && a.result == lostResult {
		if err := s.markerLost(ctx); err != nil {
			return idempotency.ClaimReply{}, fmt.Errorf("%w: %w", idempotency.ErrNotApplied, err)
		}
		args[len(args)-1] = s.markers.get(markerKey).id
		a, err = s.transport.call(ctx, claimScript, keys, string(c.Token[:]), args...)
	}
	if err != nil {
		return idempotency.ClaimReply{}, err
	}
	if s.config.Strict {
		s.markers.seen()
	}
	reply := idempotency.ClaimReply{Now: a.now}
	switch a.result {
	case claimedResult, takenOverResult:
		// The claim may have gone over the first connection to its server, which
		// has only now said what it is.
		if err := s.fit(ctx); err != nil {
			return idempotency.ClaimReply{}, fmt.Errorf("%w: %w", ErrUnconfirmed, err)
		}
		reply.Verdict, reply.TookOver = idempotency.Claimed, a.result == takenOverResult
		return reply, nil
	case lostResult:
		return idempotency.ClaimReply{}, fmt.Errorf("%w: redis: the store has lost its marker again", idempotency.ErrNotApplied)
	case "too_late":
		reply.Verdict = idempotency.TooLate
		return reply, nil
	case "other_request":
		reply.Verdict = idempotency.OtherRequest
	case "completed":
		reply.Verdict = idempotency.AlreadyCompleted
	case "in_progress":
		reply.Verdict = idempotency.StillInProgress
	case "uncertain":
		reply.Verdict = idempotency.AlreadyUncertain
	default:
		return idempotency.ClaimReply{}, errForeignReply
	}
	return reply, reply.Record.UnmarshalBinary([]byte(a.record))
}

// Renew implements idempotency.Store. The renewals travel in one pipeline.
func (s *Store) Renew(ctx context.Context, renewals []idempotency.Renewal) ([]idempotency.Reply, error) {
	replies, err := s.renew(ctx, renewals, renewScript.bySHA)
	if isNoScript(err) {
		replies, err = s.renew(ctx, renewals, renewScript.bySource)
	}
	return replies, err
}

func (s *Store) renew(
	ctx context.Context, renewals []idempotency.Renewal,
	command func(ctx context.Context, keys []string, args ...any) sentOnce,
) ([]idempotency.Reply, error) {
	client := s.current()
	pipe := client.Pipeline()
	commands := make([]sentOnce, len(renewals))
	for i, r := range renewals {
		commands[i] = command(ctx, []string{s.key(r.ID)}, r.Token[:], r.Lease.Milliseconds())
		_ = pipe.Process(ctx, commands[i]) // queues; errors come with the replies
	}
	_, _ = pipe.Exec(ctx)

	replies := make([]idempotency.Reply, len(renewals))
	for i, r := range renewals {
		a, err := renewScript.parse(commands[i], s.key(r.ID), string(r.Token[:]))
		if errors.Is(err, idempotency.ErrUnreadable) {
			// One record that cannot be read must not cost the others their lease.
			continue
		}
		if err != nil {
			s.handleError(ctx, client, err)
			return nil, err
		}
		replies[i] = idempotency.Reply{Applied: a.result == "applied", Now: a.now}
	}
	return replies, nil
}

// Complete implements idempotency.Store.
func (s *Store) Complete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.transition(ctx, completeScript, e.ID, e.Token, e.Payload)
}

// MarkUncertain implements idempotency.Store.
func (s *Store) MarkUncertain(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.transition(ctx, uncertainScript, e.ID, e.Token, e.Payload)
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return s.transition(ctx, releaseScript, id, token)
}

// DecideComplete implements idempotency.Store.
func (s *Store) DecideComplete(ctx context.Context, e idempotency.Ending) (idempotency.Reply, error) {
	return s.transition(ctx, decideCompleteScript, e.ID, e.Token, e.Payload)
}

// DecideRelease implements idempotency.Store.
func (s *Store) DecideRelease(ctx context.Context, id idempotency.RecordID, token idempotency.Token) (idempotency.Reply, error) {
	return s.transition(ctx, decideReleaseScript, id, token)
}

func (s *Store) transition(ctx context.Context, sc script, id idempotency.RecordID, token idempotency.Token, args ...any) (idempotency.Reply, error) {
	a, err := s.call(ctx, sc, id, token, args...)
	if err != nil {
		return idempotency.Reply{}, err
	}
	return idempotency.Reply{Applied: a.result == "applied", Now: a.now}, nil
}

func (s *Store) call(ctx context.Context, sc script, id idempotency.RecordID, token idempotency.Token, args ...any) (answer, error) {
	return s.transport.call(ctx, sc, []string{s.key(id)}, string(token[:]), args...)
}

// Get implements idempotency.Store. The reply to a plain GET would not name the
// record that it is of.
func (s *Store) Get(ctx context.Context, id idempotency.RecordID) (idempotency.Record, bool, error) {
	a, err := s.call(ctx, getScript, id, idempotency.NewToken())
	if err != nil {
		return idempotency.Record{}, false, err
	}
	var r idempotency.Record
	switch a.result {
	case "absent":
		return r, false, nil
	case "found":
		err := r.UnmarshalBinary([]byte(a.record))
		return r, err == nil, err
	case "unreadable":
		return r, false, unreadable(a)
	default:
		return r, false, errForeignReply
	}
}

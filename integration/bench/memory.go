package main

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// inFlight is the memory of a gateway whose submits are all at the provider.
type inFlight struct {
	System      string
	Submits     int
	Idle, Bytes int64 // resident, before and then
}

// inFlightStep is how many callers come at a time, so that none of their claims
// waits for others longer than a store may take.
const inFlightStep = 1000

// measureInFlight has many submits wait for the provider's answer.
func (b *bench) measureInFlight(ctx context.Context, s *system, k keys, n int) (inFlight, error) {
	m := inFlight{System: s.name, Submits: n}
	var err error
	if m.Idle, err = s.process.resident(); err != nil {
		return m, err
	}
	body, err := b.bodyFile(answerSize)
	if err != nil {
		return m, err
	}
	var callers []*exec.Cmd
	// The callers leave before the answers come, or each would be followed by a
	// request.
	leave := func() {
		for _, cmd := range callers {
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
		for _, cmd := range callers {
			_ = cmd.Wait() // it ends with a broken-off load
		}
		callers = nil
	}
	defer leave()
	for held := 0; held < n; {
		step := min(inFlightStep, n-held)
		prefix := ""
		if k == freshKeys {
			b.prefixes++
			prefix = fmt.Sprintf("f%d-", b.prefixes)
		}
		before, err := b.provider.submits(ctx, prefix)
		if err != nil {
			return m, err
		}
		cmd := b.command(ctx, load{
			url: s.url(heldPath), keys: k, prefix: prefix, bodyFile: body, connections: step, duration: 5 * time.Minute,
		})
		if err := cmd.Start(); err != nil {
			return m, err
		}
		callers = append(callers, cmd)
		err = await(ctx, fmt.Sprint(step, " more submits at the provider"), func() (bool, error) {
			now, err := b.provider.submits(ctx, prefix)
			return now-before >= step, err
		})
		if err != nil {
			return m, fmt.Errorf("%s: %w", s.name, err)
		}
		held += step
	}
	if m.Bytes, err = s.process.resident(); err != nil {
		return m, err
	}
	leave()
	_, err = b.provider.get(ctx, releasePath)
	return m, err
}

// recordSize returns MEMORY USAGE of a completed record in Redis.
func (b *bench) recordSize(ctx context.Context, s *system) (int64, error) {
	key, err := s.redis.client.RandomKey(ctx).Result()
	if err != nil {
		return 0, err
	}
	return s.redis.client.MemoryUsage(ctx, key).Result()
}

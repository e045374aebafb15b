package main

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// inFlight is the memory of a gateway whose submits are all at the provider.
type inFlight struct {
	System      string
	Submits     int
	Idle, Bytes int64 // resident, before and then
}

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
		url: s.url(heldPath), keys: k, prefix: prefix, bodyFile: body, connections: n, duration: time.Minute,
	})
	if err := cmd.Start(); err != nil {
		return m, err
	}
	defer func() { _ = cmd.Wait() }() // it ends with a broken-off load
	defer func() { _ = cmd.Process.Signal(syscall.SIGINT) }()
	err = await(ctx, fmt.Sprint(n, " submits at the provider"), func() (bool, error) {
		now, err := b.provider.submits(ctx, prefix)
		return now-before >= n, err
	})
	if err != nil {
		return m, fmt.Errorf("%s: %w", s.name, err)
	}
	m.Bytes, err = s.process.resident()
	if err != nil {
		return m, err
	}
	// The callers leave first, or each answer would be followed by a request.
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		return m, err
	}
	_ = cmd.Wait()
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

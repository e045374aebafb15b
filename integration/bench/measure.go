package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// variant is one thing that is measured: a system, and what callers send it.
type variant struct {
	Name   string
	system *system
	keys   keys
	// Target is the least ratio to the plain proxy that is asked for; 0 for none.
	Target float64
	// everywhere: also with other bodies and other numbers of connections.
	everywhere bool
}

// setting is under what conditions the variants are measured.
type setting struct {
	Body        int // bytes of a request's body
	Connections int
	Rounds      int
	Seconds     int // of a round, for each variant
}

// sample is one variant in one round.
type sample struct {
	Rate          float64 // requests per second
	Mean          float64 // latency, µs
	P50           float64
	P99           float64
	GatewayCPU    float64 // µs per request
	StoreCPU      float64 // µs per request, of a store that is a process of its own
	Allocations   float64 // per request
	Allocated     float64 // bytes per request
	StoreCalls    float64 // per request
	Failed        int     // requests that got no success
	StoreDuration float64 // µs per request that the gateway waited for its store
}

// series are all rounds of one variant under one setting.
type series struct {
	variant
	setting
	Samples []sample
}

// measure goes through the variants, round after round. The order turns, so
// that none always comes after the same other.
func (b *bench) measure(ctx context.Context, variants []variant, s setting) ([]*series, error) {
	body, err := b.bodyFile(s.Body)
	if err != nil {
		return nil, err
	}
	var all []*series
	for _, v := range variants {
		all = append(all, &series{variant: v, setting: s})
		if err := b.prepare(ctx, v, s, body); err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
	}
	for round := range s.Rounds {
		for i := range all {
			of := all[(i+round)%len(all)]
			one, err := b.once(ctx, of.variant, s, body)
			if err != nil {
				return nil, fmt.Errorf("%s, %d bytes, %d connections: %w", of.Name, s.Body, s.Connections, err)
			}
			of.Samples = append(of.Samples, one)
			b.say("%d bytes, %3d connections, round %d: %-28s %8.0f/s", s.Body, s.Connections, round+1, of.Name, one.Rate)
		}
	}
	return all, nil
}

func (b *bench) loadOf(v variant, s setting, body string) load {
	l := load{
		url: v.system.url(submitPath), keys: v.keys, bodyFile: body,
		connections: s.Connections, duration: time.Duration(s.Seconds) * time.Second,
	}
	switch v.keys {
	case freshKeys:
		b.prefixes++
		l.prefix = fmt.Sprintf("f%d-", b.prefixes)
	case storedKeys:
		l.prefix = fmt.Sprintf("%s%d-", strings.ReplaceAll(v.system.name, "-", "_"), s.Body)
	case noKeys:
	}
	return l
}

// prepare stores what is to be replayed.
func (b *bench) prepare(ctx context.Context, v variant, s setting, body string) error {
	if v.keys != storedKeys || v.system.stored[s.Body] {
		return nil
	}
	v.system.stored[s.Body] = true
	return b.store(ctx, b.loadOf(v, s, body))
}

// once measures one variant in one round.
func (b *bench) once(ctx context.Context, v variant, s setting, body string) (sample, error) {
	l := b.loadOf(v, s, body)
	before, err := b.usage(ctx, v.system, l.prefix)
	if err != nil {
		return sample{}, err
	}
	t, err := b.run(ctx, l)
	if err != nil {
		return sample{}, err
	}
	after, err := b.settled(ctx, v.system, l.prefix)
	if err != nil {
		return sample{}, err
	}
	if err := v.check(after.submits-before.submits, t.Requests, t.Failed, s.Connections); err != nil {
		return sample{}, err
	}
	n := float64(t.Requests)
	micro := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / n }
	return sample{
		Rate: t.rate(), Mean: t.Mean, P50: t.P50, P99: t.P99, Failed: t.Failed,
		GatewayCPU:    micro(after.gateway - before.gateway),
		StoreCPU:      micro(after.store - before.store),
		Allocations:   (after.allocations - before.allocations) / n,
		Allocated:     (after.allocated - before.allocated) / n,
		StoreCalls:    (after.storeCalls - before.storeCalls) / n,
		StoreDuration: (after.storeSeconds - before.storeSeconds) * 1e6 / n,
	}, nil
}

// settled returns the usage when what wrk has left behind is done: it breaks off
// the requests that are under way at its end.
func (b *bench) settled(ctx context.Context, s *system, prefix string) (usage, error) {
	last, err := b.provider.submits(ctx, prefix)
	if err != nil {
		return usage{}, err
	}
	since := time.Now()
	err = await(ctx, "the last submits", func() (bool, error) {
		now, err := b.provider.submits(ctx, prefix)
		if now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 50*time.Millisecond, err
	})
	if err != nil {
		return usage{}, err
	}
	return b.usage(ctx, s, prefix)
}

// check holds the submits that the provider received against what the callers
// sent. Those that failed or were broken off may or may not have been sent.
func (v variant) check(submits, requests, failed, connections int) error {
	least, most := requests-failed, requests+connections
	if v.keys == storedKeys || v.system.answers {
		least, most = 0, 0
	}
	if submits < least || submits > most {
		return fmt.Errorf("the provider received %d submits of %d requests, want %d to %d", submits, requests, least, most)
	}
	return nil
}

// spread is a figure of several rounds.
type spread struct {
	Median, Lowest, Highest float64
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{median, sorted[0], sorted[len(sorted)-1]}
}

func (s *series) each(figure func(sample) float64) spread {
	values := make([]float64, len(s.Samples))
	for i, one := range s.Samples {
		values[i] = figure(one)
	}
	return spreadOf(values)
}

// against compares a figure with that of another variant in the same round.
func (s *series) against(other *series, compare func(own, others sample) float64) spread {
	values := make([]float64, len(s.Samples))
	for i, own := range s.Samples {
		values[i] = compare(own, other.Samples[i])
	}
	return spreadOf(values)
}

// ratio of the rates.
func (s *series) ratio(other *series) spread {
	return s.against(other, func(own, others sample) float64 { return own.Rate / others.Rate })
}

// reached reports whether a figure is at its target, as it is printed.
func reached(figure, target float64) bool { return math.Round(figure*100) >= math.Round(target*100) }

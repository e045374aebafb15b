package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// scale is the throughput of fresh submits of several gateways before one Redis.
type scale struct {
	Gateways   int
	Rate       float64 // of all of them
	GatewayCPU float64 // µs per submit, of all gateways
	StoreCPU   float64
}

// measureScale loads the gateways at the same time with as many connections in
// all, whatever their number.
func (b *bench) measureScale(ctx context.Context, gateways []*system, connections, seconds int) (scale, error) {
	m := scale{Gateways: len(gateways)}
	body, err := b.bodyFile(answerSize)
	if err != nil {
		return m, err
	}
	before, err := b.usages(ctx, gateways)
	if err != nil {
		return m, err
	}
	tallies := make([]tally, len(gateways))
	errs := make([]error, len(gateways))
	var wg sync.WaitGroup
	for i, g := range gateways {
		b.prefixes++
		l := load{
			url: g.url(submitPath), keys: freshKeys, prefix: fmt.Sprintf("f%d-", b.prefixes), bodyFile: body,
			connections: connections / len(gateways), duration: time.Duration(seconds) * time.Second,
		}
		wg.Go(func() { tallies[i], errs[i] = b.run(ctx, l) })
	}
	wg.Wait()
	requests := 0.0
	for i, t := range tallies {
		if errs[i] != nil {
			return m, fmt.Errorf("%d gateways: %w", len(gateways), errs[i])
		}
		m.Rate += t.rate()
		requests += float64(t.Requests)
	}
	after, err := b.usages(ctx, gateways)
	if err != nil {
		return m, err
	}
	for i := range gateways {
		m.GatewayCPU += float64((after[i].gateway - before[i].gateway).Microseconds()) / requests
	}
	m.StoreCPU = float64((after[0].store - before[0].store).Microseconds()) / requests
	return m, nil
}

func (b *bench) usages(ctx context.Context, systems []*system) ([]usage, error) {
	var all []usage
	for _, s := range systems {
		u, err := b.settled(ctx, s, "")
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

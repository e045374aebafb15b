package idempotency

import (
	"context"
	"sync"
	"time"
)

// How old a census may be. Somebody asks every few seconds, and a count of ten
// million records takes a store the better part of a minute.
const (
	// censusEvery is how old a census is when the next one begins, unless it
	// took so long that this would keep the store at work: then it is
	// censusShare times as long.
	censusEvery = time.Minute
	censusShare = 10
	censusPause = 30 * time.Minute // at most
	// censusTimeout bounds one count.
	censusTimeout = 10 * time.Minute
	// MaxCensusAge is the age at which a census says nothing any more. It is
	// more than a pause and a count together.
	MaxCensusAge = time.Hour
)

// census counts records when somebody asks for their number, and at no other
// time. Nobody waits for it.
type census struct {
	mu     sync.Mutex
	counts map[State]int // by the last count; nil if there is none
	at     time.Time     // when it began
	next   time.Time     // when the next one may begin
	cancel context.CancelFunc
	done   chan struct{} // of the one that runs; nil if none does
	closed bool
}

// Census returns how many records the store has in each state, as far as this is
// known: by the last count, which is never older than MaxCensusAge. If that
// is a minute ago or more (ten times as long as the count took, if that is more)
// another one begins in the background. The first call of all returns nil.
//
// The numbers are approximate while records come, go or change. A store that
// fails is counted again a minute later.
func (e *Engine) Census() map[State]int {
	c := &e.census
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.done == nil && !c.closed && !now.Before(c.next) {
		ctx, cancel := context.WithTimeout(context.Background(), censusTimeout)
		c.cancel, c.done = cancel, make(chan struct{})
		go e.takeCensus(ctx, now)
	}
	if now.Sub(c.at) > MaxCensusAge {
		return nil
	}
	return c.counts
}

func (e *Engine) takeCensus(ctx context.Context, began time.Time) {
	counts, err := e.count(ctx)
	c := &e.census
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel()
	if err == nil {
		c.counts, c.at = counts, began
	}
	c.next = began.Add(max(censusEvery, min(censusShare*time.Since(began), censusPause)))
	close(c.done)
	c.done = nil
}

// count scans the headers of all records.
func (e *Engine) count(ctx context.Context) (map[State]int, error) {
	now, err := e.askNow(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[State]int{InProgress: 0, Completed: 0, Uncertain: 0}
	for cursor := ""; ; {
		page, err := e.scan(ctx, cursor)
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for _, h := range page.Headers {
			counts[h.Record.StateAt(now)]++
		}
		if cursor = page.Next; cursor == "" {
			return counts, nil
		}
	}
}

// end ends a count that runs, and returns when the store is not used any more.
func (c *census) end() {
	c.mu.Lock()
	c.closed = true
	done := c.done
	if done != nil {
		c.cancel()
	}
	c.mu.Unlock()
	if done != nil {
		<-done
	}
}

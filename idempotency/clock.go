package idempotency

import (
	"sync"
	"time"
)

// storeClock reckons the store's clock from this process's monotonic one, so
// that the two machines' wall clocks need not agree.
type storeClock struct {
	mu    sync.Mutex
	store time.Time
	local time.Time
}

func (c *storeClock) learn(store time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store, c.local = store, time.Now()
}

func (c *storeClock) now() (now time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local.IsZero() {
		return time.Time{}, false
	}
	return c.store.Add(time.Since(c.local)), true
}

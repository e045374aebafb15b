package redis

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// DefaultCheckInterval is the time between two looks at the servers' health.
const DefaultCheckInterval = time.Minute

// health is what the servers last said.
type health struct {
	mu      sync.Mutex
	servers map[string]serverState
}

// names returns the servers of which something is known.
func (h *health) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.servers))
}

// known reports whether anything is known of a server.
func (h *health) known() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.servers) > 0
}

// serverState is what one server last said.
type serverState struct {
	runID  string
	losses map[string]Finding // by setting
}

// refused reports whether strict grants no claims because of it.
func (s serverState) refused() bool {
	for _, f := range s.losses {
		if f.Refused {
			return true
		}
	}
	return false
}

// Findings returns what is wrong with the servers, as far as it is known,
// ordered by server and setting.
func (s *Store) Findings() []Finding {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	var all []Finding
	for _, server := range slices.Sorted(maps.Keys(s.health.servers)) {
		losses := s.health.servers[server].losses
		for _, setting := range slices.Sorted(maps.Keys(losses)) {
			all = append(all, losses[setting])
		}
	}
	return all
}

// Watch asks the servers now, and again and again until Close. What it finds is
// reported to Config.Report. It returns at once; further calls do nothing.
func (s *Store) Watch() {
	s.serves.Store(true)
	s.watchOnce.Do(func() {
		s.watching.Go(func() {
			timer := time.NewTimer(0)
			defer timer.Stop()
			for {
				select {
				case <-s.closed.Done():
					return
				case <-timer.C:
				case <-s.unfit:
				}
				s.Inspect(s.closed)
				timer.Reset(s.nextLook())
			}
		})
	})
}

// nextLook is a second as long as strict refuses claims, so that they go on
// soon after the setting is right.
func (s *Store) nextLook() time.Duration {
	if s.config.Strict && s.refusal() != nil {
		return min(time.Second, s.config.CheckInterval)
	}
	return s.config.CheckInterval
}

// fit returns an error if strict allows no claim on what is known of the
// servers.
func (s *Store) fit(ctx context.Context) error {
	if !s.config.Strict {
		return nil
	}
	if err := s.firstLook(ctx); err != nil {
		return err
	}
	return s.refusal()
}

// firstLook asks the servers if nothing is known of them. Of many that come at
// once one asks, and the others wait for it as long as they may.
func (s *Store) firstLook(ctx context.Context) error {
	if s.health.known() {
		return nil
	}
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-ctx.Done():
		return fmt.Errorf("redis: wait for what the servers say of themselves: %w", ctx.Err())
	}
	if !s.health.known() {
		s.Inspect(ctx)
	}
	return nil
}

// refusal returns the first finding that strict refuses, as an error.
func (s *Store) refusal() error { return s.unfitness("") }

// unfitness is refusal without the findings about one setting.
func (s *Store) unfitness(but string) error {
	for _, f := range s.Findings() {
		if f.Refused && f.Setting != but {
			return fmt.Errorf("redis: strict refuses claims: %s at %s is %q: %s", f.Setting, f.Server, f.Value, f.Loss)
		}
	}
	return nil
}

// onConnect returns what is done with each new connection to a server before
// it is used.
func (s *Store) onConnect(name string) func(context.Context, *goredis.Conn) error {
	return func(ctx context.Context, conn *goredis.Conn) error {
		findings, runID, err := s.ask(ctx, conn.Pipeline())
		if err != nil {
			return err
		}
		if findings != nil {
			s.note(name, runID, findings)
		}
		return nil
	}
}

// note keeps what a server said, and reports what has changed.
func (s *Store) note(name, runID string, findings []Finding) {
	now := serverState{runID, map[string]Finding{}}
	for _, f := range findings {
		if f.Loss != "" {
			f.Server = name
			now.losses[f.Setting] = f
		}
	}
	s.health.mu.Lock()
	before := s.health.servers[name]
	if runID == "" {
		now.runID = before.runID
	}
	if _, failed := now.losses[settingConnection]; failed {
		// What it said before is still the best that is known of it.
		for setting, f := range before.losses {
			now.losses[setting] = f
		}
	}
	if f, lost := before.losses[settingMarker]; lost {
		now.losses[settingMarker] = f // until somebody looks at it
	}
	if s.health.servers == nil {
		s.health.servers = map[string]serverState{}
	}
	s.health.servers[name] = now
	s.health.mu.Unlock()

	replaced := before.runID != "" && before.runID != now.runID
	s.lookSoon(now.refused() && !before.refused() || replaced && s.config.Strict)
	if replaced {
		s.report(Finding{Server: name, Setting: settingRunID, Value: runID,
			Loss: "the server was restarted, or another one took its place: what it had not persisted or replicated is lost"}, true)
	}
	s.reportChanges(before.losses, now.losses)
}

// lookSoon tells Watch to look at once.
func (s *Store) lookSoon(needed bool) {
	if !needed {
		return
	}
	select {
	case s.unfit <- struct{}{}:
	default:
	}
}

func (s *Store) reportChanges(before, now map[string]Finding) {
	for _, setting := range slices.Sorted(maps.Keys(now)) {
		if f, known := before[setting]; !known || f.Value != now[setting].Value {
			s.report(now[setting], true)
		}
	}
	for _, setting := range slices.Sorted(maps.Keys(before)) {
		if _, still := now[setting]; !still {
			s.report(before[setting], false)
		}
	}
}

func (s *Store) report(f Finding, present bool) {
	if s.config.Report != nil {
		s.config.Report(f, present)
	}
}

// forget forgets servers that are no longer part of the deployment.
func (s *Store) forget(names []string) {
	s.health.mu.Lock()
	gone := make([]serverState, len(names))
	for i, name := range names {
		gone[i] = s.health.servers[name]
		delete(s.health.servers, name)
	}
	s.health.mu.Unlock()
	for _, server := range gone {
		s.reportChanges(server.losses, nil)
	}
}

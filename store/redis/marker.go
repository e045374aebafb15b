package redis

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// ErrNotLost means that there is nothing to adopt: no server has lost the marker
// that this gateway knows.
var ErrNotLost = errors.New("redis: the store has its marker")

// ErrNotStrict means that a store has no marker, because it is not strict.
var ErrNotStrict = errors.New("redis: only a strict store has a marker")

// markers are what a strict store remembers its servers by. One that was flushed,
// that has another database, or that took over without data has another marker or
// none, and nobody can tell from its records.
//
// A marker is a string under the key "marker" behind the prefix, without an end.
// It has one id or several, with spaces between them, and a gateway is content if
// the one that it knows is among them. The gateway that finds none on its first
// look makes one. When an operator adopts a store, what the gateway knows is added
// to the marker; so all gateways that share the store agree, those that knew it
// before and those that were started since.
//
// On one server a claim looks at the marker in its own script. The keys of a
// script on a Cluster are in one slot, so there each node has a marker, in its
// lowest slot when it was first seen, and only Inspect looks at it.
//
// A gateway remembers markers as long as it runs: one that is started after the
// loss knows of none.
type markers struct {
	mu    sync.Mutex
	known map[string]marker // by key
	// used: records were seen. A store that had none has lost none.
	used bool
}

// marker is what a gateway knows of one marker.
type marker struct {
	id  string // the one that the gateway goes by
	ids string // all, as they were last seen
}

const settingMarker = "marker"

// lostResult is that of a claim that did not find the store's marker.
const lostResult = "lost"

var (
	//go:embed lua/marker.lua
	markerLua string
	//go:embed lua/adopt.lua
	adoptLua string

	markerScript = newScript("marker", allowOOM+recordLua+markerLua)
	adoptScript  = newScript("adopt", allowOOM+recordLua+adoptLua)
)

func (m *markers) get(key string) marker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[key]
}

// learn notes a marker as it is in the store.
func (m *markers) learn(key, ids string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = map[string]marker{}
	}
	known := m.known[key]
	if known.id == "" || !strings.Contains(ids, known.id) {
		known.id, _, _ = strings.Cut(ids, " ")
	}
	known.ids = ids
	m.known[key] = known
}

func (m *markers) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.known))
}

// seen notes that the store has records.
func (m *markers) seen() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used = true
}

func (m *markers) isUsed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// markerOfClaim returns the key of the marker that a claim has to find, and the
// id in it; empty if a claim cannot look or need not.
func (s *Store) markerOfClaim(ctx context.Context) (key, id string, err error) {
	if !s.config.Strict || s.config.Cluster {
		return "", "", nil
	}
	key = s.prefix + settingMarker
	if id = s.markers.get(key).id; id != "" {
		return key, id, nil
	}
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-ctx.Done():
		return "", "", fmt.Errorf("redis: wait for the store's marker: %w", ctx.Err())
	}
	if id = s.markers.get(key).id; id != "" {
		return key, id, nil
	}
	if _, err := s.lookAtMarker(ctx, key); err != nil {
		return "", "", fmt.Errorf("redis: read the store's marker: %w", err)
	}
	return key, s.markers.get(key).id, nil
}

// lookAtMarker reads one marker, and makes it if there was never one and the
// servers are fit to have records.
func (s *Store) lookAtMarker(ctx context.Context, key string) (Finding, error) {
	known, used, a, err := s.readMarker(ctx, key)
	for err == nil && (s.markers.get(key).id != known.id || s.markers.isUsed() != used) {
		// More is known since: what was asked for may be what was lost.
		known, used, a, err = s.readMarker(ctx, key)
	}
	if err != nil {
		return Finding{}, err
	}
	f := Finding{Setting: settingMarker, Value: cmp.Or(a.record, "none")}
	switch {
	case a.result == "absent" && known.id == "":
	case known.id == "", !used && a.result == "found", strings.Contains(a.record, known.id):
		s.markers.learn(key, a.record)
	default:
		f.Refused = true
		f.Loss = "the store was seen with records, and this is not its marker: it was flushed, has another database, " +
			"or took over without its data, and repeats of submits that it knew would be sent again; " +
			"if it is right so, say it with caddy idempotency doctor --adopt"
	}
	return f, nil
}

// readMarker asks for a marker once, and says what was known of it before.
func (s *Store) readMarker(ctx context.Context, key string) (known marker, used bool, a answer, err error) {
	known, used = s.markers.get(key), s.markers.isUsed()
	made := ""
	if (known.id == "" || !used) && s.serves.Load() && s.unfitness(settingMarker) == nil {
		id := idempotency.NewToken()
		made = hex.EncodeToString(id[:])
	}
	question := idempotency.NewToken()
	a, err = s.transport.call(ctx, markerScript, []string{key}, string(question[:]), made)
	return known, used, a, err
}

// lookAtMarkers looks at those of all servers, and adds what it finds.
func (s *Store) lookAtMarkers(ctx context.Context, found map[string][]Finding) {
	keys, err := s.markerKeys(ctx)
	if err != nil {
		return // the servers themselves say what is wrong
	}
	for name, keys := range keys {
		var worst Finding
		failed := false
		for _, key := range keys {
			f, err := s.lookAtMarker(ctx, key)
			var fromServer goredis.Error
			switch {
			case errors.As(err, &fromServer):
				f = Finding{Setting: settingMarker, Value: "unreadable", Loss: err.Error(), Refused: true}
			case err != nil:
				failed = true // what is known of it is still the best
				continue
			}
			if worst.Setting == "" || f.Refused {
				worst = f
			}
		}
		if worst.Setting == "" {
			continue
		}
		if !failed || worst.Refused {
			s.noteMarker(name, worst)
		}
		found[name] = append(found[name], worst)
	}
}

// markerKeys returns the keys of the markers that each server has or is to get.
func (s *Store) markerKeys(ctx context.Context) (map[string][]string, error) {
	one := s.prefix + settingMarker
	cluster, ok := s.current().(*goredis.ClusterClient)
	if !ok {
		return map[string][]string{cmp.Or(s.config.Sentinel, s.config.Addresses[0]): {one}}, nil
	}
	//nolint:staticcheck // CLUSTER SLOTS is what go-redis itself needs, and all that the least-privilege user may ask.
	slots, err := cluster.ClusterSlots(ctx).Result()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(slots, func(a, b goredis.ClusterSlot) int { return cmp.Compare(a.Start, b.Start) })
	known := s.markers.keys()
	if hashTag(s.prefix) != "" {
		known = append(known, one) // all records are in one slot
	}
	keys := map[string][]string{}
	for _, owned := range slots {
		if len(owned.Nodes) == 0 {
			continue
		}
		name := owned.Nodes[0].Addr
		for _, key := range known {
			if slot := slotOf(key); owned.Start <= slot && slot <= owned.End && !slices.Contains(keys[name], key) {
				keys[name] = append(keys[name], key)
			}
		}
	}
	if hashTag(s.prefix) == "" {
		for _, owned := range slots {
			if len(owned.Nodes) > 0 && len(keys[owned.Nodes[0].Addr]) == 0 {
				name := owned.Nodes[0].Addr
				keys[name] = append(keys[name], one+":{"+tagOf(owned.Start)+"}")
			}
		}
	}
	return keys, nil
}

// markerLost is for a claim that did not find the marker. It looks for itself, and
// returns why claims are refused; nil if the marker is there now, because an
// operator adopted the store, or the store had no records to lose.
func (s *Store) markerLost(ctx context.Context) error {
	f, err := s.lookAtMarker(ctx, s.prefix+settingMarker)
	if err != nil {
		return fmt.Errorf("redis: read the store's marker: %w", err)
	}
	s.noteMarker(cmp.Or(s.config.Sentinel, s.config.Addresses[0]), f)
	s.lookSoon(f.Refused)
	return s.refusal()
}

// noteMarker keeps what was found of a server's marker.
func (s *Store) noteMarker(name string, f Finding) {
	f.Server = name
	s.health.mu.Lock()
	before := s.health.servers[name]
	now := serverState{before.runID, maps.Clone(before.losses)}
	if now.losses == nil {
		now.losses = map[string]Finding{}
	}
	delete(now.losses, settingMarker)
	if f.Loss != "" {
		now.losses[settingMarker] = f
	}
	if s.health.servers == nil {
		s.health.servers = map[string]serverState{}
	}
	s.health.servers[name] = now
	s.health.mu.Unlock()
	s.reportChanges(before.losses, now.losses)
}

// Adopt makes the store that is there the one that this gateway knows, by an
// operator's word: claims go on, on this gateway at once, and on all that share
// the store and knew the same marker with their next look, within a second. It is
// ErrNotLost if no marker is missing, and ErrNotStrict without Strict.
func (s *Store) Adopt(ctx context.Context) error {
	if !s.config.Strict {
		return ErrNotStrict
	}
	s.serves.Store(true)
	s.Inspect(ctx)
	lost := slices.ContainsFunc(s.Findings(), func(f Finding) bool { return f.Setting == settingMarker && f.Refused })
	if !lost {
		return ErrNotLost
	}
	for _, key := range s.markers.keys() {
		question := idempotency.NewToken()
		a, err := s.transport.call(ctx, adoptScript, []string{key}, string(question[:]), s.markers.get(key).ids)
		if err != nil {
			return fmt.Errorf("adopt the store: %w", err)
		}
		s.markers.learn(key, a.record)
	}
	s.Inspect(ctx)
	return nil
}

// slots is the number of a Cluster's hash slots.
const slots = 16384

// slotOf returns the hash slot of a key.
func slotOf(key string) int {
	if tag := hashTag(key); tag != "" {
		key = tag
	}
	var crc uint16 // CRC-16/XMODEM, as the Redis Cluster specification says
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % slots
}

// hashTag returns the part of a key that alone counts for its slot; empty if the
// whole key does.
func hashTag(key string) string {
	_, rest, found := strings.Cut(key, "{")
	if !found {
		return ""
	}
	tag, _, found := strings.Cut(rest, "}")
	if !found {
		return ""
	}
	return tag
}

// tagOf returns a hash tag for a slot.
func tagOf(slot int) string {
	for i := 0; ; i++ {
		if tag := strconv.Itoa(i); slotOf(tag) == slot {
			return tag
		}
	}
}

package storetest

import (
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Reports keeps what a store reports about its server. Its method Report is given
// to the store.
type Reports struct {
	mu      sync.Mutex
	present map[finding]bool
}

// finding is what makes a finding: its loss may be told in other words each time.
type finding struct{ server, setting, value string }

func findingOf(f idempotency.Finding) finding { return finding{f.Server, f.Setting, f.Value} }

// Report takes what a store reports.
func (r *Reports) Report(f idempotency.Finding, present bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.present == nil {
		r.present = make(map[finding]bool)
	}
	for known := range r.present { // one value of a setting at a time
		if known.server == f.Server && known.setting == f.Setting {
			delete(r.present, known)
		}
	}
	if present {
		r.present[findingOf(f)] = true
	}
}

// has reports whether a finding was reported, and is not over.
func (r *Reports) has(f idempotency.Finding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.present[findingOf(f)]
}

// A store that looks after its server says the same wherever it says it.
func testFindings(t *testing.T, f Fixture) {
	store, ok := f.Store.(idempotency.Findings)
	if !ok {
		t.Skip("this store finds out nothing about its server")
	}
	s := newSession(t, f.Store)
	s.claim(s.request("a"), idempotency.Claimed)
	if watcher, ok := f.Store.(idempotency.Watcher); ok {
		watcher.Watch()
		watcher.Watch()
	}
	if f.Harm != nil {
		f.Harm(t)
		s.await("the store to find what is wrong with its server", func() bool {
			_, _, _ = f.Store.Get(testContext(t), s.id)
			return len(store.Findings()) > 0
		})
	}
	inspected := map[finding]bool{}
	inspector, inspects := f.Store.(idempotency.Inspector)
	if inspects {
		for _, f := range inspector.Inspect(testContext(t)) {
			inspected[finding{server: f.Server, setting: f.Setting}] = true
		}
	}
	named := map[finding]bool{}
	for _, found := range store.Findings() {
		name := finding{server: found.Server, setting: found.Setting}
		switch {
		case found.Setting == "" || found.Loss == "":
			t.Errorf("the finding %+v has no setting or no loss", found)
		case named[name]:
			t.Errorf("%s of %q has two findings", found.Setting, found.Server)
		case inspects && !inspected[name]:
			t.Errorf("the finding %+v is not among what Inspect returned", found)
		}
		named[name] = true
		if f.Reports != nil {
			s.await("a report of the finding "+found.Setting+" "+found.Value, func() bool { return f.Reports.has(found) })
		}
	}
}

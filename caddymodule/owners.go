package caddymodule

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"
)

// An owner is what the handlers of a configuration find their records by,
// besides the store. It holds the texts of options, no value of a request.
type owner struct {
	namespace string
	scope     string // all texts, quoted
}

func ownerOf(namespace string, scope []string) owner {
	return owner{namespace, fmt.Sprintf("%q", scope)}
}

// owners are those of a configuration.
type owners struct {
	store [][sha256.Size]byte // digests of what its records can be found under
	count map[owner]int       // how many handlers each has
	// upstreams are those behind all handlers of an owner, as far as the routes
	// show them.
	upstreams map[owner][]string
}

func (o *owners) add(h *Handler) {
	if o.count == nil {
		o.count = make(map[owner]int)
	}
	o.count[ownerOf(h.Namespace, h.Scope)]++
}

// resourceNamer is what a store implements if it can be configured otherwise and
// still have the same records.
type resourceNamer interface {
	// Resources are names of what has the records: two configurations that have
	// one name in common have the same records.
	Resources() []string
}

func resourcesOf(store StoreModule) (digests [][sha256.Size]byte) {
	names := []string{store.Identity()}
	if namer, ok := store.(resourceNamer); ok {
		names = namer.Resources()
	}
	for _, name := range names {
		digests = append(digests, sha256.Sum256([]byte(string(store.CaddyModule().ID)+"\x00"+name)))
	}
	return digests
}

// meet reports whether two lists have a value in common.
func meet[T comparable](a, b []T) bool {
	return slices.ContainsFunc(a, func(v T) bool { return slices.Contains(b, v) })
}

// addGuards takes the handlers of one more server, and warns of those that share
// a namespace before different providers. With a proxy whose upstreams are not
// written down nothing is known.
func (a *App) addGuards(guards []*guard) {
	warned := make(map[owner]bool)
	for _, g := range guards {
		of := ownerOf(g.namespace, g.scope)
		for _, other := range a.guards {
			if warned[of] || ownerOf(other.namespace, other.scope) != of ||
				len(g.upstreams) == 0 || len(other.upstreams) == 0 || meet(g.upstreams, other.upstreams) {
				continue
			}
			warned[of] = true
			a.logger.Warn("two idempotency handlers before different providers have one namespace: "+
				"a key that was used with one provider gets the answer of the other; set namespace to another name in one of them",
				zap.String("namespace", g.namespace), zap.Strings("upstreams", other.upstreams), zap.Strings("other_upstreams", g.upstreams))
		}
		a.guards = append(a.guards, g)
	}
}

// A deployment is what the process remembers of a configuration that runs or ran
// last. It refers to nothing of it.
type deployment struct{ owners }

// deploy remembers the configuration, and warns if its keys are others than those
// of the one before.
func (a *App) deploy() {
	next := &deployment{a.owners}
	next.upstreams = make(map[owner][]string)
	for _, g := range a.guards {
		of := ownerOf(g.namespace, g.scope)
		next.upstreams[of] = append(next.upstreams[of], g.upstreams...)
	}
	a.deployed = next
	previous := deployments.begin(next)
	if previous == nil {
		return // the process has just started
	}
	if changed, namespaces := freed(previous, next); len(changed) > 0 {
		a.logger.Warn("this configuration looks for keys elsewhere than the one before it, so keys that were used before are free again: "+
			"a retry of a job from before would submit it a second time; "+
			"go back, and give new callers a route of their own with the new setting beside the old one until the retention of the old records is over",
			zap.Strings("changed", changed), zap.Strings("namespaces", namespaces))
	}
}

// freed compares two configurations. It returns the options that changed for a
// handler that both have, and the namespaces that its keys were in. The handlers
// are told by the providers behind them: one that came and one that went before
// different providers have nothing to do with each other, nor has one that only
// came or only went.
func freed(previous, next *deployment) (changed, namespaces []string) {
	moved := !meet(previous.store, next.store)
	went, came := previous.without(next, moved), next.without(previous, moved)
	note := func(list *[]string, value string) {
		if !slices.Contains(*list, value) {
			*list = append(*list, value)
		}
	}
	for _, fresh := range came {
		var old *owner
		for i := range went {
			candidate := &went[i]
			a, b := previous.upstreams[*candidate], next.upstreams[fresh]
			if len(a) > 0 && len(b) > 0 && !meet(a, b) {
				continue
			}
			if old == nil || alike(*candidate, fresh) > alike(*old, fresh) {
				old = candidate
			}
		}
		if old == nil {
			continue
		}
		note(&namespaces, old.namespace)
		if old.namespace != fresh.namespace {
			note(&changed, "namespace")
		}
		if old.scope != fresh.scope {
			note(&changed, "scope")
		}
		if moved {
			note(&changed, "store")
		}
		i := slices.Index(went, *old)
		went = slices.Delete(went, i, i+1)
	}
	slices.Sort(changed)
	slices.Sort(namespaces)
	return changed, namespaces
}

// without returns the owners of d's handlers that other does not have, once for
// each handler; all of them if the store is another one.
func (d *deployment) without(other *deployment, moved bool) (rest []owner) {
	for of, n := range d.count {
		if !moved {
			n -= other.count[of]
		}
		for range n {
			rest = append(rest, of)
		}
	}
	slices.SortFunc(rest, func(a, b owner) int {
		return slices.Compare([]string{a.namespace, a.scope}, []string{b.namespace, b.scope})
	})
	return rest
}

// alike counts what two owners have in common.
func alike(a, b owner) (n int) {
	if a.namespace == b.namespace {
		n++
	}
	if a.scope == b.scope {
		n++
	}
	return n
}

// deployments are the configurations that run: one, or two while Caddy changes
// from one to the next. If the next fails to start, the one before goes on.
var deployments deploymentList

type deploymentList struct {
	mu      sync.Mutex
	running []*deployment
	last    *deployment // the one that ended when no other ran
}

// begin adds a configuration and returns the one before, nil if there was none.
func (l *deploymentList) begin(d *deployment) (previous *deployment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	previous = l.last
	if n := len(l.running); n > 0 {
		previous = l.running[n-1]
	}
	l.running = append(l.running, d)
	return previous
}

// end takes a configuration away.
func (l *deploymentList) end(d *deployment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.running, d)
	if i < 0 {
		return // it did not start
	}
	l.running = slices.Delete(l.running, i, i+1)
	if len(l.running) == 0 {
		l.last = d
	}
}

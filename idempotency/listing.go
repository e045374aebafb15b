package idempotency

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Query says which records a Listing has. The zero value of a filter lets all
// pass.
type Query struct {
	State State
	// OlderThan is how long ago a record's first attempt was claimed, at least.
	OlderThan time.Duration
	Namespace string
	// Path is compared with that of the request: whole, or as far as a "*" at
	// its end.
	Path string
	// Label is compared as Path is.
	Label string
	// After is the position of the last record of the page before.
	After Position
	// Keyring decrypts the records.
	Keyring *Keyring
	// Limit is how many records a page has at most. Required.
	Limit int
}

// Position is where a record stands among all, the oldest first.
type Position struct {
	CreatedAt time.Time
	ID        RecordID
}

// Compare orders positions.
func (p Position) Compare(other Position) int {
	return cmp.Or(p.CreatedAt.Compare(other.CreatedAt), cmp.Compare(p.ID, other.ID))
}

func (h Header) position() Position { return Position{h.Record.CreatedAt, h.ID} }
func (v View) position() Position   { return Position{v.Record.CreatedAt, v.ID} }

// Listing is one page of records, the oldest first. They are without the body
// and header of their answer.
type Listing struct {
	Views []View
	// Next is the position after which the next page begins; zero if this is
	// the last.
	Next Position
	// Counts is how many records there are in each state, whatever the query. It
	// is approximate while records come, go or change: the scan may have one of
	// them twice, or not at all.
	Counts map[State]int
	// Unreadable are records that nobody can read, whatever the query: the first
	// MaxUnreadable that the scan met, in the order of their ids.
	Unreadable []RecordID
	// UnreadableCount is how many there are in all. It is as approximate as
	// Counts if there are more than MaxUnreadable.
	UnreadableCount int
}

// MaxUnreadable is how many unreadable records a Listing names.
const MaxUnreadable = 100

// getsAtOnce is how many payloads a listing reads at a time. It bounds the
// memory that it takes, and how much of the store's attention.
const getsAtOnce = 8

// List returns the oldest records that match the query.
//
// Stores keep records in no order, so a page costs a look at the header of
// every record, in parts, and the payload of those that may be on the page.
// Its memory is bounded by the limit, however many records there are. Records
// that come, go or change meanwhile may be in the listing or not.
func (e *Engine) List(ctx context.Context, q Query) (Listing, error) {
	now, err := e.askNow(ctx)
	if err != nil {
		return Listing{}, fmt.Errorf("%w: read its clock: %w", ErrStoreUnavailable, err)
	}
	l := &lister{engine: e, query: q, now: now, seen: make(map[RecordID]bool), listing: Listing{Counts: make(map[State]int)}}
	for cursor := ""; ; {
		page, err := e.scan(ctx, cursor)
		if err != nil {
			return Listing{}, fmt.Errorf("%w: scan records: %w", ErrStoreUnavailable, err)
		}
		if err := errors.Join(ctx.Err(), l.add(ctx, page)); err != nil {
			return Listing{}, err
		}
		if cursor = page.Next; cursor == "" {
			return l.finish(), nil
		}
	}
}

func (e *Engine) scan(ctx context.Context, cursor string) (ScanPage, error) {
	return call(ctx, e, nameScan, func(ctx context.Context) (ScanPage, error) { return e.store.Scan(ctx, cursor) })
}

// lister keeps the oldest records that it has seen.
type lister struct {
	engine *Engine
	query  Query
	now    time.Time
	// oldest is a heap with the youngest on top. It has one record more than
	// the page, which tells whether there is a next one.
	oldest  newestFirst
	seen    map[RecordID]bool // what is in the heap: a scan may show a record twice
	listing Listing
}

// add takes one part of the scan.
func (l *lister) add(ctx context.Context, page ScanPage) error {
	for _, id := range page.Unreadable {
		l.unreadable(id)
	}
	var wanted []RecordID
	for _, h := range page.Headers {
		l.listing.Counts[h.Record.StateAt(l.now)]++
		if l.wants(h) {
			wanted = append(wanted, h.ID)
		}
	}
	for part := range slices.Chunk(wanted, getsAtOnce) {
		views, errs := make([]View, len(part)), make([]error, len(part))
		var wg sync.WaitGroup
		for i, id := range part {
			wg.Go(func() { views[i], errs[i] = l.view(ctx, id) })
		}
		wg.Wait()
		for i, id := range part {
			switch err := errs[i]; {
			case errors.Is(err, ErrNoRecord):
			case errors.Is(err, ErrUnreadable):
				l.unreadable(id)
			case err != nil:
				return err
			default:
				l.push(views[i])
			}
		}
	}
	return nil
}

// unreadable notes a record that cannot be read.
func (l *lister) unreadable(id RecordID) {
	if slices.Contains(l.listing.Unreadable, id) {
		return
	}
	l.listing.UnreadableCount++
	if len(l.listing.Unreadable) < MaxUnreadable {
		l.listing.Unreadable = append(l.listing.Unreadable, id)
	}
}

// wants reports whether a record may be on the page, as far as its header
// tells.
func (l *lister) wants(h Header) bool {
	q, at := l.query, h.position()
	switch {
	case q.State != 0 && h.Record.StateAt(l.now) != q.State,
		q.OlderThan > 0 && h.Record.CreatedAt.After(l.now.Add(-q.OlderThan)),
		q.After != Position{} && at.Compare(q.After) <= 0,
		l.seen[h.ID]:
		return false
	default:
		return len(l.oldest) <= q.Limit || at.Compare(l.oldest[0].position()) < 0
	}
}

func (l *lister) view(ctx context.Context, id RecordID) (View, error) {
	record, err := l.engine.get(ctx, id)
	if err != nil {
		return View{}, err
	}
	v, err := newView(l.query.Keyring, id, record, l.now)
	if answer := v.Details.Answer; answer != nil {
		// What is not shown must not be held.
		v.Details.Answer = &Answer{Status: answer.Status, Unavailable: answer.Unavailable}
	}
	v.Record.Payload = nil
	return v, err
}

// push takes a record if it belongs on the page: it may have changed since its
// header was read.
func (l *lister) push(v View) {
	if !l.wants(Header{v.ID, v.Record}) || !l.query.matches(v.Details) {
		return
	}
	heap.Push(&l.oldest, v)
	l.seen[v.ID] = true
	if len(l.oldest) > l.query.Limit+1 {
		delete(l.seen, heap.Pop(&l.oldest).(View).ID)
	}
}

func (q Query) matches(d Details) bool {
	if q.Namespace != "" && d.Namespace != q.Namespace {
		return false
	}
	return matches(q.Path, d.Path) && matches(q.Label, d.Label)
}

// matches compares a text with one that is empty for any, whole, or as far as a
// "*" at its end.
func matches(wanted, text string) bool {
	if prefix, found := strings.CutSuffix(wanted, "*"); found {
		return strings.HasPrefix(text, prefix)
	}
	return wanted == "" || text == wanted
}

func (l *lister) finish() Listing {
	l.listing.Views = l.oldest
	slices.SortFunc(l.listing.Views, func(a, b View) int { return a.position().Compare(b.position()) })
	if len(l.listing.Views) > l.query.Limit {
		l.listing.Views = l.listing.Views[:l.query.Limit]
		l.listing.Next = l.listing.Views[l.query.Limit-1].position()
	}
	slices.Sort(l.listing.Unreadable)
	return l.listing
}

// newestFirst is a heap.Interface.
type newestFirst []View

func (n newestFirst) Len() int           { return len(n) }
func (n newestFirst) Less(i, j int) bool { return n[i].position().Compare(n[j].position()) > 0 }
func (n newestFirst) Swap(i, j int)      { n[i], n[j] = n[j], n[i] }
func (n *newestFirst) Push(v any)        { *n = append(*n, v.(View)) }
func (n *newestFirst) Pop() any {
	last := len(*n) - 1
	v := (*n)[last]
	*n = (*n)[:last]
	return v
}

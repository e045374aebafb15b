package operator

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// recordDocument is a record as the admin API shows it.
type recordDocument struct {
	ID        idempotency.RecordID `json:"id"`
	State     string               `json:"state"`
	Namespace string               `json:"namespace"`
	Method    string               `json:"method"`
	Path      string               `json:"path"`
	// Label says whose job it is.
	Label string `json:"label,omitempty"`
	// Status of the answer, and the job's id in it, of a completed record.
	Status int    `json:"status,omitempty"`
	JobID  string `json:"job_id,omitempty"`
	// Unavailable: the answer was too large or a stream, and is not replayed.
	Unavailable bool      `json:"unavailable,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
	LeaseUntil  time.Time `json:"lease_until"`
	ExpiresAt   time.Time `json:"expires_at"`
	// Error says what went wrong with the attempt.
	Error string `json:"error,omitempty"`
	// Decision says who decided about the record, when and why.
	Decision *decidedDocument `json:"decision,omitempty"`
	// Attempt names the attempt that the record belongs to. A decision may
	// name it, too, so that it is not carried out on a later one.
	Attempt string `json:"attempt"`

	revealed
}

// decidedDocument is what a record says of an operator's decision.
type decidedDocument struct {
	What   string    `json:"what"`
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
}

// unreadableState is what the admin API calls the state of a record that cannot
// be read.
const unreadableState = "unreadable"

// unreadableDocument is a record that cannot be read, as the admin API shows it:
// there is nothing to say but that it can be forgotten.
type unreadableDocument struct {
	ID         idempotency.RecordID `json:"id"`
	State      string               `json:"state"`
	Unreadable bool                 `json:"unreadable"`
	// Error says why it cannot be read.
	Error string `json:"error"`
	// Attempt names the value, as that of a recordDocument does.
	Attempt string `json:"attempt"`
}

// revealed is what a record shows only on request.
type revealed struct {
	Key        idempotency.Key `json:"key,omitempty"`
	Headers    http.Header     `json:"headers,omitempty"`
	Body       json.RawMessage `json:"body,omitempty"`
	BodyBase64 []byte          `json:"body_base64,omitempty"` // of what is not JSON
}

func newRecordDocument(v idempotency.View) recordDocument {
	d := recordDocument{
		ID:         v.ID,
		State:      v.State.String(),
		Namespace:  v.Details.Namespace,
		Method:     v.Details.Method,
		Path:       v.Details.Path,
		Label:      v.Details.Label,
		JobID:      v.JobID,
		CreatedAt:  v.Record.CreatedAt.UTC(),
		LeaseUntil: v.Record.LeaseUntil.UTC(),
		ExpiresAt:  v.Record.ExpiresAt().UTC(),
		Error:      v.Details.Error,
		Attempt:    hex.EncodeToString(v.Record.Token[:]),
	}
	if answer := v.Details.Answer; answer != nil {
		d.Status, d.Unavailable = answer.Status, answer.Unavailable
	}
	if decided := v.Details.Decision; decided != nil {
		d.Decision = &decidedDocument{decided.What, decided.Reason, decided.By, time.UnixMilli(decided.At).UTC()}
	}
	return d
}

func newRevealed(d idempotency.Details) revealed {
	r := revealed{Key: d.Key}
	if d.Answer == nil {
		return r
	}
	r.Headers = d.Answer.Header
	if json.Valid(d.Answer.Body) {
		r.Body = d.Answer.Body
	} else {
		r.BodyBase64 = d.Answer.Body
	}
	return r
}

// Limits of a page of records.
const (
	defaultListLimit = 100
	maxListLimit     = 1000
)

// countsDocument is how many records the store has, by state.
type countsDocument struct {
	Uncertain  int `json:"uncertain"`
	InProgress int `json:"in_progress"`
	Completed  int `json:"completed"`
}

// listDocument is one page of records, the oldest first.
type listDocument struct {
	Records    []recordDocument       `json:"records"`
	NextCursor string                 `json:"next_cursor,omitempty"`
	Counts     countsDocument         `json:"counts"`
	Unreadable []idempotency.RecordID `json:"unreadable,omitempty"`
	// UnreadableCount is more than the ids above if there are many.
	UnreadableCount int `json:"unreadable_count,omitempty"`
}

func listRecords(w http.ResponseWriter, r *http.Request) error {
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	return withEngine(func(engine *idempotency.Engine, keyring *idempotency.Keyring) error {
		query.Keyring = keyring
		listing, err := engine.List(r.Context(), query)
		if err != nil {
			return err
		}
		document := listDocument{
			Records: make([]recordDocument, len(listing.Views)),
			Counts: countsDocument{
				Uncertain:  listing.Counts[idempotency.Uncertain],
				InProgress: listing.Counts[idempotency.InProgress],
				Completed:  listing.Counts[idempotency.Completed],
			},
			Unreadable:      listing.Unreadable,
			UnreadableCount: listing.UnreadableCount,
		}
		for i, v := range listing.Views {
			document.Records[i] = newRecordDocument(v)
		}
		if next := listing.Next; next.ID != "" {
			document.NextCursor = formatCursor(next)
		}
		return writeJSON(w, document)
	})
}

func showRecord(w http.ResponseWriter, r *http.Request) error {
	values, err := parameters(r.URL.RawQuery, "reveal")
	if err != nil {
		return err
	}
	reveal := false
	switch values.Get("reveal") {
	case "", "false":
	case "true":
		reveal = true
	default:
		return badRequest("reveal: it is neither true nor false")
	}
	id, err := recordID(r)
	if err != nil {
		return err
	}
	return withEngine(func(engine *idempotency.Engine, keyring *idempotency.Keyring) error {
		view, err := engine.Lookup(r.Context(), keyring, id)
		var unreadable *idempotency.UnreadableError
		if errors.As(err, &unreadable) {
			return writeJSON(w, unreadableDocument{
				ID: id, State: unreadableState, Unreadable: true, Error: unreadable.Error(), Attempt: unreadable.Seen.String(),
			})
		}
		if err != nil {
			return err
		}
		document := newRecordDocument(view)
		if reveal {
			document.revealed = newRevealed(view.Details)
		}
		return writeJSON(w, document)
	})
}

// recordID returns the id in the path. What is no id names no record.
func recordID(r *http.Request) (idempotency.RecordID, error) {
	id := idempotency.RecordID(r.PathValue("id"))
	if !id.Valid() {
		return "", caddy.APIError{HTTPStatus: http.StatusNotFound, Err: idempotency.ErrNoRecord}
	}
	return id, nil
}

// parameters reads a query that has each of the names once at most, and no
// other.
func parameters(query string, names ...string) (url.Values, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, badRequest("the query is malformed")
	}
	allowed := make(map[string]bool)
	for _, name := range names {
		allowed[name] = true
	}
	for name, given := range values {
		if !allowed[name] {
			return nil, badRequest("%q is not a parameter here: it takes %s", name, strings.Join(names, ", "))
		}
		if len(given) > 1 {
			return nil, badRequest("%s is given %d times", name, len(given))
		}
	}
	return values, nil
}

var states = map[string]idempotency.State{
	"":            0,
	"in_progress": idempotency.InProgress,
	"completed":   idempotency.Completed,
	"uncertain":   idempotency.Uncertain,
}

func parseQuery(query string) (idempotency.Query, error) {
	values, err := parameters(query, "state", "namespace", "path", "label", "older_than", "limit", "cursor")
	if err != nil {
		return idempotency.Query{}, err
	}
	q := idempotency.Query{Namespace: values.Get("namespace"), Path: values.Get("path"), Label: values.Get("label"), Limit: defaultListLimit}
	var known bool
	if q.State, known = states[values.Get("state")]; !known {
		return idempotency.Query{}, badRequest("state: %q is not in_progress, completed or uncertain", values.Get("state"))
	}
	if text := values.Get("older_than"); text != "" {
		if q.OlderThan, err = caddy.ParseDuration(text); err != nil || q.OlderThan < 0 {
			return idempotency.Query{}, badRequest("older_than: %q is not a duration such as 15m", text)
		}
	}
	if text := values.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > maxListLimit {
			return idempotency.Query{}, badRequest("limit: %q is not a number from 1 to %d", text, maxListLimit)
		}
	}
	if text := values.Get("cursor"); text != "" {
		if q.After, err = parseCursor(text); err != nil {
			return idempotency.Query{}, err
		}
	}
	return q, nil
}

// formatCursor writes a position as the cursor of the page after it.
func formatCursor(p idempotency.Position) string {
	return strconv.FormatInt(p.CreatedAt.UnixMilli(), 10) + "-" + string(p.ID)
}

func parseCursor(text string) (idempotency.Position, error) {
	at, id, _ := strings.Cut(text, "-")
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil || !idempotency.RecordID(id).Valid() {
		return idempotency.Position{}, badRequest("cursor: it is not a next_cursor of this API")
	}
	return idempotency.Position{CreatedAt: time.UnixMilli(ms), ID: idempotency.RecordID(id)}, nil
}

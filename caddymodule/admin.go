package caddymodule

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
)

func init() {
	caddy.RegisterModule(adminAPI{})
}

// adminAPI serves operators on Caddy's admin endpoint: what the store holds,
// decisions about records whose outcome is unknown, and the removal of those that
// are wrong.
//
// Caddy provisions it before the apps and never cleans it up, so it holds
// nothing and asks the active configuration for its store at each request.
type adminAPI struct{}

// CaddyModule returns the Caddy module information.
func (adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.idempotency",
		New: func() caddy.Module { return new(adminAPI) },
	}
}

const (
	recordsPath = "/idempotency/records"
	adoptPath   = "/idempotency/store/adopt"
)

// Routes returns the routes of the admin endpoint.
func (adminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/idempotency/", Handler: reading(servePage)},
		{Pattern: readyPath, Handler: reading(showReady)},
		{Pattern: recordsPath, Handler: reading(listRecords)},
		{Pattern: recordsPath + "/{id}", Handler: reading(showRecord)},
		{Pattern: recordsPath + "/{id}/complete", Handler: deciding(completeRecord)},
		{Pattern: recordsPath + "/{id}/release", Handler: deciding(releaseRecord)},
		{Pattern: recordsPath + "/{id}/forget", Handler: deciding(forgetRecord)},
		{Pattern: adoptPath, Handler: deciding(adoptStore)},
	}
}

// reading admits the requests that change nothing.
func reading(next caddy.AdminHandlerFunc) caddy.AdminHandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return methodNotAllowed(w, r, "GET, HEAD")
		}
		w.Header().Set("Cache-Control", "no-store")
		return next(w, r)
	}
}

// deciding admits decisions: not those of another site's page in an operator's
// browser, whatever origins the admin endpoint allows. A browser asks before it
// sends JSON to another site, and is not answered.
func deciding(next caddy.AdminHandlerFunc) caddy.AdminHandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Method != http.MethodPost {
			return methodNotAllowed(w, r, "POST")
		}
		if err := http.NewCrossOriginProtection().Check(r); err != nil {
			return caddy.APIError{HTTPStatus: http.StatusForbidden, Err: err}
		}
		if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
			return caddy.APIError{HTTPStatus: http.StatusUnsupportedMediaType, Err: errors.New("the content type is not application/json")}
		}
		w.Header().Set("Cache-Control", "no-store")
		return next(w, r)
	}
}

func methodNotAllowed(w http.ResponseWriter, r *http.Request, allowed string) error {
	w.Header().Set("Allow", allowed)
	return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed here: it takes %s", r.Method, allowed)}
}

func badRequest(format string, args ...any) error {
	return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf(format, args...)}
}

// withEngine calls f with the engine and the keyring of the active
// configuration, and gives its error the status that operators get.
func withEngine(f func(*idempotency.Engine, *idempotency.Keyring) error) error {
	app, err := caddy.ActiveContext().AppIfConfigured(appID)
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("the configuration has no idempotency handler")}
	}
	store, release, err := app.(*App).store.use()
	if err == nil {
		defer release()
		err = f(store.engine, app.(*App).keyring)
	}
	var state *idempotency.StateError
	var status int
	switch {
	case err == nil || errors.As(err, new(caddy.APIError)):
		return err
	case errors.Is(err, idempotency.ErrNoRecord):
		status = http.StatusNotFound
	case errors.As(err, &state), errors.Is(err, idempotency.ErrAnotherAttempt), errors.Is(err, idempotency.ErrChanged):
		status = http.StatusConflict
	case errors.Is(err, idempotency.ErrUnreadable):
		// Of no use to complete or release.
		status, err = http.StatusConflict, fmt.Errorf("%w; forget removes it", err)
	case errors.Is(err, idempotency.ErrStoreUnavailable):
		status = http.StatusServiceUnavailable
	default:
		status = http.StatusInternalServerError
	}
	return caddy.APIError{HTTPStatus: status, Err: err}
}

func writeJSON(w http.ResponseWriter, document any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(document)
}

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

// maxDecision bounds the body of a decision, in bytes.
const maxDecision = 1 << 20

// releaseOrder is the body of a release.
type releaseOrder struct {
	// Reason is for the log. Required.
	Reason string `json:"reason"`
	// Attempt, if given, is that of the record that the operator has seen.
	Attempt string `json:"attempt"`
}

// completeOrder is the body of a complete. It repeats the members of a release:
// encoding/json names the type of an embedded struct in its errors.
type completeOrder struct {
	Reason     string                  `json:"reason"`
	Attempt    string                  `json:"attempt"`
	Status     int                     `json:"status"`
	Headers    map[string]headerValues `json:"headers"`
	Body       json.RawMessage         `json:"body"`
	BodyBase64 *string                 `json:"body_base64"`
	// Empty says that the answer has no body. Nobody forgets one by mistake.
	Empty bool `json:"empty"`
}

// forgetOrder is the body of a forget.
type forgetOrder struct {
	Reason string `json:"reason"`
	// Attempt and State, if given, are those of the record that the operator has
	// seen.
	Attempt string `json:"attempt"`
	State   string `json:"state"`
}

// headerValues is one value, or a list of them.
type headerValues []string

// UnmarshalJSON implements json.Unmarshaler.
func (h *headerValues) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]string)(h))
	}
	*h = make(headerValues, 1)
	return json.Unmarshal(b, &(*h)[0])
}

func releaseRecord(w http.ResponseWriter, r *http.Request) error {
	var order releaseOrder
	if err := readOrder(w, r, &order); err != nil {
		return err
	}
	return order.carryOut(w, r, nil)
}

func completeRecord(w http.ResponseWriter, r *http.Request) error {
	var order completeOrder
	if err := readOrder(w, r, &order); err != nil {
		return err
	}
	answer, err := order.answer()
	if err != nil {
		return err
	}
	return releaseOrder{order.Reason, order.Attempt}.carryOut(w, r, &answer)
}

// readOrder reads the body of a decision. Its errors say where something is
// wrong and not what is there: Caddy logs them.
func readOrder(w http.ResponseWriter, r *http.Request, order any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxDecision))
	if errors.As(err, new(*http.MaxBytesError)) {
		return caddy.APIError{HTTPStatus: http.StatusRequestEntityTooLarge, Err: fmt.Errorf("the body is over %d bytes", maxDecision)}
	}
	if err != nil {
		return badRequest("the body broke off")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(order)
	var wrongType *json.UnmarshalTypeError
	switch {
	case !json.Valid(body):
		return badRequest("the body is not one JSON value")
	case errors.As(err, &wrongType) && wrongType.Field == "":
		return badRequest("the body is a JSON %s, and not an object", strings.Fields(wrongType.Value)[0])
	case errors.As(err, &wrongType):
		return badRequest("%s: it must not be a JSON %s", wrongType.Field, strings.Fields(wrongType.Value)[0])
	case err != nil:
		return badRequest("the body is not such an object: %w", err)
	}
	return nil
}

// answer returns what the operator wants to be replayed.
func (o completeOrder) answer() (idempotency.Answer, error) {
	a := idempotency.Answer{Status: o.Status, Header: make(http.Header), Body: o.Body}
	if o.Status == 0 {
		return a, badRequest("status: it is missing")
	}
	if o.BodyBase64 != nil {
		if o.Body != nil {
			return a, badRequest("body_base64: body is given, too")
		}
		var err error
		if a.Body, err = base64.StdEncoding.DecodeString(*o.BodyBase64); err != nil {
			return a, badRequest("body_base64: it is not base64")
		}
	}
	if o.Empty == (len(a.Body) > 0) {
		if o.Empty {
			return a, badRequest("empty: a body is given, too")
		}
		return a, badRequest("body: it is missing: give the answer's body, or \"empty\": true if it has none")
	}
	for name, values := range o.Headers {
		if !httpguts.ValidHeaderFieldName(name) {
			return a, badRequest("headers: %q is not a header field name", name)
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return a, badRequest("headers: the value of %s has characters that are not allowed", name)
			}
			a.Header.Add(name, value)
		}
	}
	if len(a.Body) > 0 && a.Header.Get("Content-Type") == "" {
		a.Header.Set("Content-Type", "application/json")
	}
	if err := a.Validate(); err != nil {
		return a, badRequest("status: %w", err)
	}
	return a, nil
}

// decisionDocument is the answer to a decision that was carried out.
type decisionDocument struct {
	ID       idempotency.RecordID `json:"id"`
	Decision string               `json:"decision"`
}

// carryOut carries out a decision and writes it to the log: a completion with
// the answer, or a release without one.
func (o releaseOrder) carryOut(w http.ResponseWriter, r *http.Request, answer *idempotency.Answer) error {
	id, err := recordID(r)
	if err != nil {
		return err
	}
	if err := checkReason(o.Reason); err != nil {
		return err
	}
	decision := idempotency.Decision{ID: id, Answer: answer, Reason: o.Reason, By: r.RemoteAddr}
	if o.Attempt != "" {
		token, err := hex.DecodeString(o.Attempt)
		if err != nil || len(token) != len(idempotency.Token{}) {
			return badRequest("attempt: it is not the attempt of a record")
		}
		decision.Attempt = (*idempotency.Token)(token)
	}
	done := decisionDocument{ID: id, Decision: "released"}
	if answer != nil {
		done.Decision = "completed"
	}
	return withEngine(func(engine *idempotency.Engine, keyring *idempotency.Keyring) error {
		decision.Keyring = keyring
		if _, err := engine.Decide(r.Context(), decision); err != nil {
			return doubtful(err)
		}
		log().Info("an operator decided about a submit whose outcome was unknown",
			zap.String("record", string(id)), zap.String("decision", done.Decision),
			zap.String("reason", o.Reason), zap.String("remote", r.RemoteAddr))
		return writeJSON(w, done)
	})
}

// checkReason admits a reason that somebody can read later.
func checkReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return badRequest("reason: it is missing")
	}
	if len(reason) > idempotency.MaxReason {
		return badRequest("reason: it has %d bytes, and may have %d", len(reason), idempotency.MaxReason)
	}
	return nil
}

// doubtful says so if nobody knows whether a decision was carried out.
func doubtful(err error) error {
	if errors.Is(err, idempotency.ErrStoreUnavailable) && !errors.Is(err, idempotency.ErrNotApplied) {
		return fmt.Errorf("look at the record, the decision may have been carried out: %w", err)
	}
	return err
}

func forgetRecord(w http.ResponseWriter, r *http.Request) error {
	var order forgetOrder
	if err := readOrder(w, r, &order); err != nil {
		return err
	}
	id, err := recordID(r)
	if err != nil {
		return err
	}
	if err := checkReason(order.Reason); err != nil {
		return err
	}
	forgetting, err := order.forgetting(id)
	if err != nil {
		return err
	}
	return withEngine(func(engine *idempotency.Engine, keyring *idempotency.Keyring) error {
		forgetting.Keyring = keyring
		state, err := engine.Forget(r.Context(), forgetting)
		if err != nil {
			return doubtful(err)
		}
		was := unreadableState
		if state != 0 {
			was = state.String()
		}
		done := decisionDocument{ID: id, Decision: "forgotten"}
		log().Info("an operator had a record forgotten; the next repeat of its submit is sent",
			zap.String("record", string(id)), zap.String("decision", done.Decision), zap.String("state", was),
			zap.String("reason", order.Reason), zap.String("remote", r.RemoteAddr))
		return writeJSON(w, done)
	})
}

// forgetting reads what the operator has seen.
func (o forgetOrder) forgetting(id idempotency.RecordID) (idempotency.Forgetting, error) {
	f := idempotency.Forgetting{ID: id}
	var known bool
	if f.State, known = states[o.State]; !known && o.State != unreadableState {
		return f, badRequest("state: %q is not in_progress, completed, uncertain or unreadable", o.State)
	}
	f.Unreadable = o.State == unreadableState
	if o.Attempt == "" {
		return f, nil
	}
	attempt, err := hex.DecodeString(o.Attempt)
	switch {
	case err == nil && len(attempt) == len(idempotency.Token{}) && !f.Unreadable:
		f.Attempt = (*idempotency.Token)(attempt)
	case err == nil && len(attempt) == len(idempotency.Digest{}) && f.State == 0:
		f.Unreadable, f.Seen = true, (*idempotency.Digest)(attempt)
	default:
		return f, badRequest("attempt: it is not the attempt of such a record")
	}
	return f, nil
}

// adoptOrder is the body of an adoption.
type adoptOrder struct {
	// Reason is for the log. Required.
	Reason string `json:"reason"`
}

// adoptStore tells a strict store that lost its marker that it is right so.
func adoptStore(w http.ResponseWriter, r *http.Request) error {
	var order adoptOrder
	if err := readOrder(w, r, &order); err != nil {
		return err
	}
	if err := checkReason(order.Reason); err != nil {
		return err
	}
	app, err := caddy.ActiveContext().AppIfConfigured(appID)
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("the configuration has no idempotency handler")}
	}
	err = app.(*App).store.adopt(r.Context())
	switch {
	case errors.Is(err, redis.ErrNotLost), errors.Is(err, redis.ErrNotStrict):
		return caddy.APIError{HTTPStatus: http.StatusConflict, Err: err}
	case err != nil:
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: err}
	}
	log().Info("an operator adopted the store",
		zap.String("reason", order.Reason), zap.String("remote", r.RemoteAddr))
	return writeJSON(w, map[string]bool{"adopted": true})
}

// Interface guards
var (
	_ caddy.AdminRouter = (*adminAPI)(nil)
	_ caddy.Module      = adminAPI{}
	_ json.Unmarshaler  = (*headerValues)(nil)
)

package operator

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

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

// Interface guard
var _ json.Unmarshaler = (*headerValues)(nil)

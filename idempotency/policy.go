package idempotency

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

// Policy is how one handler treats submits. The zero value of a field is not
// a default; DefaultPolicy has those.
type Policy struct {
	// StoreStatus are the statuses that mean acceptance.
	StoreStatus []StatusRange
	// RefusedStatus are the statuses that prove that nothing was accepted.
	// StoreStatus is looked at first. See NeverRefusal for what is no proof.
	RefusedStatus []StatusRange
	// Retention is how long a record lives after its last transition.
	Retention time.Duration
	// Lease is how long an attempt is believed alive without renewal.
	Lease time.Duration
	// ResubmitUncertain lets a repeat of an unknown submit be sent again.
	ResubmitUncertain bool
	// AcceptIf, if set, is what the body of an acceptance says besides its
	// status.
	AcceptIf *Condition
	// Wait is how long a duplicate of a running submit is held; 0 means that
	// it is answered at once.
	Wait time.Duration
	// JobID is where the body of an acceptance has the job's id, which
	// operators are shown. The zero pointer stands for DefaultJobPointer.
	JobID fingerprint.Pointer
	// Keyring encrypts records; nil leaves them readable.
	Keyring *Keyring
}

// Condition holds for a JSON document whose value at Pointer is Value: its JSON
// text as written, or the content of a string.
type Condition struct {
	Pointer fingerprint.Pointer
	Value   string
	// AnyValue: every value but null will do, and Value does not count.
	AnyValue bool
}

// ruling is what a Condition comes to.
type ruling int

const (
	holds ruling = iota + 1
	// fails: the value is another one, or missing.
	fails
	// openNoJSON, openNoObject and openTwice: the document does not decide. What
	// is no JSON object is no answer of the API that the condition was written
	// for, and of members with one name each reader takes its own.
	openNoJSON
	openNoObject
	openTwice
)

func (c Condition) rule(document []byte) ruling {
	value, found, twice := c.Pointer.Resolve(document)
	switch {
	case twice:
		return openTwice
	case found && c.matches(value):
		return holds
	case !json.Valid(document):
		return openNoJSON
	case bytes.TrimSpace(document)[0] != '{':
		return openNoObject
	default:
		return fails
	}
}

func (c Condition) matches(value json.RawMessage) bool {
	if c.AnyValue {
		return string(value) != "null"
	}
	if string(value) == c.Value {
		return true
	}
	var text *string // nil for null
	return json.Unmarshal(value, &text) == nil && text != nil && *text == c.Value
}

// DefaultPolicy returns the defaults: 2xx is acceptance, 4xx (but 408) and 503
// are refusals, records live 24 hours, leases last 30 seconds, and a
// job's id is the member "id" of the answer.
func DefaultPolicy() Policy {
	return Policy{
		StoreStatus:   []StatusRange{{200, 299}},
		RefusedStatus: []StatusRange{{400, 499}, {503, 503}},
		Retention:     24 * time.Hour,
		Lease:         30 * time.Second,
		JobID:         defaultJobPointer,
	}
}

// defaultJobPointer is DefaultJobPointer.
var defaultJobPointer = fingerprint.MustPointer(DefaultJobPointer)

// StatusRange is an inclusive range of HTTP statuses.
type StatusRange struct{ First, Last int }

// Contains reports whether the range has the status.
func (r StatusRange) Contains(status int) bool { return r.First <= status && status <= r.Last }

func containsStatus(ranges []StatusRange, status int) bool {
	return slices.ContainsFunc(ranges, func(r StatusRange) bool { return r.Contains(status) })
}

// NeverRefusal reports whether a status can never prove that the provider did
// not accept: 408 comes from servers and load balancers that gave up waiting,
// and 499 stands for a caller or proxy that went away in the middle.
func NeverRefusal(status int) bool {
	return status == http.StatusRequestTimeout || status == 499
}

// Sent says what is known about the way of the submit to the provider.
type Sent int

const (
	// MaybeSent: a connection was there, or nothing is known.
	MaybeSent Sent = iota
	// NeverSent: there was no connection that could carry the submit.
	NeverSent
)

// Result is what came of forwarding a submit.
type Result struct {
	Sent Sent
	// Status of the provider's final answer; 0 if there was none.
	Status int
	// ProviderStatus is the provider's own status, if it is known: a handler on
	// the way may have put an error page in its place. 0 if it is not known.
	ProviderStatus int
	// ProviderSilent is true if the submit may have been sent and no answer of
	// the provider came: what is there was made by a handler on the way.
	ProviderSilent bool
	// Stopped is true if a handler on the way wanted to send a second request. If
	// Status is 0, ProviderStatus is what the first one was answered, 0 for nothing;
	// that answer itself is lost.
	Stopped bool
	// Header has the fields of the answer, the gateway's own names included if
	// the provider uses them, and nothing that was set before it.
	Header http.Header
	// Replaced are the fields that had been set before and of which the answer
	// left nothing, whether Header has them or not.
	Replaced []string
	// Body of the answer, if it was read whole.
	Body []byte
	// Whole is true if the answer came to its proper end, as far as its framing
	// tells; see Policy.BrokeOff.
	Whole bool
	// Undeclared is true if the answer had no Content-Length. Its end is then
	// whatever ended the connection, or what some proxy took for its end.
	Undeclared bool
	// BodyNotKept is true if the body was not read into Body, because it is
	// over the maximum or a stream. Such an answer counts by its status.
	BodyNotKept bool
	// Doubted is true if something that Header and Body do not show says what
	// Idempotency-Error or CodeInProgress in them would say.
	Doubted bool
	// TimedOut is true if the upstream timeout ended the attempt.
	TimedOut bool
	// Panicked is true if a handler below panicked.
	Panicked bool
}

// Conclusion is what an attempt came to.
type Conclusion int

const (
	// ConcludedAccepted: the provider has the job. The acceptance is stored, or
	// will be.
	ConcludedAccepted Conclusion = iota + 1
	// ConcludedRefused: the provider answered that it did not accept. The key
	// is free.
	ConcludedRefused
	// ConcludedNotAccepted: as refused, by a 2xx that the configuration does
	// not count as acceptance.
	ConcludedNotAccepted
	// ConcludedNeverSent: nothing reached the provider. The key is free.
	ConcludedNeverSent
	// ConcludedUnknown: nobody can tell. The record is uncertain.
	ConcludedUnknown
)

// Classify is the table of what a provider's answer means. Its order matters:
// what a result does not prove stays unknown.
func (p Policy) Classify(r Result) Conclusion {
	c := p.classify(r)
	if (c == ConcludedRefused || c == ConcludedNotAccepted) && r.Sent != NeverSent && r.doubted() {
		return ConcludedUnknown
	}
	return c
}

func (p Policy) classify(r Result) Conclusion {
	switch {
	case r.Status == 0 && r.Sent == NeverSent:
		return ConcludedNeverSent
	case r.Status == 0 && r.Stopped && r.ProviderStatus != 0:
		return p.released(r.ProviderStatus)
	case r.Status == 0 || r.ProviderSilent:
		return ConcludedUnknown
	case r.Sent == NeverSent:
		return ConcludedRefused // by a handler on the way, whatever its page says
	case r.ProviderStatus != 0 && r.ProviderStatus != r.Status && !containsStatus(p.StoreStatus, r.ProviderStatus):
		// What a handler made of the answer does not change what it means.
		if !r.Whole {
			return ConcludedUnknown
		}
		return p.released(r.ProviderStatus)
	case p.Accepts(r.Status) && r.BodyNotKept:
		return ConcludedAccepted
	case p.BrokeOff(r):
		return ConcludedUnknown
	case p.Accepts(r.Status) && p.ruleBody(r) == holds:
		return ConcludedAccepted
	case r.ProviderStatus != 0 && r.ProviderStatus != r.Status:
		// The provider accepted, and a handler made something else of it.
		return ConcludedUnknown
	case p.Accepts(r.Status) && p.ruleBody(r) == fails:
		return ConcludedRefused // by its body
	default:
		return p.released(r.Status)
	}
}

// ruleBody says what the body of an answer makes of its status.
func (p Policy) ruleBody(r Result) ruling {
	if p.AcceptIf == nil {
		return holds
	}
	return p.AcceptIf.rule(r.Body)
}

// BrokeOff reports whether an answer stopped in its middle: by its framing or,
// if that does not tell, because an acceptance says that it is JSON and is not
// whole JSON. A body in a content coding is not looked into.
func (p Policy) BrokeOff(r Result) bool {
	switch {
	case !r.Whole:
		return true
	case !r.Undeclared || r.BodyNotKept || !p.Accepts(r.Status) || !BodyAllowed(r.Status):
		return false
	}
	coding := r.Header.Get("Content-Encoding")
	t, _ := fingerprint.MediaType(r.Header)
	return fingerprint.IsJSON(t) && (coding == "" || strings.EqualFold(coding, "identity")) && !json.Valid(r.Body)
}

// doubted reports whether a refusal is about this try alone. A provider that
// honours the key, or another gateway on the way, refuses a second try because
// the first one is alive or unknown: that says nothing about the first.
func (r Result) doubted() bool {
	if r.Doubted || len(r.Header[HeaderError]) > 0 {
		return true
	}
	value, found, twice := errorCode.Resolve(r.Body)
	if !found {
		return false
	}
	var code string
	return twice || json.Unmarshal(value, &code) == nil && code == string(CodeInProgress)
}

// errorCode is where the APIs that document CodeInProgress have it.
var errorCode = fingerprint.MustPointer("/error/code")

// NamesInProgress reads a refusal that is too long for Result.Body, for
// Result.Doubted: whether it has CodeInProgress anywhere. It is not read as
// JSON: a page that merely mentions the code is no loss as an unknown outcome, and
// the other way round would be.
func NamesInProgress(body io.Reader) (bool, error) {
	code := []byte(CodeInProgress)
	window := make([]byte, 0, 32<<10)
	for {
		n, err := body.Read(window[len(window):cap(window)])
		window = window[:len(window)+n]
		if bytes.Contains(window, code) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if kept := len(code) - 1; len(window) > kept {
			window = window[:copy(window, window[len(window)-kept:])]
		}
	}
}

// released tells the statuses that free the key from those that leave the
// outcome unknown.
func (p Policy) released(status int) Conclusion {
	switch {
	case containsStatus(p.StoreStatus, status):
		return ConcludedUnknown
	case 200 <= status && status <= 299:
		return ConcludedNotAccepted
	case containsStatus(p.RefusedStatus, status) && !NeverRefusal(status):
		return ConcludedRefused
	default:
		return ConcludedUnknown
	}
}

// Accepts reports whether the status means acceptance. A handler uses it to
// decide, before the body is there, whether an answer has to be stored.
func (p Policy) Accepts(status int) bool { return containsStatus(p.StoreStatus, status) }

// IsStream reports whether a body is an event stream, which has no end that
// could be waited for.
func IsStream(header http.Header) bool {
	if header.Get("Content-Type") == "application/json" {
		return false // most are
	}
	t, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && strings.EqualFold(t, "text/event-stream")
}

// unknownReason says why a result is unknown, in words that hold nothing of
// the request or the answer.
func (p Policy) unknownReason(r Result) string {
	switch {
	case r.Panicked:
		return "a handler panicked after the submit was claimed"
	case r.TimedOut && r.Status == 0:
		return "no answer within the upstream timeout"
	case r.TimedOut:
		return "the answer was not whole within the upstream timeout"
	case r.Status == 0 && r.Stopped && r.ProviderStatus != 0:
		return "a second request was stopped, and the provider answered the first with status " + strconv.Itoa(r.ProviderStatus)
	case r.Status == 0 && r.Stopped:
		return "a second request was stopped, and the first has no answer"
	case r.Status == 0 || r.ProviderSilent:
		return "the connection to the provider broke before a whole answer"
	case !r.Whole:
		return "the provider's answer broke off"
	case p.Accepts(r.Status) && p.BrokeOff(r):
		return "the provider's answer broke off: it declared no length, and its JSON is not whole"
	case p.classify(r) != ConcludedUnknown:
		return "the provider's refusal says that another try is running or unknown; its status was " +
			strconv.Itoa(cmp.Or(r.ProviderStatus, r.Status))
	case r.ProviderStatus != 0 && r.ProviderStatus != r.Status:
		return "the provider answered with status " + strconv.Itoa(r.ProviderStatus)
	}
	if p.Accepts(r.Status) {
		switch p.ruleBody(r) {
		case openNoJSON:
			return "accept_if was set and the provider's answer is not JSON"
		case openNoObject:
			return "accept_if was set and the provider's answer is not a JSON object"
		case openTwice:
			return "accept_if was set and the provider's answer has the member twice"
		case holds, fails:
		}
	}
	return "the provider answered with status " + strconv.Itoa(r.Status)
}

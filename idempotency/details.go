package idempotency

import (
	"cmp"
	"encoding/json"
	"fmt"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
	"github.com/fxamacker/cbor/v2"
	"strings"
)

// Details is what a record tells people, and what a replay is made of.
type Details struct {
	Namespace string `cbor:"1,keyasint,omitempty"`
	// Key is secret: operators see it only on request.
	Key    Key    `cbor:"2,keyasint,omitempty"`
	Method string `cbor:"3,keyasint,omitempty"`
	Path   string `cbor:"4,keyasint,omitempty"`
	// Error says why the outcome is unknown, in words of this package.
	Error string `cbor:"5,keyasint,omitempty"`
	// Answer is the provider's acceptance; nil until there is one.
	Answer *Answer `cbor:"6,keyasint,omitempty"`
	// JobPointer is where an answer to this submit has the job's id; empty
	// stands for DefaultJobPointer. Number 7 was the id itself.
	JobPointer string `cbor:"8,keyasint,omitempty"`
	// Label says whose job it is, in words that operators know; see NewLabel.
	Label string `cbor:"9,keyasint,omitempty"`
	// Decision says who decided about the record; nil if nobody did.
	Decision *Decided `cbor:"10,keyasint,omitempty"`
}

// Decided is what a record keeps of an operator's decision. A record that was
// released or forgotten keeps nothing.
type Decided struct {
	// What was decided, as the record's state from then on.
	What   string `cbor:"1,keyasint"`
	Reason string `cbor:"2,keyasint"`
	// By is the address that the decision came from, as far as it has one.
	By string `cbor:"3,keyasint,omitempty"`
	// At is the store's clock at that moment, in Unix milliseconds.
	At int64 `cbor:"4,keyasint"`
}

// MaxReason is the longest reason of a decision, in bytes.
const MaxReason = 1000

// difference says what the requests of two records differ in, as far as the
// records know: what is neither method nor path is the content.
func (d Details) difference(other Details) string {
	var differ []string
	if d.Method != other.Method {
		differ = append(differ, "the method")
	}
	if d.Path != other.Path {
		differ = append(differ, "the path")
	}
	if differ == nil {
		return "the content (query, media type, body, or a header field that counts)"
	}
	return strings.Join(differ, " and ")
}

// DefaultJobPointer is where most providers' answers have the job's id.
const DefaultJobPointer = "/id"

// maxJobID is the longest text that is taken for a job's id, in bytes.
const maxJobID = 255

// jobID reads the job's id in the answer's body: when somebody looks, and not for
// each submit.
func (d Details) jobID() string {
	pointer, err := fingerprint.ParsePointer(cmp.Or(d.JobPointer, DefaultJobPointer))
	if d.Answer == nil || err != nil {
		return ""
	}
	value, found := pointer.Find(d.Answer.Body)
	if !found {
		return ""
	}
	var text string
	var number json.Number
	switch {
	case value[0] == '"' && json.Unmarshal(value, &text) == nil:
	case json.Unmarshal(value, &number) == nil:
		text = number.String()
	}
	if len(text) > maxJobID {
		return ""
	}
	return text
}

// payloadDecoding refuses what it does not know: a member that another
// version wrote may change what the rest means.
var payloadDecoding = func() cbor.DecMode {
	mode, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		UTF8:              cbor.UTF8DecodeInvalid, // header fields and paths are any bytes
	}.DecMode()
	if err != nil {
		panic(err) // the options above are constants
	}
	return mode
}()

func (d Details) encode() ([]byte, error) {
	payload, err := cbor.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return payload, nil
}

// DecodeDetails reads the payload of a record that is not encrypted; see
// Keyring.Details for one that may be. Anything that it does not understand is
// ErrUnreadable.
func DecodeDetails(payload []byte) (Details, error) {
	var d Details
	if len(payload) == 0 || payload[0]>>5 != 5 { // a map; null would decode to nothing
		return Details{}, fmt.Errorf("%w: its payload is no map", ErrUnreadable)
	}
	if err := payloadDecoding.Unmarshal(payload, &d); err != nil {
		// The decoder's text can quote the payload, so it is not passed on.
		return Details{}, fmt.Errorf("%w: its payload does not decode", ErrUnreadable)
	}
	if d.Answer != nil && (d.Answer.Status < 100 || d.Answer.Status > 999) {
		return Details{}, fmt.Errorf("%w: its answer has no HTTP status", ErrUnreadable)
	}
	return d, nil
}

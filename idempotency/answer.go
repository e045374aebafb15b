package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// Answer is a provider's acceptance as it is stored and replayed.
type Answer struct {
	Status int         `cbor:"1,keyasint"`
	Header http.Header `cbor:"2,keyasint,omitempty"`
	Body   []byte      `cbor:"3,keyasint,omitempty"`
	// Unavailable: the body was too large or a stream, and only the fact of
	// the acceptance was stored.
	Unavailable bool `cbor:"4,keyasint,omitempty"`
	// Replaced are the fields of which a replay leaves nothing that handlers
	// before have set. Others are added to what is there, as the answer's were.
	Replaced []string `cbor:"5,keyasint,omitempty"`
}

// Validate reports what keeps an answer from being replayed.
func (a Answer) Validate() error {
	if a.Status < 200 || a.Status > 599 {
		return fmt.Errorf("status %d is not a final HTTP status", a.Status)
	}
	if !BodyAllowed(a.Status) && len(a.Body) > 0 {
		return fmt.Errorf("an answer with status %d has no body", a.Status)
	}
	return nil
}

// notReplayed are the header fields that belong to one exchange and not to the
// job: hop-by-hop fields (RFC 9110 section 7.6.1 and its predecessors), the
// session, the path that the answer took, authentication challenges, and what
// the gateway itself says.
var notReplayed = map[string]bool{
	"Connection":                true,
	"Keep-Alive":                true,
	"Proxy-Connection":          true,
	"Te":                        true,
	"Trailer":                   true,
	"Transfer-Encoding":         true,
	"Upgrade":                   true,
	"Content-Length":            true, // set anew from the stored body
	"Set-Cookie":                true,
	"Set-Cookie2":               true,
	"Date":                      true,
	"Server":                    true,
	"Via":                       true,
	"Alt-Svc":                   true,
	"Www-Authenticate":          true,
	"Proxy-Authenticate":        true,
	"Authentication-Info":       true,
	"Proxy-Authentication-Info": true,
	HeaderReplayed:              true,
	HeaderError:                 true,
}

// replayHeader returns the fields of a provider's answer that are stored and
// replayed. Their values are those of the answer.
func replayHeader(header http.Header) http.Header {
	var named map[string]bool
	for _, line := range header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if named == nil {
				named = make(map[string]bool)
			}
			named[textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))] = true
		}
	}
	kept := make(http.Header, len(header))
	for name, values := range header {
		if notReplayed[name] || named[name] || isRateLimit(name) || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		if name == "Access-Control-Allow-Origin" && slices.ContainsFunc(values, func(v string) bool { return v != "*" }) {
			continue // it names the origin of the first caller
		}
		kept[name] = values
	}
	return kept
}

// isRateLimit recognises RateLimit (draft-ietf-httpapi-ratelimit-headers) and
// its many vendor forms: X-RateLimit-Remaining, X-Rate-Limit-Reset,
// Anthropic-Ratelimit-Tokens-Limit.
func isRateLimit(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "ratelimit") || strings.Contains(name, "rate-limit")
}

// BodyAllowed reports whether an answer with a final status may have a body
// (RFC 9110 section 6.4.1).
func BodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// Replay sends a stored answer. What handlers before have set for this caller
// stays, unless the answer replaced what they had set for the first one.
func (a Answer) Replay(w http.ResponseWriter) error {
	header := w.Header()
	for _, name := range a.Replaced {
		delete(header, name)
	}
	for name, values := range a.Header {
		header[name] = slices.Concat(header[name], values)
	}
	header.Set(HeaderReplayed, "true")
	if BodyAllowed(a.Status) {
		header.Set("Content-Length", strconv.Itoa(len(a.Body)))
	}
	w.WriteHeader(a.Status)
	if !BodyAllowed(a.Status) || len(a.Body) == 0 {
		return nil // what a handler wrote after a 204 was not sent the first time, either
	}
	_, err := w.Write(a.Body)
	return err
}

// answerOf returns the answer of a completed record.
func answerOf(r *Record, s *seal) (Answer, error) {
	d, err := s.open(r.Payload)
	if err != nil {
		return Answer{}, err
	}
	if d.Answer == nil {
		return Answer{}, errors.Join(ErrUnreadable, errors.New("a completed record has no answer"))
	}
	return *d.Answer, nil
}

package idempotency

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// Code is the machine-readable name of an answer that the gateway gives by
// itself. It is sent as Idempotency-Error and as the code of the error
// document.
type Code string

// The codes, each with what the caller should know.
const (
	// CodeMissing: a key is required and none was sent.
	CodeMissing Code = "idempotency_key_missing"
	// CodeInvalid: the key header is not a key.
	CodeInvalid Code = "idempotency_key_invalid"
	// CodeInProgress: the first request with this key is still running.
	CodeInProgress Code = "idempotency_key_in_progress"
	// CodeScopeUnstable: who the key belongs to cannot be told, because the
	// credential of the request changes from request to request; nothing was sent.
	CodeScopeUnstable Code = "idempotency_scope_unstable"
	// CodeReuse: the key was used with another request.
	CodeReuse Code = "idempotency_key_reuse"
	// CodeOutcomeUnknown: the submit may have been sent, and nobody knows whether
	// the provider accepted it.
	CodeOutcomeUnknown Code = "idempotency_outcome_unknown"
	// CodeResultUnavailable: the submit was accepted, and its answer was too
	// large or a stream, so it cannot be replayed.
	CodeResultUnavailable Code = "idempotency_result_unavailable"
	// CodeStoreUnavailable: the store did not answer; nothing was sent.
	CodeStoreUnavailable Code = "idempotency_store_unavailable"
	// CodeBodyTooLarge: the request body is over the maximum; nothing was sent.
	CodeBodyTooLarge Code = "request_body_too_large"
)

// Problem is an answer that the gateway gives by itself.
type Problem struct {
	Code Code
	// Detail is shown after the code's own sentence: a reason or a record id.
	Detail string
	// RetryAfter, if positive, is sent as Retry-After in whole seconds.
	RetryAfter time.Duration
}

// Header fields in which the gateway speaks to callers.
const (
	// HeaderError carries a Code: on every answer that the gateway made, and
	// on a provider's answer that left the outcome unknown.
	HeaderError = "Idempotency-Error"
	// HeaderReplayed is "true" on a replay.
	HeaderReplayed = "Idempotency-Replayed"
	// headerShouldRetry is read by several SDKs: "false" stops their retries, and
	// "true" makes them retry whatever the status, after Retry-After.
	headerShouldRetry = "X-Should-Retry"
)

// ProblemFormat is the shape of the gateway's own answers.
type ProblemFormat string

const (
	// FormatEnvelope is the error object of the async media APIs that document
	// these codes, with their statuses.
	FormatEnvelope ProblemFormat = "envelope"
	// FormatProblem is RFC 9457, with the statuses that
	// draft-ietf-httpapi-idempotency-key-header-07 suggests.
	FormatProblem ProblemFormat = "problem"
)

type problemKind struct {
	envelopeStatus, problemStatus int
	title                         string
	message                       string
	shouldRetry                   string // X-Should-Retry; empty for none
}

const (
	retry   = "true"
	noRetry = "false"
)

// problemKinds is the table of the gateway's answers. The messages are for
// somebody who has never heard of a gateway.
var problemKinds = map[Code]problemKind{
	CodeMissing: {
		http.StatusBadRequest, http.StatusBadRequest, "Idempotency key is missing",
		"This request needs an idempotency key, so that a retry cannot start a second job. " +
			"It was not sent to the provider. Send one unique key per job, and the same key with every retry of that job.", "",
	},
	CodeInvalid: {
		http.StatusBadRequest, http.StatusBadRequest, "Idempotency key is not valid",
		"The idempotency key of this request is not valid, and the request was not sent to the provider. " +
			"Send the key as one header line with 1 to 255 visible ASCII characters.", "",
	},
	CodeInProgress: {
		http.StatusBadRequest, http.StatusConflict, "Request is in progress",
		"Another request with this idempotency key is still running, so this one was not sent to the provider. " +
			"The job may exist and may be billed. Do not submit it again under a new key; " +
			"retry the same request with the same key after Retry-After seconds.", retry,
	},
	CodeScopeUnstable: {
		http.StatusInternalServerError, http.StatusInternalServerError, "Caller cannot be recognised",
		"This gateway cannot tell who the idempotency key of this request belongs to, so a retry could not be recognised and might start a second job. Nothing was sent to the provider. The operator of this gateway must set the option scope.", noRetry,
	},
	CodeReuse: {
		http.StatusBadRequest, http.StatusUnprocessableEntity, "Idempotency key was used with another request",
		"This idempotency key was already used with a different request, so this one was not sent to the provider. " +
			"Use a new key for a new job, and the unchanged request for a retry.", noRetry,
	},
	CodeOutcomeUnknown: {
		http.StatusConflict, http.StatusConflict, "Outcome is unknown",
		"It is not known whether the provider accepted the request with this idempotency key: " +
			"it may have been sent, and no trustworthy answer came back. The job may exist and may be billed. " +
			"Do not submit it again under a new key; ask the operator of this gateway to look it up.", noRetry,
	},
	CodeResultUnavailable: {
		http.StatusConflict, http.StatusConflict, "Result cannot be replayed",
		"The provider accepted the first request with this idempotency key, so the job exists and may be billed. " +
			"Its answer was too large to be kept or was a stream, and cannot be repeated; this request was not sent. " +
			"Do not submit it again under a new key; find the job with the provider.", noRetry,
	},
	CodeStoreUnavailable: {
		http.StatusServiceUnavailable, http.StatusServiceUnavailable, "Idempotency store is unavailable",
		"This gateway cannot use the store in which it remembers requests, so it cannot rule out that this one " +
			"would start a second job. It was not sent to the provider. Retry with the same key.", "",
	},
	CodeBodyTooLarge: {
		http.StatusRequestEntityTooLarge, http.StatusRequestEntityTooLarge, "Request body is too large",
		"The body of this request is larger than this gateway accepts. Nothing was sent to the provider.", "",
	},
}

// problemTypePrefix starts the "type" of an RFC 9457 document. README.md has
// an anchor for each code.
const problemTypePrefix = "https://github.com/caddy-idempotency/caddy-idempotency#"

// OutcomeUnknown is what a submit is told whose outcome is not known. It names
// the record, for the operator.
func OutcomeUnknown(id RecordID) Problem {
	return Problem{Code: CodeOutcomeUnknown, Detail: recordDetail(id)}
}

// Status returns the HTTP status of the problem in the given format.
func (p Problem) Status(format ProblemFormat) int {
	kind := problemKinds[p.Code]
	if format == FormatProblem {
		return kind.problemStatus
	}
	return kind.envelopeStatus
}

// Write sends the problem as the whole answer to a request. unknownStatus, if
// not zero, replaces the status: the first caller of an attempt whose outcome
// is unknown gets 502 or 504.
func (p Problem) Write(w http.ResponseWriter, format ProblemFormat, unknownStatus int) error {
	kind := problemKinds[p.Code]
	status := p.Status(format)
	if unknownStatus != 0 {
		status = unknownStatus
	}
	message := kind.message
	if p.Detail != "" {
		message += " " + p.Detail
	}

	var document any
	contentType := "application/json"
	if format == FormatProblem {
		contentType = "application/problem+json"
		document = struct {
			Type   string `json:"type"`
			Title  string `json:"title"`
			Status int    `json:"status"`
			Detail string `json:"detail"`
			Code   Code   `json:"code"`
		}{problemTypePrefix + string(p.Code), kind.title, status, message, p.Code}
	} else {
		type envelope struct {
			Type    string `json:"type"`
			Code    Code   `json:"code"`
			Message string `json:"message"`
		}
		errorType := "invalid_request_error"
		if status >= http.StatusInternalServerError {
			errorType = "api_error"
		}
		document = struct {
			Error envelope `json:"error"`
		}{envelope{errorType, p.Code, message}}
	}
	body, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("encode error document: %w", err)
	}

	header := w.Header()
	p.Mark(header)
	header.Set("Content-Type", contentType)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, err = w.Write(body)
	return err
}

// Mark sets the header fields that go with the problem, also on a provider's
// own answer.
func (p Problem) Mark(header http.Header) {
	header.Set(HeaderError, string(p.Code))
	header.Set("Cache-Control", "no-store")
	if value := problemKinds[p.Code].shouldRetry; value != "" {
		header.Set(headerShouldRetry, value)
	}
	if p.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Seconds()))))
	}
}

// retryAfterInProgress suggests when to come back to a running attempt: after
// as long as it has run so far, within what its lease leaves, 1 to 60 seconds.
// So a caller asks soon about a quick job and seldom about a long one.
func retryAfterInProgress(age, leaseLeft time.Duration) time.Duration {
	return max(time.Second, min(age, leaseLeft, time.Minute))
}

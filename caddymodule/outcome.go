package caddymodule

import "github.com/caddy-idempotency/caddy-idempotency/idempotency"

// outcome is what became of a request, for placeholders, logs and metrics.
type outcome string

const (
	outcomeBypass      outcome = "bypass"          // no key, or another method: passed on untouched
	outcomeAccepted    outcome = "accepted"        // sent, and accepted
	outcomeReplayed    outcome = "replayed"        // answered from the record
	outcomeInProgress  outcome = "in_progress"     // another attempt is running
	outcomeReuse       outcome = "reuse"           // the key belongs to another request
	outcomeRefused     outcome = "refused"         // not accepted, or never sent; the key is free
	outcomeUncertain   outcome = "uncertain"       // this attempt's outcome is unknown
	outcomeUnknown     outcome = "outcome_unknown" // a repeat of a submit whose outcome is unknown
	outcomeUnavailable outcome = "unavailable"     // accepted, and cannot be replayed
	outcomeInvalidKey  outcome = "invalid_key"
	outcomeMissingKey  outcome = "missing_key"
	outcomeTooLarge    outcome = "too_large"
	outcomeStoreError  outcome = "store_error"
	outcomeFailed      outcome = "failed" // ended in an error before the store was asked
)

// outcomes are all of them.
var outcomes = []outcome{
	outcomeBypass, outcomeAccepted, outcomeReplayed, outcomeInProgress, outcomeReuse, outcomeRefused,
	outcomeUncertain, outcomeUnknown, outcomeUnavailable, outcomeInvalidKey, outcomeMissingKey,
	outcomeTooLarge, outcomeStoreError, outcomeFailed,
}

var problemOutcomes = map[idempotency.Code]outcome{
	idempotency.CodeMissing:           outcomeMissingKey,
	idempotency.CodeInvalid:           outcomeInvalidKey,
	idempotency.CodeInProgress:        outcomeInProgress,
	idempotency.CodeScopeUnstable:     outcomeFailed,
	idempotency.CodeReuse:             outcomeReuse,
	idempotency.CodeOutcomeUnknown:    outcomeUnknown,
	idempotency.CodeResultUnavailable: outcomeUnavailable,
	idempotency.CodeStoreUnavailable:  outcomeStoreError,
	idempotency.CodeBodyTooLarge:      outcomeTooLarge,
}

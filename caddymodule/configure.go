package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

var defaultMethods = []string{http.MethodPost}

// Values of options that choose.
const (
	choiceReject   = "reject"
	choiceResubmit = "resubmit"
	choiceForward  = "forward"
	choiceWait     = "wait"
	choiceAuto     = "auto"
	choiceKeep     = "keep"
	choiceRemove   = "remove"
	choiceRaw      = "raw"
)

func (h *Handler) configure(repl *caddy.Replacer) error {
	if err := h.configureProvider(); err != nil {
		return err
	}
	if len(h.KeyHeader) == 0 {
		h.KeyHeader = []string{"Idempotency-Key"}
	}
	for i, name := range h.KeyHeader {
		if err := checkField("key_header", name); err != nil {
			return err
		}
		h.KeyHeader[i] = http.CanonicalHeaderKey(name)
	}
	if err := h.configureKeyFrom(); err != nil {
		return err
	}
	if len(h.Methods) == 0 {
		h.Methods = defaultMethods
	}
	for _, method := range h.Methods {
		switch method {
		case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			return fmt.Errorf("methods: %s starts no jobs, and is sent again by HTTP clients as they like", method)
		default:
			return fmt.Errorf("methods: %q is not POST, PUT, PATCH or DELETE", method)
		}
	}
	if err := checkNamespace(h.Namespace); err != nil {
		return err
	}
	if err := h.configureScope(repl); err != nil {
		return err
	}
	if err := h.checkLabel(); err != nil {
		return err
	}
	h.readsCredential = slices.ContainsFunc(h.Scope, readsCredential) || readsCredential(h.Label) ||
		h.KeyFrom != nil && readsCredential(h.KeyFrom.Text)
	if err := h.configureFingerprint(); err != nil {
		return err
	}
	if err := h.configurePolicy(repl); err != nil {
		return err
	}

	var err error
	if h.upstreamTimeout, err = h.UpstreamTimeout.resolve(repl, "upstream_timeout", 5*time.Minute); err != nil {
		return err
	}
	if h.upstreamTimeout <= 0 {
		return fmt.Errorf("upstream_timeout: must be positive, got %s", h.upstreamTimeout)
	}
	if err := h.configureInProgress(repl); err != nil {
		return err
	}
	if h.maxRequestBody, err = h.MaxRequestBody.resolve(repl, "max_request_body", 64<<20); err != nil {
		return err
	}
	if h.maxResponseBody, err = h.MaxResponseBody.resolve(repl, "max_response_body", 1<<20); err != nil {
		return err
	}

	switch h.OnStoreError {
	case "", choiceReject, choiceForward:
	default:
		return fmt.Errorf("on_store_error: %q is neither reject nor forward", h.OnStoreError)
	}
	switch h.UpstreamKey {
	case "":
		h.UpstreamKey = choiceAuto
	case choiceAuto, choiceKeep, choiceRemove:
	default:
		return fmt.Errorf("upstream_key: %q is neither auto nor keep nor remove", h.UpstreamKey)
	}
	h.format = idempotency.ProblemFormat(h.Errors)
	switch h.format {
	case "":
		h.format = idempotency.FormatEnvelope
	case idempotency.FormatEnvelope, idempotency.FormatProblem:
	default:
		return fmt.Errorf("errors: %q is neither envelope nor problem", h.Errors)
	}
	return nil
}

func (h *Handler) configureFingerprint() error {
	switch h.Fingerprint {
	case "", choiceAuto:
	case choiceRaw:
		if len(h.FingerprintIgnore) > 0 {
			return errors.New("fingerprint_ignore: with fingerprint raw nothing is ignored")
		}
	default:
		return fmt.Errorf("fingerprint: %q is neither auto nor raw", h.Fingerprint)
	}
	for _, name := range h.FingerprintHeader {
		if err := checkField("fingerprint_header", name); err != nil {
			return err
		}
	}
	config := fingerprint.Config{Raw: h.Fingerprint == choiceRaw, Header: h.FingerprintHeader}
	for _, text := range h.FingerprintIgnore {
		pointer, err := fingerprint.ParsePointer(text)
		if err != nil {
			return fmt.Errorf("fingerprint_ignore: %w", err)
		}
		config.Ignore = append(config.Ignore, pointer)
	}
	var err error
	if h.fingerprinter, err = fingerprint.New(config); err != nil {
		return fmt.Errorf("fingerprint_ignore: %w", err)
	}
	return nil
}

// checkField rejects what is no header field, and those that say nothing about
// the job. net/http keeps some of them out of a request's header, where no
// handler would find them.
func checkField(option, name string) error {
	if !httpguts.ValidHeaderFieldName(name) {
		return fmt.Errorf("%s: %q is not a header field name", option, name)
	}
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection":
		return fmt.Errorf("%s: %s is about the connection, and says nothing about the job", option, name)
	}
	return nil
}

const (
	minLease     = 100 * time.Millisecond
	maxLease     = 24 * time.Hour
	minRetention = time.Second
	maxRetention = 10 * 365 * 24 * time.Hour
)

func (h *Handler) configurePolicy(repl *caddy.Replacer) error {
	h.policy = idempotency.DefaultPolicy()
	for _, option := range []struct {
		name   string
		values []string
		target *[]idempotency.StatusRange
	}{
		{"store_status", h.StoreStatus, &h.policy.StoreStatus},
		{"refused_status", h.RefusedStatus, &h.policy.RefusedStatus},
	} {
		if option.values == nil {
			continue
		}
		if len(option.values) == 0 && option.name == "store_status" {
			return errors.New("store_status: it is empty, so nothing that the provider accepts would be stored")
		}
		ranges, err := parseStatuses(option.name, option.values)
		if err != nil {
			return err
		}
		*option.target = ranges
	}
	for _, r := range h.policy.RefusedStatus {
		if r.First == r.Last && idempotency.NeverRefusal(r.First) {
			return fmt.Errorf("refused_status: %d never proves that the provider did not accept", r.First)
		}
		// The default may overlap: store_status is looked at first.
		if h.RefusedStatus != nil && slices.ContainsFunc(h.policy.StoreStatus, func(s idempotency.StatusRange) bool {
			return s.Contains(r.First) && s.Contains(r.Last)
		}) {
			return fmt.Errorf("refused_status: %d is in store_status, too", r.First)
		}
	}

	if h.AcceptIf != nil {
		if h.AcceptIf.Pointer == "" && (h.AcceptIf.Value == nil || *h.AcceptIf.Value == "") {
			return errors.New("accept_if: it needs a pointer")
		}
		pointer, err := fingerprint.ParsePointer(h.AcceptIf.Pointer)
		if err != nil {
			return fmt.Errorf("accept_if: %w", err)
		}
		h.policy.AcceptIf = &idempotency.Condition{Pointer: pointer, AnyValue: h.AcceptIf.Value == nil}
		if h.AcceptIf.Value != nil {
			h.policy.AcceptIf.Value = *h.AcceptIf.Value
		}
	}
	var err error
	if h.policy.Lease, err = h.Lease.resolve(repl, "lease", h.policy.Lease); err != nil {
		return err
	}
	if h.policy.Lease < minLease {
		return fmt.Errorf("lease: must be at least %s, got %s", minLease, h.policy.Lease)
	}
	if h.policy.Lease > maxLease {
		return fmt.Errorf("lease: must be at most %s, got %s", maxLease, h.policy.Lease)
	}
	if h.policy.Retention, err = h.Retention.resolve(repl, "retention", h.policy.Retention); err != nil {
		return err
	}
	if h.policy.Retention < minRetention {
		return fmt.Errorf("retention: must be at least %s, got %s", minRetention, h.policy.Retention)
	}
	if h.policy.Retention > maxRetention {
		return fmt.Errorf("retention: must be at most %s, got %s", maxRetention, h.policy.Retention)
	}
	if h.JobID != "" {
		if h.policy.JobID, err = fingerprint.ParsePointer(h.JobID); err != nil {
			return fmt.Errorf("job_id: %w", err)
		}
	}
	switch h.OnUncertain {
	case "", choiceReject:
	case choiceResubmit:
		h.policy.ResubmitUncertain = true
	default:
		return fmt.Errorf("on_uncertain: %q is neither reject nor resubmit", h.OnUncertain)
	}
	return nil
}

// AcceptIf is what the body of an acceptance says.
type AcceptIf struct {
	// Where in the JSON body: a JSON pointer (RFC 6901).
	Pointer string `json:"pointer"`

	// The value there: its JSON text, or the content of a string. Default: none,
	// any value but null will do.
	Value *string `json:"value,omitempty"`
}

func (h *Handler) configureInProgress(repl *caddy.Replacer) error {
	switch h.InProgress {
	case "", choiceReject:
		if h.InProgressWait != "" {
			return errors.New("in_progress_wait: it needs in_progress wait")
		}
		return nil
	case choiceWait:
	default:
		return fmt.Errorf("in_progress: %q is neither reject nor wait", h.InProgress)
	}
	var err error
	if h.policy.Wait, err = h.InProgressWait.resolve(repl, "in_progress wait", 0); err != nil {
		return err
	}
	if h.policy.Wait <= 0 {
		return errors.New("in_progress wait: it needs a duration, and a positive one")
	}
	if h.policy.Wait > h.upstreamTimeout {
		return fmt.Errorf("in_progress wait: it is %s, longer than upstream_timeout (%s)", h.policy.Wait, h.upstreamTimeout)
	}
	return nil
}

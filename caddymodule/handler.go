package caddymodule

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler keeps a provider from receiving a submit twice. It stands before a
// reverse_proxy, stores the provider's first acceptance of each idempotency
// key, and replays it to repeats. While a submit runs, and when its outcome is
// not known, repeats are answered with an error and nothing is sent.
//
// It acts on requests of the configured methods that carry a key. Everything
// else is passed on untouched, and so is what another idempotency handler before
// it acts on.
type Handler struct {
	// Header fields that may carry the key; the first one that is present
	// counts. Default: Idempotency-Key.
	KeyHeader []string `json:"key_header,omitempty"`

	// Gives requests without a key header a key of their own. Default: none.
	KeyFrom *KeyFrom `json:"key_from,omitempty"`

	// Whether a request of the configured methods without a key is rejected.
	// Default: false, it is passed on without protection.
	RequireKey bool `json:"require_key,omitempty"`

	// Methods of requests that may start a job. Default: POST.
	Methods []string `json:"methods,omitempty"`

	// The preset of a provider, such as replicate: it fills in what its
	// documentation says, and every other option overrides it. The command "caddy
	// idempotency provider" lists them. Default: none.
	Provider string `json:"provider,omitempty"`

	// Keeps the keys of two providers apart that share a store. Default: the name
	// of the preset, or empty.
	Namespace string `json:"namespace,omitempty"`

	// Who a key belongs to: texts with placeholders. Two requests share records
	// only if all values are equal. {http.idempotency.jwt.<claim>} and
	// {http.idempotency.aws_access_key} are what a token or a signature says of
	// itself, not verified. A request for which all placeholders are empty is
	// rejected. Default: the credentials in Authorization, X-Api-Key, Api-Key,
	// xi-api-key, x-goog-api-key, Ocp-Apim-Subscription-Key and X-Auth-Token. By
	// default a request with a signature, or with a JSON Web Token that expires
	// within the retention, is rejected: no retry of it could be recognised.
	Scope []string `json:"scope,omitempty"`

	// How bodies are compared: auto, JSON by its meaning and multipart/form-data
	// by its parts, or raw, by their bytes. Default: auto.
	Fingerprint string `json:"fingerprint,omitempty"`

	// JSON pointers to what does not count in a JSON body, such as a trace id or
	// a webhook's address. Default: none.
	FingerprintIgnore []string `json:"fingerprint_ignore,omitempty"`

	// Header fields whose values count. Default: none but Content-Type, without
	// its parameters, and Content-Encoding.
	FingerprintHeader []string `json:"fingerprint_header,omitempty"`

	// Statuses (202) or classes (2xx) that mean that the provider accepted.
	// Default: 2xx.
	StoreStatus []string `json:"store_status,omitempty"`

	// Statuses or classes that prove that the provider did not accept. 408 and
	// 499 never do. Default: 4xx and 503.
	RefusedStatus []string `json:"refused_status,omitempty"`

	// How long a record lives after its last change. At most ten years. Default:
	// 24h.
	Retention Duration `json:"retention,omitempty"`

	// How long a submit is believed to be running if its gateway is not heard
	// of. At least 100ms, at most 24h. Default: 30s.
	Lease Duration `json:"lease,omitempty"`

	// How long the provider may take to answer. Default: 5m.
	UpstreamTimeout Duration `json:"upstream_timeout,omitempty"`

	// What the body of an acceptance says besides its status, for providers that
	// put a refusal inside a 200. A body that is no JSON object, or has the member
	// twice, proves neither: then the outcome is unknown. Default: none, the status
	// decides.
	AcceptIf *AcceptIf `json:"accept_if,omitempty"`

	// What happens to a duplicate that arrives while the first is running:
	// reject answers it at once, wait holds it for in_progress_wait. Default:
	// reject.
	InProgress string `json:"in_progress,omitempty"`

	// How long a duplicate is held with in_progress wait. Not longer than
	// upstream_timeout.
	InProgressWait Duration `json:"in_progress_wait,omitempty"`

	// What a repeat of a submit whose outcome is unknown does: reject, or
	// resubmit for a provider that honours the key itself. Default: reject.
	OnUncertain string `json:"on_uncertain,omitempty"`

	// What a submit does when the store fails: reject, or forward without
	// protection. Default: reject.
	OnStoreError string `json:"on_store_error,omitempty"`

	// The shape of the gateway's own answers: envelope or problem. Default:
	// envelope.
	Errors string `json:"errors,omitempty"`

	// The largest request body. Default: 64MiB.
	MaxRequestBody Size `json:"max_request_body,omitempty"`

	// The largest response body that is stored. An acceptance over it is passed
	// on and cannot be replayed. Default: 1MiB.
	MaxResponseBody Size `json:"max_response_body,omitempty"`

	// Whether the provider gets the key: auto, with requests that have a body;
	// keep, always, for a provider that honours it; remove, never. Without a body
	// Go's HTTP client sends a request that has Idempotency-Key or
	// X-Idempotency-Key again by itself. Default: auto.
	UpstreamKey string `json:"upstream_key,omitempty"`

	// Where the body of an acceptance has the job's id, which operators are
	// shown: a JSON pointer. Default: /id.
	JobID string `json:"job_id,omitempty"`

	// Whose job a record is, in words that operators know: a text with
	// placeholders, such as {http.request.header.X-Team}. It is stored, and shown to
	// operators: it must hold no secret. At most 200 bytes are kept; with a
	// placeholder that nobody knows, none. Default: none.
	Label string `json:"label,omitempty"`

	fingerprinter   *fingerprint.Fingerprinter
	policy          idempotency.Policy
	format          idempotency.ProblemFormat
	upstreamTimeout time.Duration
	maxRequestBody  int64
	maxResponseBody int64

	keyFrom keyDerivation

	requests requestCounters
	// Of each value of Scope: whether it has a placeholder of the request, and
	// what it is when all of those are empty.
	scopeVaries []bool
	scopeEmpty  []string
	// readsCredential: an option has a placeholder that mapCredential makes known.
	readsCredential bool

	store     *storeHandle
	questions *questions // never nil
	logger    *zap.Logger
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.idempotency",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision reads the configuration and finds the store, without touching it.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	if err := h.configure(caddy.NewReplacer()); err != nil {
		return err
	}
	app, err := ctx.App(AppID)
	if err != nil {
		return fmt.Errorf("idempotency app: %w", err)
	}
	h.store = app.(*App).store
	h.policy.Keyring = app.(*App).keyring
	h.requests = metrics.requestsOf(h.Namespace)
	app.(*App).owners.add(h)
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		h.questions, err = app.(*App).checkOnce(server)
		return err
	}
	h.questions = new(questions)
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if id, _ := repl.GetString(placeholderRecord); id != "" {
		return next.ServeHTTP(w, r) // it is under the claim of a handler before this one
	}
	repl.Set(placeholderRecord, "") // known, also if the request has no record
	repl.Set(placeholderOutcome, "")
	if !slices.Contains(h.Methods, r.Method) {
		if method := h.methodInOtherCase(r.Method); method != "" {
			return h.rejectMethod(w, r, repl, method)
		}
		return h.bypass(w, r, repl, next)
	}
	lines := h.keyLines(r.Header)
	if lines == nil && h.KeyFrom == nil && !h.RequireKey {
		return h.bypass(w, r, repl, next)
	}
	if h.readsCredential {
		mapCredential(repl, r.Header)
	}
	e := exchange{Handler: h, w: w, r: r, repl: repl, next: next, traced: isTraced(r)}
	if lines == nil && h.KeyFrom != nil {
		derived, err := h.keyFrom.derive(repl)
		if err != nil {
			return e.fail(caddyhttp.Error(http.StatusInternalServerError, err))
		}
		if derived != "" {
			// It goes to the provider like a sent one.
			lines = []string{derived}
			e.r = withHeader(r, h.KeyHeader[0], derived)
		}
	}
	if lines == nil && !h.RequireKey {
		return h.bypass(w, r, repl, next)
	}

	if lines == nil {
		return e.problem(idempotency.Problem{Code: idempotency.CodeMissing})
	}
	key, err := idempotency.ParseKey(lines)
	if err != nil {
		var invalid *idempotency.KeyError
		errors.As(err, &invalid)
		return e.problem(idempotency.Problem{Code: idempotency.CodeInvalid, Detail: "It was rejected because " + invalid.Reason + "."})
	}
	return e.submit(key)
}

// methodInOtherCase returns the configured method that a request's method differs
// from in case only, "" if there is none. A provider that does not mind the case
// would start a job that nobody guards.
func (h *Handler) methodInOtherCase(method string) string {
	for _, configured := range h.Methods {
		if strings.EqualFold(configured, method) {
			return configured
		}
	}
	return ""
}

// rejectMethod answers a request whose method is written in another case. It has
// no code: nothing is wrong with the key, if there is one.
func (h *Handler) rejectMethod(w http.ResponseWriter, r *http.Request, repl *caddy.Replacer, method string) error {
	e := exchange{Handler: h, w: w, r: r, repl: repl}
	e.note(outcomeFailed)
	h.logger.Debug("request rejected: its method differs from one of methods in case only", zap.String("method", method))
	text := "The method of this request is " + method + " in another case. Methods are case-sensitive (RFC 9110, section 9.1): " +
		"send it in capitals. Nothing was sent to the provider.\n"
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(http.StatusBadRequest)
	_, err := io.WriteString(w, text)
	return e.written(err)
}

// bypass passes a request on untouched.
func (h *Handler) bypass(w http.ResponseWriter, r *http.Request, repl *caddy.Replacer, next caddyhttp.Handler) error {
	repl.Set(placeholderOutcome, string(outcomeBypass))
	h.requests.count(outcomeBypass)
	return next.ServeHTTP(w, r)
}

// keyLines returns the lines of the key header, nil if there is none.
func (h *Handler) keyLines(header http.Header) []string {
	for _, name := range h.KeyHeader {
		if lines := header[name]; len(lines) > 0 {
			return lines
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)

// Package operator is what people work with who look after a gateway: the admin
// API, the page that uses it, and the command. It reaches the store through the
// app of the active configuration alone.
package operator

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/caddymodule"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
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

// activeApp returns the app of the active configuration.
func activeApp() (*caddymodule.App, error) {
	app, err := caddy.ActiveContext().AppIfConfigured(caddymodule.AppID)
	if err != nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("the configuration has no idempotency handler")}
	}
	return app.(*caddymodule.App), nil
}

// withEngine calls f with the engine and the keyring of the active
// configuration, and gives its error the status that operators get.
func withEngine(f func(*idempotency.Engine, *idempotency.Keyring) error) error {
	app, err := activeApp()
	if err != nil {
		return err
	}
	err = app.WithEngine(f)
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

func log() *zap.Logger { return caddy.Log().Named(caddymodule.AppID) }

func writeJSON(w http.ResponseWriter, document any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(document)
}

// Interface guards
var (
	_ caddy.AdminRouter = (*adminAPI)(nil)
	_ caddy.Module      = adminAPI{}
)

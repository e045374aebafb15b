package operator

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
)

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
	app, err := activeApp()
	if err != nil {
		return err
	}
	err = app.Adopt(r.Context())
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

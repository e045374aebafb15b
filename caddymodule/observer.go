package caddymodule

import (
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// observer counts and logs what an engine reports apart from requests. It asks
// for Caddy's current logger each time, because an engine outlives the
// configuration, and the logger, that it was made under.
type observer struct{}

func log() *zap.Logger { return caddy.Log().Named("idempotency") }

func (observer) StoreCall(op string, took time.Duration, err error) {
	metrics.observeStore(op, took, err)
}

func (observer) StoreError(op string, id idempotency.RecordID, err error) {
	log().Error("store operation failed", zap.String("op", op), zap.String("record", string(id)), zap.Error(err))
}

func (observer) LeaseLost(id idempotency.RecordID) {
	metrics.leaseLost.Inc()
	log().Warn("lease ran out while the submit is running; repeats are told that its outcome is unknown",
		zap.String("record", string(id)))
}

func (observer) LateAcceptance(id idempotency.RecordID, status int) {
	metrics.lateAcceptances.Inc()
	log().Error("the provider accepted a submit that no longer owns its record; the job exists and is not in the store",
		zap.String("record", string(id)), zap.Int("status", status))
}

func (observer) RecordLost(id idempotency.RecordID) {
	log().Error("the store had lost the record of a submit that this gateway works on; it was made anew and nothing was sent twice from here",
		zap.String("record", string(id)))
}

func (observer) GaveUp(op string, id idempotency.RecordID) {
	if op == "withdraw" {
		// A store that takes no write may leave one for each submit.
		log().Warn("an abandoned claim could not be withdrawn; its record may become uncertain",
			zap.String("record", string(id)))
		return
	}
	log().Error("an outcome could not be stored for as long as its record lives",
		zap.String("op", op), zap.String("record", string(id)))
}

// ReportFinding logs what a store reports about its server: once when it comes,
// with present, and once when it is over. It is for the stores of other modules,
// too.
func ReportFinding(f idempotency.Finding, present bool) {
	logger := log().With(zap.String("server", f.Server), zap.String("setting", f.Setting), zap.String("value", f.Value))
	if !present {
		logger.Info("store server recovered")
		return
	}
	logger.Warn("the store's server may lose records or refuse submits", zap.String("loss", f.Loss))
}

var _ idempotency.Observer = observer{}

package operator

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

const readyPath = "/idempotency/ready"

// readyDocument is the answer if it could. Otherwise there is an error.
type readyDocument struct {
	Status string `json:"status"`
}

// showReady answers whether submits could be claimed, as idempotency_health does.
func showReady(w http.ResponseWriter, r *http.Request) error {
	app, err := activeApp()
	if err != nil {
		return err
	}
	if err := app.Ready(r.Context()); err != nil {
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: err}
	}
	return writeJSON(w, readyDocument{"ok"})
}

func newReadyCommand() *cobra.Command {
	return newCommand("ready", "Exits with status 0 if submits could be claimed now", `
Asks a running Caddy whether its store would grant a claim now, for health checks
that run a command. It exits with status 1 if the store is away, if strict
refuses it, or if Caddy does not answer.`,
		cobra.NoArgs, func(client *adminClient, _ caddycmd.Flags) error {
			_, err := client.get(readyPath)
			return err
		})
}

package caddymodule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// newDoctorCommand returns the command that shows what the configured store's
// servers say about themselves, and what that means for the records.
func newDoctorCommand() *cobra.Command {
	var configFile, adapter string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Shows what the store's servers may lose",
		Long: `Asks the Redis servers of a configuration what they are, how they persist and
what they evict, and prints a table that says what can be lost because of it.
It changes nothing. It ends with exit code 1 if something can be lost, or if a
server cannot be used.

With --adopt it tells a running Caddy instead that a strict store that has lost
its marker (flushed, another database, a failover without data) is right as it
is: submits with a key go on, and repeats of submits that the store has forgotten
are sent again. It ends with exit code 9 if the store has its marker.`,
		Args: cobra.NoArgs,
	}
	var adopt bool
	var reason, address string
	cmd.Flags().BoolVar(&adopt, "adopt", false, "Say that a strict store that has lost its marker is right so")
	cmd.Flags().StringVar(&reason, "reason", "", "Why you adopt it, for the log (required with --adopt)")
	cmd.Flags().StringVar(&address, "address", "", "The address of the admin endpoint for --adopt, if not the default")
	cmd.Flags().StringVarP(&configFile, "config", "c", "", "Configuration file; default: a Caddyfile in the working directory")
	cmd.Flags().StringVarP(&adapter, "adapter", "a", "", "Name of the config adapter to apply")
	cmd.RunE = caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) {
		if adopt {
			return adoptStoreOf(cmd.OutOrStdout(), address, configFile, adapter, reason)
		}
		if reason != "" || address != "" {
			return caddy.ExitCodeFailedStartup, errors.New("--reason and --address are for --adopt")
		}
		if err := doctor(cmd.OutOrStdout(), configFile, adapter); err != nil {
			return caddy.ExitCodeFailedStartup, err
		}
		return caddy.ExitCodeSuccess, nil
	})
	return cmd
}

// adoptStoreOf tells a running Caddy that its store is right as it is.
func adoptStoreOf(out io.Writer, address, configFile, adapter, reason string) (exit int, err error) {
	if strings.TrimSpace(reason) == "" {
		return caddy.ExitCodeFailedStartup, errors.New("--reason is missing")
	}
	address, err = caddycmd.DetermineAdminAPIAddress(address, nil, configFile, adapter)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	client, err := newAdminClient(address)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	_, err = client.post(adoptPath, adoptOrder{reason})
	var refused *refusal
	switch {
	case errors.As(err, &refused) && refused.status == http.StatusConflict:
		return exitConflict, err
	case err != nil:
		return caddy.ExitCodeFailedStartup, err
	}
	_, err = fmt.Fprintln(out, "The store was adopted.")
	return caddy.ExitCodeSuccess, err
}

// doctor writes the table for the store of a configuration.
func doctor(out io.Writer, configFile, adapter string) error {
	text, _, _, err := caddycmd.LoadConfig(configFile, adapter)
	if err != nil {
		return err
	}
	var config struct {
		Apps struct {
			Idempotency App `json:"idempotency"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("reading configuration: %w", err)
	}
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	store, err := config.Apps.Idempotency.loadStore(ctx)
	if err != nil {
		return err
	}
	server, ok := store.(*RedisStore)
	if !ok {
		_, err := fmt.Fprintf(out, "The store is %s, which has no server to ask.\n", store.CaddyModule().ID.Name())
		return err
	}
	return server.examine(ctx, out)
}

// examine writes what the servers say, and returns an error if anything is
// wrong.
func (s *RedisStore) examine(ctx context.Context, out io.Writer) (err error) {
	quiet := s.config
	quiet.Report = nil // the table says it all
	store := openRedis(quiet)
	defer func() { err = errors.Join(err, store.Close()) }()

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "SERVER\tSETTING\tVALUE\tWHAT CAN BE LOST") // errors come with Flush
	wrong, refused := 0, 0
	for _, f := range store.Inspect(ctx) {
		verdict := "ok"
		if f.Loss != "" {
			wrong++
			verdict = f.Loss
		}
		if f.Refused {
			refused++
			verdict += " (strict refuses it)"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Server, f.Setting, cmp.Or(f.Value, "-"), verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("lines that are not ok: %d, of which strict refuses: %d", wrong, refused)
	}
	return nil
}

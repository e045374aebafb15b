package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-idempotency/caddy-idempotency/caddymodule"
)

// newDoctorCommand returns the command that shows what the configured store's
// servers say about themselves, and what that means for the records; and that
// lets an operator adopt a store that has lost its records.
func newDoctorCommand() *cobra.Command {
	cmd := newCommand("doctor [--adopt --reason <text>]", "Shows what the store's servers may lose", `
Asks the Redis servers of a configuration what they are, how they persist and
what they evict, and prints a table that says what can be lost because of it.
It changes nothing. It ends with exit code 1 if something can be lost, or if a
server cannot be used. The configuration is that of --config, with --address that
of a running Caddy, and by default a Caddyfile in the working directory.

With --adopt it tells a running Caddy that its store is right as it is, although
strict has found it without the marker that it had: it was flushed, is another
database, or failed over to an empty replica. Submits with a key are taken
again then. Repeats of those that the store has lost are sent again: if there is a
job already there will be two, and both are billed. It ends with exit code 9 if
there is nothing to adopt.`,
		cobra.NoArgs, func(client *adminClient, fl caddycmd.Flags) error {
			if fl.Bool("adopt") {
				return adopt(client, fl)
			}
			text, err := client.get("/config/")
			if err != nil {
				return err
			}
			return doctor(text, fl)
		})
	cmd.Flags().Bool("adopt", false, "Have a running Caddy take its store as it is")
	cmd.Flags().String("reason", "", "Why you decide so, for the log (required with --adopt)")
	cmd.Flags().Bool("json", false, "Print JSON")
	askRunning := cmd.RunE
	fromFile := caddycmd.WrapCommandFuncForCobra(func(fl caddycmd.Flags) (int, error) {
		text, _, _, err := caddycmd.LoadConfig(fl.String("config"), fl.String("adapter"))
		if err == nil {
			err = doctor(text, fl)
		}
		if err != nil {
			return caddy.ExitCodeFailedStartup, err
		}
		return caddy.ExitCodeSuccess, nil
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("adopt") || cmd.Flags().Changed("address") {
			return askRunning(cmd, args)
		}
		return fromFile(cmd, args)
	}
	return cmd
}

// doctor shows what the servers of a configuration say, which is JSON.
func doctor(text []byte, fl caddycmd.Flags) error {
	if fl.Changed("reason") {
		return errors.New("--reason is for --adopt")
	}
	var config struct {
		Apps struct {
			Idempotency caddymodule.App `json:"idempotency"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("reading configuration: %w", err)
	}
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	store, err := config.Apps.Idempotency.LoadStore(ctx)
	if err != nil {
		return err
	}
	server, ok := store.(*caddymodule.RedisStore)
	switch {
	case ok:
		return examine(ctx, server, os.Stdout, fl.Bool("json"))
	case fl.Bool("json"):
		_, err = fmt.Println("[]")
	default:
		_, err = fmt.Printf("The store is %s, which has no server to ask.\n", store.CaddyModule().ID.Name())
	}
	return err
}

// printedFinding is a finding as --json prints it.
type printedFinding struct {
	Server  string `json:"server"`
	Setting string `json:"setting"`
	Value   string `json:"value"`
	Loss    string `json:"loss,omitempty"`
	Refused bool   `json:"refused"`
}

// examine writes what the servers say, and returns an error if anything is
// wrong.
func examine(ctx context.Context, store *caddymodule.RedisStore, out io.Writer, asJSON bool) error {
	findings, err := store.Inspect(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "SERVER\tSETTING\tVALUE\tWHAT CAN BE LOST") // errors come with Flush
	documents := []printedFinding{}
	wrong, rejected := 0, 0
	for _, f := range findings {
		verdict := "ok"
		if f.Loss != "" {
			wrong++
			verdict = f.Loss
		}
		if f.Refused {
			rejected++
			verdict += " (strict refuses it)"
		}
		documents = append(documents, printedFinding(f))
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Server, f.Setting, cmp.Or(f.Value, "-"), verdict)
	}
	if asJSON {
		err = json.NewEncoder(out).Encode(documents)
	} else {
		err = table.Flush()
	}
	if err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("%d problems found, %d rejected by strict", wrong, rejected)
	}
	return nil
}

// adopt is doctor with --adopt.
func adopt(client *adminClient, fl caddycmd.Flags) error {
	if strings.TrimSpace(fl.String("reason")) == "" {
		return errors.New("--reason is missing")
	}
	reply, err := client.post(adoptPath, adoptOrder{fl.String("reason")})
	if err != nil {
		return fmt.Errorf("adopt the store: %w", err)
	}
	if fl.Bool("json") {
		return printJSON(reply)
	}
	_, err = fmt.Println("The store was adopted.")
	return err
}

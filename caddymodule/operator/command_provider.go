package operator

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-idempotency/caddy-idempotency/provider"
)

func newProviderCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "provider [<name>]",
		Short: "Lists the presets of providers, or prints the Caddyfile lines that one stands for",
		Long: `
Without a name it lists the presets. With one it prints the lines that
"provider <name>" stands for in the directive idempotency, with the source of
each fact and what is not certain. Options beside "provider" override single
lines.`,
		Args: cobra.MaximumNArgs(1),
		RunE: caddycmd.WrapCommandFuncForCobra(func(fl caddycmd.Flags) (int, error) {
			if err := printProvider(fl.Arg(0)); err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			return caddy.ExitCodeSuccess, nil
		}),
	}
}

func printProvider(name string) error {
	if name == "" {
		table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		for _, name := range provider.Names() {
			preset, _, err := provider.Lookup(name)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(table, "%s\t%s\n", name, preset.Title()) // Flush reports what goes wrong
		}
		return table.Flush()
	}
	preset, found, err := provider.Lookup(name)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("there is no preset named %q; there are %s", name, strings.Join(provider.Names(), ", "))
	}
	_, err = fmt.Fprint(os.Stdout, preset.Caddyfile())
	return err
}

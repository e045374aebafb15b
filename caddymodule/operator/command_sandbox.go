package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-idempotency/caddy-idempotency/sandbox"
)

// defaultSandboxAddress is where Caddyfile.example looks for a provider.
const defaultSandboxAddress = "localhost:9090"

func newSandboxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sandbox [--listen <address>] [--lose-answers <share>] [--slow <duration>] [--errors <status>] [--seed <n>]",
		Short: "Runs a provider for trying things out, which counts what it would have billed",
		Long: `
Runs a provider that accepts every POST as a job with an id of its own, and
prints a line for each with what it would have billed. It honours no
Idempotency-Key, as most providers do not.

	POST /v1/videos            a submit; any other path will do, too
	GET  /v1/jobs/{id}         a job: queued, running, succeeded or canceled
	GET  /v1/jobs              all jobs: status, limit, after
	POST /v1/jobs/{id}/cancel  ends a job
	GET  /bill                 submits, jobs and dollars

On request it behaves as providers do on bad days.`,
		Args: cobra.NoArgs,
		RunE: caddycmd.WrapCommandFuncForCobra(func(fl caddycmd.Flags) (int, error) {
			if err := runSandbox(fl); err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			return caddy.ExitCodeSuccess, nil
		}),
	}
	cmd.Flags().String("listen", defaultSandboxAddress, "Where to listen")
	cmd.Flags().Float64("lose-answers", 0, "Share of submits, 0 to 1, that are accepted and whose answer is lost")
	cmd.Flags().Duration("slow", 0, "How long a submit waits for its answer")
	cmd.Flags().Int("errors", 0, "Status that one submit of five is answered with; after a 5xx but 503 the job is billed all the same")
	cmd.Flags().Uint64("seed", 0, "Repeats the chances of an earlier run; 0 draws them anew")
	return cmd
}

func runSandbox(fl caddycmd.Flags) error {
	config := sandbox.Config{Slow: fl.Duration("slow"), Errors: fl.Int("errors"), Log: os.Stdout}
	var err error
	if config.LoseAnswers, err = fl.GetFloat64("lose-answers"); err != nil {
		return err
	}
	if config.Seed, err = fl.GetUint64("seed"); err != nil {
		return err
	}
	provider, err := sandbox.New(config)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", fl.String("listen"))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Printf("sandbox provider at http://%s, seed %d; stop it with Ctrl-C\n", listener.Addr(), provider.Seed())

	server := &http.Server{Handler: provider, ReadHeaderTimeout: time.Minute}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	unregister := context.AfterFunc(ctx, func() { _ = server.Close() }) // jobs are only in memory: nothing is lost
	defer unregister()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	bill := provider.Bill()
	fmt.Printf("%d submits, %d jobs: it would have billed $%.2f\n", bill.Submits, bill.Jobs, bill.Dollars)
	return nil
}

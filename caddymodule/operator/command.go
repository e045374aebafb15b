package operator

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "idempotency",
		Short: "Shows records of submits, decides about those whose outcome is unknown, and forgets those that are wrong",
		Long: `
Shows what the idempotency gateway knows about submits, decides about those whose
outcome is unknown, and forgets those that are wrong or cannot be read, through
the admin endpoint of a running Caddy.

The commands exit with status 0 when they did what they say, 4 if there is no
such record, 9 if the state of the record does not allow the decision (it is not
unknown, or cannot be read; its attempt is alive; somebody else was faster), and 1
for everything else. Nothing is
changed then, unless the message says that it may have been.`,
		CobraFunc: func(cmd *cobra.Command) {
			for _, subcommand := range []func() *cobra.Command{
				newListCommand, newShowCommand, newFindCommand, newCompleteCommand, newReleaseCommand, newForgetCommand,
				newDoctorCommand, newReadyCommand, newProviderCommand, newSandboxCommand,
			} {
				cmd.AddCommand(subcommand())
			}
		},
	})
}

// Exit statuses, after the HTTP statuses that cause them.
const (
	exitNoRecord = 4 // 404
	exitConflict = 9 // 409
)

// newCommand returns a subcommand that talks to a running Caddy. Its flags
// find the admin endpoint as those of caddy stop and caddy reload do.
func newCommand(usage, short, long string, args cobra.PositionalArgs, run func(*adminClient, caddycmd.Flags) error) *cobra.Command {
	cmd := &cobra.Command{Use: usage, Short: short, Long: long, Args: args}
	cmd.Flags().String("address", "", "The address of the admin endpoint, if not the default")
	cmd.Flags().StringP("config", "c", "", "Configuration file to find the admin address in, if --address is not used")
	cmd.Flags().StringP("adapter", "a", "", "Name of the config adapter to apply to --config")
	cmd.RunE = caddycmd.WrapCommandFuncForCobra(func(fl caddycmd.Flags) (int, error) {
		address, err := caddycmd.DetermineAdminAPIAddress(fl.String("address"), nil, fl.String("config"), fl.String("adapter"))
		if err != nil {
			return caddy.ExitCodeFailedStartup, fmt.Errorf("find the admin endpoint: %w", err)
		}
		client, err := newAdminClient(address)
		if err == nil {
			err = run(client, fl)
		}
		var refused *refusal
		switch {
		case err == nil:
			return caddy.ExitCodeSuccess, nil
		case errors.As(err, &refused) && refused.status == http.StatusNotFound:
			return exitNoRecord, err
		case errors.As(err, &refused) && refused.status == http.StatusConflict:
			return exitConflict, err
		default:
			return caddy.ExitCodeFailedStartup, err
		}
	})
	return cmd
}

func newListCommand() *cobra.Command {
	cmd := newCommand("list [--state <state>] [--older-than <duration>] [--namespace <name>] [--path <path>] [--label <text>]",
		"Lists records, the oldest first", `
Lists records, the oldest first. In a path or a label a * at the end stands for
anything.

If there are more records than --limit, the last line on the standard error
output says how to go on.`,
		cobra.NoArgs, list)
	cmd.Flags().String("state", "", "Only records that are uncertain, in_progress or completed")
	cmd.Flags().String("older-than", "", "Only records of submits that came that long ago, such as 15m")
	cmd.Flags().String("namespace", "", "Only records of a namespace")
	cmd.Flags().String("path", "", "Only records of a request path, or of all that begin with it: /v1/*")
	cmd.Flags().String("label", "", "Only records with a label, or with one that begins so: team-a*")
	cmd.Flags().Int("limit", defaultListLimit, "How many records")
	cmd.Flags().String("cursor", "", "Where to go on")
	cmd.Flags().Bool("json", false, "Print the admin API's answer")
	return cmd
}

func list(client *adminClient, fl caddycmd.Flags) error {
	query := url.Values{"limit": {strconv.Itoa(fl.Int("limit"))}}
	for parameter, flag := range map[string]string{
		"state": "state", "older_than": "older-than", "namespace": "namespace", "path": "path", "label": "label", "cursor": "cursor",
	} {
		if value := fl.String(flag); value != "" {
			query.Set(parameter, value)
		}
	}
	reply, err := client.get(recordsPath + "?" + query.Encode())
	if err != nil {
		return err
	}
	if fl.Bool("json") {
		return printJSON(reply)
	}
	var page listDocument
	if err := json.Unmarshal(reply, &page); err != nil {
		return fmt.Errorf("read the answer of the admin endpoint: %w", err)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		for i, cell := range cells {
			cells[i] = printable(cell)
		}
		_, _ = fmt.Fprintln(table, strings.Join(cells, "\t")) // Flush reports what goes wrong
	}
	row("ID", "STATE", "CREATED", "NAMESPACE", "METHOD", "PATH", "STATUS", "JOB", "LABEL", "ERROR")
	for _, r := range page.Records {
		row(string(r.ID), r.State, r.CreatedAt.Format(time.RFC3339), r.Namespace, r.Method, r.Path, statusText(r.Status), r.JobID, r.Label, r.Error)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, id := range page.Unreadable {
		fmt.Fprintf(os.Stderr, "record %s cannot be read by this gateway; forget removes it\n", id)
	}
	if more := page.UnreadableCount - len(page.Unreadable); more > 0 {
		fmt.Fprintf(os.Stderr, "and %d more cannot be read\n", more)
	}
	if page.NextCursor != "" {
		fmt.Fprintf(os.Stderr, "there are more: --cursor %s\n", page.NextCursor)
	}
	return nil
}

func statusText(status int) string {
	if status == 0 {
		return ""
	}
	return strconv.Itoa(status)
}

// printable returns a text that came from a caller or a provider as it can be
// shown on a terminal: what is no printable character, such as the start of an
// escape sequence, is written as in a Go string.
func printable(text string) string {
	if text == "" {
		return "-"
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(text)
	}
	return text
}

func newShowCommand() *cobra.Command {
	cmd := newCommand("show <record>", "Shows one record", `
Shows one record. The key, and the answer of a completed record with its header,
are secret: they are shown only with --reveal.`,
		cobra.ExactArgs(1), func(client *adminClient, fl caddycmd.Flags) error {
			return show(client, fl, fl.Arg(0))
		})
	addShowFlags(cmd)
	return cmd
}

func addShowFlags(cmd *cobra.Command) {
	cmd.Flags().Bool("reveal", false, "Show also the key, and the answer with its header")
	cmd.Flags().Bool("json", false, "Print the admin API's answer")
}

func show(client *adminClient, fl caddycmd.Flags, id string) error {
	path := recordsPath + "/" + url.PathEscape(id)
	if fl.Bool("reveal") {
		path += "?reveal=true"
	}
	reply, err := client.get(path)
	if err != nil {
		return fmt.Errorf("record %s: %w", printable(id), err)
	}
	if fl.Bool("json") {
		return printJSON(reply)
	}
	if unreadable, err := showUnreadable(reply); unreadable || err != nil {
		return err
	}
	var r recordDocument
	if err := json.Unmarshal(reply, &r); err != nil {
		return fmt.Errorf("read the answer of the admin endpoint: %w", err)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", name, printable(value)) // Flush reports what goes wrong
	}
	line("id", string(r.ID))
	line("state", r.State)
	line("namespace", r.Namespace)
	line("method", r.Method)
	line("path", r.Path)
	line("status", statusText(r.Status))
	line("job_id", r.JobID)
	line("label", r.Label)
	line("created_at", r.CreatedAt.Format(time.RFC3339Nano))
	line("lease_until", r.LeaseUntil.Format(time.RFC3339Nano))
	line("expires_at", r.ExpiresAt.Format(time.RFC3339Nano))
	line("error", r.Error)
	if d := r.Decision; d != nil {
		line("decision", d.What)
		line("decided_at", d.At.Format(time.RFC3339Nano))
		line("decided_by", d.By)
		line("reason", d.Reason)
	}
	line("attempt", r.Attempt)
	if fl.Bool("reveal") {
		line("key", string(r.Key))
		names := make([]string, 0, len(r.Headers))
		for name := range r.Headers {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			for _, value := range r.Headers[name] {
				line("header", name+": "+value)
			}
		}
		line("body", string(r.Body)+string(r.BodyBase64))
	}
	return table.Flush()
}

// showUnreadable shows a record that cannot be read, and reports whether it is
// one.
func showUnreadable(reply []byte) (bool, error) {
	var r unreadableDocument
	if err := json.Unmarshal(reply, &r); err != nil || !r.Unreadable {
		return false, nil // a recordDocument says what is wrong with it
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{{"id", string(r.ID)}, {"state", r.State}, {"error", r.Error}, {"attempt", r.Attempt}} {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", line[0], printable(line[1])) // Flush reports what goes wrong
	}
	return true, table.Flush()
}

func newFindCommand() *cobra.Command {
	cmd := newCommand("find [--key <key>] [--namespace <name>] [--credential <field>... | --scope <name>...]", "Finds the record of an idempotency key", `
Finds the record of an idempotency key, and shows it.

It asks for the values of the key's scope, and for the key if --key is not given,
without showing what is typed. If the standard input is not a terminal it has
one value in each line, in that order. They do not leave this process: the record's
id is a digest of them.

The scope's values are those that the handler's option scope has for the caller's
request; by default the whole values of the header fields Authorization and
X-Api-Key, empty if the request has none. If it has Api-Key, xi-api-key,
x-goog-api-key, Ocp-Apim-Subscription-Key or X-Auth-Token, name each with
--credential. Name the values with --scope if the handler has that option, in
their order.`,
		cobra.NoArgs, find)
	cmd.Flags().String("key", "", "The key, as the caller sent it")
	cmd.Flags().String("namespace", "", "The handler's namespace")
	cmd.Flags().StringArray("credential", nil, "A further header field that the request has, of the default scope")
	cmd.Flags().StringArray("scope", nil, "What to ask for: the names of the values of the handler's option scope")
	cmd.MarkFlagsMutuallyExclusive("credential", "scope")
	addShowFlags(cmd)
	return cmd
}

func find(client *adminClient, fl caddycmd.Flags) error {
	ask := newQuestioner(os.Stdin)
	scope, err := askScope(fl, ask)
	if err != nil {
		return err
	}
	text := fl.String("key")
	if !fl.Changed("key") {
		if text, err = ask("Idempotency-Key"); err != nil {
			return err
		}
	}
	key, err := idempotency.ParseKey([]string{text})
	if err != nil {
		return err
	}
	return show(client, fl, string(idempotency.NewRecordID(fl.String("namespace"), scope, key)))
}

// askScope asks for the values of the scope: those that the flags name, or those
// of the default scope.
func askScope(fl caddycmd.Flags, ask func(name string) (string, error)) (scope []string, err error) {
	names, err := fl.GetStringArray("scope")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		value, err := ask(name)
		if err != nil {
			return nil, err
		}
		scope = append(scope, value)
	}
	if len(names) > 0 {
		return scope, nil
	}
	others, err := fl.GetStringArray("credential")
	if err != nil {
		return nil, err
	}
	for _, name := range others {
		if !idempotency.IsCredentialField(http.CanonicalHeaderKey(name)) {
			return nil, fmt.Errorf("the default scope has no field %s; with the option scope, name its values with --scope", name)
		}
	}
	header := make(http.Header)
	for _, name := range slices.Concat([]string{"Authorization", "X-Api-Key"}, others) {
		value, err := ask(name)
		if err != nil {
			return nil, err
		}
		header.Set(name, value)
	}
	return idempotency.DefaultScope(header), nil
}

// newQuestioner returns a function that asks for one value: on a terminal
// without an echo, otherwise as the next line.
func newQuestioner(input *os.File) func(name string) (string, error) {
	lines := bufio.NewReader(input)
	return func(name string) (string, error) {
		if fd := int(input.Fd()); term.IsTerminal(fd) {
			fmt.Fprintf(os.Stderr, "%s: ", name)
			value, err := term.ReadPassword(fd)
			fmt.Fprintln(os.Stderr)
			if err != nil {
				return "", fmt.Errorf("read %s: %w", name, err)
			}
			return string(value), nil
		}
		line, err := lines.ReadString('\n')
		if err != nil && (line == "" || !errors.Is(err, io.EOF)) {
			return "", fmt.Errorf("read %s from the standard input: %w", name, err)
		}
		return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"), nil
	}
}

func newCompleteCommand() *cobra.Command {
	cmd := newCommand("complete <record> --reason <text> [--status <code>] [--header <field: value>...] (--body <text>|@<file> | --empty)",
		"Gives an unknown submit the answer that the provider had given", `
Gives an unknown submit the answer that the provider had given: the job exists.
The next repeat gets it as a replay.

The body is a text, or the content of a file with @<file>; @- is the standard
input. It is replayed as it is. Its Content-Type is application/json unless a
--header says otherwise. An answer without a body needs --empty.`,
		cobra.ExactArgs(1), complete)
	cmd.Flags().Int("status", http.StatusAccepted, "The status of the answer")
	cmd.Flags().StringArray("header", nil, "A header field of the answer: 'Name: value'")
	cmd.Flags().String("body", "", "The body of the answer, or @file")
	cmd.Flags().Bool("empty", false, "The answer has no body")
	addDecisionFlags(cmd)
	return cmd
}

func newReleaseCommand() *cobra.Command {
	cmd := newCommand("release <record> --reason <text>", "Frees the key of an unknown submit: the next repeat submits", `
Frees the key of an unknown submit: the job does not exist, or you decide to risk
a second one. The next repeat submits.`,
		cobra.ExactArgs(1), func(client *adminClient, fl caddycmd.Flags) error {
			return decide(client, fl, "release", map[string]any{})
		})
	addDecisionFlags(cmd)
	return cmd
}

func newForgetCommand() *cobra.Command {
	cmd := newCommand("forget <record> --reason <text> [--state <state>]", "Removes a record that is wrong or cannot be read: the next repeat submits", `
Removes a record in any state, unless its submit is running: what was stored as an
acceptance was a failure, or nobody can read the record, which then blocks its key.
The next repeat submits. If there is a job after all there will be two, and both
are billed.

For a submit whose outcome is unknown there is release.`,
		cobra.ExactArgs(1), func(client *adminClient, fl caddycmd.Flags) error {
			order := map[string]any{}
			if state := fl.String("state"); state != "" {
				order["state"] = state
			}
			return decide(client, fl, "forget", order)
		})
	cmd.Flags().String("state", "", "Forget only if the record still is completed, uncertain or unreadable")
	addDecisionFlags(cmd)
	return cmd
}

func addDecisionFlags(cmd *cobra.Command) {
	cmd.Flags().String("reason", "", "Why you decide so, for the log (required)")
	cmd.Flags().String("attempt", "", "Decide only if the record still has this attempt, as show has shown it")
	cmd.Flags().Bool("json", false, "Print the admin API's answer")
}

func complete(client *adminClient, fl caddycmd.Flags) error {
	lines, err := fl.GetStringArray("header")
	if err != nil {
		return err
	}
	header := make(http.Header)
	for _, line := range lines {
		name, value, found := strings.Cut(line, ":")
		if !found {
			return fmt.Errorf("--header %q is not 'Name: value'", line)
		}
		header.Add(name, strings.TrimSpace(value))
	}
	body := []byte(fl.String("body"))
	if file, found := strings.CutPrefix(fl.String("body"), "@"); found {
		read := os.ReadFile
		if file == "-" {
			read = func(string) ([]byte, error) { return io.ReadAll(os.Stdin) }
		}
		if body, err = read(file); err != nil {
			return fmt.Errorf("--body: %w", err)
		}
	}
	order := map[string]any{"status": fl.Int("status"), "headers": header}
	switch empty := fl.Bool("empty"); {
	case empty && len(body) > 0:
		return errors.New("--empty and --body are mutually exclusive")
	case empty:
		order["empty"] = true
	case len(body) == 0:
		return errors.New("--body is missing, or --empty for an answer that has none")
	}
	if len(body) > 0 {
		if !json.Valid(body) && header.Get("Content-Type") == "" {
			return errors.New("--body is not JSON: give its --header 'Content-Type: …'")
		}
		order["body_base64"] = body // as it is: white space in JSON, too
	}
	return decide(client, fl, "complete", order)
}

func decide(client *adminClient, fl caddycmd.Flags, decision string, order map[string]any) error {
	if strings.TrimSpace(fl.String("reason")) == "" {
		return errors.New("--reason is missing")
	}
	id := fl.Arg(0)
	order["reason"] = fl.String("reason")
	if attempt := fl.String("attempt"); attempt != "" {
		order["attempt"] = attempt
	}
	reply, err := client.post(recordsPath+"/"+url.PathEscape(id)+"/"+decision, order)
	if err != nil {
		return fmt.Errorf("%s record %s: %w", decision, printable(id), err)
	}
	if fl.Bool("json") {
		return printJSON(reply)
	}
	var done decisionDocument
	if err := json.Unmarshal(reply, &done); err != nil {
		return fmt.Errorf("read the answer of the admin endpoint: %w", err)
	}
	_, err = fmt.Printf("%s %s\n", done.Decision, done.ID)
	return err
}

func printJSON(reply []byte) error {
	_, err := os.Stdout.Write(reply)
	return err
}

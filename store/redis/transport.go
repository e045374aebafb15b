package redis

import (
	"context"
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts by SHA-1; nothing is secured by it.
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// allowOOM lets a script write on a server that is over maxmemory: a full
// server may refuse a claim, never an acceptance.
const allowOOM = "#!lua flags=allow-oom\n"

// noWrites lets a script run where nothing may be written.
const noWrites = "#!lua flags=no-writes\n"

// script is a Lua script and its name on the server. go-redis's own Script is
// not used because it gives no way to mark the command as sent once.
type script struct {
	operation string
	source    string
	sha1      string
	// awaited are the results after which what it wrote counts only when the
	// configured replicas have it.
	awaited []string
}

func newScript(operation, source string) script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see above
	return script{operation: operation, source: source, sha1: hex.EncodeToString(sum[:])}
}

func (s script) awaitedAt(results ...string) script {
	s.awaited = results
	return s
}

// sentOnce is a command that go-redis sends once. Without it the client
// re-sends on time-outs, and on a Cluster even with MaxRetries: -1. A Cluster's
// redirections are followed: the node that redirects has not executed it.
type sentOnce struct {
	*goredis.Cmd
	// wait, if set, follows the command on its connection; see server.
	wait *goredis.Cmd
}

// waiting makes the command that follows, nil for none.
type waiting func(context.Context) *goredis.Cmd

func (sentOnce) NoRetry() bool { return true }

func (s script) bySHA(ctx context.Context, keys []string, args ...any) sentOnce {
	return s.command(ctx, "evalsha", s.sha1, keys, args)
}

func (s script) bySource(ctx context.Context, keys []string, args ...any) sentOnce {
	return s.command(ctx, "eval", s.source, keys, args)
}

func (script) command(ctx context.Context, name, body string, keys []string, args []any) sentOnce {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, name, body, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	return sentOnce{Cmd: goredis.NewCmd(ctx, append(words, args...)...)}
}

// run sends the script, by its source if the server does not know it yet. No
// other error is a reason to send again.
func (s script) run(ctx context.Context, client goredis.UniversalClient, wait waiting, keys []string, args ...any) sentOnce {
	cmd := s.bySHA(ctx, keys, args...)
	process := func() {
		if wait != nil {
			cmd.wait = wait(ctx)
		}
		_ = client.Process(ctx, cmd)
	}
	process()
	if isNoScript(cmd.Err()) {
		cmd = s.bySource(ctx, keys, args...)
		process()
	}
	return cmd
}

func isNoScript(err error) bool { return goredis.HasErrorPrefix(err, "NOSCRIPT") }

// answer is what every script returns.
type answer struct {
	now    time.Time
	result string
	record string // or the digest of a value that cannot be read
	reason string // why it cannot
}

// call sends a script for one key. The question is its first argument, which the
// reply repeats.
func (t *transport) call(ctx context.Context, sc script, keys []string, question string, args ...any) (answer, error) {
	client := t.current()
	var wait waiting
	if sc.awaited != nil {
		wait = t.wait
	}
	cmd := sc.run(ctx, client, wait, keys, append([]any{question}, args...)...)
	a, err := sc.parse(cmd, keys[0], question)
	if err == nil && cmd.wait != nil && slices.Contains(sc.awaited, a.result) {
		err = t.confirm(cmd.wait)
	}
	t.handleError(ctx, client, err)
	return a, err
}

// errForeignReply means that the server answered another question. The
// connection is out of step, and every later reply on it would be, too.
var errForeignReply = errors.New("redis: the server's reply does not belong to the question")

// parse checks that the reply belongs to this script, key and question, which is
// the script's first argument.
func (s script) parse(cmd sentOnce, key, question string) (answer, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return answer{}, translate(err)
	}
	text := make([]string, len(reply))
	for i, element := range reply {
		t, ok := element.(string)
		if !ok {
			return answer{}, errForeignReply
		}
		text[i] = t
	}
	if len(text) < 5 || text[0] != s.operation || text[1] != key || text[2] != question {
		return answer{}, errForeignReply
	}
	ms, err := strconv.ParseInt(text[3], 10, 64)
	if err != nil {
		return answer{}, errForeignReply
	}
	a := answer{now: time.UnixMilli(ms), result: text[4]}
	if len(text) > 5 {
		a.record = text[5]
	}
	if len(text) > 6 {
		a.reason = text[6]
	}
	return a, nil
}

// translate gives a driver's error the meaning that idempotency.Store asks for.
func translate(err error) error {
	if err == nil {
		return nil
	}
	var fromServer goredis.Error
	if errors.As(err, &fromServer) {
		if strings.HasPrefix(err.Error(), "UNREADABLE") {
			return fmt.Errorf("%w: redis: %w", idempotency.ErrUnreadable, err)
		}
		// The server answered with an error. Scripts write last, so nothing
		// was written.
		return fmt.Errorf("%w: redis: %w", idempotency.ErrNotApplied, err)
	}
	if neverSent(err) {
		return fmt.Errorf("%w: redis: %w", idempotency.ErrNotApplied, err)
	}
	return fmt.Errorf("redis: %w", err)
}

// neverSent reports errors from before a command could be written.
func neverSent(err error) bool {
	var noConnection connectError
	var unfit unfitError
	return errors.As(err, &noConnection) || errors.As(err, &unfit) ||
		errors.Is(err, goredis.ErrPoolTimeout) || errors.Is(err, goredis.ErrPoolExhausted) || errors.Is(err, goredis.ErrClosed)
}

package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Finding is one thing that a server says about itself. Its Setting is the
// server's own name for it, as in redis.conf or INFO.
type Finding = idempotency.Finding

// Inspect asks all servers now, and returns all that they say, what is well
// included, ordered by server.
func (s *Store) Inspect(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeout(ctx, 2*s.config.Timeout)
	defer cancel()
	before := s.health.names()
	var mu sync.Mutex
	found := map[string][]Finding{}
	failed := func(err error) []Finding {
		return []Finding{{Setting: settingConnection, Value: "failed", Loss: err.Error()}}
	}
	err := s.eachServer(ctx, func(ctx context.Context, name string, client *goredis.Client) {
		findings, runID, err := s.ask(ctx, client.Pipeline())
		if err != nil {
			findings = failed(err)
		}
		s.note(name, runID, findings)
		mu.Lock()
		defer mu.Unlock()
		found[name] = findings
	})
	if err != nil {
		// No node says which ones there are.
		name := strings.Join(s.config.Addresses, " ")
		found[name] = failed(err)
		s.note(name, "", found[name])
	} else {
		s.forget(slices.DeleteFunc(before, func(name string) bool { _, still := found[name]; return still }))
	}

	if s.config.Strict && err == nil {
		s.lookAtMarkers(ctx, found)
	}

	var all []Finding
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, f := range found[name] {
			f.Server = name
			all = append(all, f)
		}
	}
	return all
}

const (
	settingConnection = "connection"
	settingRunID      = "run_id"
)

var errLoading = errors.New("the server is reading its data")

// ask asks one server in one round trip. An error means that it cannot be used.
// Nothing is found on a connection to a Sentinel.
func (s *Store) ask(ctx context.Context, pipe goredis.Pipeliner) (findings []Finding, runID string, err error) {
	hello := pipe.Do(ctx, "hello") // which every user may send
	info := pipe.Do(ctx, "info")
	config := pipe.Do(ctx, "config", "get", "appendfsync", "no-appendfsync-on-rewrite", "save")
	_, _ = pipe.Exec(ctx) // each command has its own error

	reply, err := hello.Result()
	var fromServer goredis.Error
	switch {
	case err != nil && !neverSent(err) && goredis.HasErrorPrefix(err, "unknown command"):
		return nil, "", unfitError{"it does not know HELLO, and Redis 7.0 or later is needed"}
	case err != nil:
		return nil, "", noConnection(err)
	}
	fields := parseHello(reply)
	if err := s.fitness(fields); err != nil {
		return nil, "", err
	}
	if fields["mode"] == modeSentinel {
		return nil, "", nil
	}
	version := Finding{Setting: "version", Value: fields["version"]}
	if s.config.Fsync && beforeWaitAOF(fields["version"]) {
		version.Loss = "it does not know WAITAOF, which fsync needs: submits with a key get 503; use Redis 7.2 or later"
	}
	findings = []Finding{version, {Setting: "role", Value: fields["role"]}}
	text, err := info.Text()
	switch {
	case errors.As(err, &fromServer):
		findings = append(findings, Finding{Setting: "INFO", Value: "denied", Refused: true,
			Loss: "what the server may lose is not known: allow the user +info"})
		return findings, "", nil
	case err != nil:
		return nil, "", noConnection(err)
	}
	server := parseInfo(text)
	if server["loading"] == "1" {
		// It carries out nothing, and says meanwhile that it has no append-only file.
		return nil, "", noConnection(errLoading)
	}
	settings := map[string]string{}
	if pairs, err := config.Slice(); err == nil {
		for i := 0; i+1 < len(pairs); i += 2 {
			name, _ := pairs[i].(string)
			settings[name], _ = pairs[i+1].(string)
		}
	}
	return append(findings, s.judge(server, settings, fields["role"] == roleMaster)...), server[settingRunID], nil
}

// judge says what the state and the settings of a server mean. Settings is
// empty if the server does not tell them.
func (s *Store) judge(info, settings map[string]string, primary bool) []Finding {
	var findings []Finding
	say := func(setting, value, loss string, refused bool) {
		findings = append(findings, Finding{Setting: setting, Value: value, Loss: loss, Refused: loss != "" && refused})
	}
	when := func(condition bool, loss string) string {
		if condition {
			return loss
		}
		return ""
	}

	limit, _ := strconv.ParseFloat(info["maxmemory"], 64) // 0 is no limit
	used, _ := strconv.ParseFloat(info["used_memory"], 64)
	say("maxmemory", info["maxmemory"],
		when(limit > 0 && used > 0.9*limit, "more than nine tenths of it are used: a full server refuses new submits"), false)
	policy := info["maxmemory_policy"]
	say("maxmemory-policy", policy, when(limit > 0 && policy != "noeviction",
		"a full server removes records without a word, and a repeat of their submit is sent again: set noeviction"), true)

	if info["aof_enabled"] == "1" {
		say("appendonly", "yes", "", false)
		sync, told := settings["appendfsync"]
		switch {
		case !told:
			say("appendfsync", "unknown",
				"what a failure of the machine loses is not known: allow the user +config|get, or see the documentation of the service", true)
		default:
			say("appendfsync", sync, when(sync != "always" && sync != "everysec",
				"a failure of the machine loses what its kernel has not written, commonly 30 seconds of records: set always or everysec"), true)
		}
		if rewrite, told := settings["no-appendfsync-on-rewrite"]; told {
			say("no-appendfsync-on-rewrite", rewrite, when(rewrite == "yes",
				"while the file is rewritten a failure of the machine loses as much as with appendfsync no: set no"), false)
		}
		status := info["aof_last_write_status"]
		say("aof_last_write_status", status, when(status != "ok",
			"the server cannot write its append-only file: see its log and its disk"), true)
	} else {
		lost := "all records since the last snapshot"
		if save, told := settings["save"]; told && save == "" {
			lost = "all records"
		}
		say("appendonly", "no", "a restart loses "+lost+", and a repeat of their submit is sent again: set yes", true)
		status := info["rdb_last_bgsave_status"]
		say("rdb_last_bgsave_status", status, when(status != "ok",
			"the server cannot write its snapshot: see its log and its disk"), true)
	}

	if primary {
		n, err := strconv.Atoi(info["connected_slaves"])
		say("connected_slaves", info["connected_slaves"], when(err == nil && n < s.config.Replicas,
			fmt.Sprintf("a claim needs %d of them: submits with a key get 503", s.config.Replicas)), false)
	}
	return findings
}

// unfitError says that a server cannot keep records as it is configured here.
// Nothing is sent to it.
type unfitError struct{ reason string }

func (e unfitError) Error() string { return "the server cannot be used: " + e.reason }

const (
	modeCluster  = "cluster"
	modeSentinel = "sentinel"
	roleMaster   = "master"
)

// fitness looks at the reply to HELLO.
func (s *Store) fitness(hello map[string]string) error {
	version, mode := hello["version"], hello["mode"]
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	switch {
	case err != nil || n < 7:
		return unfitError{fmt.Sprintf("its version is %q, and Redis 7.0 or later is needed", version)}
	case mode == modeSentinel && s.config.Sentinel != "":
		return nil // the way to the master
	case mode == modeSentinel:
		return unfitError{"it is a Sentinel: set the option sentinel with the name of the master"}
	case mode == modeCluster && !s.config.Cluster:
		return unfitError{"it is a node of a Redis Cluster: set the option cluster"}
	case mode != modeCluster && s.config.Cluster:
		return unfitError{"it is not a node of a Redis Cluster: remove the option cluster"}
	case hello["role"] != roleMaster && !s.config.Cluster:
		// A Cluster's replica redirects to its primary; any other is a dead end.
		return unfitError{"it is a read-only replica: give the address of the primary, or use sentinel or cluster"}
	default:
		return nil
	}
}

// beforeWaitAOF reports whether a version that is fit is one before 7.2, which
// brought WAITAOF.
func beforeWaitAOF(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	return major == "7" && err == nil && n < 2
}

// parseHello reads the reply to HELLO: pairs in a list, or a map on the
// connections to Sentinels, where go-redis speaks RESP3.
func parseHello(reply any) map[string]string {
	fields := map[string]string{}
	set := func(name, value any) {
		if name, ok := name.(string); ok {
			fields[name], _ = value.(string) // numbers and lists are of no interest
		}
	}
	switch reply := reply.(type) {
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			set(reply[i], reply[i+1])
		}
	case map[any]any:
		for name, value := range reply {
			set(name, value)
		}
	}
	return fields
}

// parseInfo reads the reply to INFO.
func parseInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

var (
	_ idempotency.Findings  = (*Store)(nil)
	_ idempotency.Watcher   = (*Store)(nil)
	_ idempotency.Inspector = (*Store)(nil)
)

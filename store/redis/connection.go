package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// poolSize is the number of connections to one server. An operation holds one
// for a round trip, with Replicas until the replicas have confirmed: at 5 ms
// each, 64 of them take 12,800 operations a second.
const poolSize = 64

// transport reaches the configured servers: it has their connections, sends
// scripts once, and checks that a reply belongs to its question. It knows keys,
// and nothing of what is under them.
type transport struct {
	config Config
	// greet returns what is done with each new connection to a server before it
	// is used.
	greet func(server string) func(context.Context, *goredis.Conn) error

	mu     sync.Mutex
	client goredis.UniversalClient
}

// connect returns a client of the configured topology: one server, the master
// that Sentinels name, or a Cluster. It does no I/O.
func (t *transport) connect() goredis.UniversalClient {
	c := t.config
	options := &goredis.UniversalOptions{
		Addrs:            c.Addresses,
		Username:         c.Username,
		Password:         c.Password,
		SentinelUsername: c.SentinelUsername,
		SentinelPassword: c.SentinelPassword,
		MasterName:       c.Sentinel,
		DB:               c.DB,
		TLSConfig:        c.TLS,

		// Whether to send again is the engine's decision, see sentOnce. What a
		// Cluster redirects was not executed, and is followed.
		MaxRetries:    -1,
		DialerRetries: 1,

		ContextTimeoutEnabled: true,
		DialTimeout:           c.Timeout,
		ReadTimeout:           c.Timeout,
		WriteTimeout:          c.Timeout,
		PoolTimeout:           c.Timeout,
		PoolSize:              poolSize,
		PipelinePoolSize:      -1, // pipelines take their connections from the same pool

		// RESP2 has no push messages that could get between two replies.
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	switch {
	case c.Cluster:
		cluster := options.Cluster()
		// A routing policy would ask the server for all of its commands.
		cluster.DisableRoutingPolicies = true
		cluster.NewClient = t.newServer
		return goredis.NewClusterClient(cluster)
	case c.Sentinel != "":
		failover := options.Failover()
		failover.OnConnect = t.greet(c.Sentinel)
		client := goredis.NewFailoverClient(failover)
		client.AddHook(server{client, c.Sentinel})
		return client
	default:
		simple := options.Simple()
		simple.Network = c.Network
		return t.newServer(simple)
	}
}

// newServer returns the client of one server, or of one node of a Cluster.
func (t *transport) newServer(options *goredis.Options) *goredis.Client {
	options.OnConnect = t.greet(options.Addr)
	client := goredis.NewClient(options)
	client.AddHook(server{client, ""})
	return client
}

func (t *transport) current() goredis.UniversalClient {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.client
}

// reconnect replaces a client on which a reply came to the wrong question:
// go-redis would go on using the connection.
func (t *transport) reconnect(broken goredis.UniversalClient) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == broken {
		t.client = t.connect()
		_ = broken.Close() // what is on its way there fails, as it should
	}
}

// handleError looks at the error of an operation. A node of a Cluster that does not
// answer may have been replaced: go-redis would learn that from a redirection,
// which a dead node does not send, or after a minute.
func (t *transport) handleError(ctx context.Context, client goredis.UniversalClient, err error) {
	if errors.Is(err, errForeignReply) {
		t.reconnect(client)
		return
	}
	cluster, ok := client.(*goredis.ClusterClient)
	var fromServer goredis.Error
	if ok && err != nil && !errors.As(err, &fromServer) {
		cluster.ReloadState(ctx)
	}
}

// eachServer calls do for the server, or for all nodes of the Cluster at the
// same time.
func (t *transport) eachServer(ctx context.Context, do func(ctx context.Context, name string, client *goredis.Client)) error {
	switch client := t.current().(type) {
	case *goredis.ClusterClient:
		return client.ForEachShard(ctx, func(ctx context.Context, node *goredis.Client) error {
			do(ctx, node.Options().Addr, node)
			return nil
		})
	case *goredis.Client:
		name := t.config.Sentinel
		if name == "" {
			name = t.config.Addresses[0]
		}
		do(ctx, name, client)
		return nil
	default:
		return fmt.Errorf("redis: unexpected client %T", client)
	}
}

// primaries returns the servers that have keys of their own, in the order of their
// addresses.
func (t *transport) primaries(ctx context.Context) ([]*goredis.Client, error) {
	switch client := t.current().(type) {
	case *goredis.Client:
		return []*goredis.Client{client}, nil
	case *goredis.ClusterClient:
		var mu sync.Mutex
		var servers []*goredis.Client
		err := client.ForEachMaster(ctx, func(_ context.Context, server *goredis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			servers = append(servers, server)
			return nil
		})
		slices.SortFunc(servers, func(a, b *goredis.Client) int { return strings.Compare(a.Options().Addr, b.Options().Addr) })
		return servers, err
	default:
		return nil, fmt.Errorf("redis: unexpected client %T", client)
	}
}

// server is the hook of a client that talks to one server.
type server struct {
	client *goredis.Client
	master string // the name that Sentinels know it by, if there are any
}

var _ goredis.Hook = server{}

// connectError means that there is no connection, so nothing was sent on it.
type connectError struct{ error }

// Unwrap returns a list, because go-redis takes one layer off the errors of a
// new connection with errors.Unwrap, which does not look into lists.
func (e connectError) Unwrap() []error { return []error{e.error} }

// noConnection marks what went wrong with a connection before it was used, if
// the error does not say so by itself.
func noConnection(err error) error {
	var fromServer goredis.Error
	if errors.As(err, &fromServer) || neverSent(err) {
		return err
	}
	return connectError{fmt.Errorf("connect: %w", err)}
}

// DialHook marks what comes before a connection exists: name, Sentinel, dial,
// TLS.
func (h server) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		switch {
		case err == nil:
			return conn, nil
		case h.master != "" && errors.Is(err, goredis.Nil):
			return nil, connectError{fmt.Errorf("no Sentinel knows a master named %q", h.master)}
		default:
			return nil, connectError{fmt.Errorf("connect: %w", err)} // also what a Sentinel says
		}
	}
}

// ProcessHook sends a command that waits for replicas as a pipeline, and marks
// what goes wrong with a connection's first command.
func (h server) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if once, ok := cmd.(sentOnce); ok && once.wait != nil {
			pipe := h.client.Pipeline()
			_ = pipe.Process(ctx, cmd) // queues; the error comes with the reply
			_, _ = pipe.Exec(ctx)
			return cmd.Err()
		}
		err := next(ctx, cmd)
		if err != nil && cmd.Name() == "hello" {
			err = h.noGreeting(err)
			cmd.SetErr(err)
		}
		return err
	}
}

// noGreeting says what may be wrong with a connection whose first command
// failed. With TLS 1.3 the handshake is over for the client before the server
// has looked at its certificate.
func (h server) noGreeting(err error) error {
	var fromServer goredis.Error
	var timeout net.Error
	switch {
	case errors.As(err, &fromServer), errors.As(err, &timeout) && timeout.Timeout():
	case h.client.Options().TLSConfig != nil:
		err = fmt.Errorf("the server ended the connection, it may want another client certificate: %w", err)
	default:
		err = fmt.Errorf("the server ended the connection, it may want TLS: %w", err)
	}
	return noConnection(err)
}

// ProcessPipelineHook puts WAIT behind each command that waits for replicas.
// WAIT counts the writes of its own connection only, and here is where the two
// stay together wherever a Cluster redirects them to.
func (server) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		with := make([]goredis.Cmder, 0, len(cmds)+1)
		for _, cmd := range cmds {
			with = append(with, cmd)
			if once, ok := cmd.(sentOnce); ok && once.wait != nil {
				with = append(with, once.wait)
			}
		}
		err := next(ctx, with)
		// If the server refused a new connection (a wrong password), go-redis
		// leaves the commands without an error.
		if err != nil && !slices.ContainsFunc(with, func(cmd goredis.Cmder) bool { return cmd.Err() != nil }) {
			for _, cmd := range with {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

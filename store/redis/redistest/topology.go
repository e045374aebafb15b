package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

// StartReplica runs a replica of a server and returns when it follows.
func StartReplica(t testing.TB, primary *Server, options ...string) *Server {
	t.Helper()
	host, port, _ := strings.Cut(primary.Address, ":")
	replica := Start(t, append([]string{"--replicaof", host + " " + port}, options...)...)
	replica.awaitFollowing(t, primary)
	return replica
}

// awaitFollowing waits until a replica can confirm what its primary takes.
func (s *Server) awaitFollowing(t testing.TB, primary *Server) {
	t.Helper()
	s.AwaitInfo(t, "master_link_status:up")
	_, port, _ := strings.Cut(s.Address, ":")
	Await(t, s.Address+" to follow", func() bool {
		info, err := primary.Client.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, "port="+port+",state=online,")
	})
}

// CutFrom cuts a replica off from its primary, which goes on without it. It can
// still be promoted, with what it has.
func (s *Server) CutFrom(t testing.TB, primary *Server) {
	t.Helper()
	CutOff(t, primary, s)
}

// CutOff cuts several replicas off from their primary at the same moment: none
// has what another lacks, so it does not matter which one is promoted.
func CutOff(t testing.TB, primary *Server, replicas ...*Server) {
	t.Helper()
	ctx := context.Background()
	for _, replica := range replicas {
		if err := replica.Client.ConfigSet(ctx, "masterauth", "cut off").Err(); err != nil {
			t.Fatal(err)
		}
	}
	Await(t, "the replicas to be cut off", func() bool {
		_ = primary.Client.ClientKillByFilter(ctx, "type", "replica").Err() // there may be none any more
		for _, replica := range replicas {
			info, err := replica.Client.Info(ctx, "replication").Result()
			if err != nil || !strings.Contains(info, "master_link_status:down") {
				return false
			}
		}
		return true
	})
}

// Mend lets a replica that was cut off follow again.
func (s *Server) Mend(t testing.TB) {
	t.Helper()
	if err := s.Client.ConfigSet(context.Background(), "masterauth", "").Err(); err != nil {
		t.Fatal(err)
	}
}

// AwaitInfo waits until INFO has the line.
func (s *Server) AwaitInfo(t testing.TB, line string) {
	t.Helper()
	Await(t, line+" at "+s.Address, func() bool {
		info, err := s.Client.Info(context.Background(), "everything").Result()
		return err == nil && strings.Contains(info, line+"\r\n")
	})
}

// Sentinels is a primary, its replicas, and three Sentinels that watch them.
type Sentinels struct {
	// Master is the name under which the Sentinels know the primary.
	Master string
	// Addresses are those of the Sentinels.
	Addresses []string
	// Servers are the primary and its replicas.
	Servers []*Server
	// Sentinels are the Sentinels' processes.
	Sentinels []*Server
}

// StartSentinels runs a primary with two replicas and three Sentinels, which
// take it for dead after half a second. The options are for the servers.
func StartSentinels(t testing.TB, options ...string) *Sentinels {
	t.Helper()
	d := &Sentinels{Master: "mymaster"}
	primary := Start(t, options...)
	d.Servers = []*Server{primary}
	for range 2 {
		d.Servers = append(d.Servers, StartReplica(t, primary, options...))
	}
	host, port, _ := strings.Cut(primary.Address, ":")
	for range 3 {
		dir := t.TempDir()
		file := filepath.Join(dir, "sentinel.conf")
		own := FreePort(t)
		config := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %[3]s %[4]s %[5]s 2\n"+
			"sentinel down-after-milliseconds %[3]s 500\nsentinel failover-timeout %[3]s 3000\nsentinel parallel-syncs %[3]s 2\n",
			own, dir, d.Master, host, port)
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		s := &Server{Address: fmt.Sprintf("127.0.0.1:%d", own), log: &syncBuffer{}, args: []string{file, "--sentinel"}}
		s.Client = goredis.NewClient(&goredis.Options{Addr: s.Address, MaxRetries: -1})
		t.Cleanup(func() {
			_ = s.Client.Close()
			s.Stop(t)
		})
		s.Run(t)
		d.Sentinels = append(d.Sentinels, s)
		d.Addresses = append(d.Addresses, s.Address)
	}
	for _, s := range d.Sentinels {
		s.AwaitInfo(t, fmt.Sprintf("master0:name=%s,status=ok,address=%s,slaves=2,sentinels=3", d.Master, primary.Address))
	}
	return d
}

// Primary returns the server that the Sentinels agree on.
func (d *Sentinels) Primary(t testing.TB) *Server {
	t.Helper()
	var primary *Server
	Await(t, "the Sentinels to agree on a primary", func() bool {
		primary = nil
		for _, sentinel := range d.Sentinels {
			reply, err := sentinel.Client.Do(context.Background(), "sentinel", "get-master-addr-by-name", d.Master).StringSlice()
			if err != nil || len(reply) != 2 {
				return false
			}
			i := slices.IndexFunc(d.Servers, func(s *Server) bool { return s.Address == reply[0]+":"+reply[1] })
			if i < 0 || primary != nil && primary != d.Servers[i] {
				return false
			}
			primary = d.Servers[i]
		}
		role, err := primary.Client.Do(context.Background(), "role").Slice()
		return err == nil && role[0] == "master"
	})
	return primary
}

// Cluster is a Redis Cluster of three primaries, each with a replica.
type Cluster struct {
	// Nodes are the three primaries and then, in the same order, their replicas.
	Nodes []*Server
	// IDs are the nodes' own names for themselves.
	IDs []string
}

// StartCluster runs six nodes, which take another for dead after a second. The
// options are for the nodes.
func StartCluster(t testing.TB, options ...string) *Cluster {
	t.Helper()
	c := new(Cluster)
	for i := range 6 {
		c.Add(t, options...)
		c.must(t, i, "cluster", "set-config-epoch", i+1)
	}
	for i := range 6 {
		if i < 3 {
			c.must(t, i, "cluster", "addslotsrange", 16384*i/3, 16384*(i+1)/3-1)
		}
		c.meet(t, i)
	}
	c.awaitNodes(t)
	for i := 3; i < 6; i++ {
		c.must(t, i, "cluster", "replicate", c.IDs[i-3])
	}
	for i := 3; i < 6; i++ {
		c.Nodes[i].awaitFollowing(t, c.Nodes[i-3])
	}
	c.awaitNodes(t)
	return c
}

// Add runs one more node, which knows no other until Join.
func (c *Cluster) Add(t testing.TB, options ...string) {
	t.Helper()
	node := Start(t, slices.Concat([]string{
		"--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(FreePort(t)),
		"--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0",
		"--cluster-allow-replica-migration", "no",
	}, options)...)
	id, err := node.Client.Do(context.Background(), "cluster", "myid").Text()
	if err != nil {
		t.Fatal(err)
	}
	c.Nodes, c.IDs = append(c.Nodes, node), append(c.IDs, id)
}

// Join makes the last node, as a primary without slots, known to all others.
func (c *Cluster) Join(t testing.TB) {
	t.Helper()
	c.meet(t, len(c.Nodes)-1)
	c.awaitNodes(t)
}

func (c *Cluster) meet(t testing.TB, i int) {
	t.Helper()
	host, port, _ := strings.Cut(c.Nodes[0].Address, ":")
	busPort := c.Nodes[0].args[slices.Index(c.Nodes[0].args, "--cluster-port")+1]
	c.must(t, i, "cluster", "meet", host, port, busPort)
}

// awaitNodes waits until all nodes know each other and call the cluster sound.
func (c *Cluster) awaitNodes(t testing.TB) {
	t.Helper()
	for i, node := range c.Nodes {
		Await(t, "node "+node.Address+" to know the others", func() bool {
			info, err := node.Client.ClusterInfo(context.Background()).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") ||
				!strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r\n", len(c.Nodes))) {
				return false
			}
			nodes, err := node.Client.ClusterNodes(context.Background()).Result()
			return err == nil && !strings.Contains(nodes, "handshake") && strings.Contains(nodes, c.IDs[i]) &&
				!strings.Contains(nodes, ",noaddr")
		})
	}
}

func (c *Cluster) must(t testing.TB, i int, args ...any) {
	t.Helper()
	if err := c.Nodes[i].Client.Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("%v at node %d: %v", args, i, err)
	}
}

// Addresses returns those of all nodes.
func (c *Cluster) Addresses() []string {
	var addresses []string
	for _, node := range c.Nodes {
		addresses = append(addresses, node.Address)
	}
	return addresses
}

// Owner returns the index of the node that serves a key.
func (c *Cluster) Owner(t testing.TB, key string) int {
	t.Helper()
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: c.Addresses()})
	defer client.Close()
	node, err := client.MasterForKey(context.Background(), key)
	if err != nil {
		t.Fatalf("find who serves %s: %v", key, err)
	}
	return slices.IndexFunc(c.Nodes, func(s *Server) bool { return s.Address == node.Options().Addr })
}

// MoveSlot moves the slot of a key, with what is in it, to another node.
// During, if set, is called while the slot is on its way: after the two nodes
// know of it and after each key that was moved.
func (c *Cluster) MoveSlot(t testing.TB, slot int64, from, to int, during func()) {
	t.Helper()
	if during == nil {
		during = func() {}
	}
	ctx := context.Background()
	c.must(t, to, "cluster", "setslot", slot, "importing", c.IDs[from])
	c.must(t, from, "cluster", "setslot", slot, "migrating", c.IDs[to])
	during()
	host, port, _ := strings.Cut(c.Nodes[to].Address, ":")
	for {
		keys, err := c.Nodes[from].Client.ClusterGetKeysInSlot(ctx, int(slot), 1).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		c.must(t, from, "migrate", host, port, keys[0], 0, 5000)
		during()
	}
	c.must(t, to, "cluster", "setslot", slot, "node", c.IDs[to])
	c.must(t, from, "cluster", "setslot", slot, "node", c.IDs[to])
	for i, node := range c.Nodes {
		if i == to || i == from || strings.Contains(node.role(), "slave") {
			continue
		}
		c.must(t, i, "cluster", "setslot", slot, "node", c.IDs[to])
	}
}

func (s *Server) role() string {
	role, err := s.Client.Do(context.Background(), "role").Slice()
	if err != nil || len(role) == 0 {
		return ""
	}
	name, _ := role[0].(string)
	return name
}

// Client returns a client of the whole cluster, for what a test wants to see or
// spoil.
func (c *Cluster) Client(t testing.TB) *goredis.ClusterClient {
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: c.Addresses()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// A command whose reply does not come is sent once, whatever the topology: the
// client must not repeat what may have been done.
func TestSentOnce(t *testing.T) {
	t.Parallel()
	for _, topology := range []struct {
		name    string
		mode    string
		cluster bool
	}{
		{"standalone", "standalone", false},
		{"cluster", "cluster", true},
	} {
		for _, fault := range []struct {
			name   string
			closes bool
		}{
			{"no reply", false},
			{"connection closed", true},
		} {
			for _, replicas := range []int{0, 1} {
				t.Run(fmt.Sprint(topology.name, " ", fault.name, " ", replicas), func(t *testing.T) {
					t.Parallel()
					var f *fakeServer
					f = startFakeServer(t, "7.0.0", topology.mode, func(command []string) (string, bool) {
						switch command[0] {
						case "cluster":
							return slotsOf(f.address), false
						case "evalsha", "wait":
							return "", fault.closes
						default:
							return "-ERR not now\r\n", false
						}
					})
					store := newStore(t, redis.Config{
						Addresses: []string{f.address}, Cluster: topology.cluster, Timeout: 200 * time.Millisecond, Replicas: replicas,
					})
					_, err := claim(store, "k")
					if err == nil || errors.Is(err, idempotency.ErrNotApplied) {
						t.Errorf("Claim gave %v, want an error that leaves open whether it was applied", err)
					}
					if n := f.count("evalsha"); n != 1 {
						t.Errorf("the claim was sent %d times", n)
					}
					replies, err := store.Renew(context.Background(), []idempotency.Renewal{{Lease: time.Minute}, {ID: "other", Lease: time.Minute}})
					if err == nil {
						t.Errorf("Renew gave %v", replies)
					}
					if n := f.count("evalsha"); n > 3 {
						t.Errorf("with two renewals %d scripts were sent, want 3", n)
					}
				})
			}
		}
	}
}

// WAIT travels with the claim: the server gets it before it has answered.
func TestWaitIsPipelined(t *testing.T) {
	t.Parallel()
	var f *fakeServer
	waited := make(chan struct{})
	var once sync.Once
	f = startFakeServer(t, "7.0.0", "standalone", func(command []string) (string, bool) {
		switch command[0] {
		case "evalsha":
			// The reply comes with that to WAIT.
			return "", false
		case "wait":
			once.Do(func() { close(waited) })
			return "", true
		default:
			return "-ERR not now\r\n", false
		}
	})
	store := newStore(t, redis.Config{Addresses: []string{f.address}, Replicas: 1, Timeout: time.Second})
	if _, err := claim(store, "k"); err == nil {
		t.Error("the claim was granted")
	}
	select {
	case <-waited:
	default:
		t.Error("WAIT did not come before the reply to the claim")
	}
}

// With Fsync a claim counts only when the disks have it. The replies are those
// of Redis 7.2, and of a server that does not know WAITAOF.
func TestFsync(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, reply string
		confirmed   bool
	}{
		{"all disks", array(integer(1), integer(2)), true},
		{"not the server's own", array(integer(0), integer(2)), false},
		{"too few replicas", array(integer(1), integer(0)), false},
		{"not supported", "-ERR unknown command 'waitaof', with args beginning with: '1' '1' '500' \r\n", false},
		{"no append-only file", "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := startFakeServer(t, "7.2.0", "standalone", func(command []string) (string, bool) {
				switch command[0] {
				case "evalsha":
					key, token := command[3], command[4]
					return array(bulk("claim"), bulk(key), bulk(token), bulk("1796018225643"), bulk("claimed")), false
				case "waitaof":
					if want := []string{"waitaof", "1", "1", "500"}; !slices.Equal(command, want) {
						t.Errorf("the command is %q, want %q", command, want)
					}
					return test.reply, false
				default:
					return "-ERR not now\r\n", false
				}
			})
			store := newStore(t, redis.Config{
				Addresses: []string{f.address}, Replicas: 1, Fsync: true, ReplicasTimeout: 500 * time.Millisecond, Timeout: 5 * time.Second,
			})
			_, err := claim(store, "k")
			if test.confirmed && err != nil {
				t.Errorf("Claim: %v", err)
			}
			if !test.confirmed && (!errors.Is(err, redis.ErrUnconfirmed) || errors.Is(err, idempotency.ErrNotApplied)) {
				t.Errorf("Claim gave %v, want ErrUnconfirmed, which leaves it open", err)
			}
		})
	}
}

// What a server refuses in these words it has not done.
func TestNotApplied(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"READONLY You can't write against a read only replica.", "LOADING Redis is loading the dataset in memory",
		"MASTERDOWN Link with MASTER is down", "CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request during rehashing of slot",
		"OOM command not allowed when used memory > 'maxmemory'", "MISCONF Errors writing to the AOF file", "NOREPLICAS Not enough good replicas to write.",
		"NOPERM this user has no permissions", "ERR max number of clients reached",
	} {
		t.Run(strings.Fields(reply)[0], func(t *testing.T) {
			t.Parallel()
			for _, cluster := range []bool{false, true} {
				mode := "standalone"
				if cluster {
					mode = "cluster"
				}
				var f *fakeServer
				f = startFakeServer(t, "7.0.0", mode, func(command []string) (string, bool) {
					switch command[0] {
					case "cluster":
						return slotsOf(f.address), false
					case "wait":
						return integer(1), false
					default:
						return "-" + reply + "\r\n", false
					}
				})
				for _, replicas := range []int{0, 1} {
					store := newStore(t, redis.Config{Addresses: []string{f.address}, Cluster: cluster, Replicas: replicas})
					if _, err := claim(store, "k"); !errors.Is(err, idempotency.ErrNotApplied) {
						t.Errorf("cluster %t, replicas %d: Claim gave %v, want ErrNotApplied", cluster, replicas, err)
					}
				}
			}
		})
	}
}

// After a failover the connection to the server that was demoted is not used
// for another claim.
func TestReadOnlyEndsConnection(t *testing.T) {
	t.Parallel()
	f := startFakeServer(t, "7.0.0", "standalone", func(command []string) (string, bool) {
		if command[0] == "evalsha" {
			return "-READONLY You can't write against a read only replica.\r\n", false
		}
		return "-NOPERM no\r\n", false
	})
	for _, replicas := range []int{0, 1} {
		store := newStore(t, redis.Config{Addresses: []string{f.address}, Replicas: replicas})
		for range 3 {
			_, _ = claim(store, "k")
		}
	}
	if n := f.count("evalsha"); n != 6 {
		t.Fatalf("%d claims came, want 6", n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, commands := range f.connections {
		if i := slices.Index(commands, "evalsha"); i >= 0 && len(commands) > i+1 && (commands[i+1] != "wait" || len(commands) > i+2) {
			t.Errorf("a connection was used after its server had said that it is read-only: %v", commands)
		}
	}
}

func keyID(key string) idempotency.RecordID {
	return idempotency.NewRecordID("", nil, idempotency.Key(key))
}

// A slot that moves while claims, renewals and completions run is not noticed,
// and neither is SCRIPT FLUSH in a loop.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	c.Add(t)
	c.Join(t)
	newcomer := len(c.Nodes) - 1 // has no slot, so nobody has heard of it
	for _, replicas := range []int{0, 1} {
		t.Run(fmt.Sprint("replicas ", replicas), func(t *testing.T) {
			prefix := fmt.Sprintf("{%s}", t.Name()) // one slot for all keys
			store := newStore(t, redis.Config{Addresses: c.Addresses()[:1], Cluster: true, Prefix: prefix, Replicas: replicas, Timeout: 2 * time.Second})
			slot, err := c.Nodes[0].Client.ClusterKeySlot(context.Background(), prefix).Result()
			if err != nil {
				t.Fatal(err)
			}
			var flushing sync.WaitGroup
			stop := make(chan struct{})
			flushing.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						for _, node := range c.Nodes {
							_ = node.Client.ScriptFlush(context.Background()).Err() // replicas refuse
						}
					}
				}
			})
			defer flushing.Wait()
			defer close(stop)

			n := 0
			use := func() {
				t.Helper()
				n++
				c, err := claim(store, fmt.Sprint(n))
				if err != nil {
					t.Fatalf("claim %d: %v", n, err)
				}
				replies, err := store.Renew(context.Background(), []idempotency.Renewal{{ID: c.ID, Token: c.Token, Lease: time.Minute}})
				if err != nil || !replies[0].Applied {
					t.Fatalf("renewal %d: %v, %v", n, replies, err)
				}
				if err := complete(store, c); err != nil {
					t.Fatalf("completion %d: %v", n, err)
				}
			}
			for range 5 {
				use()
			}
			from := c.Owner(t, prefix)
			to := (from + 1) % 3
			c.MoveSlot(t, slot, from, to, use)
			for range 5 {
				use()
			}
			if replicas == 0 {
				c.MoveSlot(t, slot, to, newcomer, use)
				use()
				c.MoveSlot(t, slot, newcomer, from, use)
			} else {
				c.MoveSlot(t, slot, to, from, use)
			}
			for i := 1; i <= n; i++ {
				record, found, err := store.Get(context.Background(), keyID(fmt.Sprint(i)))
				if err != nil || !found || record.State != idempotency.Completed {
					t.Fatalf("record %d is %v, found %t, %v", i, record.State, found, err)
				}
			}
		})
	}
}

// A claim counts only when the replicas have it, and it is taken back by its
// token otherwise. What needs no claim goes on.
func TestFrozenReplica(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) {
		primary := redistest.Start(t)
		replica := redistest.StartReplica(t, primary)
		testFrozenReplica(t, redis.Config{Addresses: []string{primary.Address}}, func(idempotency.RecordID) *redistest.Server { return replica })
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.StartCluster(t)
		testFrozenReplica(t, redis.Config{Addresses: c.Addresses()[:1], Cluster: true}, func(id idempotency.RecordID) *redistest.Server {
			return c.Nodes[c.Owner(t, "idempotency:"+string(id))+3]
		})
	})
}

func testFrozenReplica(t *testing.T, config redis.Config, replicaOf func(idempotency.RecordID) *redistest.Server) {
	config.Replicas, config.Timeout, config.ReplicasTimeout = 1, 2*time.Second, 500*time.Millisecond
	store := newStore(t, config)
	var running idempotency.Claim
	tries := 0
	redistest.Await(t, "a claim to be confirmed", func() bool {
		tries++ // each with a key of its own
		var err error
		running, err = claim(store, fmt.Sprint("k", tries))
		return err == nil
	})
	replica := replicaOf(running.ID)
	replica.Freeze(t)
	again := running
	_, err := store.Claim(context.Background(), again)
	if !errors.Is(err, redis.ErrUnconfirmed) || errors.Is(err, idempotency.ErrNotApplied) {
		t.Errorf("Claim gave %v, want ErrUnconfirmed, which leaves it open", err)
	}
	if err := complete(store, running); err != nil {
		t.Errorf("Complete: %v", err)
	}
	again.Token = idempotency.NewToken()
	reply, err := store.Claim(context.Background(), again)
	if err != nil || reply.Verdict != idempotency.AlreadyCompleted {
		t.Errorf("a replay gave verdict %d, %v", reply.Verdict, err)
	}
	replica.Thaw(t)
	redistest.Await(t, "claims to be confirmed again", func() bool {
		again.ID = running.ID[:len(running.ID)-1] + "x"
		reply, err := store.Claim(context.Background(), again)
		return err == nil && reply.Verdict == idempotency.Claimed
	})
}

package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
	"github.com/caddy-idempotency/caddy-idempotency/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Fixture {
		path := filepath.Join(t.TempDir(), "new", "directory", "idempotency.db")
		reports := new(storetest.Reports)
		store := embedded.New(embedded.Config{Path: path, Report: reports.Report})
		closeStore := func() {
			if store == nil {
				return
			}
			if err := store.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			store = nil
		}
		t.Cleanup(closeStore)
		return storetest.Fixture{
			Store: store,
			Corrupt: func(t *testing.T, id idempotency.RecordID, value []byte) {
				t.Helper()
				if err := embedded.Corrupt(store, id, value); err != nil {
					t.Fatal(err)
				}
			},
			Reopen: func(t *testing.T) idempotency.Store {
				closeStore()
				reopened := embedded.New(embedded.Config{Path: path})
				t.Cleanup(func() { _ = reopened.Close() })
				return reopened
			},
			Reports: reports,
			Harm: func(t *testing.T) {
				if err := os.Rename(path, path+".away"); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func claimOf(key string) idempotency.Claim {
	return idempotency.Claim{
		ID:    idempotency.NewRecordID("", nil, idempotency.Key(key)),
		Token: idempotency.NewToken(), Lease: time.Minute, Retention: time.Hour,
		NotAfter: time.Now().Add(time.Hour), Payload: []byte("payload"),
	}
}

// What was acknowledged is on the disk: a copy of the file at that moment has
// it, without an orderly end of the process.
func TestAcknowledgedIsOnDisk(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "idempotency.db")
	store := embedded.New(embedded.Config{Path: path})
	t.Cleanup(func() { _ = store.Close() })
	c := claimOf("k")
	if _, err := store.Claim(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "copy.db")
	if err := os.WriteFile(copied, data, 0o600); err != nil {
		t.Fatal(err)
	}
	after := embedded.New(embedded.Config{Path: copied})
	t.Cleanup(func() { _ = after.Close() })
	r, found, err := after.Get(context.Background(), c.ID)
	if err != nil || !found || r.Token != c.Token {
		t.Errorf("the copy has the record %t, error %v", found, err)
	}
}

// TestSecondProcess runs the test binary again as the second process.
func TestSecondProcess(t *testing.T) {
	const variable = "EMBEDDED_TEST_PATH"
	if path := os.Getenv(variable); path != "" {
		store := embedded.New(embedded.Config{Path: path})
		defer store.Close()
		_, err := store.Claim(context.Background(), claimOf("k"))
		fmt.Printf("second process: not applied %t: %v\n", errors.Is(err, idempotency.ErrNotApplied), err)
		return
	}
	path := filepath.Join(t.TempDir(), "idempotency.db")
	store := embedded.New(embedded.Config{Path: path})
	if _, err := store.Claim(context.Background(), claimOf("k")); err != nil {
		t.Fatal(err)
	}
	run := func() string {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run", "^TestSecondProcess$")
		cmd.Env = append(os.Environ(), variable+"="+path)
		output, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("second process: %v\n%s", err, output)
		}
		return string(output)
	}
	if got := run(); !strings.Contains(got, "not applied true") || !strings.Contains(got, path+" is in use by another process") {
		t.Errorf("the second process said:\n%s", got)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if got := run(); !strings.Contains(got, "not applied false: <nil>") {
		t.Errorf("after the first had closed, the second process said:\n%s", got)
	}
}

// A file that cannot be opened now can be opened later, without a restart.
func TestOpensLater(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "blocked", "idempotency.db")
	if err := os.WriteFile(filepath.Join(dir, "blocked"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store := embedded.New(embedded.Config{Path: path})
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.Claim(context.Background(), claimOf("k")); !errors.Is(err, idempotency.ErrNotApplied) {
		t.Fatalf("Claim gave %v, want ErrNotApplied", err)
	}
	if err := os.Remove(filepath.Join(dir, "blocked")); err != nil {
		t.Fatal(err)
	}
	await(t, "the store to open", func() bool {
		_, err := store.Claim(context.Background(), claimOf("k"))
		return err == nil
	})
}

// await polls until the condition holds, for at most twenty seconds.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited twenty seconds for %s", what)
		}
	}
}

// clock is a clock that the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Expired records leave the file, and the others stay, while traffic flows.
func TestSweep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "idempotency.db")
	clock := &clock{now: time.Now()}
	store := embedded.New(embedded.Config{Path: path, Now: clock.Now, SweepInterval: 5 * time.Millisecond})
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			c := claimOf(fmt.Sprint("short", i))
			c.Lease, c.Retention = time.Second, time.Second
			if _, err := store.Claim(context.Background(), c); err != nil {
				t.Errorf("Claim: %v", err)
			}
		})
	}
	wg.Wait()
	kept := claimOf("kept")
	if _, err := store.Claim(context.Background(), kept); err != nil {
		t.Fatal(err)
	}
	clock.Advance(3 * time.Second)
	renewed, err := store.Renew(context.Background(), []idempotency.Renewal{{ID: kept.ID, Token: kept.Token, Lease: time.Hour}})
	if err != nil || !renewed[0].Applied {
		t.Fatalf("Renew: %+v, %v", renewed, err)
	}
	await(t, "one record and one expiry entry to be left", func() bool { return embedded.Stored(store) == [2]int{1, 1} })
	if _, found, err := store.Get(context.Background(), kept.ID); err != nil || !found {
		t.Errorf("the record that had not expired: found %t, error %v", found, err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	// The file is closed: another store can have it at once.
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatalf("open after Close: %v", err)
	}
	_ = db.Close()
}

// Only what makes and what removes a record writes its expiry entry. A record
// that lives on when it is looked at keeps one, and goes at its end.
func TestExpiryEntries(t *testing.T) {
	clock := &clock{now: time.Now()}
	store := embedded.New(embedded.Config{
		Path: filepath.Join(t.TempDir(), "idempotency.db"), Now: clock.Now, SweepInterval: time.Millisecond,
	})
	t.Cleanup(func() { _ = store.Close() })
	holds := func(what string, want [2]int) {
		t.Helper()
		await(t, what, func() bool { return embedded.Stored(store) == want })
	}
	claim := func(key string) idempotency.Claim {
		c := claimOf(key)
		c.Lease, c.Retention = time.Second, 10*time.Second
		if reply, err := store.Claim(context.Background(), c); err != nil || reply.Verdict != idempotency.Claimed {
			t.Fatalf("Claim: %+v, %v", reply, err)
		}
		return c
	}

	completed, released := claim("completed"), claim("released")
	holds("an entry for each record", [2]int{2, 2})
	if reply, err := store.Release(context.Background(), released.ID, released.Token); err != nil || !reply.Applied {
		t.Fatalf("Release: %+v, %v", reply, err)
	}
	holds("no entry of a released record", [2]int{1, 1})

	clock.Advance(9 * time.Second)
	if reply, err := store.Complete(context.Background(), idempotency.Ending{ID: completed.ID, Token: completed.Token}); err != nil || !reply.Applied {
		t.Fatalf("Complete: %+v, %v", reply, err)
	}
	clock.Advance(5 * time.Second)
	embedded.Sweep(store)
	if got := embedded.Stored(store); got != [2]int{1, 1} {
		t.Fatalf("in the middle of its life a completed record has %v records and entries, want one of each", got)
	}
	clock.Advance(5 * time.Second)
	holds("nothing after the retention", [2]int{0, 0})
}

// A lease and a retention with fractions of a millisecond leave no entry behind
// by which a record would be swept that lives.
func TestSweepWithFractions(t *testing.T) {
	clock := &clock{now: time.Now()}
	store := embedded.New(embedded.Config{
		Path: filepath.Join(t.TempDir(), "idempotency.db"), Now: clock.Now, SweepInterval: time.Millisecond,
	})
	t.Cleanup(func() { _ = store.Close() })
	c := claimOf("k")
	c.Lease, c.Retention = 999700*time.Microsecond, 1000700*time.Microsecond
	if _, err := store.Claim(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		clock.Advance(500 * time.Millisecond)
		replies, err := store.Renew(context.Background(), []idempotency.Renewal{{ID: c.ID, Token: c.Token, Lease: c.Lease}})
		if err != nil || !replies[0].Applied {
			t.Fatalf("Renew: %+v, %v", replies, err)
		}
	}
	if got := embedded.Stored(store); got != [2]int{1, 1} {
		t.Errorf("the file has %v records and expiry entries, want one of each", got)
	}
}

// A damaged file is an error, and not the end of the process. It stays one as
// long as it is damaged, for this store and for the next, and is tried again
// when it has been repaired.
func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "idempotency.db")
	store := embedded.New(embedded.Config{Path: path})
	for i := range 50 {
		if _, err := store.Claim(context.Background(), claimOf(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damaged := bytes.Clone(sound)
	for i := 2 * os.Getpagesize(); i < len(damaged); i++ {
		damaged[i] = 0xff
	}
	write(damaged)

	wantDamaged := func(store *embedded.Store) {
		t.Helper()
		if _, err := store.Claim(context.Background(), claimOf("k")); !errors.Is(err, idempotency.ErrNotApplied) || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("a claim in a damaged file gave %v", err)
		}
	}
	store = embedded.New(embedded.Config{Path: path})
	t.Cleanup(func() { _ = store.Close() })
	next := embedded.New(embedded.Config{Path: path})
	t.Cleanup(func() { _ = next.Close() })
	wantDamaged(store)
	before := mappings(t, path)
	for range 3 {
		embedded.ForgetLastTry(store)
		wantDamaged(store)
	}
	if n := mappings(t, path) - before; n > 0 {
		t.Errorf("%d more tries left the file mapped", n)
	}
	wantDamaged(next)

	write(sound)
	embedded.ForgetLastTry(next)
	if _, err := next.Claim(context.Background(), claimOf("k")); err != nil {
		t.Errorf("a claim in the repaired file gave %v", err)
	}
}

// mappings returns how often a file is mapped into this process's memory, where
// the system tells.
func mappings(t *testing.T, path string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), path)
}

// Concurrent changes share commits: one by one they would take more than two
// writes to the file each.
func TestChangesShareCommits(t *testing.T) {
	store := embedded.New(embedded.Config{Path: filepath.Join(t.TempDir(), "idempotency.db")})
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.Now(context.Background()); err != nil {
		t.Fatal(err)
	}
	before := embedded.DiskWrites(store)
	const writes = 400
	var wg sync.WaitGroup
	for i := range writes {
		wg.Go(func() {
			if _, err := store.Claim(context.Background(), claimOf(fmt.Sprint(i))); err != nil {
				t.Errorf("Claim: %v", err)
			}
		})
	}
	wg.Wait()
	if n := embedded.DiskWrites(store) - before; n > writes {
		t.Errorf("%d concurrent changes took %d writes to the file", writes, n)
	}
}

// A claim that is not granted waits for no commit, unless what it is told is
// perhaps not on the disk yet.
func TestRefusedClaimsWriteNothing(t *testing.T) {
	store := embedded.New(embedded.Config{Path: filepath.Join(t.TempDir(), "idempotency.db")})
	t.Cleanup(func() { _ = store.Close() })
	first := claimOf("k")
	if _, err := store.Claim(context.Background(), first); err != nil {
		t.Fatal(err)
	}
	again := first
	again.Token = idempotency.NewToken()
	claim := func() (verdict idempotency.Verdict, writes int64) {
		before := embedded.DiskWrites(store)
		reply, err := store.Claim(context.Background(), again)
		if err != nil {
			t.Fatal(err)
		}
		return reply.Verdict, embedded.DiskWrites(store) - before
	}
	if verdict, n := claim(); verdict != idempotency.StillInProgress || n != 0 {
		t.Errorf("a repeat got verdict %d and %d writes to the file, want none", verdict, n)
	}
	if _, err := store.Complete(context.Background(), idempotency.Ending{ID: first.ID, Token: first.Token}); err != nil {
		t.Fatal(err)
	}
	if verdict, n := claim(); verdict != idempotency.AlreadyCompleted || n != 0 {
		t.Errorf("a repeat got verdict %d and %d writes to the file, want none", verdict, n)
	}
	embedded.Unsync(store)
	if verdict, n := claim(); verdict != idempotency.AlreadyCompleted || n == 0 {
		t.Errorf("a repeat got verdict %d and %d writes to the file, want a commit before it is told", verdict, n)
	}
}

// A record that is taken over with another retention leaves no entry behind, and
// goes at its new end.
func TestTakenOverWithAnotherRetention(t *testing.T) {
	for name, retention := range map[string]time.Duration{"longer": time.Hour, "shorter": time.Second} {
		t.Run(name, func(t *testing.T) {
			clock := &clock{now: time.Now()}
			store := embedded.New(embedded.Config{
				Path: filepath.Join(t.TempDir(), "idempotency.db"), Now: clock.Now, SweepInterval: time.Hour,
			})
			t.Cleanup(func() { _ = store.Close() })
			ctx := context.Background()
			takenOver := func(key string) idempotency.Claim {
				t.Helper()
				c := claimOf(key)
				c.Lease, c.Retention = 0, time.Minute
				for range 2 { // the first's lease is over at once
					if reply, err := store.Claim(ctx, c); err != nil || reply.Verdict != idempotency.Claimed {
						t.Fatalf("Claim: %+v, %v", reply, err)
					}
					c.Token, c.Retention, c.TakeOver = idempotency.NewToken(), retention, true
				}
				record, found, err := store.Get(ctx, c.ID)
				if err != nil || !found || record.Retention != retention {
					t.Fatalf("the record has retention %s, found %t, error %v", record.Retention, found, err)
				}
				c.Token = record.Token
				return c
			}
			c := takenOver("decided")
			if reply, err := store.DecideRelease(ctx, c.ID, c.Token); err != nil || !reply.Applied {
				t.Fatalf("DecideRelease: %+v, %v", reply, err)
			}
			if got := embedded.Stored(store); got != [2]int{0, 0} {
				t.Errorf("the file has %v records and expiry entries, want none", got)
			}
			takenOver("expired")
			clock.Advance(retention)
			embedded.Sweep(store)
			if got := embedded.Stored(store); got != [2]int{0, 0} {
				t.Errorf("after the retention the file has %v records and expiry entries, want none", got)
			}
		})
	}
}

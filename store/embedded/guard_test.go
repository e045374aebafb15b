package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// watched is a store whose file the test does things to.
type watched struct {
	*embedded.Store
	path      string // by way of a symbolic link to its directory
	completed idempotency.Claim

	mu      sync.Mutex
	reports []string
}

// openWatched opens a store and completes a record in it. older is a copy of the
// file from the moment before.
func openWatched(t *testing.T) (w *watched, older []byte) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	w = &watched{path: filepath.Join(dir, "link", "idempotency.db"), completed: claimOf("completed")}
	w.Store = embedded.New(embedded.Config{Path: w.path, SweepInterval: time.Hour, Report: w.report})
	if _, err := w.Claim(context.Background(), claimOf("other")); err != nil {
		t.Fatal(err)
	}
	older = readFile(t, w.path)
	if _, err := w.Claim(context.Background(), w.completed); err != nil {
		t.Fatal(err)
	}
	reply, err := w.Complete(context.Background(), idempotency.Ending{ID: w.completed.ID, Token: w.completed.Token})
	if err != nil || !reply.Applied {
		t.Fatalf("Complete: %+v, %v", reply, err)
	}
	w.wantReports(t, "created true")
	w.reports = nil
	return w, older
}

func (w *watched) report(f idempotency.Finding, present bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Server != w.path || f.Setting != "file" || f.Loss == "" {
		w.reports = append(w.reports, fmt.Sprintf("server %q, setting %q, loss %q", f.Server, f.Setting, f.Loss))
	}
	w.reports = append(w.reports, fmt.Sprint(f.Value, " ", present))
}

func (w *watched) wantReports(t *testing.T, want ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.reports, want) {
		t.Errorf("reported was %q, want %q", w.reports, want)
	}
}

// repeat claims the completed key once more.
func (w *watched) repeat() (idempotency.Verdict, error) {
	c := w.completed
	c.Token = idempotency.NewToken()
	reply, err := w.Claim(context.Background(), c)
	return reply.Verdict, err
}

// wantLost wants that neither a known key nor a new one is granted, and that
// nothing can be read or written.
func (w *watched) wantLost(t *testing.T, change embedded.Change) {
	t.Helper()
	ctx := context.Background()
	operations := map[string]func() error{
		"a repeat":  func() error { _, err := w.repeat(); return err },
		"a new key": func() error { _, err := w.Claim(ctx, claimOf("new")); return err },
		"Complete": func() error {
			_, err := w.Complete(ctx, idempotency.Ending{ID: w.completed.ID, Token: w.completed.Token})
			return err
		},
		"Get":  func() error { _, _, err := w.Get(ctx, w.completed.ID); return err },
		"Scan": func() error { _, err := w.Scan(ctx, ""); return err },
	}
	for name, do := range operations {
		err := do()
		var lost *embedded.LostError
		if !errors.Is(err, idempotency.ErrNotApplied) || !errors.As(err, &lost) || lost.Change != change || lost.Path != w.path {
			t.Errorf("%s gave %v, want ErrNotApplied: the file was %s", name, err, change)
		}
	}
	if got := w.Findings(); len(got) != 1 || got[0].Value != string(change) {
		t.Errorf("the findings are %+v, want that the file was %s", got, change)
	}
}

func (w *watched) wantUsable(t *testing.T) {
	t.Helper()
	if verdict, err := w.repeat(); err != nil || verdict != idempotency.AlreadyCompleted {
		t.Errorf("a repeat of the completed key got verdict %d, error %v", verdict, err)
	}
	if reply, err := w.Claim(context.Background(), claimOf("new")); err != nil || reply.Verdict != idempotency.Claimed {
		t.Errorf("a new key got %+v, error %v", reply, err)
	}
	if got := w.Findings(); len(got) != 0 {
		t.Errorf("the findings are %+v, want none", got)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// overwrite writes over the bytes of a file without making it shorter.
func overwrite(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(data, 0)
	return errors.Join(err, file.Close())
}

var manipulations = []struct {
	name   string
	do     func(t *testing.T, path string, older []byte)
	change embedded.Change
}{
	{"removed", func(t *testing.T, path string, _ []byte) { must(t, os.Remove(path)) }, embedded.Removed},
	{"renamed", func(t *testing.T, path string, _ []byte) { must(t, os.Rename(path, path+".away")) }, embedded.Removed},
	{"its directory renamed", func(t *testing.T, path string, _ []byte) {
		real := filepath.Join(filepath.Dir(filepath.Dir(path)), "real")
		must(t, os.Rename(real, real+".away"))
	}, embedded.Removed},
	{"an older copy renamed over it", func(t *testing.T, path string, older []byte) {
		must(t, os.WriteFile(path+".backup", older, 0o600), os.Rename(path+".backup", path))
	}, embedded.Replaced},
	{"an equal copy renamed over it", func(t *testing.T, path string, _ []byte) {
		must(t, os.WriteFile(path+".backup", readFile(t, path), 0o600), os.Rename(path+".backup", path))
	}, embedded.Replaced},
	{"a directory in its place", func(t *testing.T, path string, _ []byte) {
		must(t, os.Remove(path), os.Mkdir(path, 0o700))
	}, embedded.Replaced},
	{"the link to its directory changed", func(t *testing.T, path string, older []byte) {
		link := filepath.Dir(path)
		other := filepath.Join(filepath.Dir(link), "other")
		must(t, os.Mkdir(other, 0o700), os.WriteFile(filepath.Join(other, filepath.Base(path)), older, 0o600),
			os.Remove(link), os.Symlink("other", link))
	}, embedded.Replaced},
	{"an older copy copied over it", func(t *testing.T, path string, older []byte) {
		must(t, os.WriteFile(path, older, 0o600))
	}, embedded.Overwritten},
	{"an older copy written over it", func(t *testing.T, path string, older []byte) {
		must(t, overwrite(path, older))
	}, embedded.Overwritten},
	{"cut to nothing", func(t *testing.T, path string, _ []byte) { must(t, os.Truncate(path, 0)) }, embedded.Cut},
	{"cut to one page", func(t *testing.T, path string, _ []byte) {
		must(t, os.Truncate(path, int64(os.Getpagesize())))
	}, embedded.Cut},
	{"cut by one page", func(t *testing.T, path string, _ []byte) {
		must(t, os.Truncate(path, int64(len(readFile(t, path))-os.Getpagesize())))
	}, embedded.Cut},
}

// A file that is no longer the one that was opened and written is neither
// believed nor written to. That is reported once, and the store can be closed.
func TestLostFile(t *testing.T) {
	for _, m := range manipulations {
		t.Run(m.name, func(t *testing.T) {
			w, older := openWatched(t)
			m.do(t, w.path, older)
			w.wantLost(t, m.change)
			w.wantReports(t, fmt.Sprint(m.change, " true"))
			must(t, w.Close())
		})
	}
}

// What is at the end of the file, and beyond what it needs, is nobody's.
func TestGarbageAtTheEnd(t *testing.T) {
	w, _ := openWatched(t)
	file, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = file.Write(make([]byte, 100_001))
	must(t, err, file.Close())
	w.wantUsable(t)
	w.wantReports(t)
	must(t, w.Close())
}

// A file that was away is used again when it is back as it was: nobody else can
// have written to it. Another one that came and went does not change that.
func TestFileIsBack(t *testing.T) {
	w, older := openWatched(t)
	must(t, os.Rename(w.path, w.path+".away"))
	w.wantLost(t, embedded.Removed)
	must(t, os.WriteFile(w.path, older, 0o600))
	w.wantLost(t, embedded.Replaced)
	must(t, os.Rename(w.path+".away", w.path))
	w.wantUsable(t)
	w.wantReports(t, "removed true", "replaced true", "replaced false")
	must(t, w.Close())
}

// One that was changed while it was away is not.
func TestFileIsBackChanged(t *testing.T) {
	w, older := openWatched(t)
	must(t, os.Rename(w.path, w.path+".away"))
	w.wantLost(t, embedded.Removed)
	must(t, os.WriteFile(w.path+".away", older, 0o600), os.Rename(w.path+".away", w.path))
	w.wantLost(t, embedded.Overwritten)
	w.wantReports(t, "removed true", "overwritten true")
	must(t, w.Close())
}

// A file that was cut or overwritten stays lost, also when its bytes are put
// back: bbolt has some of them in memory, and not all at one moment.
func TestContentIsBack(t *testing.T) {
	w, _ := openWatched(t)
	sound := readFile(t, w.path)
	must(t, os.Truncate(w.path, 0))
	w.wantLost(t, embedded.Cut)
	must(t, os.WriteFile(w.path, sound, 0o600))
	w.wantLost(t, embedded.Cut)
	w.wantReports(t, "cut true")
	must(t, w.Close())
	again := embedded.New(embedded.Config{Path: w.path})
	t.Cleanup(func() { _ = again.Close() })
	if r, found, err := again.Get(context.Background(), w.completed.ID); err != nil || !found || r.State != idempotency.Completed {
		t.Errorf("the next store found the record %t, error %v", found, err)
	}
}

// Of two stores on one path the one whose file is there is the owner.
func TestSecondStoreAfterRemoval(t *testing.T) {
	w, _ := openWatched(t)
	must(t, os.Remove(w.path))
	second := embedded.New(embedded.Config{Path: w.path})
	t.Cleanup(func() { _ = second.Close() })
	if reply, err := second.Claim(context.Background(), claimOf("new")); err != nil || reply.Verdict != idempotency.Claimed {
		t.Errorf("the second store: %+v, %v", reply, err)
	}
	w.wantLost(t, embedded.Replaced)
	must(t, w.Close())
}

// A commit whose file was lost meanwhile is not acknowledged. It may be in the
// file all the same.
func TestLostDuringCommit(t *testing.T) {
	for _, m := range manipulations {
		t.Run(m.name, func(t *testing.T) {
			w, older := openWatched(t)
			err := embedded.DuringCommit(w.Store, claimOf("new"), func() { m.do(t, w.path, older) })
			var lost *embedded.LostError
			if errors.Is(err, idempotency.ErrNotApplied) || !errors.As(err, &lost) {
				t.Errorf("the commit gave %v, want a LostError that is not ErrNotApplied", err)
			}
			if _, err := w.repeat(); !errors.Is(err, idempotency.ErrNotApplied) {
				t.Errorf("a repeat gave %v", err)
			}
			if got := w.Findings(); len(got) != 1 {
				t.Errorf("the findings are %+v, want one", got)
			}
			must(t, w.Close())
		})
	}
	t.Run("and back", func(t *testing.T) {
		w, _ := openWatched(t)
		if err := embedded.DuringCommit(w.Store, claimOf("written"), func() { must(t, os.Rename(w.path, w.path+".away")) }); err == nil {
			t.Error("the commit was acknowledged")
		}
		must(t, os.Rename(w.path+".away", w.path))
		if _, found, err := w.Get(context.Background(), claimOf("written").ID); err != nil || !found {
			t.Errorf("what the commit wrote: found %t, error %v", found, err)
		}
		w.wantUsable(t)
		must(t, w.Close())
	})
}

// A file that is cut while its bytes are read is an error of that read.
func TestCutDuringRead(t *testing.T) {
	for _, pages := range []int64{0, 1, 2} {
		t.Run(fmt.Sprint(pages, " pages left"), func(t *testing.T) {
			w, _ := openWatched(t)
			err := embedded.DuringRead(w.Store, w.completed.ID, func() {
				must(t, os.Truncate(w.path, pages*int64(os.Getpagesize())))
			})
			var lost *embedded.LostError
			if !errors.As(err, &lost) || lost.Change != embedded.Cut {
				t.Errorf("the read gave %v", err)
			}
			w.wantLost(t, embedded.Cut)
			w.wantReports(t, "cut true")
			must(t, w.Close())
		})
	}
}

// What was read from a file that was overwritten meanwhile is not believed.
func TestOverwrittenDuringRead(t *testing.T) {
	w, older := openWatched(t)
	err := embedded.DuringRead(w.Store, w.completed.ID, func() { must(t, overwrite(w.path, older)) })
	var lost *embedded.LostError
	if !errors.As(err, &lost) || lost.Change != embedded.Overwritten {
		t.Errorf("the read gave %v", err)
	}
	w.wantReports(t, "overwritten true")
	must(t, w.Close())
}

// bbolt that breaks off with its locks held blocks nobody: not who comes later,
// not a commit that is under way, and not Close.
func TestStuck(t *testing.T) {
	t.Run("before a claim", func(t *testing.T) {
		w, _ := openWatched(t)
		if err := embedded.BeginAfter(w.Store, func() { must(t, os.Truncate(w.path, 0)) }); err == nil {
			t.Fatal("a transaction began on an empty file")
		}
		for range 3 {
			w.wantLost(t, embedded.Cut)
		}
		w.wantReports(t, "cut true")
		must(t, w.Close())
	})
	t.Run("during a commit", func(t *testing.T) {
		w, _ := openWatched(t)
		err := embedded.DuringCommit(w.Store, claimOf("new"), func() {
			if err := embedded.BeginAfter(w.Store, func() { must(t, os.Truncate(w.path, 0)) }); err == nil {
				t.Error("a transaction began on an empty file")
			}
		})
		if err == nil || errors.Is(err, idempotency.ErrNotApplied) {
			t.Errorf("the commit gave %v", err)
		}
		w.wantLost(t, embedded.Cut)
		w.wantReports(t, "cut true")
		_ = w.Close() // an error if the commit does not end
	})
}

// Traffic goes on while the file is cut: each operation ends, and the process
// lives.
func TestCutUnderTraffic(t *testing.T) {
	w, _ := openWatched(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lost := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-lost:
					return
				default:
				}
				_, _ = w.Claim(ctx, claimOf(fmt.Sprint(i, n)))
				_, _ = w.repeat()
				_, _, _ = w.Get(ctx, w.completed.ID)
				_, _ = w.Scan(ctx, "")
			}
		})
	}
	await(t, "some traffic", func() bool { return len(readFile(t, w.path)) >= 1<<18 })
	must(t, os.Truncate(w.path, 0))
	await(t, "the loss to be noticed", func() bool { return len(w.Findings()) > 0 })
	close(lost)
	wg.Wait()
	if ctx.Err() != nil {
		t.Error("an operation did not end")
	}
	if len(w.reports) != 1 {
		t.Errorf("reported was %q, want one loss", w.reports)
	}
	_ = w.Close() // an error if bbolt broke off during a commit
}

// The store says that it has made a file, and when it finds one without records.
func TestCreated(t *testing.T) {
	w, _ := openWatched(t) // which wants the report
	must(t, w.Close())
	var reports []string
	reopen := func() {
		t.Helper()
		reports = nil
		store := embedded.New(embedded.Config{Path: w.path, Report: func(f idempotency.Finding, present bool) {
			reports = append(reports, fmt.Sprint(f.Server, " ", f.Value, " ", present))
		}})
		if _, err := store.Now(context.Background()); err != nil {
			t.Fatal(err)
		}
		must(t, store.Close())
	}
	if reopen(); len(reports) != 0 {
		t.Errorf("a file with records: reported was %q", reports)
	}
	must(t, os.Truncate(w.path, 0))
	if reopen(); !slices.Equal(reports, []string{w.path + " created true"}) {
		t.Errorf("an empty file: reported was %q", reports)
	}
}

// A file that was cut while it was closed is damaged, and not opened for those
// of its records that are left.
func TestOpenCutFile(t *testing.T) {
	w, _ := openWatched(t)
	must(t, w.Close())
	sound := readFile(t, w.path)
	for _, pages := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprint(pages, " pages left"), func(t *testing.T) {
			must(t, os.WriteFile(w.path, sound, 0o600), os.Truncate(w.path, int64(pages*os.Getpagesize())))
			store := embedded.New(embedded.Config{Path: w.path})
			for range 2 {
				if _, err := store.Claim(context.Background(), claimOf("new")); !errors.Is(err, idempotency.ErrNotApplied) {
					t.Errorf("a claim gave %v", err)
				}
				embedded.ForgetLastTry(store)
			}
			must(t, store.Close())
		})
	}
}

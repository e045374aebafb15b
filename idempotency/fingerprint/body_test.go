package fingerprint_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

// openFiles returns how many file descriptors the process has.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("this system does not list open files: %v", err)
	}
	return len(entries)
}

// emptyTempDir gives the test a directory for temporary files of its own, and
// returns a check that it is empty.
func emptyTempDir(t *testing.T) (check func()) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return func() {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) > 0 {
			t.Errorf("the temporary directory has %d entries, first %s", len(entries), entries[0].Name())
		}
	}
}

// plenty is a budget that is no limit.
func plenty() *fingerprint.BodyMemory { return fingerprint.NewBodyMemory(1 << 40) }

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

func TestReadBody(t *testing.T) {
	const memory = fingerprint.MaxBodyInMemory
	tests := []struct {
		name      string
		size      int
		maximum   int64
		wantFiles int
	}{
		{"empty", 0, 64 << 20, 0},
		{"empty, nothing allowed", 0, 0, 0},
		{"one byte", 1, 64 << 20, 0},
		{"exact maximum in memory", 1000, 1000, 0},
		{"as large as memory allows", memory, 64 << 20, 0},
		{"as large as memory and maximum allow", memory, memory, 0},
		{"first size in a file", memory + 1, 64 << 20, 1},
		{"exact maximum in a file", memory + 1, memory + 1, 1},
		{"large", 5<<20 + 3, 64 << 20, 1},
		{"large, exact maximum", 5<<20 + 3, 5<<20 + 3, 1},
	}
	for _, test := range tests {
		for declared, length := range map[string]int64{"declared": int64(test.size), "undeclared": -1} {
			t.Run(test.name+"/"+declared, func(t *testing.T) {
				checkTempDir := emptyTempDir(t)
				before := openFiles(t)
				content := randomBytes(test.size)
				var tee bytes.Buffer
				body, err := fingerprint.ReadBody(iotest.HalfReader(bytes.NewReader(content)), length, test.maximum, plenty(), &tee)
				if err != nil {
					t.Fatal(err)
				}
				if body.Size() != int64(test.size) {
					t.Errorf("size is %d, want %d", body.Size(), test.size)
				}
				if !bytes.Equal(tee.Bytes(), content) {
					t.Errorf("the tee got %d bytes, want the body's %d", tee.Len(), test.size)
				}
				checkTempDir() // while it is open: the file has no name
				if n := openFiles(t) - before; n != test.wantFiles {
					t.Errorf("the body holds %d files open, want %d", n, test.wantFiles)
				}
				// Two readers at a time do not disturb each other.
				first, second := body.Reader(), body.Reader()
				half := make([]byte, test.size/2)
				if _, err := io.ReadFull(first, half); err != nil || !bytes.Equal(half, content[:len(half)]) {
					t.Errorf("first half: %v, equal %t", err, bytes.Equal(half, content[:len(half)]))
				}
				for range 2 {
					if got, err := io.ReadAll(second); err != nil || !bytes.Equal(got, content) {
						t.Errorf("whole body: %d bytes, %v", len(got), err)
					}
					second = body.Reader()
				}
				if rest, err := io.ReadAll(first); err != nil || !bytes.Equal(rest, content[len(half):]) {
					t.Errorf("second half: %d bytes, %v", len(rest), err)
				}
				if err := body.Close(); err != nil {
					t.Error(err)
				}
				if n := openFiles(t) - before; n != 0 {
					t.Errorf("%d files are open after Close", n)
				}
				checkTempDir()
			})
		}
	}
}

// countingReader counts what is read from it.
type countingReader struct {
	io.Reader
	read int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.read += int64(n)
	return n, err
}

// endless is a body without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestReadBodyTooLarge(t *testing.T) {
	tests := []struct {
		name     string
		body     io.Reader
		declared int64
		maximum  int64
		maxRead  int64
	}{
		{"declared", endless{}, 1001, 1000, 0},
		{"declared, nothing allowed", endless{}, 1, 0, 0},
		{"undeclared, in memory", endless{}, -1, 1000, 1001},
		{"undeclared, nothing allowed", endless{}, -1, 0, 1},
		{"undeclared, one byte over memory", endless{}, -1, fingerprint.MaxBodyInMemory, fingerprint.MaxBodyInMemory + 1},
		{"undeclared, in a file", endless{}, -1, 3 << 20, 3<<20 + 1},
		{"longer than declared", endless{}, 10, 1000, 1001},
		{"longer than declared, in a file", endless{}, 2 << 20, 3 << 20, 3<<20 + 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkTempDir := emptyTempDir(t)
			before := openFiles(t)
			reader := &countingReader{Reader: test.body}
			body, err := fingerprint.ReadBody(reader, test.declared, test.maximum, plenty(), io.Discard)
			if !errors.Is(err, fingerprint.ErrBodyTooLarge) || body != nil {
				t.Fatalf("ReadBody gave body %t and error %v, want ErrBodyTooLarge", body != nil, err)
			}
			if reader.read > test.maxRead {
				t.Errorf("%d bytes were read, %d show that it is too large", reader.read, test.maxRead)
			}
			checkTempDir()
			if n := openFiles(t) - before; n != 0 {
				t.Errorf("%d files are left open", n)
			}
		})
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// An upload that breaks off, or a disk that fails, leaves nothing behind, and
// one is not taken for the other.
func TestReadBodyFails(t *testing.T) {
	broken := errors.New("injected")
	breaksOff := func(after int, err error) io.Reader {
		return io.MultiReader(bytes.NewReader(make([]byte, after)), iotest.ErrReader(err))
	}
	tests := []struct {
		name     string
		body     io.Reader
		declared int64
		tee      io.Writer
		want     error
	}{
		{"at once", breaksOff(0, io.ErrUnexpectedEOF), 10, io.Discard, io.ErrUnexpectedEOF},
		{"in memory", breaksOff(10, io.ErrUnexpectedEOF), 1000, io.Discard, io.ErrUnexpectedEOF},
		{"in a file", breaksOff(2<<20, io.ErrUnexpectedEOF), 3 << 20, io.Discard, io.ErrUnexpectedEOF},
		{"on the border", breaksOff(fingerprint.MaxBodyInMemory+1, broken), -1, io.Discard, broken},
		{"undeclared", breaksOff(2<<20, broken), -1, io.Discard, broken},
		{"tee", bytes.NewReader(make([]byte, 10)), -1, failingWriter{broken}, broken},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkTempDir := emptyTempDir(t)
			before := openFiles(t)
			body, err := fingerprint.ReadBody(test.body, test.declared, 64<<20, plenty(), test.tee)
			if !errors.Is(err, test.want) || errors.Is(err, fingerprint.ErrBodyTooLarge) || errors.Is(err, fingerprint.ErrBodyNotKept) || body != nil {
				t.Fatalf("ReadBody gave body %t and error %v, want %v", body != nil, err, test.want)
			}
			checkTempDir()
			if n := openFiles(t) - before; n != 0 {
				t.Errorf("%d files are left open", n)
			}
		})
	}

	t.Run("no temporary directory", func(t *testing.T) {
		t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
		before := openFiles(t)
		body, err := fingerprint.ReadBody(strings.NewReader(strings.Repeat("x", 2<<20)), -1, 64<<20, plenty(), io.Discard)
		if !errors.Is(err, fingerprint.ErrBodyNotKept) || !errors.Is(err, os.ErrNotExist) || body != nil {
			t.Fatalf("ReadBody gave body %t and error %v, want ErrBodyNotKept and os.ErrNotExist", body != nil, err)
		}
		if n := openFiles(t) - before; n != 0 {
			t.Errorf("%d files are left open", n)
		}
		// What fits into memory needs none.
		small, err := fingerprint.ReadBody(strings.NewReader("x"), -1, 64<<20, plenty(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		_ = small.Close()
	})
}

func TestReadBodyWithoutMaximum(t *testing.T) {
	body, err := fingerprint.ReadBody(bytes.NewReader([]byte("body")), -1, math.MaxInt64, plenty(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if body.Size() != 4 {
		t.Errorf("size is %d, want 4: the body is lost", body.Size())
	}
}

// A body takes from the budget what it holds in memory, for as long as it is
// open.
func TestBodyMemory(t *testing.T) {
	const memory = fingerprint.MaxBodyInMemory
	broken := errors.New("injected")
	body := func(size int) io.Reader { return bytes.NewReader(make([]byte, size)) }
	tests := []struct {
		name      string
		budget    int64
		body      io.Reader
		declared  int64
		maximum   int64
		want      error
		wantTaken int64
		wantFiles int
	}{
		{"declared", memory, body(1000), 1000, 64 << 20, nil, 1000, 0},
		{"undeclared", memory, body(1000), -1, 64 << 20, nil, 1000, 0},
		{"shorter than declared", memory, body(900), 1000, 64 << 20, nil, 900, 0},
		{"all of it, declared", memory, body(memory), memory, 64 << 20, nil, memory, 0},
		{"all of it, undeclared", memory, body(memory), -1, 64 << 20, nil, memory, 0},
		{"all of a small one", 1000, body(1000), 1000, 64 << 20, nil, 1000, 0},
		{"exact maximum", memory, body(1000), 1000, 1000, nil, 1000, 0},
		{"empty, declared", memory, body(0), 0, 64 << 20, nil, 0, 0},
		{"empty, undeclared", memory, body(0), -1, 64 << 20, nil, 0, 0},
		{"empty, nothing left", 0, body(0), 0, 64 << 20, nil, 0, 0},

		{"one byte too little", 999, body(1000), 1000, 64 << 20, nil, 0, 1},
		{"too little for what may come", memory - 1, body(1000), -1, 64 << 20, nil, 0, 1},
		{"nothing left", 0, body(1), 1, 64 << 20, nil, 0, 1},
		{"nothing left, exact maximum", 0, body(1000), 1000, 1000, nil, 0, 1},
		{"empty, undeclared, nothing left", 0, body(0), -1, 64 << 20, nil, 0, 1},
		{"large, declared", memory, body(memory + 1), memory + 1, 64 << 20, nil, 0, 1},
		{"large, undeclared", memory, body(memory + 1), -1, 64 << 20, nil, 0, 1},
		{"longer than declared", memory, body(1001), 1000, 64 << 20, nil, 0, 1},

		{"too large, declared", memory, body(1001), 1001, 1000, fingerprint.ErrBodyTooLarge, 0, 0},
		{"too large, undeclared", memory, body(1001), -1, 1000, fingerprint.ErrBodyTooLarge, 0, 0},
		{"too large, undeclared, in a file", memory, body(3 << 20), -1, 2 << 20, fingerprint.ErrBodyTooLarge, 0, 0},
		{"too large, nothing left", 0, body(1001), -1, 1000, fingerprint.ErrBodyTooLarge, 0, 0},
		{"breaks off in memory", memory, io.MultiReader(body(10), iotest.ErrReader(broken)), 1000, 64 << 20, broken, 0, 0},
		{"breaks off in a file", memory, io.MultiReader(body(2<<20), iotest.ErrReader(broken)), 3 << 20, 64 << 20, broken, 0, 0},
		{"breaks off, nothing left", 0, io.MultiReader(body(10), iotest.ErrReader(broken)), 1000, 64 << 20, broken, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkTempDir := emptyTempDir(t)
			before := openFiles(t)
			budget := fingerprint.NewBodyMemory(test.budget)
			var tee bytes.Buffer
			body, err := fingerprint.ReadBody(test.body, test.declared, test.maximum, budget, &tee)
			if !errors.Is(err, test.want) || (body == nil) != (err != nil) {
				t.Fatalf("ReadBody gave body %t and error %v, want %v", body != nil, err, test.want)
			}
			if taken := test.budget - budget.Left(); taken != test.wantTaken {
				t.Errorf("%d bytes are taken, want %d", taken, test.wantTaken)
			}
			if n := openFiles(t) - before; n != test.wantFiles {
				t.Errorf("%d files are open, want %d", n, test.wantFiles)
			}
			if body != nil {
				if content, err := io.ReadAll(body.Reader()); err != nil || !bytes.Equal(content, tee.Bytes()) || body.Size() != int64(tee.Len()) {
					t.Errorf("the body has %d bytes, %v; want the %d that were read", len(content), err, tee.Len())
				}
				if err := body.Close(); err != nil {
					t.Error(err)
				}
				_ = body.Close() // must not give back more than was taken
			}
			if left := budget.Left(); left != test.budget {
				t.Errorf("%d bytes are left in the end, want all %d", left, test.budget)
			}
			if n := openFiles(t) - before; n != 0 {
				t.Errorf("%d files are left open", n)
			}
			checkTempDir()
		})
	}
	t.Run("no temporary directory", func(t *testing.T) {
		t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
		budget := fingerprint.NewBodyMemory(memory)
		_, err := fingerprint.ReadBody(body(2<<20), -1, 64<<20, budget, io.Discard)
		if !errors.Is(err, fingerprint.ErrBodyNotKept) {
			t.Errorf("ReadBody gave %v, want ErrBodyNotKept", err)
		}
		if left := budget.Left(); left != memory {
			t.Errorf("%d bytes are left, want all %d", left, memory)
		}
	})
	t.Run("zero value", func(t *testing.T) {
		before := openFiles(t)
		b, err := fingerprint.ReadBody(body(1), 1, 64<<20, new(fingerprint.BodyMemory), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if n := openFiles(t) - before; n != 1 {
			t.Errorf("%d files are open, want one", n)
		}
	})
}

// A body is held in memory as long as others leave room for it, and is not
// turned away by those that find none.
func TestBodyMemoryIsShared(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing")) // a file is an error
	const small, budget, readers, rounds = 100, 400, 4, 20000
	shared := fingerprint.NewBodyMemory(budget)
	var wg sync.WaitGroup
	for i := range readers + 1 {
		wg.Go(func() {
			for range rounds {
				size, want := small, error(nil)
				if i == readers {
					size, want = budget+1, fingerprint.ErrBodyNotKept
				}
				body, err := fingerprint.ReadBody(bytes.NewReader(make([]byte, size)), int64(size), 64<<20, shared, io.Discard)
				if !errors.Is(err, want) {
					t.Errorf("a body of %d bytes gave %v, want %v", size, err, want)
					return
				}
				if left := shared.Left(); left < 0 || left > budget {
					t.Errorf("%d bytes are left of %d", left, budget)
				}
				if body != nil {
					_ = body.Close()
				}
			}
		})
	}
	wg.Wait()
	if left := shared.Left(); left != budget {
		t.Errorf("%d bytes are left in the end, want all %d", left, budget)
	}
}

// Bodies share one budget, and one that closes makes room.
func TestBodyMemoryMakesRoom(t *testing.T) {
	budget := fingerprint.NewBodyMemory(1000)
	before := openFiles(t)
	read := func() *fingerprint.Body {
		body, err := fingerprint.ReadBody(bytes.NewReader(make([]byte, 600)), 600, 64<<20, budget, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	first, second := read(), read()
	if n := openFiles(t) - before; n != 1 {
		t.Errorf("%d files are open, want that of the second body", n)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	third := read()
	if n := openFiles(t) - before; n != 1 {
		t.Errorf("%d files are open, want that of the second body alone", n)
	}
	for _, body := range []*fingerprint.Body{second, third} {
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := openFiles(t) - before; n != 0 || budget.Left() != 1000 {
		t.Errorf("%d files are left open, %d bytes are left", n, budget.Left())
	}
}

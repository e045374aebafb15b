package fingerprint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync/atomic"
)

// maxBodyInMemory is how many bytes of a request body are held in memory;
// a longer one goes to an unlinked temporary file.
const maxBodyInMemory = 1 << 20

// BodyMemory is a budget of memory for request bodies, shared by all requests
// that are held at a time. Bodies that do not fit go to temporary files. The zero
// value has nothing to give.
type BodyMemory struct{ left atomic.Int64 }

// NewBodyMemory returns a budget of so many bytes.
func NewBodyMemory(bytes int64) *BodyMemory {
	m := new(BodyMemory)
	m.left.Store(bytes)
	return m
}

func (m *BodyMemory) take(n int64) bool {
	for {
		left := m.left.Load()
		if left < n {
			return false
		}
		if m.left.CompareAndSwap(left, left-n) {
			return true
		}
	}
}

func (m *BodyMemory) giveBack(n int64) { m.left.Add(n) }

// Body is a request body that was read completely. It can be read any number
// of times, and must be closed.
type Body struct {
	memory []byte
	budget *BodyMemory // that memory was taken from
	file   *os.File    // nil if the body is in memory
	size   int64
}

// ReadBody reads a whole request body and copies it to tee as it arrives. It is
// held in memory as far as the budget has some. declared is the request's
// Content-Length, or -1 if it is not known; maximum is the largest size
// accepted, in bytes.
//
// A body over the maximum is ErrBodyTooLarge, at once if it was declared and
// otherwise as soon as it shows. A temporary file that fails is ErrBodyNotKept.
// Any other error is the reader's (a caller that broke off, typically
// io.ErrUnexpectedEOF). An error leaves nothing behind.
func ReadBody(r io.Reader, declared, maximum int64, budget *BodyMemory, tee io.Writer) (*Body, error) {
	if declared > maximum {
		return nil, ErrBodyTooLarge
	}
	// One byte more than the maximum tells a body that is too large from one
	// that just fits.
	limited := io.TeeReader(io.LimitReader(r, min(maximum, math.MaxInt64-1)+1), tee)

	room := int64(maxBodyInMemory)
	if declared >= 0 {
		room = min(room, declared)
	}
	if !budget.take(room) {
		return spill(limited, maximum)
	}
	var memory bytes.Buffer
	if declared > 0 {
		memory.Grow(int(room) + bytes.MinRead)
	}
	n, err := io.CopyN(&memory, limited, room+1)
	if n <= room && n <= maximum && errors.Is(err, io.EOF) {
		budget.giveBack(room - n)
		return &Body{memory: memory.Bytes(), budget: budget, size: n}, nil
	}
	defer budget.giveBack(room)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read request body: %w", err)
	case n > maximum:
		return nil, ErrBodyTooLarge
	default:
		return spill(io.MultiReader(&memory, limited), maximum)
	}
}

// spill reads a body into a temporary file.
func spill(r io.Reader, maximum int64) (*Body, error) {
	file, err := unlinkedFile()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBodyNotKept, err)
	}
	b := &Body{file: file}
	b.size, err = io.Copy(fileWriter{file}, r)
	if err == nil && b.size > maximum {
		err = ErrBodyTooLarge
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read request body: %w", err), b.Close())
	}
	return b, nil
}

// fileWriter marks the errors of the file, to tell them from the reader's.
type fileWriter struct{ file *os.File }

func (w fileWriter) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrBodyNotKept, err)
	}
	return n, err
}

// unlinkedFile opens a temporary file that has no name any more, so that it
// vanishes with the process whatever happens to it.
func unlinkedFile() (*os.File, error) {
	file, err := os.CreateTemp("", "idempotency-body-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Size returns the length of the body in bytes.
func (b *Body) Size() int64 { return b.size }

// Reader returns a reader that starts at the first byte. It is not valid
// after Close.
func (b *Body) Reader() io.Reader {
	if b.file != nil {
		return io.NewSectionReader(b.file, 0, b.size)
	}
	return bytes.NewReader(b.memory)
}

// Close frees the memory or the file behind the body.
func (b *Body) Close() error {
	if b.file != nil {
		return b.file.Close()
	}
	if b.budget != nil {
		b.budget.giveBack(b.size)
	}
	b.memory, b.budget = nil, nil
	return nil
}

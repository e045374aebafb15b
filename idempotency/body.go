package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// MaxBodyInMemory is how many bytes of a request body are held in memory;
// a longer one goes to an unlinked temporary file.
const MaxBodyInMemory = 1 << 20

// Body is a request body that was read completely. It can be read any number
// of times, and must be closed.
type Body struct {
	memory []byte
	file   *os.File // nil if the body is in memory
	size   int64
}

// ReadBody reads a whole request body and copies it to tee as it arrives.
// declared is the request's Content-Length, or -1 if it is not known; maximum
// is the largest size accepted, in bytes.
//
// A body over the maximum is ErrBodyTooLarge, at once if it was declared and
// otherwise as soon as it shows. A temporary file that fails is ErrBodyNotKept.
// Any other error is the reader's (a caller that broke off, typically
// io.ErrUnexpectedEOF). An error leaves nothing behind.
func ReadBody(r io.Reader, declared, maximum int64, tee io.Writer) (*Body, error) {
	if declared > maximum {
		return nil, ErrBodyTooLarge
	}
	// One byte more than the maximum tells a body that is too large from one
	// that just fits.
	limited := io.TeeReader(io.LimitReader(r, min(maximum, math.MaxInt64-1)+1), tee)

	var memory bytes.Buffer
	if declared > 0 {
		memory.Grow(int(min(declared, MaxBodyInMemory)) + bytes.MinRead)
	}
	n, err := io.CopyN(&memory, limited, MaxBodyInMemory+1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read request body: %w", err)
	}
	if n > maximum {
		return nil, ErrBodyTooLarge
	}
	if n <= MaxBodyInMemory {
		return &Body{memory: memory.Bytes(), size: n}, nil
	}

	file, err := unlinkedFile()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBodyNotKept, err)
	}
	b := &Body{file: file}
	b.size, err = io.Copy(fileWriter{file}, io.MultiReader(&memory, limited))
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
	b.memory = nil
	if b.file == nil {
		return nil
	}
	return b.file.Close()
}

package fingerprint

import (
	"errors"
	"fmt"
	"io"
)

// windowSize is how much of a body in a file is in view at once.
const windowSize = 64 << 10

// window is a view that moves over a body from its start to its end: of a body
// in memory the whole of it, so that nothing is copied, and of one in a file
// windowSize bytes.
type window struct {
	in  []byte // what is in view
	pos int    // how much of it has been dealt with
	end bool   // nothing follows what is in view

	rest io.Reader
}

// window returns a view of the body. It is not valid after Close.
func (b *Body) window() window {
	if b.file == nil {
		return window{in: b.memory, end: true}
	}
	return window{in: make([]byte, 0, windowSize), rest: b.Reader()}
}

// more moves the window forward, so that what has been dealt with is out of
// view. A file that fails is ErrBodyNotKept.
func (w *window) more() error {
	if w.end {
		return nil
	}
	kept := copy(w.in[:cap(w.in)], w.in[w.pos:])
	n, err := io.ReadFull(w.rest, w.in[kept:cap(w.in)])
	w.in, w.pos = w.in[:kept+n], 0
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		w.end = true
		return nil
	default:
		return fmt.Errorf("%w: %w", ErrBodyNotKept, err)
	}
}

// ahead makes the next n bytes come into view, or as many as there are. A
// window is larger than any n.
func (w *window) ahead(n int) error {
	if len(w.in)-w.pos >= n || w.end {
		return nil
	}
	return w.more()
}

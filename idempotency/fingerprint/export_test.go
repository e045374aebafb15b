package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
	"testing/iotest"
)

// The smallest windows that hold what has to be in view.
const (
	SmallestJSONWindow = jsonAhead
	SmallestFormWindow = maxPartHeader + 4 + maxBoundary
)

// Bounds that tests go up to.
const (
	MaxJSONDepth  = maxJSONDepth
	MaxJSONNumber = maxJSONNumber
	MaxPartHeader = maxPartHeader
)

// DigestJSON digests a JSON text by its meaning, seen through a window of the
// given size, or in memory if that is 0. ok is false if it has none.
func DigestJSON(text []byte, size int) (digest [32]byte, ok bool) {
	return digestThrough(text, size, func(h hash.Hash, w window) error { return writeJSON(h, w, nil) })
}

// JSONOfFailingFile is the error of a JSON text in a file that fails behind it.
func JSONOfFailingFile(text []byte, err error) error {
	rest := io.MultiReader(bytes.NewReader(text), iotest.ErrReader(err))
	return writeJSON(sha256.New(), window{in: make([]byte, 0, windowSize), rest: rest}, nil)
}

// DigestForm does the same for a form.
func DigestForm(body []byte, boundary string, size int) (digest [32]byte, ok bool) {
	return digestThrough(body, size, func(h hash.Hash, w window) error { return writeForm(h, w, boundary) })
}

func digestThrough(body []byte, size int, write func(hash.Hash, window) error) (digest [32]byte, ok bool) {
	w := window{in: body, end: true}
	if size > 0 {
		w = window{in: make([]byte, 0, size), rest: iotest.HalfReader(io.Reader(bytes.NewReader(body)))}
	}
	h := sha256.New()
	if err := write(h, w); err != nil {
		return digest, false
	}
	h.Sum(digest[:0])
	return digest, true
}

// Left returns how many bytes a budget still has.
func (m *BodyMemory) Left() int64 { return m.left.Load() }

// MaxBodyInMemory is how many bytes of one body are held in memory.
const MaxBodyInMemory = maxBodyInMemory

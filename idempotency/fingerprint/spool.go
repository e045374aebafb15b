package fingerprint

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// maxSpool is the most that a Spool takes, in bytes.
const maxSpool = 64 << 20

// Spool takes the part of an answer that is not held in memory, in an unlinked
// temporary file: a caller that does not read its answer must not keep the
// provider's from coming to its end. The zero value is empty. It must be closed.
type Spool struct {
	file *os.File // nil while it is empty
	size int64
}

// Write implements io.Writer. A file that fails, and more than 64 MiB, are
// ErrBodyNotKept.
func (s *Spool) Write(p []byte) (int, error) {
	if s.size+int64(len(p)) > maxSpool {
		return 0, fmt.Errorf("%w: an answer is over its maximum of %d bytes", ErrBodyNotKept, maxSpool)
	}
	if s.file == nil {
		file, err := unlinkedFile()
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrBodyNotKept, err)
		}
		s.file = file
	}
	n, err := fileWriter{s.file}.Write(p)
	s.size += int64(n)
	return n, err
}

// Size returns how many bytes were written.
func (s *Spool) Size() int64 { return s.size }

// Reader returns a reader of what was written that starts at the first byte. It
// is not valid after Close.
func (s *Spool) Reader() io.Reader {
	if s.file == nil {
		return bytes.NewReader(nil)
	}
	return io.NewSectionReader(s.file, 0, s.size)
}

// Close frees the file.
func (s *Spool) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

package fingerprint_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
)

func TestSpool(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	before := openFiles(t)
	var s fingerprint.Spool
	if data, err := io.ReadAll(s.Reader()); len(data) > 0 || err != nil || openFiles(t) != before {
		t.Errorf("an empty one has %q, %v and a file", data, err)
	}
	var want bytes.Buffer
	for _, part := range []string{"one", "", strings.Repeat("two", 1<<16)} {
		want.WriteString(part)
		if n, err := io.WriteString(&s, part); n != len(part) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	for range 2 {
		if data, err := io.ReadAll(s.Reader()); !bytes.Equal(data, want.Bytes()) || err != nil || s.Size() != int64(want.Len()) {
			t.Errorf("it gives %d bytes, %v, and has %d", len(data), err, s.Size())
		}
	}
	most := make([]byte, 64<<20-want.Len()+1)
	if _, err := s.Write(most); !errors.Is(err, fingerprint.ErrBodyNotKept) {
		t.Errorf("a byte too many: %v", err)
	}
	if _, err := s.Write(most[1:]); err != nil {
		t.Errorf("the last byte: %v", err)
	}
	if err := s.Close(); err != nil || openFiles(t) != before {
		t.Errorf("Close: %v", err)
	}

	t.Setenv("TMPDIR", "/nowhere")
	var failing fingerprint.Spool
	if _, err := failing.Write([]byte("x")); !errors.Is(err, fingerprint.ErrBodyNotKept) {
		t.Errorf("without a place: %v", err)
	}
	if err := failing.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

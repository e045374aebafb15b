package fingerprint

import "encoding/binary"

// Fields are texts that are digested together. Each is prefixed by its length,
// so that none can be moved across a border. The first names their kind, so that
// two kinds over the same texts differ.
type Fields []byte

// Count adds a number.
func (f *Fields) Count(n int) { *f = binary.BigEndian.AppendUint64(*f, uint64(n)) }

// Add adds a text.
func (f *Fields) Add(s string) {
	f.Count(len(s))
	*f = append(*f, s...)
}

// Package embedded keeps idempotency records in one bbolt file, for a gateway
// that runs as a single process.
//
// Every acknowledged write was fsynced. Concurrent writes share one commit: a
// write that comes alone is committed at once, and those that come meanwhile
// go together into the next commit.
//
// The file is its inode, as this process has left it. While it is not that under
// its path, nothing is read from it and nothing is written: see LostError.
//
// The machine's wall clock decides about leases. It is the clock of the only
// process that can have the file open.
package embedded

import (
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Config says where the file is. The zero value of a field means its default.
type Config struct {
	// Path of the file. Required. It is created with its directory, readable
	// by the owner only, on first use.
	Path string
	// SweepInterval is how often expired records are deleted; default one
	// minute. An expired record that is not deleted yet counts as absent.
	SweepInterval time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Report, if set, is called once for each change of the file that an operator
	// must know of: present is false when it is as it was before. The finding's
	// Server is the path and its Value the Change; Created is an event. It must not
	// call the store.
	Report func(f idempotency.Finding, present bool)
}

// Store is an idempotency.Store in one file.
type Store struct {
	database

	sweep time.Duration
}

var (
	_ idempotency.Store    = (*Store)(nil)
	_ idempotency.Findings = (*Store)(nil)
)

// New returns a store. It does no I/O: the file is opened on first use.
func New(config Config) *Store {
	s := &Store{
		sweep: config.SweepInterval,
		database: database{
			path:    config.Path,
			buckets: recordBuckets,
			now:     config.Now,
			report:  config.Report,
			writes:  make(chan *write, commitSize),
			done:    make(chan struct{}),
		},
	}
	s.loops = []func(){s.sweepLoop}
	if s.sweep <= 0 {
		s.sweep = time.Minute
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.report == nil {
		s.report = func(idempotency.Finding, bool) {}
	}
	return s
}

// Findings implements idempotency.Findings.
func (s *Store) Findings() []idempotency.Finding {
	s.mu.Lock()
	file := s.file
	s.mu.Unlock()
	if file == nil {
		return nil
	}
	return file.findings()
}

// Close waits for running work and closes the file. It does not wait for a
// commit that is stuck with a file that was lost, and leaves that file locked: the
// commit may still write to it, and nobody else may have it before the process
// ends. That is an error.
func (s *Store) Close() error { return s.close() }

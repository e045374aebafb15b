// Package sandbox is a provider for trying things out and for tests: it accepts
// jobs, lets them queue, run and end, and counts what they would have cost. On
// request it behaves as providers do on bad days: it loses answers, is slow, or
// answers with errors.
//
// It honours no Idempotency-Key, as most providers do not: each submit that it
// reads and does not refuse is a job of its own, and is billed.
package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config says how the provider behaves. The zero value of a field is its
// default.
type Config struct {
	// LoseAnswers is the share of submits, from 0 to 1, whose answer is lost: the
	// job is accepted and billed, and the connection ends without a byte.
	LoseAnswers float64
	// Slow is how long a submit waits for its answer. The job is accepted at once.
	Slow time.Duration
	// Errors, if not 0, is the status that one submit of five is answered with. A
	// 4xx (but 408 and 499) and 503 refuse the submit. After any other the job
	// runs and is billed all the same, as when a load balancer gives up waiting.
	Errors int
	// Seed makes chance repeatable; 0 draws one.
	Seed uint64
	// Queue and Render are how long a job is queued, and then running; default 1
	// and 4 seconds.
	Queue, Render time.Duration
	// Price of a job in dollars; default 0.50.
	Price float64
	// Log, if set, gets a line for each submit and what it would have cost, one at
	// a time. Its errors are ignored: the bill has the count.
	Log io.Writer
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Validate reports a value that makes no sense. The error names the option as
// the command line has it.
func (c Config) Validate() error {
	switch {
	case !(c.LoseAnswers >= 0 && c.LoseAnswers <= 1):
		return fmt.Errorf("lose-answers must be a share from 0 to 1, got %g", c.LoseAnswers)
	case c.Slow < 0:
		return fmt.Errorf("slow must not be negative, got %s", c.Slow)
	case c.Errors != 0 && (c.Errors < 400 || c.Errors > 599):
		return fmt.Errorf("errors must be a status from 400 to 599, got %d", c.Errors)
	case c.Queue < 0 || c.Render < 0:
		return errors.New("queue and render must not be negative")
	case c.Price < 0:
		return fmt.Errorf("price must not be negative, got %g", c.Price)
	}
	return nil
}

// The shares of submits are drawn from one generator, so that a seed repeats a
// whole run of submits that come one after the other.
const errorShare = 0.2

// maxBody is the largest submit that is read, in bytes.
const maxBody = 64 << 20

// Sandbox is an http.Handler: a provider.
type Sandbox struct {
	config Config
	routes *http.ServeMux

	mu      sync.Mutex
	chance  *rand.Rand
	jobs    []*job // the oldest first
	byID    map[string]*job
	submits int
}

// job is one that was accepted. Its state follows from the clock.
type job struct {
	id       string
	accepted time.Time
	canceled time.Time // zero if it was not
}

// New returns a provider. It starts nothing.
func New(config Config) (*Sandbox, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Queue == 0 {
		config.Queue = time.Second
	}
	if config.Render == 0 {
		config.Render = 4 * time.Second
	}
	if config.Price == 0 {
		config.Price = 0.50
	}
	if config.Seed == 0 {
		config.Seed = rand.Uint64()
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Log == nil {
		config.Log = io.Discard
	}
	s := &Sandbox{
		config: config,
		routes: http.NewServeMux(),
		chance: rand.New(rand.NewPCG(config.Seed, 0)), //nolint:gosec // it decides which answers are lost
		byID:   make(map[string]*job),
	}
	s.routes.HandleFunc("GET /bill", s.bill)
	s.routes.HandleFunc("GET /v1/jobs", s.list)
	s.routes.HandleFunc("GET /v1/jobs/{id}", s.show)
	s.routes.HandleFunc("POST /v1/jobs/{id}/cancel", s.cancel)
	s.routes.HandleFunc("POST /", s.submit)
	return s, nil
}

// ServeHTTP implements http.Handler. Every POST but a cancel is a submit.
func (s *Sandbox) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.routes.ServeHTTP(w, r) }

// Bill is what the provider has seen, and what it would have billed.
type Bill struct {
	// Submits that were read to their end.
	Submits int `json:"submits"`
	// Jobs that were accepted, each of them billed.
	Jobs int `json:"jobs"`
	// Dollars in all.
	Dollars float64 `json:"dollars"`
}

// Bill returns the bill so far.
func (s *Sandbox) Bill() Bill {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.billLocked()
}

func (s *Sandbox) billLocked() Bill {
	return Bill{Submits: s.submits, Jobs: len(s.jobs), Dollars: float64(len(s.jobs)) * s.config.Price}
}

// Seed returns the seed in use.
func (s *Sandbox) Seed() uint64 { return s.config.Seed }

// refuses reports whether a status proves that nothing was accepted.
func refuses(status int) bool {
	return 400 <= status && status <= 499 && status != http.StatusRequestTimeout && status != 499 ||
		status == http.StatusServiceUnavailable
}

func (s *Sandbox) submit(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		writeError(w, http.StatusBadRequest, "the body could not be read to its end")
		return // it is no submit
	}
	s.mu.Lock()
	s.submits++
	number := s.submits
	failed := s.config.Errors != 0 && s.chance.Float64() < errorShare
	lost := s.config.LoseAnswers > 0 && s.chance.Float64() < s.config.LoseAnswers
	var accepted *job
	if !failed || !refuses(s.config.Errors) {
		accepted = &job{id: fmt.Sprintf("job_%016x", s.chance.Uint64()), accepted: s.config.Now()}
		s.jobs = append(s.jobs, accepted)
		s.byID[accepted.id] = accepted
	}
	s.noteLocked(number, accepted, failed, lost)
	s.mu.Unlock()

	if s.config.Slow > 0 {
		timer := time.NewTimer(s.config.Slow)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done(): // nobody waits; the job runs all the same
			return
		}
	}
	switch {
	case failed:
		writeError(w, s.config.Errors, "this is a bad day")
	case lost:
		panic(http.ErrAbortHandler) // the connection ends without an answer
	default:
		writeJSON(w, http.StatusAccepted, s.document(accepted))
	}
}

// noteLocked writes the line of a submit. One line is written at a time.
func (s *Sandbox) noteLocked(number int, accepted *job, failed, lost bool) {
	what := "refused with " + strconv.Itoa(s.config.Errors)
	switch {
	case accepted == nil:
	case failed:
		what = fmt.Sprintf("accepted as %s, and answered with %d", accepted.id, s.config.Errors)
	case lost:
		what = fmt.Sprintf("accepted as %s, and its answer is lost", accepted.id)
	default:
		what = "accepted as " + accepted.id
	}
	bill := s.billLocked()
	_, _ = fmt.Fprintf(s.config.Log, "submit %d: %s; $%.2f so far\n", number, what, bill.Dollars)
}

// document is a job as the API shows it.
type document struct {
	ID        string `json:"id"`
	Status    string `json:"status"`
	CreatedAt int64  `json:"created_at"` // Unix seconds
	Usage     *usage `json:"usage"`      // of a success
}

type usage struct {
	Cost float64 `json:"cost"` // dollars
}

// Words for the states of a job.
const (
	statusQueued    = "queued"
	statusRunning   = "running"
	statusSucceeded = "succeeded"
	statusCanceled  = "canceled"
)

func (s *Sandbox) document(j *job) document {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.documentLocked(j)
}

func (s *Sandbox) documentLocked(j *job) document {
	d := document{ID: j.id, CreatedAt: j.accepted.Unix()}
	switch age := s.config.Now().Sub(j.accepted); {
	case !j.canceled.IsZero():
		d.Status = statusCanceled
	case age < s.config.Queue:
		d.Status = statusQueued
	case age < s.config.Queue+s.config.Render:
		d.Status = statusRunning
	default:
		d.Status, d.Usage = statusSucceeded, &usage{s.config.Price}
	}
	return d
}

func (s *Sandbox) show(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.byID[r.PathValue("id")]
	if j == nil {
		writeError(w, http.StatusNotFound, "there is no such job")
		return
	}
	writeJSON(w, http.StatusOK, s.documentLocked(j))
}

// cancel ends a job that has not ended. What it answers is the state that
// counts: a job that ended a moment before stays succeeded.
func (s *Sandbox) cancel(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.byID[r.PathValue("id")]
	if j == nil {
		writeError(w, http.StatusNotFound, "there is no such job")
		return
	}
	if s.documentLocked(j).Status != statusSucceeded && j.canceled.IsZero() {
		j.canceled = s.config.Now()
		_, _ = fmt.Fprintf(s.config.Log, "%s is canceled; it is billed all the same\n", j.id)
	}
	writeJSON(w, http.StatusOK, s.documentLocked(j))
}

// Limits of a page of jobs.
const (
	defaultLimit = 20
	maxLimit     = 100
)

// list answers a page of jobs, the oldest first. The cursor is the id of the
// last job on the page before.
func (s *Sandbox) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit := defaultLimit
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxLimit {
			writeError(w, http.StatusBadRequest, "limit must be a number from 1 to "+strconv.Itoa(maxLimit))
			return
		}
		limit = n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.jobs
	if after := query.Get("after"); after != "" {
		i := slices.IndexFunc(jobs, func(j *job) bool { return j.id == after })
		if i < 0 {
			writeError(w, http.StatusBadRequest, "after must be a next_cursor of this list")
			return
		}
		jobs = jobs[i+1:]
	}
	page := struct {
		Data       []document `json:"data"`
		HasMore    bool       `json:"has_more"`
		NextCursor *string    `json:"next_cursor"`
	}{Data: []document{}}
	for _, j := range jobs {
		d := s.documentLocked(j)
		if len(query["status"]) > 0 && !slices.Contains(query["status"], d.Status) {
			continue
		}
		if len(page.Data) == limit {
			page.HasMore, page.NextCursor = true, &page.Data[limit-1].ID
			break
		}
		page.Data = append(page.Data, d)
	}
	writeJSON(w, http.StatusOK, page)
}

func (s *Sandbox) bill(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Bill())
}

func writeError(w http.ResponseWriter, status int, message string) {
	type problem struct {
		Type    string `json:"type"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	kind := "invalid_request_error"
	if status >= http.StatusInternalServerError {
		kind = "api_error"
	}
	code := strings.ReplaceAll(strings.ToLower(http.StatusText(status)), " ", "_")
	writeJSON(w, status, map[string]problem{"error": {kind, code, message}})
}

func writeJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(document) // a caller that has left misses its answer
}

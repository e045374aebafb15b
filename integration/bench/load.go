package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed load.lua
var loadScript []byte

// keys says which idempotency keys the requests of a round carry.
type keys string

const (
	noKeys     keys = "none"
	freshKeys  keys = "fresh"
	storedKeys keys = "stored"
)

// load is what callers do in one round.
type load struct {
	url         string
	keys        keys
	prefix      string // of the keys
	bodyFile    string
	connections int
	duration    time.Duration
}

// tally is what the callers saw. Latencies are in microseconds.
type tally struct {
	Requests     int     `json:"requests"`
	Microseconds int     `json:"microseconds"`
	Mean         float64 `json:"mean"`
	P50          float64 `json:"p50"`
	P99          float64 `json:"p99"`
	Failed       int     `json:"failed"`
}

func (t tally) rate() float64 { return float64(t.Requests) / float64(t.Microseconds) * 1e6 }

// command returns the wrk that makes the load: one thread, and connections that
// are kept.
func (b *bench) command(ctx context.Context, l load) *exec.Cmd {
	seconds := max(1, int(l.duration.Round(time.Second)/time.Second))
	return exec.CommandContext(ctx, "wrk", "-t", "1", "-c", strconv.Itoa(l.connections), "-d", fmt.Sprint(seconds, "s"),
		"--timeout", "60s", "-s", filepath.Join(b.dir, "load.lua"), l.url, "--",
		string(l.keys), l.prefix, strconv.Itoa(b.storedCount), l.bodyFile)
}

// run makes the load and returns when it is over.
func (b *bench) run(ctx context.Context, l load) (tally, error) {
	cmd := b.command(ctx, l)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return tally{}, fmt.Errorf("wrk: %w\n%s%s", err, output, stderr.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	var t tally
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &t); err != nil {
		return tally{}, fmt.Errorf("wrk's figures: %w\n%s%s", err, output, stderr.Bytes())
	}
	// A machine that does other work, too, may make a store late now and then.
	if t.Failed*100 > t.Requests || t.Requests == 0 {
		return t, fmt.Errorf("%d of %d requests failed", t.Failed, t.Requests)
	}
	return t, nil
}

// store sends the submits that a load of stored keys repeats.
func (b *bench) store(ctx context.Context, l load) error {
	body, err := os.ReadFile(l.bodyFile)
	if err != nil {
		return err
	}
	for n := range b.storedCount {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer caller")
		req.Header.Set("Idempotency-Key", fmt.Sprintf("%s%0*d", l.prefix, 36-len(l.prefix), n))
		status, _, err := roundTrip(req)
		if err != nil {
			return err
		}
		if status != http.StatusAccepted {
			return fmt.Errorf("a submit got %d", status)
		}
	}
	return nil
}

// bodyFile returns a file with a JSON body of a size, as a caller may send it.
func (b *bench) bodyFile(size int) (string, error) {
	path := filepath.Join(b.dir, fmt.Sprint("body-", size, ".json"))
	return path, os.WriteFile(path, document("prompt", "a lighthouse at dawn. ", size), 0o600)
}

// document returns a JSON object of a size, most of which is the text of one
// member, over and over.
func document(member, text string, size int) []byte {
	frame := len(fmt.Sprintf(`{"%s":"","model":"film-2"}`, member))
	value := strings.Repeat(text, size/len(text)+1)[:size-frame]
	return fmt.Appendf(nil, `{"%s":"%s","model":"film-2"}`, member, value)
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	// The benchmark starts its servers by its own name.
	if len(os.Args) > 1 && (os.Args[1] == "provider" || os.Args[1] == "fiber") {
		fmt.Fprintln(os.Stderr, mainErr(context.Background(), os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A quick run goes through everything, with its checks of what the provider
// received.
func TestQuickRun(t *testing.T) {
	caddy := os.Getenv("IDEMPOTENCY_CADDY")
	if caddy == "" {
		caddy = filepath.Join("..", "..", "caddy")
	}
	results := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := mainErr(ctx, []string{"-quick", "-caddy", caddy, "-results", results}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(results, "latest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Series[0] {
		for _, one := range s.Samples {
			if one.Rate <= 0 {
				t.Errorf("%s: %+v", s.Name, one)
			}
		}
		if len(s.Samples) != s.Rounds {
			t.Errorf("%s has %d samples of %d rounds", s.Name, len(s.Samples), s.Rounds)
		}
	}
	calls := func(name string) float64 {
		return find(r.Series[0], name).each(func(s sample) float64 { return s.StoreCalls }).Median
	}
	// The contract: two round trips for a first submit, one for a replay. What wrk
	// broke off is in the calls, and not in the requests.
	if n := calls(nameFresh); n < 2 || n > 2.2 {
		t.Errorf("a fresh key costs %.3f calls of the store, want 2", n)
	}
	if n := calls("replay, Redis"); n < 1 || n > 1.2 {
		t.Errorf("a replay costs %.3f calls of the store, want 1", n)
	}
	if len(r.Scale) != 3 || len(r.InFlight) != 2 || r.RecordBytes == 0 {
		t.Errorf("scale %+v, in flight %+v, record %d bytes", r.Scale, r.InFlight, r.RecordBytes)
	}
	picture, err := os.ReadFile(filepath.Join(results, "latest.svg"))
	if err != nil || strings.Count(string(picture), `height="18"`) != len(r.Series[0]) {
		t.Errorf("the picture has not all bars: %v\n%s", err, picture)
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		name    string
		keys    keys
		answers bool
		failed  int
		submits int
		ok      bool
	}{
		{name: "each fresh key is a submit", keys: freshKeys, submits: 100, ok: true},
		{name: "some were under way at the end", keys: freshKeys, submits: 104, ok: true},
		{name: "a fresh key was not sent", keys: freshKeys, submits: 99},
		{name: "a failure may have been sent or not", keys: freshKeys, failed: 1, submits: 99, ok: true},
		{name: "a fresh key was sent twice", keys: freshKeys, submits: 105},
		{name: "replays are not sent", keys: storedKeys, ok: true},
		{name: "a replay was sent", keys: storedKeys, submits: 1},
		{name: "without a provider", keys: noKeys, answers: true, ok: true},
		{name: "a proxy that does not send", keys: noKeys},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := variant{keys: test.keys, system: &system{answers: test.answers}}
			if err := v.check(test.submits, 100, test.failed, 4); (err == nil) != test.ok {
				t.Errorf("check gave %v", err)
			}
		})
	}
}

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{3, 1, 2}, spread{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, spread{2.5, 1, 4}},
	} {
		if got := spreadOf(test.values); got != test.want {
			t.Errorf("of %v: %+v, want %+v", test.values, got, test.want)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, size := range []int{300, 64 << 10, 1 << 20} {
		if text := document("prompt", "a lighthouse", size); len(text) != size || !json.Valid(text) {
			t.Errorf("the body has %d bytes, want %d of JSON", len(text), size)
		}
	}
	if text := answer(7); len(text) != answerSize || !json.Valid(text) {
		t.Errorf("the answer has %d bytes, want %d of JSON: %s", len(text), answerSize, text)
	}
}

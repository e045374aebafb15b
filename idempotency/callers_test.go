package idempotency_test

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// What handlers before have set for a caller stays in a replay, unless the
// answer replaced what they had set for the first one.
func TestReplayBesideOtherHandlers(t *testing.T) {
	h := newHarness(t)
	s := submitOf("k")
	h.conclude(h.attempt(policy(), s), idempotency.Result{
		Status: 202, Whole: true, Body: []byte("answer"),
		Header:   http.Header{"Vary": {"Accept"}, "X-Own": {"1"}, "Access-Control-Allow-Origin": {"https://a.example"}},
		Replaced: []string{"X-Own", "X-Gone", "Server"},
	}, idempotency.ConcludedAccepted)
	if a := h.details(s).Answer; !slices.Equal(a.Replaced, []string{"X-Own", "X-Gone"}) || a.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("stored answer is %+v", a)
	}
	w := httptest.NewRecorder()
	before := http.Header{
		"Vary": {"Origin"}, "X-Own": {"b"}, "X-Gone": {"b"}, "X-Req": {"b"}, "Server": {"Caddy"},
		"Access-Control-Allow-Origin": {"https://b.example"},
	}
	maps.Copy(w.Header(), before)
	shared := make([]string, 1, 8) // nothing may be written behind it
	shared[0] = "Origin"
	w.Header()["Vary"] = shared
	if err := h.begin(policy(), s).Replay.Replay(w); err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"Vary": {"Origin", "Accept"}, "X-Own": {"1"}, "X-Req": {"b"}, "Server": {"Caddy"},
		"Access-Control-Allow-Origin": {"https://b.example"},
		"Idempotency-Replayed":        {"true"}, "Content-Length": {"6"},
	}
	if got := w.Header(); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the replay has %v, want %v", got, want)
	}
	if shared[:2][1] != "" {
		t.Error("the replay wrote into another handler's field")
	}
}

// An answer for any page is one for every caller.
func TestReplayedOrigins(t *testing.T) {
	for _, test := range []struct {
		values []string
		stays  bool
	}{
		{[]string{"*"}, true}, {[]string{"*", "*"}, true}, {[]string{"https://a.example"}, false},
		{[]string{"null"}, false}, {[]string{"*", "https://a.example"}, false},
	} {
		response, _ := replayOf(t, idempotency.Result{
			Status: 200, Whole: true, Header: http.Header{"Access-Control-Allow-Origin": test.values},
		}, false)
		if got := response.Header["Access-Control-Allow-Origin"]; (got != nil) != test.stays {
			t.Errorf("%q is replayed as %q", test.values, got)
		}
	}
}

// Only an acceptance says more than that the attempt before is unknown.
func TestTookOver(t *testing.T) {
	refused := idempotency.Result{Status: 409, Whole: true}
	h := newHarness(t)
	s := submitOf("k")
	a := h.attempt(policy(resubmit), s)
	if a.TookOver() {
		t.Error("the first attempt took over")
	}
	h.conclude(a, broken, idempotency.ConcludedUnknown)
	a = h.attempt(policy(resubmit), s)
	if !a.TookOver() {
		t.Error("the second attempt did not take over")
	}
	h.conclude(a, refused, idempotency.ConcludedRefused)
	h.wantState(s, idempotency.Uncertain)
	a = h.attempt(policy(resubmit), s)
	if !a.TookOver() {
		t.Error("what a refused take-over left is nobody's to free")
	}
	h.conclude(a, accepted("answer"), idempotency.ConcludedAccepted)
	if n := h.store.count("claim"); n != 3 {
		t.Errorf("three attempts cost %d claims", n)
	}
}

func TestReuseSaysWhatDiffers(t *testing.T) {
	ring := ringOf(t, 1)
	for name, keys := range map[string]func(*idempotency.Policy){
		"readable":  func(*idempotency.Policy) {},
		"encrypted": func(p *idempotency.Policy) { p.Keyring = ring },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			s := submitOf("k")
			a := h.attempt(policy(keys), s)
			defer func() { h.conclude(a, broken, idempotency.ConcludedUnknown) }()
			for want, change := range map[string]func(*idempotency.Submit){
				"the method.":              func(s *idempotency.Submit) { s.Details.Method = "PUT" },
				"the path.":                func(s *idempotency.Submit) { s.Details.Path = "/v1/other" },
				"the method and the path.": func(s *idempotency.Submit) { s.Details.Method, s.Details.Path = "PUT", "/v1/other" },
				"the content (query, media type, body, or a header field that counts).": func(*idempotency.Submit) {},
			} {
				other := s
				other.Fingerprint[0]++
				change(&other)
				problem := h.wantProblem(policy(keys), other, idempotency.CodeReuse)
				if detail := "What differs: " + want + " Record: " + string(s.ID) + "."; problem.Detail != detail {
					t.Errorf("the detail is %q, want %q", problem.Detail, detail)
				}
			}
			if problem := h.wantProblem(policy(keys), s, idempotency.CodeInProgress); !strings.Contains(problem.Detail, string(s.ID)) {
				t.Errorf("in progress: the detail is %q", problem.Detail)
			}
		})
	}
}

func TestJoinedKeys(t *testing.T) {
	for line, joined := range map[string]bool{
		"k, k": true, "k,  k": true, "k, k, k": true, `"k", "k"`: true, `"k","k"`: true, `"k", k`: true,
		"k k": false, "k ,k": false, `"k" "k"`: false, `"k";a, b`: false,
	} {
		_, err := idempotency.ParseKey([]string{line})
		var invalid *idempotency.KeyError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: %v", line, err)
		} else if strings.Contains(invalid.Reason, "two header lines") != joined {
			t.Errorf("%s: the reason is %q", line, invalid.Reason)
		}
	}
}

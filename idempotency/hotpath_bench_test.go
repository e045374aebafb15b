package idempotency_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
)

// hotPaths are what each request with a key goes through: the first submit of a
// key, and its replay, with an answer of 300 bytes.
var hotPaths = map[string]func(tb testing.TB) (once func()){
	"first": func(tb testing.TB) func() {
		e := newEngineOnFile(tb)
		return func() { submitOnce(tb, e, newRecordID()) }
	},
	"replay": func(tb testing.TB) func() {
		e := newEngineOnFile(tb)
		id := newRecordID()
		submitOnce(tb, e, id)
		return func() {
			a, err := e.Begin(context.Background(), idempotency.DefaultPolicy(), plainSubmit(id))
			if err != nil || a.Replay == nil {
				tb.Fatalf("Begin gave %+v, %v, want a replay", a, err)
			}
		}
	},
}

func newEngineOnFile(tb testing.TB) *idempotency.Engine {
	store := embedded.New(embedded.Config{Path: filepath.Join(tb.TempDir(), "idempotency.db")})
	e := idempotency.NewEngine(idempotency.EngineConfig{Store: store})
	tb.Cleanup(func() {
		e.Drain(context.Background())
		e.Close()
		_ = store.Close()
	})
	return e
}

func newRecordID() idempotency.RecordID {
	token := idempotency.NewToken()
	return idempotency.NewRecordID("", nil, idempotency.Key(token[:]))
}

func plainSubmit(id idempotency.RecordID) idempotency.Submit {
	return idempotency.Submit{ID: id, Details: idempotency.Details{Key: "k", Method: http.MethodPost, Path: "/v1/videos"}}
}

func submitOnce(tb testing.TB, e *idempotency.Engine, id idempotency.RecordID) {
	a, err := e.Begin(context.Background(), idempotency.DefaultPolicy(), plainSubmit(id))
	if err != nil || a.Attempt == nil {
		tb.Fatalf("Begin gave %+v, %v, want an attempt", a, err)
	}
	body := []byte(`{"id":"job_1","note":"` + strings.Repeat("x", 276) + `"}`)
	c, reason := a.Attempt.Conclude(idempotency.Result{
		Status: http.StatusAccepted, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Whole: true,
	})
	if c != idempotency.ConcludedAccepted || !a.Attempt.Stored() {
		tb.Fatalf("Conclude gave %d, %s", c, reason)
	}
}

// BenchmarkHotPath has the time and the allocations of one request.
func BenchmarkHotPath(b *testing.B) {
	for name, prepare := range hotPaths {
		b.Run(name, func(b *testing.B) {
			once := prepare(b)
			b.ReportAllocs()
			for b.Loop() {
				once()
			}
		})
	}
}

// The allocations of a hot path stay what they were when somebody last looked
// at them: testdata/allocations.json. A change on purpose changes the file,
// also one for the better. Times are not compared: they are another machine's.
func TestAllocations(t *testing.T) {
	// The race detector allocates, too.
	if info, ok := debug.ReadBuildInfo(); ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-race" && s.Value == "true"
	}) {
		t.Skip("the race detector allocates; ./xcaddy.sh test runs this without it")
	}
	text, err := os.ReadFile(filepath.Join("testdata", "allocations.json"))
	if err != nil {
		t.Fatal(err)
	}
	var baseline map[string]float64
	if err := json.Unmarshal(text, &baseline); err != nil {
		t.Fatal(err)
	}
	for name, prepare := range hotPaths {
		t.Run(name, func(t *testing.T) {
			n := testing.AllocsPerRun(200, prepare(t))
			ratio := n / baseline[name]
			t.Logf("%v allocations, %.2f of the baseline", n, ratio)
			if !(0.9 <= ratio && ratio <= 1.1) {
				t.Errorf("it takes %v allocations, and %v in testdata/allocations.json", n, baseline[name])
			}
		})
	}
}

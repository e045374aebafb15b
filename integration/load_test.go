package integration

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// load sends submits one after the other from several callers, each with a key
// of its own, until it is told to stop.
type load struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	answers map[string]answer
}

func startLoad(t *testing.T, g *gateway) *load {
	const callers = 8
	l := &load{stop: make(chan struct{}), answers: map[string]answer{}}
	for caller := range callers {
		l.wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				default:
				}
				key := fmt.Sprintf("key-%d-%d", caller, i)
				got := g.send(t, request{key: key, body: key})
				l.mu.Lock()
				l.answers[key] = got
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.answers)
}

// awaitMore waits until the load goes on.
func (l *load) awaitMore(t *testing.T) {
	t.Helper()
	before := l.count()
	await(t, "more answers", func() bool { return l.count() >= before+20 })
}

// end stops the load and returns its answers by key.
func (l *load) end() map[string]answer {
	close(l.stop)
	l.wg.Wait()
	return l.answers
}

// slowly accepts after a moment, so that attempts run at any time.
func slowly(p *provider) behaviour {
	return func(w http.ResponseWriter, _ *http.Request, n int, accept func() string) {
		timer := time.NewTimer(time.Duration(20+n%5*40) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
			acceptPlainly(w, accept)
		case <-p.ctx.Done():
		}
	}
}

// Reloads under load interrupt nothing: the same configuration, other options,
// another store and back.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			p.now(slowly(p))
			// Shorter than many attempts, so that they outlive their configuration.
			o := options{store: store.directive(t), global: "grace_period 10ms", idempotency: "lease 1s"}
			g := startGateway(t, p.url, o)
			load := startLoad(t, g)
			changed, elsewhere := o, o
			changed.idempotency = "lease 2s\nerrors problem"
			elsewhere.store = "embedded " + filepath.Join(g.dir, "other.db")
			for _, next := range []options{o, changed, elsewhere, o, elsewhere, o} {
				load.awaitMore(t)
				g.write(t, p.url, next)
				g.reload(t)
			}
			load.awaitMore(t)
			answers := load.end()
			p.checkAcceptances(t)

			replays := 0
			for key, first := range answers {
				if _, ok := jobOf(first); !ok {
					// Caddy closes connections whose request it has not read when
					// the grace period is over; such a submit was not sent.
					if first.err == nil {
						t.Errorf("%s: %v", key, first)
					}
				}
			}
			submits := p.count()
			// Every answer is in the store that was in use: most are in the first.
			for key, first := range answers {
				if job, ok := jobOf(first); ok {
					got := g.send(t, request{key: key, body: key})
					if got.replayed() {
						replays++
						if again, _ := jobOf(got); again != job {
							t.Errorf("%s: first %v, again %v", key, first, got)
						}
					}
				}
			}
			t.Logf("%d submits, %d in the first store", submits, replays)
			if replays == 0 {
				t.Error("nothing is in the first store")
			}
		})
	}
}

// A stop under load releases nothing: after the restart each key has its job,
// or its outcome is unknown. The caller got a 202 only for what is stored.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	stops := map[string]func(t *testing.T, g *gateway){
		"caddy stop": func(t *testing.T, g *gateway) {
			t.Helper()
			output, err := exec.Command(caddyBinary, "stop", "--address", g.admin).CombinedOutput()
			if err != nil {
				t.Fatalf("caddy stop: %v\n%s", err, output)
			}
			<-g.done
		},
		"SIGTERM": func(t *testing.T, g *gateway) { t.Helper(); g.stop(t) },
	}
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, store := range stores {
				t.Run(store.name, func(t *testing.T) {
					t.Parallel()
					p := startProvider(t, nil)
					p.now(slowly(p))
					g := startGateway(t, p.url, options{store: store.directive(t), global: "grace_period 10ms", idempotency: "lease 500ms"})
					load := startLoad(t, g)
					load.awaitMore(t)
					hold := newGate() // some attempts run for longer than the stop waits
					p.now(p.holdUntil(hold))
					before := p.count()
					p.awaitSubmits(t, before+4)
					stop(t, g)
					answers := load.end()
					hold.open()
					p.now(answerWith(500, nil, "a second submit"))
					submits := p.count()
					g.run(t)

					known := map[string]bool{}
					p.mu.Lock()
					for _, s := range p.submits {
						known[s.key] = true
					}
					p.mu.Unlock()
					unknown := 0
					for key := range known {
						var got answer
						await(t, "the outcome", func() bool {
							got = g.send(t, request{key: key, body: key})
							return got.code() != "idempotency_key_in_progress"
						})
						p.want(t, submits)
						_, told := jobOf(answers[key])
						switch {
						case got.replayed() && (!told || got.body == answers[key].body):
						case got.code() == "idempotency_outcome_unknown" && !told:
							unknown++
						default:
							t.Errorf("%s: first %v, again %v", key, answers[key], got)
						}
					}
					if unknown == 0 {
						t.Error("no attempt was left behind")
					}
					if !strings.Contains(g.log.String(), "stopping while submits are running") {
						t.Error("the log does not tell of the attempts that were left behind")
					}
				})
			}
		})
	}
}

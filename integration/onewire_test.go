package integration

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// warmConnections is more than net/http would need to give up.
const warmConnections = 5

// warm leaves idle connections between the gateway and the provider.
func warm(t *testing.T, g *gateway, p *provider) {
	t.Helper()
	hold := newGate()
	p.now(p.holdUntil(hold))
	var answers []<-chan answer
	for range warmConnections {
		answers = append(answers, g.sendLater(t, request{body: "warm"}))
	}
	p.awaitSubmits(t, warmConnections)
	hold.open()
	for _, a := range answers {
		<-a
	}
	p.forget()
}

// forget lets the count begin anew.
func (p *provider) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.submits = nil
}

// startCounting runs a provider that counts requests of any method as submits.
func startCounting(t *testing.T, behave behaviour) *provider {
	t.Helper()
	p := newProvider(t, behave)
	p.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			r.Method = "got " + r.Method // the provider has a page behind GET
		}
		p.ServeHTTP(w, r)
	})
	p.start()
	return p
}

const stoppedLine = "a second request to a provider for one submit was stopped"

// E6, A1, A13: what stands behind the handler makes of a submit what Go's HTTP
// client sends again by itself. It is sent once.
func TestOneRequestOnWarmConnections(t *testing.T) {
	for name, test := range map[string]struct {
		options string
		before  string // the proxy, behind the handler
		proxy   string
		r       request
		quiet   bool // nobody tries to send it again
	}{
		"body emptied": {before: `request_body { 
	set "{http.request.header.X-New-Body}"
}`, r: request{body: "x"}},
		"body emptied, of a PUT": {options: "methods PUT", before: `request_body { 
	set "{http.request.header.X-New-Body}"
}`, r: request{method: "PUT", body: "x"}},
		"no body, the key is kept":     {options: "upstream_key keep", r: request{}},
		"no body, kept, DELETE":        {options: "upstream_key keep\nmethods DELETE", r: request{method: "DELETE"}},
		"no body, kept, header_up":     {options: "upstream_key keep", proxy: "header_up X-Other value", r: request{}},
		"method becomes GET":           {before: "method GET", r: request{}},
		"method becomes OPTIONS":       {before: "method OPTIONS", r: request{body: "x"}, quiet: true},
		"GET and body emptied":         {before: "method GET\nrequest_body {\nset {http.request.header.X-New-Body}\n}", r: request{body: "x"}},
		"GET behind a copy":            {before: "tracing\nmethod GET", r: request{}},
		"GET in the proxy":             {proxy: "method GET", r: request{body: "x"}},
		"a body grows":                 {before: "request_body {\nset more\n}", r: request{}, quiet: true},
		"no body":                      {r: request{}, quiet: true},
		"on_store_error forward, kept": {options: "upstream_key keep\non_store_error forward", r: request{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startCounting(t, nil)
			o := options{
				idempotency: test.options, env: []string{"OTEL_TRACES_EXPORTER=none"},
				instead: fmt.Sprintf("route {\n%s\nreverse_proxy %s {\n%s\n}\n}", test.before, p.url, test.proxy),
			}
			unprotected := strings.Contains(test.options, "forward")
			if unprotected {
				o.store = "redis " + freeAddress(t)
			}
			g := startGateway(t, p.url, o)
			warm(t, g, p)

			p.now(hangUpAny)
			test.r.key = "k"
			got := g.send(t, test.r)
			p.want(t, 1)
			if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
				t.Errorf("got %v", got)
			}
			if !test.quiet {
				g.awaitLog(t, stoppedLine)
			}
			if unprotected {
				return
			}
			if got := g.send(t, test.r); got.status != 409 || got.code() != "idempotency_outcome_unknown" {
				t.Errorf("again: %v", got)
			}
			p.want(t, 1)
			if test.quiet == strings.Contains(g.log.String(), stoppedLine) {
				t.Errorf("the log says that a second request was stopped: %t", !test.quiet)
			}
		})
	}
}

// E6: handlers behind the guard that send a submit on when it was sent already.
// Neither the first provider nor any other gets a second one.
func TestOneRequestOfSeveralHandlers(t *testing.T) {
	const next = "NEXT" // the second provider's address
	retried := func(method string) string {
		return "lb_retries 3\nlb_try_interval 1ms\nlb_retry_match {\nmethod " + method + "\n}"
	}
	refuse := answerWith(429, map[string]string{"Retry-After": "1"}, "busy")
	fail := answerWith(500, nil, "failed")
	acceptAs := func(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) { acceptPlainly(w, accept) }
	for name, test := range map[string]struct {
		behave     behaviour // of the first provider
		before     string    // the first proxy
		proxy      string
		after      string
		method     string
		body       string
		status     int
		code       string
		repeatable bool
	}{
		"method PUT, retried": {
			behave: hangUpAny, before: "method PUT", proxy: retried("PUT"), body: "x",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"method GET, retried": {
			behave: hangUpAny, before: "method GET", proxy: "lb_retries 3\nlb_try_interval 1ms", body: "x",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"method GET, tried for a time": {
			behave: hangUpAny, before: "method GET", proxy: "lb_try_duration 1h\nlb_try_interval 1ms",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"method PUT, retried on its status": {
			behave: fail, before: "method PUT", proxy: "lb_retries 3\nlb_try_interval 1ms\nlb_retry_match {\nmethod PUT\nexpression `{rp.status_code} == 500`\n}",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"refused, and retried on its status": {
			behave: refuse, before: "method PUT", proxy: "lb_retries 3\nlb_try_interval 1ms\nlb_retry_match {\nmethod PUT\nexpression `{rp.status_code} == 429`\n}",
			status: 429, repeatable: true,
		},
		"handle_response falls through": {
			behave: fail, proxy: "@bad status 5xx\nhandle_response @bad {\nheader X-Failed yes\n}", after: "reverse_proxy " + next, body: "x",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"handle_response falls through, no body": {
			behave: fail, proxy: "@bad status 5xx\nhandle_response @bad {\nheader X-Failed yes\n}", after: "reverse_proxy " + next,
			status: 502, code: "idempotency_outcome_unknown",
		},
		"handle_response of an acceptance falls through": {
			behave: acceptAs, proxy: "handle_response {\ncopy_response_headers\n}", after: "reverse_proxy " + next, body: "x",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"handle_response of a refusal falls through": {
			behave: refuse, proxy: "handle_response {\nheader X-Failed yes\n}", after: "reverse_proxy " + next, body: "x",
			status: 429, repeatable: true,
		},
		"the refusal speaks of a running submit": {
			behave: answerWith(409, map[string]string{"Idempotency-Error": "idempotency_key_in_progress"}, "busy"),
			proxy:  "handle_response {\nheader X-Failed yes\n}", after: "reverse_proxy " + next, body: "x",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"falls through to a third": {
			behave: fail, proxy: "handle_response {\nheader X-Failed yes\n}", after: "reverse_proxy " + next + " {\nhandle_response {\nheader X-Failed yes\n}\n}\nreverse_proxy " + next, body: "x",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"falls through to the same provider by invoke": {
			behave: fail, proxy: "handle_response {\nheader X-Failed yes\n}", after: "invoke provider", body: "x",
			status: 502, code: "idempotency_outcome_unknown",
		},
		"a second guard between them": {
			behave: fail, proxy: "handle_response {\nheader X-Failed yes\n}", after: "idempotency\nreverse_proxy " + next, body: "x",
			status: 502, code: "idempotency_outcome_unknown",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, second := startCounting(t, test.behave), startCounting(t, nil)
			g := startGateway(t, p.url, options{
				instead: strings.ReplaceAll(fmt.Sprintf("route {\n%s\nreverse_proxy %s {\n%s\n}\n%s\n}", test.before, p.url, test.proxy,
					strings.ReplaceAll(test.after, "invoke provider", "reverse_proxy "+p.url)), next, second.url),
			})
			r := request{key: "k", body: test.body}
			got := g.send(t, r)
			p.want(t, 1)
			second.want(t, 0)
			if got.status != test.status || got.code() != test.code {
				t.Errorf("got %v", got)
			}
			g.awaitLog(t, stoppedLine)
			if n := strings.Count(g.log.String(), stoppedLine); n != 1 {
				t.Errorf("the log says %d times that a second request was stopped", n)
			}
			again := g.send(t, r)
			second.want(t, 0)
			if test.repeatable {
				p.want(t, 2)
				return
			}
			p.want(t, 1)
			if again.status != 409 || again.code() != "idempotency_outcome_unknown" {
				t.Errorf("again: %v", again)
			}
		})
	}
}

// A dial that fails is no request: the next upstream, and the next proxy, may
// get the submit.
func TestFailedDialsAreRetried(t *testing.T) {
	p := startProvider(t, nil)
	for name, instead := range map[string]string{
		"lb_retries":      "reverse_proxy DEAD DEAD2 UP {\nlb_policy first\nlb_retries 5\nlb_try_interval 1ms\n}",
		"lb_try_duration": "reverse_proxy DEAD UP {\nlb_policy first\nfail_duration 1m\nlb_try_duration 1h\nlb_try_interval 1ms\n}",
		"not covering":    "reverse_proxy DEAD UP {\nlb_policy first\nfail_duration 1m\nlb_retries 5\nlb_try_interval 1ms\nlb_retry_match {\nmethod GET\n}\n}",
	} {
		t.Run(name, func(t *testing.T) {
			instead = strings.NewReplacer("DEAD2", freeAddress(t), "DEAD", freeAddress(t), "UP", strings.TrimPrefix(p.url, "http://")).Replace(instead)
			if name == "lb_retries" {
				instead = strings.Replace(instead, "lb_policy first", "lb_policy round_robin", 1)
			}
			g := startGateway(t, "", options{instead: instead})
			for _, body := range []string{"x", ""} {
				p.forget()
				r := request{key: "k" + body, body: body}
				got, again := g.send(t, r), g.send(t, r)
				p.want(t, 1)
				if got.status != 202 || !again.replayed() {
					t.Errorf("got %v, again %v", got, again)
				}
			}
			if strings.Contains(g.log.String(), stoppedLine) {
				t.Error("something was stopped")
			}
		})
	}
}

// forward_auth behind the handler asks before the submit goes out. The question
// is no submit, whatever is answered, and whatever address it has.
func TestForwardAuthBehindTheHandler(t *testing.T) {
	for name, test := range map[string]struct {
		shared bool   // the provider answers the questions, too
		method string // of the submit
		dial   string // of the provider, in place of its address
		auth   string // of the one who is asked, in place of its address
	}{
		"of its own":                 {},
		"of its own, DELETE":         {method: "DELETE"},
		"the provider's":             {shared: true},
		"from a placeholder":         {auth: "{vars.auth}"},
		"provider from a header":     {dial: "{vars.provider}"},
		"provider from, and shared ": {dial: "{vars.provider}", shared: true},
	} {
		for _, body := range []string{"x", ""} {
			if test.method == "DELETE" && body != "" {
				continue
			}
			t.Run(fmt.Sprintf("%s, %d bytes", name, len(body)), func(t *testing.T) {
				t.Parallel()
				q := &questioned{status: 200}
				p := newProvider(t, nil)
				p.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/check" {
						q.ServeHTTP(w, r)
						return
					}
					p.ServeHTTP(w, r)
				})
				p.start()
				asked := newProvider(t, nil)
				asked.server.Config.Handler = q
				asked.start()
				own := strings.TrimPrefix(asked.url, "http://")
				if test.shared {
					own = strings.TrimPrefix(p.url, "http://")
				}
				auth, dialed := own, strings.TrimPrefix(p.url, "http://")
				before := fmt.Sprintf("vars {\nauth %s\nprovider %s\n}", auth, dialed)
				if test.auth != "" {
					auth = test.auth
				}
				if test.dial != "" {
					dialed = test.dial
				}
				proxies := "route {\nforward_auth " + auth + " {\nuri /check\ncopy_headers X-User\n}\nreverse_proxy " + dialed + "\n}"
				methods := ""
				if test.method != "" {
					methods = "methods POST " + test.method
				}
				g := startGateway(t, "", options{before: before, idempotency: methods, instead: proxies})
				send := func(key string) answer {
					return g.send(t, request{key: key, body: body, method: test.method})
				}

				for _, key := range []string{"a", "b"} { // over a new and an idle connection
					p.forget()
					first, again := send(key), send(key)
					p.want(t, 1)
					if first.status != 202 || !again.replayed() {
						t.Fatalf("got %v, again %v", first, again)
					}
					if s := p.submit(0); s.header.Get("X-User") != "somebody" {
						t.Errorf("the provider got %v", s.header)
					}
				}
				if n := q.count(); n != 2 {
					t.Errorf("asked %d times", n)
				}

				// What the question was answered is not the provider's own status.
				p.forget()
				p.now(answerWith(429, nil, "busy"))
				if got := send("c"); got.status != 429 || got.code() != "" {
					t.Errorf("got %v", got)
				}
				send("c")
				p.want(t, 2)
				p.forget()
				p.now(answerWith(500, nil, "failed"))
				if got := send("d"); got.status != 500 || got.code() != "idempotency_outcome_unknown" {
					t.Errorf("got %v", got)
				}
				if got := send("d"); got.status != 409 {
					t.Errorf("again: %v", got)
				}
				p.want(t, 1)
				p.forget()
				p.now(hangUpAny)
				if got := send("e"); got.status != 502 || got.code() != "idempotency_outcome_unknown" {
					t.Errorf("got %v", got)
				}
				if got := send("e"); got.status != 409 {
					t.Errorf("again: %v", got)
				}
				p.want(t, 1)

				// Nobody is let in: nothing is sent, and the key is free.
				for _, status := range []int{401, 500, 302} {
					q.now(status)
					for range 2 {
						if got := send("f"); got.status != status || got.code() != "" || got.replayed() {
							t.Errorf("asked with %d: %v", status, got)
						}
					}
				}
				q.now(0) // no answer at all
				for range 2 {
					if got := send("f"); got.status != 502 || got.code() != "" {
						t.Errorf("asked with no answer: %v", got)
					}
				}
				p.want(t, 1)
				q.now(200)
				p.now(nil)
				if got := send("f"); got.status != 202 {
					t.Errorf("let in: %v", got)
				}
				p.want(t, 2)
				if strings.Contains(g.log.String(), stoppedLine) {
					t.Error("something was stopped")
				}

				if test.shared {
					return
				}
				// The provider cannot be reached after the question was answered.
				p.server.CloseClientConnections()
				p.server.Close()
				for range 2 {
					if got := send("g"); got.status != 502 || got.code() != "" {
						t.Errorf("refused dial: %v", got)
					}
				}
			})
		}
	}
}

// A question does not make room for a second submit.
func TestForwardAuthAndSecondProxy(t *testing.T) {
	for name, before := range map[string]string{"": "", "method PUT": "method PUT", "method GET": "method GET", "GET behind a copy": "tracing\nmethod GET"} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprint(name, shared), func(t *testing.T) {
				t.Parallel()
				q := &questioned{status: 200}
				p, second, asked := startCounting(t, answerWith(500, nil, "failed")), startCounting(t, nil), newProvider(t, nil)
				asked.server.Config.Handler = q
				if shared {
					asked.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/check" {
							q.ServeHTTP(w, r)
							return
						}
						second.ServeHTTP(w, r)
					})
				}
				asked.start()
				next := second.url
				if shared {
					next = asked.url
				}
				g := startGateway(t, "", options{env: []string{"OTEL_TRACES_EXPORTER=none"}, instead: fmt.Sprintf(`route {
	forward_auth %s {
		uri /check
	}
	%s
	reverse_proxy %s {
		handle_response {
			header X-Failed yes
		}
	}
	reverse_proxy %s
}`, asked.url, before, p.url, next)})
				got := g.send(t, request{key: "k", body: "x"})
				if shared && strings.Contains(before, "GET") {
					// The question may have been the submit: nothing goes on.
					p.want(t, 0)
				} else {
					p.want(t, 1)
				}
				second.want(t, 0)
				if got.status != 502 || got.code() != "idempotency_outcome_unknown" {
					t.Errorf("got %v", got)
				}
				if got := g.send(t, request{key: "k", body: "x"}); got.status != 409 {
					t.Errorf("again: %v", got)
				}
				if p.count() > 1 {
					t.Errorf("the provider received %d submits", p.count())
				}
				second.want(t, 0)
			})
		}
	}
}

// questioned answers the questions of forward_auth.
type questioned struct {
	mu     sync.Mutex
	status int // 0: no answer
	asked  int
}

func (q *questioned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q.mu.Lock()
	status := q.status
	q.asked++
	q.mu.Unlock()
	if status == 0 {
		hangUpAny(w, r, 0, func() string { return "" })
		return
	}
	w.Header().Set("X-User", "somebody")
	w.Header().Set("Location", "/login")
	w.WriteHeader(status)
}

func (q *questioned) now(status int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.status = status
}

func (q *questioned) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.asked
}

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// ask sends a request to the admin endpoint; a POST is JSON unless its header
// says otherwise.
func (g *gateway) ask(t testing.TB, method, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+g.admin+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(data), err}
}

// record is a record as the admin API shows it.
type record struct {
	ID         string    `json:"id"`
	State      string    `json:"state"`
	Namespace  string    `json:"namespace"`
	Method     string    `json:"method"`
	Path       string    `json:"path"`
	Status     int       `json:"status"`
	JobID      string    `json:"job_id"`
	CreatedAt  time.Time `json:"created_at"`
	LeaseUntil time.Time `json:"lease_until"`
	ExpiresAt  time.Time `json:"expires_at"`
	Error      string    `json:"error"`
	Attempt    string    `json:"attempt"`
	Label      string    `json:"label"`
	Unreadable bool      `json:"unreadable"`
	Decision   *decided  `json:"decision"`

	Key        string          `json:"key"`
	Headers    http.Header     `json:"headers"`
	Body       json.RawMessage `json:"body"`
	BodyBase64 []byte          `json:"body_base64"`
}

// decided is who decided about a record.
type decided struct {
	What   string    `json:"what"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
}

type listing struct {
	Records    []record       `json:"records"`
	NextCursor string         `json:"next_cursor"`
	Counts     map[string]int `json:"counts"`
	Unreadable []string       `json:"unreadable"`
}

// told reads an answer of the admin API.
func told[T any](t testing.TB, a answer) (document T) {
	t.Helper()
	if a.err != nil || a.status != 200 {
		t.Fatalf("the admin API answered %s", a)
	}
	if err := json.Unmarshal([]byte(a.body), &document); err != nil {
		t.Fatalf("the admin API answered %s: %v", a, err)
	}
	return document
}

func (g *gateway) list(t testing.TB, query string) listing {
	t.Helper()
	return told[listing](t, g.ask(t, http.MethodGet, "/idempotency/records"+query, ""))
}

func (g *gateway) show(t testing.TB, id string) record {
	t.Helper()
	return told[record](t, g.ask(t, http.MethodGet, "/idempotency/records/"+id, ""))
}

// decide asks for a decision about a record.
func (g *gateway) decide(t testing.TB, id, decision, body string, header ...string) answer {
	t.Helper()
	return g.ask(t, http.MethodPost, "/idempotency/records/"+id+"/"+decision, body, header...)
}

// leaveUnknown sends a submit whose outcome stays unknown and returns the id
// of its record. The provider accepts what comes afterwards.
func leaveUnknown(t testing.TB, g *gateway, p *provider, r request) string {
	t.Helper()
	before := p.count()
	p.now(hangUp("", false))
	got := g.send(t, r)
	p.now(nil)
	p.want(t, before+1)
	if got.code() != "idempotency_outcome_unknown" {
		t.Fatalf("the submit ended as %s, want unknown", got)
	}
	return string(idempotency.NewRecordID("", []string{"Bearer caller", ""}, idempotency.Key(r.key)))
}

var submitUnknown = request{key: "film-1", body: `{"prompt":"a lighthouse"}`}

// An operator sees what is unknown, and gives the answer that the provider
// had given: the next repeat gets it.
func TestOperatorCompletes(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{store: store.directive(t)})
			id := leaveUnknown(t, g, p, submitUnknown)
			g.send(t, request{key: "other", body: "x"})
			p.want(t, 2)

			l := g.list(t, "?state=uncertain")
			if len(l.Records) != 1 || l.NextCursor != "" || l.Counts["uncertain"] != 1 || l.Counts["completed"] != 1 || l.Counts["in_progress"] != 0 {
				t.Fatalf("the listing is %+v", l)
			}
			r := l.Records[0]
			if r.ID != id || r.State != "uncertain" || r.Method != "POST" || r.Path != "/v1/videos" || r.Error == "" || r.Status != 0 ||
				time.Since(r.CreatedAt).Abs() > time.Minute || !r.LeaseUntil.After(r.CreatedAt) || !r.ExpiresAt.After(r.LeaseUntil) {
				t.Errorf("the record is %+v", r)
			}
			if got := g.show(t, id); got.Attempt != r.Attempt || got.Error != r.Error || got.Key != "" || got.Body != nil || got.Headers != nil {
				t.Errorf("the record by itself is %+v", got)
			}

			const job = `{ "id": "job_77", "seed": 1234567890123456789, "status": "queued" }`
			got := g.decide(t, id, "complete", `{"status":201,"headers":{"Location":"/jobs/77","Set-Cookie":"a=b","X-List":["1","2"]},"body":`+
				job+`,"reason":"found in the console","attempt":"`+r.Attempt+`"}`)
			if got.status != 200 || !strings.Contains(got.body, `"decision":"completed"`) {
				t.Fatalf("complete gave %s", got)
			}
			again := g.send(t, submitUnknown)
			p.want(t, 2)
			if !again.replayed() || again.status != 201 || again.body != job || again.header.Get("Location") != "/jobs/77" ||
				again.header.Get("Content-Type") != "application/json" || again.header.Get("Set-Cookie") != "" || len(again.header["X-List"]) != 2 {
				t.Errorf("the repeat got %s %v", again, again.header)
			}
			if r := g.show(t, id); r.State != "completed" || r.Status != 201 || r.JobID != "job_77" {
				t.Errorf("the record is %+v", r)
			}
			g.awaitLog(t, `"decision":"completed","reason":"found in the console","remote":"127.0.0.1:`)
		})
	}
}

// What an operator releases is submitted by the next repeat.
func TestOperatorReleases(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			p := startProvider(t, nil)
			g := startGateway(t, p.url, options{store: store.directive(t)})
			id := leaveUnknown(t, g, p, submitUnknown)
			if got := g.decide(t, id, "release", `{"reason":"the console has no such job"}`); got.status != 200 || !strings.Contains(got.body, `"decision":"released"`) {
				t.Fatalf("release gave %s", got)
			}
			if got := g.ask(t, http.MethodGet, "/idempotency/records/"+id, ""); got.status != 404 {
				t.Errorf("afterwards the record is %s", got)
			}
			again := g.send(t, submitUnknown)
			p.want(t, 2)
			if again.status != 202 || again.replayed() {
				t.Errorf("the repeat got %s", again)
			}
			g.awaitLog(t, `"record":"`+id+`","decision":"released","reason":"the console has no such job","remote":"127.0.0.1:`)
		})
	}
}

// A release and a completion win over the acceptance that comes afterwards,
// which is logged (case B5).
func TestLateAcceptanceAfterDecision(t *testing.T) {
	t.Parallel()
	for _, decision := range []string{"release", "complete"} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			p, hold := startHolding(t)
			o := options{store: "redis " + redis.Address, idempotency: "lease 3s"}
			frozen := startGateway(t, p.url, o)
			other := startGateway(t, p.url, o)
			first := frozen.sendLater(t, request{key: "k", body: "x"})
			p.awaitSubmits(t, 1)
			id := other.list(t, "").Records[0].ID

			// While its owner is alive the record is not for operators.
			got := other.decide(t, id, decision, `{"reason":"impatient","status":202,"body":{}}`)
			if decision == "release" {
				got = other.decide(t, id, decision, `{"reason":"impatient"}`)
			}
			if got.status != 409 || !strings.Contains(got.body, "in_progress") {
				t.Errorf("a decision while the owner is alive gave %s", got)
			}
			frozen.freeze(t)
			await(t, "the lease to be over", func() bool { return other.show(t, id).State == "uncertain" })
			p.now(nil)
			want := "job_2"
			if decision == "release" {
				got = other.decide(t, id, decision, `{"reason":"not in the console"}`)
			} else {
				want = "job_op"
				got = other.decide(t, id, decision, `{"reason":"in the console","status":202,"body":{"id":"job_op"}}`)
			}
			if got.status != 200 {
				t.Fatalf("the decision gave %s", got)
			}
			again := other.send(t, request{key: "k", body: "x"})
			submits := map[string]int{"release": 2, "complete": 1}[decision]
			p.want(t, submits)
			if !strings.Contains(again.body, want) {
				t.Fatalf("the repeat got %s, want %s", again, want)
			}

			hold.open()
			frozen.thaw(t)
			if got := <-first; got.status != 202 || !strings.Contains(got.body, "job_1") {
				t.Errorf("the first caller got %s", got)
			}
			frozen.awaitLog(t, "the provider accepted a submit that no longer owns its record")
			if again := other.send(t, request{key: "k", body: "x"}); !again.replayed() || !strings.Contains(again.body, want) {
				t.Errorf("after the late acceptance a repeat got %s, want %s", again, want)
			}
			p.want(t, submits)
		})
	}
}

// Of two operators who decide at once, on two gateways, exactly one wins.
func TestTwoOperators(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	o := options{store: "redis " + redis.Address}
	gateways := []*gateway{startGateway(t, p.url, o), startGateway(t, p.url, o)}
	for round := range 20 {
		r := request{key: fmt.Sprint("k", round), body: "x"}
		id := leaveUnknown(t, gateways[0], p, r)
		answers := make([]answer, 2)
		var wg sync.WaitGroup
		for i, g := range gateways {
			wg.Go(func() {
				if i == 0 {
					answers[i] = g.decide(t, id, "complete", `{"reason":"a","status":202,"body":{"id":"a"}}`)
				} else {
					answers[i] = g.decide(t, id, "release", `{"reason":"b"}`)
				}
			})
		}
		wg.Wait()
		completed, released := answers[0].status == 200, answers[1].status == 200
		if completed == released {
			t.Fatalf("round %d: the decisions gave %s and %s, want one carried out", round, answers[0], answers[1])
		}
		if loser := answers[map[bool]int{true: 1, false: 0}[completed]]; loser.status != 409 && loser.status != 404 {
			t.Errorf("round %d: the second operator got %s", round, loser)
		}
		want := p.count()
		if released {
			want++
		}
		got := gateways[1].send(t, r)
		p.want(t, want)
		if got.replayed() != completed {
			t.Errorf("round %d: after a decision (completed %t) a repeat got %s", round, completed, got)
		}
	}
}

// A decision about what an operator has seen is not one about what came later.
func TestDecisionNamesAttempt(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	id := leaveUnknown(t, g, p, submitUnknown)
	seen := g.show(t, id).Attempt
	if got := g.decide(t, id, "release", `{"reason":"r"}`); got.status != 200 {
		t.Fatalf("release gave %s", got)
	}
	leaveUnknown(t, g, p, submitUnknown)
	for _, decision := range []string{"release", "complete"} {
		body := `{"reason":"r","attempt":"` + seen + `"}`
		if decision == "complete" {
			body = `{"reason":"r","status":200,"empty":true,"attempt":"` + seen + `"}`
		}
		if got := g.decide(t, id, decision, body); got.status != 409 || !strings.Contains(got.body, "another attempt") {
			t.Errorf("%s about an attempt of the past gave %s", decision, got)
		}
	}
	if r := g.show(t, id); r.State != "uncertain" || r.Attempt == seen {
		t.Errorf("the record is %+v", r)
	}
	p.want(t, 2)
}

func TestReveal(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "namespace videos\njob_id /job/0"})
	id := func(key string) string {
		return string(idempotency.NewRecordID("videos", []string{"Bearer caller", ""}, idempotency.Key(key)))
	}
	for key, body := range map[string]string{"json": `{"job":[17]}`, "text": "caf\xe9 <b>"} {
		p.now(answerWith(202, map[string]string{"X-Job": "mark-header"}, body))
		g.send(t, request{key: key, body: "x"})
	}
	p.want(t, 2)
	hidden := g.ask(t, http.MethodGet, "/idempotency/records/"+id("json"), "").body +
		g.ask(t, http.MethodGet, "/idempotency/records/"+id("text")+"?reveal=false", "").body + g.ask(t, http.MethodGet, "/idempotency/records", "").body
	for _, secret := range []string{`"key"`, `"headers"`, `"body`, "mark-header", "caf"} {
		if strings.Contains(hidden, secret) {
			t.Errorf("without reveal the API shows %s: %s", secret, hidden)
		}
	}
	r := told[record](t, g.ask(t, http.MethodGet, "/idempotency/records/"+id("json")+"?reveal=true", ""))
	if r.Key != "json" || r.Headers.Get("X-Job") != "mark-header" || string(r.Body) != `{"job":[17]}` || r.JobID != "17" || r.Namespace != "videos" {
		t.Errorf("revealed the record is %+v", r)
	}
	r = told[record](t, g.ask(t, http.MethodGet, "/idempotency/records/"+id("text")+"?reveal=true", ""))
	if r.Key != "text" || string(r.BodyBase64) != "caf\xe9 <b>" || r.Body != nil || r.JobID != "" {
		t.Errorf("revealed the record is %+v", r)
	}
}

func TestListingFilters(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{idempotency: "namespace ns"})
	for i := range 5 {
		g.send(t, request{key: fmt.Sprint("k", i), body: "x", path: fmt.Sprintf("/v%d/jobs?secret=query", i%2)})
	}
	p.want(t, 5)
	for query, want := range map[string]int{
		"":                       5,
		"?state=completed":       5,
		"?state=uncertain":       0,
		"?path=/v1/jobs":         2,
		"?path=/v*":              5,
		"?path=/v":               0,
		"?namespace=ns":          5,
		"?namespace=other":       0,
		"?older_than=0s":         5,
		"?older_than=1h":         0,
		"?state=&path=&limit=3":  3,
		"?limit=1000&namespace=": 5,
	} {
		l := g.list(t, query)
		if len(l.Records) != want || l.Counts["completed"] != 5 {
			t.Errorf("%s gave %d records and counts %v, want %d", query, len(l.Records), l.Counts, want)
		}
	}
	// The pages have each record once, the oldest first.
	var paths []string
	last := time.Time{}
	for cursor := ""; ; {
		l := g.list(t, "?limit=2&cursor="+url.QueryEscape(cursor))
		for _, r := range l.Records {
			paths = append(paths, r.ID)
			if r.CreatedAt.Before(last) {
				t.Error("the listing is not in the order of age")
			}
			last = r.CreatedAt
		}
		if cursor = l.NextCursor; cursor == "" {
			break
		}
	}
	if len(paths) != 5 {
		t.Errorf("the pages have %d records, want 5", len(paths))
	}
}

// Bad input gets an error that says what is wrong, and changes nothing.
func TestAdminBadInput(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	id := leaveUnknown(t, g, p, submitUnknown)
	const good = `{"reason":"r","status":202,"body":{}}`
	unknown := strings.Repeat("0", 32)
	records := "/idempotency/records"
	for name, test := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		text               string
	}{
		"unknown id":              {"GET", records + "/" + unknown, "", nil, 404, "no such record"},
		"malformed id":            {"GET", records + "/k", "", nil, 404, "no such record"},
		"unknown id to complete":  {"POST", records + "/" + unknown + "/complete", good, nil, 404, "no such record"},
		"unknown id to release":   {"POST", records + "/" + unknown + "/release", `{"reason":"r"}`, nil, 404, "no such record"},
		"malformed id to release": {"POST", records + "/..%2f/release", `{"reason":"r"}`, nil, 404, "no such record"},
		"unknown page":            {"GET", "/idempotency/x", "", nil, 404, "no such page"},
		"unknown decision":        {"POST", records + "/" + id + "/delete", good, nil, 405, ""},
		"unknown parameter":       {"GET", records + "?stat=uncertain", "", nil, 400, "stat"},
		"parameter twice":         {"GET", records + "?state=uncertain&state=completed", "", nil, 400, "state is given 2 times"},
		"state":                   {"GET", records + "?state=lost", "", nil, 400, "state"},
		"age":                     {"GET", records + "?older_than=15", "", nil, 400, "older_than"},
		"negative age":            {"GET", records + "?older_than=-1m", "", nil, 400, "older_than"},
		"limit":                   {"GET", records + "?limit=0", "", nil, 400, "limit"},
		"limit over":              {"GET", records + "?limit=1001", "", nil, 400, "limit"},
		"limit text":              {"GET", records + "?limit=all", "", nil, 400, "limit"},
		"cursor":                  {"GET", records + "?cursor=1", "", nil, 400, "cursor"},
		"malformed query":         {"GET", records + "?state=%zz", "", nil, 400, "malformed"},
		"reveal":                  {"GET", records + "/" + id + "?reveal=yes", "", nil, 400, "reveal"},
		"list by POST":            {"POST", records, good, nil, 405, "GET"},
		"show by DELETE":          {"DELETE", records + "/" + id, "", nil, 405, "GET"},
		"complete by PUT":         {"PUT", records + "/" + id + "/complete", good, nil, 405, "POST"},
		"release by GET":          {"GET", records + "/" + id + "/release", "", nil, 405, "POST"},
		"another site":            {"POST", records + "/" + id + "/release", good, []string{"Origin", "https://evil.example"}, 403, "evil.example"},
		"another site, by fetch":  {"POST", records + "/" + id + "/release", `{"reason":"r"}`, []string{"Origin", "http://" + g.admin, "Sec-Fetch-Site", "cross-site"}, 403, "cross-origin"},
		"another port":            {"POST", records + "/" + id + "/release", `{"reason":"r"}`, []string{"Origin", "http://127.0.0.1:1"}, 403, ""},
		"a form":                  {"POST", records + "/" + id + "/release", `{"reason":"r"}`, []string{"Content-Type", "text/plain"}, 415, "application/json"},
		"no type":                 {"POST", records + "/" + id + "/release", `{"reason":"r"}`, []string{"Content-Type", ""}, 415, "application/json"},
		"another host":            {"POST", records + "/" + id + "/release", `{"reason":"r"}`, []string{"Host", "evil.example"}, 403, ""},
		"no JSON":                 {"POST", records + "/" + id + "/release", `reason`, nil, 400, "not one JSON value"},
		"empty":                   {"POST", records + "/" + id + "/release", ``, nil, 400, "not one JSON value"},
		"two values":              {"POST", records + "/" + id + "/release", `{"reason":"r"}{}`, nil, 400, "not one JSON value"},
		"array":                   {"POST", records + "/" + id + "/release", `[]`, nil, 400, `"the body is a JSON array, and not an object"`},
		"array to complete":       {"POST", records + "/" + id + "/complete", `[]`, nil, 400, `"the body is a JSON array, and not an object"`},
		"null":                    {"POST", records + "/" + id + "/release", `null`, nil, 400, "reason: it is missing"},
		"no reason":               {"POST", records + "/" + id + "/release", `{}`, nil, 400, "reason: it is missing"},
		"blank reason":            {"POST", records + "/" + id + "/release", `{"reason":" \n"}`, nil, 400, "reason: it is missing"},
		"reason of a number":      {"POST", records + "/" + id + "/release", `{"reason":7}`, nil, 400, "reason: it must not be a JSON number"},
		"unknown member":          {"POST", records + "/" + id + "/release", `{"reason":"r","status":202}`, nil, 400, "status"},
		"attempt":                 {"POST", records + "/" + id + "/release", `{"reason":"r","attempt":"7"}`, nil, 400, "attempt"},
		"another attempt":         {"POST", records + "/" + id + "/release", `{"reason":"r","attempt":"` + unknown + `"}`, nil, 409, "another attempt"},
		"no status":               {"POST", records + "/" + id + "/complete", `{"reason":"r"}`, nil, 400, "status: it is missing"},
		"status":                  {"POST", records + "/" + id + "/complete", `{"reason":"r","status":102,"empty":true}`, nil, 400, "status 102"},
		"complete for a number":   {"POST", records + "/" + id + "/complete", `{"reason":5,"status":202}`, nil, 400, `"reason: it must not be a JSON number"`},
		"attempt of a number":     {"POST", records + "/" + id + "/complete", `{"reason":"r","attempt":5,"status":202}`, nil, 400, `"attempt: it must not be a JSON number"`},
		"status text":             {"POST", records + "/" + id + "/complete", `{"reason":"r","status":"202"}`, nil, 400, "status: it must not be a JSON string"},
		"body of a 204":           {"POST", records + "/" + id + "/complete", `{"reason":"r","status":204,"body":{}}`, nil, 400, "204"},
		"two bodies":              {"POST", records + "/" + id + "/complete", `{"reason":"r","status":202,"body":{},"body_base64":"e30="}`, nil, 400, "body_base64"},
		"no base64":               {"POST", records + "/" + id + "/complete", `{"reason":"r","status":202,"body_base64":"{}"}`, nil, 400, "body_base64"},
		"header name":             {"POST", records + "/" + id + "/complete", `{"reason":"r","status":202,"empty":true,"headers":{"a b":"c"}}`, nil, 400, "headers"},
		"header value":            {"POST", records + "/" + id + "/complete", `{"reason":"r","status":202,"empty":true,"headers":{"a":"b\r\nc: d"}}`, nil, 400, "headers"},
		"header of a number":      {"POST", records + "/" + id + "/complete", `{"reason":"r","status":202,"headers":{"a":1}}`, nil, 400, `"headers: it must not be a JSON number"`},
		"header of numbers":       {"POST", records + "/" + id + "/complete", `{"reason":"r","status":202,"headers":{"a":["b",1]}}`, nil, 400, `"headers: it must not be a JSON number"`},
		"over 1 MiB":              {"POST", records + "/" + id + "/complete", `{"reason":"r","status":202,"body":"` + strings.Repeat("x", 1<<20) + `"}`, nil, 413, "1048576"},
	} {
		t.Run(name, func(t *testing.T) {
			got := g.ask(t, test.method, test.path, test.body, test.header...)
			if got.status != test.status || !strings.Contains(got.body, test.text) {
				t.Errorf("the answer is %s, want %d with %q", got, test.status, test.text)
			}
			if got.status == 405 && got.header.Get("Allow") == "" {
				t.Error("the answer does not say what is allowed")
			}
		})
	}
	if r := g.show(t, id); r.State != "uncertain" {
		t.Errorf("after all that the record is %+v", r)
	}
	if got := g.send(t, submitUnknown); got.code() != "idempotency_outcome_unknown" {
		t.Errorf("after all that a repeat got %s", got)
	}
	p.want(t, 1)
	// Errors are logged, and what was in the bodies is not.
	if strings.Contains(g.log.String(), "xxxxxxxx") {
		t.Error("the log has a body")
	}
}

// What is not uncertain is not for operators.
func TestDecisionNeedsUncertain(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	g.send(t, request{key: "k", body: "x"})
	id := g.list(t, "").Records[0].ID
	for decision, body := range map[string]string{"release": `{"reason":"r"}`, "complete": `{"reason":"r","status":200,"body":{}}`} {
		if got := g.decide(t, id, decision, body); got.status != 409 || !strings.Contains(got.body, "completed") {
			t.Errorf("%s of a completed record gave %s", decision, got)
		}
	}
	if again := g.send(t, request{key: "k", body: "x"}); !again.replayed() || !strings.Contains(again.body, "job_1") {
		t.Errorf("the repeat got %s", again)
	}
	p.want(t, 1)
}

// The API follows the configuration over reloads, says when there is no
// handler, and when the store is away.
func TestAdminFollowsConfiguration(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	if l := g.list(t, ""); len(l.Records) != 0 {
		t.Fatalf("before the first submit the listing is %+v", l)
	}
	g.send(t, request{key: "k", body: "x"})
	g.write(t, p.url, options{store: "redis " + redis.Address})
	g.reload(t)
	if l := g.list(t, ""); len(l.Records) != 0 {
		t.Errorf("the new store's listing is %+v", l)
	}
	g.write(t, p.url, options{})
	g.reload(t)
	if l := g.list(t, ""); len(l.Records) != 1 {
		t.Errorf("the old store's listing is %+v", l)
	}

	g.write(t, p.url, options{store: "redis " + redis.Address})
	g.reload(t)
	redis.Stop(t)
	for _, path := range []string{"", "/" + strings.Repeat("0", 32)} {
		if got := g.ask(t, http.MethodGet, "/idempotency/records"+path, ""); got.status != 503 {
			t.Errorf("with Redis away %q gave %s", path, got)
		}
	}
	got := g.decide(t, strings.Repeat("0", 32), "release", `{"reason":"r"}`)
	if got.status != 503 || strings.Contains(got.body, "may have been") {
		t.Errorf("with Redis away a decision gave %s", got)
	}
	p.want(t, 1)
}

package sandbox_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/sandbox"
)

// clock is one that the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type job struct {
	ID     string
	Status string
	Usage  *struct{ Cost float64 }
}

// start runs a provider that ends with the test.
func start(t *testing.T, config sandbox.Config) (*sandbox.Sandbox, string) {
	t.Helper()
	s, err := sandbox.New(config)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

func ask(t *testing.T, method, url string) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return res.StatusCode, string(data), err
}

func read[T any](t *testing.T, body string) (document T) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &document); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return document
}

// A job queues, runs and ends by the clock, and each submit is billed.
func TestLifeOfAJob(t *testing.T) {
	c := &clock{now: time.Unix(1796083200, 0)}
	s, url := start(t, sandbox.Config{Now: c.Now, Queue: time.Second, Render: 4 * time.Second, Price: 0.25})
	status, body, err := ask(t, http.MethodPost, url+"/v1/videos")
	accepted := read[job](t, body)
	if err != nil || status != http.StatusAccepted || accepted.ID == "" || accepted.Status != "queued" {
		t.Fatalf("the submit got %d %s, %v", status, body, err)
	}
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{999 * time.Millisecond, "queued"}, {time.Millisecond, "running"}, {4 * time.Second, "succeeded"}} {
		c.advance(step.after)
		if _, body, _ := ask(t, http.MethodGet, url+"/v1/jobs/"+accepted.ID); read[job](t, body).Status != step.want {
			t.Errorf("the job is %s, want %s", body, step.want)
		}
	}
	if _, body, _ := ask(t, http.MethodGet, url+"/v1/jobs/"+accepted.ID); read[job](t, body).Usage == nil {
		t.Errorf("a success has no cost: %s", body)
	}
	if bill := s.Bill(); bill != (sandbox.Bill{Submits: 1, Jobs: 1, Dollars: 0.25}) {
		t.Errorf("the bill is %+v", bill)
	}
	if status, _, _ := ask(t, http.MethodGet, url+"/v1/jobs/job_none"); status != http.StatusNotFound {
		t.Errorf("a job that is not there got %d", status)
	}
}

func TestCancel(t *testing.T) {
	c := &clock{now: time.Unix(1796083200, 0)}
	_, url := start(t, sandbox.Config{Now: c.Now})
	submit := func() string {
		_, body, _ := ask(t, http.MethodPost, url+"/v1/videos")
		return read[job](t, body).ID
	}
	early := submit()
	if _, body, _ := ask(t, http.MethodPost, url+"/v1/jobs/"+early+"/cancel"); read[job](t, body).Status != "canceled" {
		t.Errorf("canceled while queued: %s", body)
	}
	late := submit()
	c.advance(time.Minute)
	if _, body, _ := ask(t, http.MethodPost, url+"/v1/jobs/"+late+"/cancel"); read[job](t, body).Status != "succeeded" {
		t.Errorf("canceled after its end: %s", body)
	}
	if _, body, _ := ask(t, http.MethodGet, url+"/v1/jobs/"+early); read[job](t, body).Status != "canceled" {
		t.Errorf("later: %s", body)
	}
}

func TestBadDays(t *testing.T) {
	t.Run("every answer is lost", func(t *testing.T) {
		s, url := start(t, sandbox.Config{LoseAnswers: 1})
		if status, body, err := ask(t, http.MethodPost, url+"/v1/videos"); err == nil {
			t.Errorf("the submit got %d %s", status, body)
		}
		if bill := s.Bill(); bill.Jobs != 1 {
			t.Errorf("the bill is %+v, want one job", bill)
		}
	})
	for status, accepts := range map[int]bool{500: true, 502: true, 408: true, 503: false, 429: false} {
		t.Run(fmt.Sprint("errors ", status), func(t *testing.T) {
			s, url := start(t, sandbox.Config{Errors: status, Seed: 1})
			answers := map[int]int{}
			for range 100 {
				got, _, err := ask(t, http.MethodPost, url+"/v1/videos")
				if err != nil {
					t.Fatal(err)
				}
				answers[got]++
			}
			if answers[status] < 5 || answers[status] > 40 || answers[202]+answers[status] != 100 {
				t.Errorf("the answers are %v, want about 20 with %d", answers, status)
			}
			want := 100
			if !accepts {
				want -= answers[status]
			}
			if bill := s.Bill(); bill.Jobs != want || bill.Submits != 100 {
				t.Errorf("the bill is %+v, want %d jobs", bill, want)
			}
		})
	}
}

// One seed, one run.
func TestSeed(t *testing.T) {
	run := func() string {
		var log bytes.Buffer
		_, url := start(t, sandbox.Config{LoseAnswers: 0.5, Errors: 500, Seed: 7, Log: &log})
		for range 20 {
			_, _, _ = ask(t, http.MethodPost, url+"/v1/videos")
		}
		return log.String()
	}
	if first, second := run(), run(); first != second || !strings.Contains(first, "its answer is lost") {
		t.Errorf("two runs differ, or lose nothing:\n%s\n%s", first, second)
	}
}

func TestList(t *testing.T) {
	c := &clock{now: time.Unix(1796083200, 0)}
	_, url := start(t, sandbox.Config{Now: c.Now})
	var want []string
	for range 5 {
		_, body, _ := ask(t, http.MethodPost, url+"/v1/videos")
		want = append(want, read[job](t, body).ID)
	}
	type page struct {
		Data       []job
		HasMore    bool    `json:"has_more"`
		NextCursor *string `json:"next_cursor"`
	}
	var got []string
	for cursor := ""; ; {
		_, body, _ := ask(t, http.MethodGet, url+"/v1/jobs?limit=2&status=queued&after="+cursor)
		p := read[page](t, body)
		for _, j := range p.Data {
			got = append(got, j.ID)
		}
		if !p.HasMore {
			break
		}
		cursor = *p.NextCursor
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the pages have %v, want %v", got, want)
	}
	for _, query := range []string{"?limit=0", "?limit=x", "?after=job_none"} {
		if status, body, _ := ask(t, http.MethodGet, url+"/v1/jobs"+query); status != http.StatusBadRequest {
			t.Errorf("%s got %d %s", query, status, body)
		}
	}
}

func TestRejectedConfig(t *testing.T) {
	for want, config := range map[string]sandbox.Config{
		"lose-answers": {LoseAnswers: 1.5},
		"slow":         {Slow: -1},
		"errors":       {Errors: 200},
		"queue":        {Queue: -1},
		"price":        {Price: -1},
	} {
		if _, err := sandbox.New(config); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v gave %v, want an error that begins with %s", config, err, want)
		}
	}
}

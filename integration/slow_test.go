package integration

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// A provider that takes longer than a minute, which is Caddy's own limit for a
// connection on which nothing is read or written: the caller gets its answer,
// and so does a duplicate that is held meanwhile.
func TestAttemptLongerThanAMinute(t *testing.T) {
	const takes = 75 * time.Second
	p := startProvider(t, nil)
	p.now(func(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) {
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
			acceptPlainly(w, accept)
		case <-p.ctx.Done():
		}
	})
	g := startGateway(t, p.url, options{idempotency: "in_progress wait 2m"})
	firsts, duplicates := map[string]<-chan answer{}, map[string]<-chan answer{}
	for i, body := range []string{"x", ""} {
		r := request{key: fmt.Sprint("key-", i), body: body, timeout: 2 * takes}
		firsts[r.key] = g.sendLater(t, r)
		p.awaitSubmits(t, i+1)
		duplicates[r.key] = g.sendLater(t, r)
	}
	t.Parallel() // not before: the minute goes by while others run
	for key, first := range firsts {
		got, again := <-first, <-duplicates[key]
		p.want(t, 2)
		if got.status != 202 {
			t.Errorf("%s: the first caller got %v", key, got)
		}
		if again.body != got.body || !again.replayed() {
			t.Errorf("%s: the duplicate got %v", key, again)
		}
	}
}

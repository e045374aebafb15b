package integration

import (
	"strings"
	"testing"
)

// A method that differs from a configured one in case only is refused, with a key
// or without: a provider that does not mind the case would start a job that
// nobody guards.
func TestMethodInOtherCase(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	plain := startGateway(t, p.url, options{})
	required := startGateway(t, p.url, options{idempotency: "require_key\nmethods POST PUT\nerrors problem"})
	n := 0
	for _, test := range []struct {
		gateway *gateway
		method  string
		refused string // the method that it should be
	}{
		{plain, "post", "POST"},
		{plain, "Post", "POST"},
		{plain, "POSt", "POST"},
		{required, "post", "POST"},
		{required, "put", "PUT"},
		// Not one of methods: passed on as it is.
		{plain, "put", ""},
		{plain, "PUT", ""},
		{plain, "POSTS", ""},
	} {
		for _, key := range []string{"", "k"} {
			r := request{method: test.method, key: key, body: "mark-body"}
			for range 2 {
				got := test.gateway.send(t, r)
				if test.refused == "" {
					n++
					p.want(t, n)
					if got.status != 202 {
						t.Errorf("%s, key %q: %v", test.method, key, got)
					}
					continue
				}
				p.want(t, n)
				if got.status != 400 || got.code() != "" || got.header.Get("Cache-Control") != "no-store" ||
					!strings.HasPrefix(got.header.Get("Content-Type"), "text/plain") || !strings.Contains(got.body, "is "+test.refused+" in another case") {
					t.Errorf("%s, key %q: %v, %v", test.method, key, got, got.header)
				}
			}
		}
	}
	if got := plain.send(t, request{key: "k", body: "x"}); got.status != 202 || got.replayed() {
		t.Errorf("POST got %v", got)
	}
	p.want(t, n+1)
	if counters := plain.scrape(t).outcomes(); counters["failed"] != 12 {
		t.Errorf("the counters are %v, want 12 failed", counters)
	}
}

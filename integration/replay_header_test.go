package integration

import (
	"net/http"
	"slices"
	"testing"
)

// What handlers before this one have set for the first caller is the first
// caller's: a replay has what they set for its own, and of the provider's
// answer what it had added or put in its place.
func TestReplayKeepsCallersApart(t *testing.T) {
	t.Parallel()
	const foo = "{http.request.header.X-Foo}"
	sends := func(header http.Header) behaviour {
		return func(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) {
			for name, values := range header {
				w.Header()[name] = values
			}
			acceptPlainly(w, accept)
		}
	}
	tests := []struct {
		name          string
		before, after string // lines of the site before the handler, and after it
		provider      http.Header
		first, again  []string // what X-Req is for callers a and b
	}{
		{"set", "header X-Req " + foo, "", nil, []string{"a"}, []string{"b"}},
		{"added", "header +X-Req " + foo, "", nil, []string{"a"}, []string{"b"}},
		{"deferred", "header >X-Req " + foo, "", nil, []string{"a"}, []string{"b"}},
		{"deferred, in a block", "header {\ndefer\n+X-Req " + foo + "\n}", "", nil, []string{"a"}, []string{"b"}},
		{"set, the provider adds", "header X-Req " + foo, "", http.Header{"X-Req": {"p"}}, []string{"a", "p"}, []string{"b", "p"}},
		{"added, the provider adds two", "header +X-Req " + foo, "", http.Header{"X-Req": {"p", "q"}}, []string{"a", "p", "q"}, []string{"b", "p", "q"}},
		{"deferred, the provider is overwritten", "header >X-Req " + foo, "", http.Header{"X-Req": {"p"}}, []string{"a"}, []string{"b"}},
		{"deferred and added, the provider too", "header {\ndefer\n+X-Req " + foo + "\n}", "", http.Header{"X-Req": {"p"}}, []string{"p", "a"}, []string{"p", "b"}},
		{"the provider says the same", "header X-Req " + foo, "", http.Header{"X-Req": {"a"}}, []string{"a", "a"}, []string{"b", "a"}},
		{"replaced behind", "header X-Req " + foo, "header X-Req own", nil, []string{"own"}, []string{"own"}},
		{"removed behind", "header X-Req " + foo, "header -X-Req", nil, nil, nil},
		{"nothing before", "", "", http.Header{"X-Req": {"p"}}, []string{"p"}, []string{"p"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := startProvider(t, sends(test.provider))
			g := startGateway(t, p.url, options{
				before: test.before, instead: "route {\n" + test.after + "\nreverse_proxy " + p.url + "\n}",
			})
			caller := func(name string) request {
				return request{key: "k", body: "x", header: http.Header{"X-Foo": {name}}}
			}
			first, again := g.send(t, caller("a")), g.send(t, caller("b"))
			p.want(t, 1)
			if !again.replayed() || again.body != first.body {
				t.Fatalf("again: %v", again)
			}
			if got := first.header["X-Req"]; !slices.Equal(got, test.first) {
				t.Errorf("the first caller got X-Req %q, want %q", got, test.first)
			}
			if got := again.header["X-Req"]; !slices.Equal(got, test.again) {
				t.Errorf("the second caller got X-Req %q, want %q", got, test.again)
			}
			if got := again.header["Content-Type"]; !slices.Equal(got, []string{"application/json"}) {
				t.Errorf("the second caller got Content-Type %q", got)
			}
			if got := again.header["Server"]; !slices.Equal(got, []string{"Caddy"}) {
				t.Errorf("the second caller got Server %q", got)
			}
		})
	}
}

// An answer that names the first caller's origin would keep every other page
// from reading it.
func TestReplayNamesNoOrigin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, before string
		provider     string
		first, again []string
	}{
		{"any origin", "", "*", []string{"*"}, []string{"*"}},
		{"the caller's", "", "https://a.example", []string{"https://a.example"}, nil},
		{"none", "", "null", []string{"null"}, nil},
		{"the gateway's", "header Access-Control-Allow-Origin {http.request.header.Origin}", "", []string{"https://a.example"}, []string{"https://b.example"}},
		{"the gateway's in place of the provider's", "header >Access-Control-Allow-Origin {http.request.header.Origin}", "https://c.example", []string{"https://a.example"}, []string{"https://b.example"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := startProvider(t, func(w http.ResponseWriter, _ *http.Request, _ int, accept func() string) {
				if test.provider != "" {
					w.Header().Set("Access-Control-Allow-Origin", test.provider)
				}
				w.Header().Set("Access-Control-Expose-Headers", "X-Request-Id")
				acceptPlainly(w, accept)
			})
			g := startGateway(t, p.url, options{before: test.before})
			page := func(origin string) request {
				return request{key: "k", body: "x", header: http.Header{"Origin": {origin}}}
			}
			first, again := g.send(t, page("https://a.example")), g.send(t, page("https://b.example"))
			p.want(t, 1)
			if !again.replayed() {
				t.Fatalf("again: %v", again)
			}
			const field = "Access-Control-Allow-Origin"
			if !slices.Equal(first.header[field], test.first) || !slices.Equal(again.header[field], test.again) {
				t.Errorf("the callers got %q and %q, want %q and %q", first.header[field], again.header[field], test.first, test.again)
			}
			if got := again.header.Get("Access-Control-Expose-Headers"); got != "X-Request-Id" {
				t.Errorf("the replay exposes %q", got)
			}
		})
	}
}

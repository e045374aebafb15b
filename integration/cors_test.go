package integration

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// startCORSExample runs docs/examples/cors.Caddyfile as it is but for its ports,
// for a page of the given origin.
func startCORSExample(t *testing.T, origin, provider string) *gateway {
	t.Helper()
	text, err := os.ReadFile("../docs/examples/cors.Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	g := &gateway{
		url: "http://" + freeAddress(t), admin: freeAddress(t), log: &logBuffer{}, dir: dir, caddyfile: filepath.Join(dir, "Caddyfile"),
		env: []string{"ORIGIN=" + origin, "PROVIDER_URL=" + provider},
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(g.url, "http://"), ":")
	changed := strings.NewReplacer(":8080", ":"+port, "\n{\n", "\n{\n\tadmin "+g.admin+"\n\tpersist_config off\n").Replace(string(text))
	if err := os.WriteFile(g.caddyfile, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	g.endWith(t)
	g.run(t)
	return g
}

// browserProvider allows every page itself, which must not come to a second
// Access-Control-Allow-Origin.
func browserProvider(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
	w.Header().Set("Access-Control-Allow-Origin", "*")
	w.Header().Set("Vary", "Accept")
	if strings.Contains(r.URL.Path, "unknown") {
		answerWith(500, nil, "sorry")(w, r, n, accept)
		return
	}
	acceptPlainly(w, accept)
}

// Every answer, the gateway's own too, has what a browser wants to see before
// it shows it to the page.
func TestCORS(t *testing.T) {
	t.Parallel()
	const origin = "https://app.example"
	p := startProvider(t, browserProvider)
	g := startCORSExample(t, origin, p.url)
	page := http.Header{"Origin": {origin}}

	preflight := g.send(t, request{method: http.MethodOptions, header: http.Header{
		"Origin": {origin}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"idempotency-key"},
	}})
	p.want(t, 0)
	if preflight.status != 204 || !strings.Contains(preflight.header.Get("Access-Control-Allow-Headers"), "Idempotency-Key") ||
		!strings.Contains(preflight.header.Get("Access-Control-Allow-Methods"), "POST") {
		t.Errorf("the preflight got %d %v", preflight.status, preflight.header)
	}

	first := g.send(t, request{key: "k", body: "x", header: page})
	replay := g.send(t, request{key: "k", body: "x", header: page})
	reuse := g.send(t, request{key: "k", body: "y", header: page})
	invalid := g.send(t, request{key: "k k", body: "x", header: page})
	unknown := g.send(t, request{key: "u", body: "x", path: "/unknown", header: page})
	repeat := g.send(t, request{key: "u", body: "x", path: "/unknown", header: page})
	p.want(t, 2)
	if first.status != 202 || !replay.replayed() || reuse.code() != "idempotency_key_reuse" || invalid.code() != "idempotency_key_invalid" ||
		unknown.status != 500 || repeat.code() != "idempotency_outcome_unknown" {
		t.Errorf("got %v, %v, %v, %v, %v, %v", first, replay, reuse, invalid, unknown, repeat)
	}
	for name, got := range map[string]answer{
		"preflight": preflight, "first": first, "replay": replay, "reuse": reuse, "invalid": invalid, "unknown": unknown, "repeat": repeat,
	} {
		if values := got.header["Access-Control-Allow-Origin"]; !slices.Equal(values, []string{origin}) {
			t.Errorf("%s has Access-Control-Allow-Origin %q", name, values)
		}
		exposed := got.header.Get("Access-Control-Expose-Headers")
		for _, field := range []string{"Idempotency-Error", "Idempotency-Replayed", "Retry-After"} {
			if !strings.Contains(exposed, field) {
				t.Errorf("%s exposes %q, without %s", name, exposed, field)
			}
		}
		if !slices.Contains(got.header["Vary"], "Origin") {
			t.Errorf("%s has Vary %q", name, got.header["Vary"])
		}
	}

	// Nothing of it is another page's.
	foreign := g.send(t, request{key: "k", body: "x", header: http.Header{"Origin": {"https://other.example"}}})
	if values := foreign.header["Access-Control-Allow-Origin"]; !foreign.replayed() || slices.Contains(values, origin) {
		t.Errorf("another page got Access-Control-Allow-Origin %q", values)
	}
	p.want(t, 2)
}

// A browser itself lets the page read what the gateway says.
func TestCORSInBrowser(t *testing.T) {
	t.Parallel()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	p := startProvider(t, browserProvider)
	var g *gateway
	ready := make(chan struct{})
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-ready
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<body><script>
const send = async (key, body) => {
  const r = await fetch("`+g.url+`/v1/videos", { method: "POST", body, headers: { "Idempotency-Key": key, "Content-Type": "application/json" } });
  return [r.status, r.headers.get("Idempotency-Error"), r.headers.get("Idempotency-Replayed")].join(" ");
};
(async () => {
  const got = [];
  for (const [key, body] of [["k", "1"], ["k", "1"], ["k", "2"], ["k k", "1"]]) {
    try { got.push(await send(key, body)); } catch (e) { got.push(String(e)); }
  }
  document.body.textContent = "got: " + got.join("; ");
})();
</script>`)
	}))
	t.Cleanup(site.Close)
	g = startCORSExample(t, site.URL, p.url)
	close(ready)
	command := exec.Command(chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=20000", "--dump-dom", site.URL)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, output)
	}
	p.want(t, 1)
	const want = "got: 202  ; 202  true; 400 idempotency_key_reuse ; 400 idempotency_key_invalid "
	if !strings.Contains(string(output), want) {
		t.Errorf("the page got %s, want %s", output, want)
	}
}

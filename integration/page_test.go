package integration

import (
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

var pageScreenshots = flag.String("page.screenshots", "", "directory to which TestOperatorPage writes the pictures of docs/operations.md")

// The operator's page does its work in a real browser.
func TestOperatorPage(t *testing.T) {
	t.Parallel()
	chromium := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		t.Fatal("chromium is not installed: run ./xcaddy.sh test, which installs it")
	}
	if _, err := os.Stat("page/node_modules/playwright-core/package.json"); err != nil {
		t.Fatalf("playwright-core is not installed: run ./xcaddy.sh test, which installs it (%v)", err)
	}
	screenshots := *pageScreenshots
	if screenshots == "" {
		screenshots = t.TempDir()
	}
	screenshots, err := filepath.Abs(screenshots)
	if err != nil {
		t.Fatal(err)
	}

	p := startProvider(t, answerWith(202, nil, `{"id":"<script>injected = 1</script>"}`))
	admin := freeAddress(t)
	g := &gateway{url: "http://" + freeAddress(t), admin: admin, log: &logBuffer{}, dir: t.TempDir()}
	g.write(t, p.url, options{admin: "origins " + admin + ` ""`, idempotency: `label "team {http.request.header.X-Team}"`})
	g.endWith(t)
	g.run(t)
	g.send(t, request{key: "done", body: "x", header: http.Header{"X-Team": {"\u202ea <b>"}}})
	p.want(t, 1)
	const path = `/x/<img src=x onerror="injected=1">`
	unknown := []request{
		{key: "film-1", body: "1"},
		{key: "film-2", body: "2", path: "/v2/videos"},
		{key: "film-3", body: "3", path: "/x/%3Cimg%20src=x%20onerror=%22injected=1%22%3E"},
	}
	var ids []string
	for _, r := range unknown {
		ids = append(ids, leaveUnknown(t, g, p, r))
	}

	const job = `{ "id": "job_77", "seed": 12345678901234567890 }`
	order, err := json.Marshal(map[string]any{
		"chromium": chromium, "gateway": g.url, "admin": "http://" + admin, "ids": ids, "path": path, "body": job, "screenshots": screenshots,
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "page.mjs", string(order))
	cmd.Dir = "page"
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("page.mjs: %v\n%s", err, output)
	}

	// What it did there holds: one completed, one released, one released by
	// the other operator.
	p.want(t, 5) // the live one, too
	if got := g.send(t, unknown[1]); !got.replayed() || got.body != job {
		t.Errorf("the repeat of the completed one got %s", got)
	}
	p.want(t, 5)
	for i, r := range []request{unknown[0], unknown[2]} {
		if got := g.send(t, r); got.status != 202 || got.replayed() {
			t.Errorf("the repeat of a released one got %s", got)
		}
		p.want(t, 6+i)
	}
	g.awaitLog(t, `"record":"`+ids[1]+`","decision":"completed","reason":"found in the console"`)
	g.awaitLog(t, `"record":"`+ids[0]+`","decision":"released","reason":"not in the console"`)
	// And the acceptance that it has forgotten is submitted again.
	if got := g.send(t, request{key: "done", body: "x"}); got.status != 202 || got.replayed() {
		t.Errorf("the repeat of the forgotten one got %s", got)
	}
	p.want(t, 8)
	g.awaitLog(t, `"decision":"forgotten","state":"completed","reason":"it was a failure"`)
}

// The page runs nothing but itself, and is there also when the store is not.
func TestPageHeaders(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: "redis 127.0.0.1:1"})
	for path, contentType := range map[string]string{
		"":           "text/html; charset=utf-8",
		"style.css":  "text/css; charset=utf-8",
		"script.js":  "text/javascript; charset=utf-8",
		"index.html": "text/html; charset=utf-8",
	} {
		got := g.ask(t, http.MethodGet, "/idempotency/"+path, "")
		if got.status != 200 || got.header.Get("Content-Type") != contentType || got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("/idempotency/%s is %d with header %v", path, got.status, got.header)
		}
	}
	if got := g.ask(t, http.MethodGet, "/idempotency/records/"+string(idempotency.NewRecordID("", nil, "k")), ""); got.status != 503 {
		t.Errorf("the store is away, and a record is %s", got)
	}
	p.want(t, 0)
}

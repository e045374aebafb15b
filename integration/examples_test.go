package integration

import (
	"crypto/tls"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// startFolder runs the Caddyfile of a folder of examples: only its listener, its
// admin endpoint and the place of its file are another test's.
func startFolder(t *testing.T, folder, url string, env ...string) *gateway {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "examples", folder, "Caddyfile"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	g := &gateway{url: url, admin: freeAddress(t), log: &logBuffer{}, dir: dir, caddyfile: filepath.Join(dir, "Caddyfile")}
	changed := strings.NewReplacer(
		"http://:8080", url,
		"{$ADMIN:localhost:2019}", g.admin,
	).Replace(string(text))
	if !strings.Contains(changed, g.admin) {
		changed = strings.Replace(changed, "\n{\n", "\n{\n\tadmin "+g.admin+"\n", 1)
	}
	changed = strings.Replace(changed, "\n{\n", "\n{\n\tpersist_config off\n", 1)
	if err := os.WriteFile(g.caddyfile, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	g.env = env
	g.endWith(t)
	g.run(t)
	return g
}

// Two providers behind one gateway: one key is another one at each of them, and a
// refusal inside a 200 is one.
func TestExampleTwoProviders(t *testing.T) {
	t.Parallel()
	replicate := startProvider(t, answerWith(201, map[string]string{"Content-Type": "application/json"}, `{"id":"r1"}`))
	minimax := startProvider(t, answerWith(200, map[string]string{"Content-Type": "application/json"}, `{"base_resp":{"status_code":1008}}`))
	g := startFolder(t, "two-providers", "http://"+freeAddress(t), "REPLICATE_URL="+replicate.url, "MINIMAX_URL="+minimax.url)
	for range 2 {
		g.send(t, request{path: "/replicate/v1/predictions", key: "k", body: `{}`})
		g.send(t, request{path: "/minimax/v1/video_generation", key: "k", body: `{}`})
	}
	replicate.want(t, 1)
	minimax.want(t, 2)
	if got := replicate.submit(0).path; got != "/v1/predictions" {
		t.Errorf("the provider got the path %s", got)
	}
	if got := g.send(t, request{path: "/v1/predictions", key: "k", body: `{}`}); got.status != http.StatusNotFound {
		t.Errorf("a path of no provider got %v", got)
	}
}

// Two gateways share their records in Redis, encrypted; a POST without a key is
// refused.
func TestExampleRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := startProvider(t, nil)
	env := []string{
		"REDIS_URL=redis://" + server.Address, "PROVIDER_URL=" + p.url,
		"ENCRYPTION_KEY=" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))),
	}
	var bodies []string
	for range 2 {
		url := "http://" + freeAddress(t)
		g := startFolder(t, "redis", url, append(env, "LISTEN="+url)...)
		bodies = append(bodies, g.send(t, request{key: "k", body: `{}`}).body)
		if got := g.send(t, request{body: `{}`}); got.code() != "idempotency_key_missing" {
			t.Errorf("a POST without a key got %v", got)
		}
	}
	p.want(t, 1)
	if bodies[0] != bodies[1] || bodies[0] == "" {
		t.Errorf("the two gateways answered %q", bodies)
	}
}

// A key belongs to the subject of the caller's certificate.
func TestExampleMutualTLS(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t)
	p := startProvider(t, nil)
	url := "https://" + freeAddress(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(url, "https://"), ":")
	name := "redis.internal:" + port // of the certificate
	g := startFolder(t, "mtls", url, "LISTEN=https://"+name, "PROVIDER_URL="+p.url,
		"CERT="+certificates.Server, "KEY="+certificates.ServerKey, "CALLERS_CA="+certificates.CA)
	submit := func(config *tls.Config) (status int, replayed bool, err error) {
		config.ServerName = "redis.internal"
		client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/videos", strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = name
		req.Header.Set("Idempotency-Key", "k")
		res, err := client.Do(req)
		if err != nil {
			return 0, false, err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, res.Header.Get("Idempotency-Replayed") == "true", err
	}
	for i := range 2 {
		status, replayed, err := submit(certificates.Config.Clone())
		if err != nil || status != http.StatusAccepted || replayed != (i == 1) {
			t.Errorf("submit %d got %d, replayed %t, error %v", i, status, replayed, err)
		}
	}
	p.want(t, 1)
	nobody := certificates.Config.Clone()
	nobody.Certificates = nil
	if status, _, err := submit(nobody); err == nil {
		t.Errorf("a caller without a certificate got %d", status)
	}
	p.want(t, 1)
}

// The unit is one that systemd understands.
func TestExampleUnit(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	text, err := os.ReadFile("../examples/systemd/caddy-idempotency.service")
	if err != nil {
		t.Fatal(err)
	}
	// The verifier wants the programs to be there.
	unit := filepath.Join(t.TempDir(), "caddy-idempotency.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/bin/caddy", caddyBinary)), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || len(output) > 0 {
		t.Errorf("systemd-analyze: %v\n%s", err, output)
	}
}

package integration

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency/fingerprint"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// encryptedBy is the option with the keys that the letters stand for.
func encryptedBy(keys string) string {
	if keys == "" {
		return ""
	}
	option := "encryption_key"
	for _, letter := range keys {
		option += " " + hex.EncodeToString(bytes.Repeat([]byte{byte(letter)}, idempotency.EncryptionKeySize))
	}
	return option
}

// encryptedStores are the stores, with a way to read all that they keep.
var encryptedStores = []struct {
	name string
	open func(t testing.TB) (directive string, dump func(g *gateway) string)
}{
	{"embedded", func(t testing.TB) (string, func(*gateway) string) {
		return "", func(g *gateway) string { return readAll(t, filepath.Join(g.dir, "idempotency.db")) }
	}},
	// Its files and what the server notes about slow commands: here, all of them.
	{"redis", func(t testing.TB) (string, func(*gateway) string) {
		redis := redistest.Start(t, "--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000")
		return "redis " + redis.Address, func(*gateway) string {
			var b strings.Builder
			ctx := context.Background()
			keys, err := redis.Client.Keys(ctx, "*").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				value, err := redis.Client.Get(ctx, key).Result()
				if err != nil {
					t.Fatal(err)
				}
				b.WriteString(key + value)
			}
			slow, err := redis.Client.SlowLogGet(ctx, -1).Result()
			if err != nil || len(slow) == 0 {
				t.Fatalf("slow log has %d entries, %v", len(slow), err)
			}
			for _, entry := range slow {
				b.WriteString(strings.Join(entry.Args, " "))
			}
			return b.String() + readAll(t, filepath.Dir(redis.Socket()))
		}
	}},
}

// readAll returns what is in a file, or in all files below a directory.
func readAll(t testing.TB, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		b.Write(data)
		return err
	})
	if err != nil || b.Len() == 0 {
		t.Fatalf("%s has %d bytes, %v", root, b.Len(), err)
	}
	return b.String()
}

// escaped is how a server's slow log and the dump of a string can show bytes.
func escaped(b []byte) string {
	var text strings.Builder
	for _, c := range b {
		fmt.Fprintf(&text, `\x%02x`, c)
	}
	return text.String()
}

// Nothing of a request and nothing of an answer is in an encrypted store, and
// nothing that a guess at the request could be compared with.
func TestEncryptedStore(t *testing.T) {
	t.Parallel()
	const body = "mark-body"
	r := request{
		key: "mark-key", auth: "Bearer mark-auth", body: body, path: "/mark-path?mark-query",
		header: http.Header{"X-Mark": {"mark-header"}},
	}
	fingerprint := guessedFingerprint(t, body)

	for _, store := range encryptedStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			// dumped returns the store after submits that were accepted, whose
			// outcome is unknown, and that run.
			dumped := func(app string) string {
				directive, dump := store.open(t)
				p := startProvider(t, answerWith(202, map[string]string{"X-Mark": "mark-answer-header"}, "mark-answer"))
				hold := newGate()
				g := startGateway(t, p.url, options{store: directive, app: app, idempotency: "namespace mark-namespace"})
				first := g.send(t, r)
				if again := g.send(t, r); first.status != 202 || again.body != first.body || !again.replayed() ||
					again.header.Get("X-Mark") != "mark-answer-header" {
					t.Errorf("the first caller got %v, the second %v", first, again)
				}
				other := r
				other.body += "2"
				if got := g.send(t, other); got.code() != "idempotency_key_reuse" {
					t.Errorf("another request: %v", got)
				}
				p.now(answerWith(500, nil, "mark-answer"))
				other.key += "-2"
				g.send(t, other)
				if got := g.send(t, other); got.code() != "idempotency_outcome_unknown" {
					t.Errorf("a repeat: %v", got)
				}
				p.now(p.holdUntil(hold))
				other.key += "-3"
				done := g.sendLater(t, other)
				p.awaitSubmits(t, 3)
				p.want(t, 3)
				defer func() { hold.open(); <-done }()
				return dump(g)
			}
			encrypted, readable := dumped(encryptedBy("a")), dumped("")

			if i := strings.Index(encrypted, "mark"); i >= 0 {
				t.Errorf("the encrypted store has %.60q", encrypted[i:])
			}
			if strings.Contains(encrypted, "the provider answered") {
				t.Error("the encrypted store has the reason why an outcome is unknown")
			}
			shows := func(dump string) bool {
				return strings.Contains(dump, string(fingerprint[:])) || strings.Contains(dump, escaped(fingerprint[:]))
			}
			if shows(encrypted) {
				t.Error("the encrypted store has a digest that anybody can compute")
			}
			// All of it is in a store that is not encrypted, so it would be seen.
			for _, mark := range []string{"mark-key", "mark-path", "mark-namespace", "mark-answer", "mark-answer-header", "the provider answered"} {
				if !strings.Contains(readable, mark) {
					t.Errorf("the readable store does not have %s", mark)
				}
			}
			if !shows(readable) {
				t.Error("the readable store does not have the fingerprint")
			}
		})
	}
}

// Keys change by reloads, in the order of docs/security.md, and nothing is noticed.
// Under a key that is gone a record is an error, and it is there when the key is
// back.
func TestRotateEncryptionKey(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			o := options{store: store.directive(t), global: "grace_period 100ms", idempotency: "on_store_error forward"}
			g := startGateway(t, p.url, o)
			submits := 0
			answers := map[string]string{}
			first := func(key string) {
				t.Helper()
				submits++
				got := g.send(t, request{key: key, body: "x"})
				p.want(t, submits)
				if got.status != 202 {
					t.Errorf("%s: %v", key, got)
				}
				answers[key] = got.body
			}
			load := func(keys string) {
				t.Helper()
				o.app = encryptedBy(keys)
				g.write(t, p.url, o)
				g.reload(t)
			}
			replayed := func(keys ...string) {
				t.Helper()
				for _, key := range keys {
					if got := g.send(t, request{key: key, body: "x"}); !got.replayed() || got.body != answers[key] {
						t.Errorf("under %q, again %s: %v", o.app, key, got)
					}
					if got := g.send(t, request{key: key, body: "y"}); got.code() != "idempotency_key_reuse" {
						t.Errorf("under %q, another request for %s: %v", o.app, key, got)
					}
				}
				p.want(t, submits)
			}
			// running holds a submit over what is done meanwhile.
			running := func(key string, meanwhile func()) {
				t.Helper()
				hold := newGate()
				p.now(p.holdUntil(hold))
				done := g.sendLater(t, request{key: key, body: "x"})
				submits++
				p.awaitSubmits(t, submits)
				meanwhile()
				if got := g.send(t, request{key: key, body: "x"}); got.code() != "idempotency_key_in_progress" {
					t.Errorf("under %q, while %s is running: %v", o.app, key, got)
				}
				hold.open()
				p.now(nil)
				got := <-done
				if got.status != 202 {
					t.Errorf("%s: %v", key, got)
				}
				answers[key] = got.body
				replayed(key)
			}
			unreadable := func(keys ...string) {
				t.Helper()
				for _, key := range keys {
					for _, body := range []string{"x", "y"} {
						got := g.send(t, request{key: key, body: body})
						p.want(t, submits)
						if got.status != 503 || got.code() != "idempotency_store_unavailable" {
							t.Errorf("under %q, %s: %v", o.app, key, got)
						}
					}
				}
			}

			first("plain")
			running("turned-on", func() { load("a") })
			first("a")
			running("added", func() { load("ab") })
			running("rotated", func() { load("ba") })
			first("b")
			replayed("plain", "turned-on", "a", "added", "rotated", "b")
			load("b")
			replayed("plain", "turned-on", "b")
			unreadable("a", "added", "rotated")
			load("")
			replayed("plain", "turned-on")
			unreadable("a", "b")
			g.awaitLog(t, "it is encrypted under a key that is not there")
			load("cab")
			replayed("plain", "a", "added", "rotated", "b")
		})
	}
}

// Gateways of one store in the middle of a rotation: who does not have the key
// of a record sends nothing and does not speak of reuse.
func TestRotationOverTwoGateways(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startProvider(t, nil)
	with := func(keys string) options {
		return options{store: "redis " + redis.Address + " {\ntimeout 10s\n}", app: encryptedBy(keys), idempotency: "on_uncertain resubmit"}
	}
	early, late := startGateway(t, p.url, with("ba")), startGateway(t, p.url, with("a"))
	r := request{key: "k", body: "x"}
	first := early.send(t, r)
	for range 2 {
		if got := late.send(t, r); got.code() != "idempotency_store_unavailable" {
			t.Errorf("without the key: %v", got)
		}
	}
	p.want(t, 1)
	p.now(answerWith(500, nil, ""))
	lost := request{key: "lost", body: "x"}
	early.send(t, lost)
	p.want(t, 2)
	if got := late.send(t, lost); got.code() != "idempotency_store_unavailable" {
		t.Errorf("without the key: %v", got)
	}
	p.want(t, 2)

	// As it should be: the new key is an old one at first.
	late.write(t, p.url, with("ab"))
	late.reload(t)
	if got := late.send(t, r); !got.replayed() || got.body != first.body {
		t.Errorf("with the key: %v", got)
	}
	p.now(nil)
	taken := late.send(t, lost)
	p.want(t, 3)
	for _, g := range []*gateway{early, late} {
		if got := g.send(t, lost); !got.replayed() || got.body != taken.body {
			t.Errorf("after the resubmit: %v", got)
		}
	}
	// A replay is one round trip, under whatever key.
	for _, g := range []*gateway{early, late} {
		before := commandCalls(t, redis)["evalsha"]
		for range 5 {
			g.send(t, r)
			g.send(t, lost)
		}
		if n := commandCalls(t, redis)["evalsha"] - before; n != 10 {
			t.Errorf("10 replays cost %d round trips", n)
		}
	}
	p.want(t, 3)
}

// guessedFingerprint is what somebody computes who guesses the request of
// TestEncryptedStore.
func guessedFingerprint(t *testing.T, body string) idempotency.Fingerprint {
	t.Helper()
	fingerprinter, err := fingerprint.New(fingerprint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pending := fingerprinter.Start(http.MethodPost, &url.URL{Path: "/mark-path", RawQuery: "mark-query"},
		http.Header{"Content-Type": {"application/json"}})
	read, err := fingerprint.ReadBody(strings.NewReader(body), -1, 1<<20, new(fingerprint.BodyMemory), pending)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	fingerprint, err := pending.SumBody(read)
	if err != nil {
		t.Fatal(err)
	}
	return fingerprint
}

// Operators see and decide about encrypted records as about others, and what
// they decide is encrypted, too.
func TestEncryptedDecision(t *testing.T) {
	t.Parallel()
	for _, store := range encryptedStores {
		t.Run(store.name, func(t *testing.T) {
			directive, dump := store.open(t)
			p := startProvider(t, hangUp("", false))
			g := startGateway(t, p.url, options{store: directive, app: encryptedBy("a")})
			r := request{key: "mark-key", body: "x", path: "/mark-path"}
			g.send(t, r)
			p.want(t, 1)
			list := told[listing](t, g.ask(t, http.MethodGet, "/idempotency/records?state=uncertain&path=/mark-path", ""))
			if len(list.Records) != 1 {
				t.Fatalf("listed: %+v", list)
			}
			path := "/idempotency/records/" + list.Records[0].ID
			if got := told[record](t, g.ask(t, http.MethodGet, path+"?reveal=true", "")); got.Key != "mark-key" {
				t.Errorf("revealed: %+v", got)
			}
			decided := g.ask(t, http.MethodPost, path+"/complete", `{"status":202,"body":{"id":"mark-answer"},"reason":"found"}`)
			if decided.status != 200 {
				t.Fatalf("complete: %v", decided)
			}
			if got := g.send(t, r); !got.replayed() || got.body != `{"id":"mark-answer"}` {
				t.Errorf("again: %v", got)
			}
			p.want(t, 1)
			if text := dump(g); strings.Contains(text, "mark-") {
				t.Error("the store has a mark")
			}
		})
	}
}

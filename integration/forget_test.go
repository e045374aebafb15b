package integration

import (
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

// recordOf returns the id of the only record.
func (g *gateway) recordOf(t testing.TB) string {
	t.Helper()
	l := g.list(t, "")
	if len(l.Records) != 1 {
		t.Fatalf("there are %d records, want one", len(l.Records))
	}
	return l.Records[0].ID
}

// A failure that was stored as an acceptance is forgotten, and the next repeat
// submits.
func TestOperatorForgets(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, answerWith(200, nil, `{"error":"quota"}`))
			g := startGateway(t, p.url, options{store: store.directive(t)})
			r := request{key: "k", body: "x"}
			g.send(t, r)
			if again := g.send(t, r); !again.replayed() {
				t.Fatalf("the repeat got %s", again)
			}
			id := g.recordOf(t)
			p.now(nil)
			if got := g.decide(t, id, "forget", `{"reason":"a failure\nstored","state":"completed","attempt":"`+g.show(t, id).Attempt+`"}`); got.status != 200 ||
				!strings.Contains(got.body, `{"id":"`+id+`","decision":"forgotten"}`) {
				t.Fatalf("forget gave %s", got)
			}
			if got := g.ask(t, http.MethodGet, "/idempotency/records/"+id, ""); got.status != 404 {
				t.Errorf("afterwards the record is %s", got)
			}
			again := g.send(t, r)
			p.want(t, 2)
			if again.status != 202 || again.replayed() {
				t.Errorf("the repeat got %s", again)
			}
			g.awaitLog(t, `"record":"`+id+`","decision":"forgotten","state":"completed","reason":"a failure\nstored","remote":"127.0.0.1:`)
		})
	}
}

// A submit that runs is not forgotten, and neither is what it has become since the
// operator looked.
func TestForgetSparesTheRunning(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			hold := newGate()
			p := startProvider(t, nil)
			p.now(p.holdUntil(hold))
			g := startGateway(t, p.url, options{store: store.directive(t)})
			r := request{key: "k", body: "x"}
			first := g.sendLater(t, r)
			p.awaitSubmits(t, 1)
			id := g.recordOf(t)
			attempt := g.show(t, id).Attempt
			if got := g.decide(t, id, "forget", `{"reason":"impatient"}`); got.status != 409 || !strings.Contains(got.body, "its attempt is alive") {
				t.Errorf("forget gave %s", got)
			}
			hold.open()
			answered := <-first
			if got := g.decide(t, id, "forget", `{"reason":"it was uncertain","state":"uncertain","attempt":"`+attempt+`"}`); got.status != 409 || !strings.Contains(got.body, "completed") {
				t.Errorf("forget gave %s", got)
			}
			again := g.send(t, r)
			p.want(t, 1)
			if !again.replayed() || again.body != answered.body {
				t.Errorf("the repeat got %s, and the first caller %s", again, answered)
			}
		})
	}
}

// A record that nobody can read blocks its key until it is forgotten: it is
// found, shown as what it is, and removed as it was seen.
func TestForgetUnreadable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		start func(t *testing.T, upstream string) (*gateway, func(id string))
	}{
		{"embedded", func(t *testing.T, upstream string) (*gateway, func(string)) {
			g := startGateway(t, upstream, options{})
			return g, func(id string) { spoilEmbedded(t, g, id) }
		}},
		{"redis", func(t *testing.T, upstream string) (*gateway, func(string)) {
			redis := redistest.Start(t)
			return startGateway(t, upstream, options{store: "redis " + redis.Address}), func(id string) {
				if err := redis.Client.Set(t.Context(), "idempotency:"+id, "\x02of a later version", 0).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"redis, a list", func(t *testing.T, upstream string) (*gateway, func(string)) {
			redis := redistest.Start(t)
			return startGateway(t, upstream, options{store: "redis " + redis.Address}), func(id string) {
				if err := errors.Join(redis.Client.Del(t.Context(), "idempotency:"+id).Err(), redis.Client.LPush(t.Context(), "idempotency:"+id, "x").Err()); err != nil {
					t.Fatal(err)
				}
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, nil)
			g, spoil := test.start(t, p.url)
			r := request{key: "k", body: "x"}
			g.send(t, r)
			id := g.recordOf(t)
			spoil(id)
			if got := g.send(t, r); got.status != 503 {
				t.Errorf("a repeat got %s", got)
			}
			p.want(t, 1)

			if l := g.list(t, ""); len(l.Records) != 0 || !slices.Equal(l.Unreadable, []string{id}) {
				t.Fatalf("the listing is %+v", l)
			}
			seen := g.show(t, id)
			if !seen.Unreadable || seen.State != "unreadable" || !strings.Contains(seen.Error, "unreadable") || len(seen.Attempt) != 40 {
				t.Errorf("the record is %+v", seen)
			}
			for decision, body := range map[string]string{"release": `{"reason":"r"}`, "complete": `{"reason":"r","status":202,"body":{}}`} {
				if got := g.decide(t, id, decision, body); got.status != 409 || !strings.Contains(got.body, "forget removes it") {
					t.Errorf("%s gave %s", decision, got)
				}
			}
			for _, body := range []string{
				`{"reason":"r","state":"completed"}`,
				`{"reason":"r","attempt":"` + strings.Repeat("1", 40) + `"}`,
				`{"reason":"r","attempt":"` + strings.Repeat("0", 32) + `"}`,
			} {
				if got := g.decide(t, id, "forget", body); got.status != 409 || !strings.Contains(got.body, "changed") {
					t.Errorf("forget with %s gave %s", body, got)
				}
			}
			if got := g.decide(t, id, "forget", `{"reason":"of a later version","state":"unreadable","attempt":"`+seen.Attempt+`"}`); got.status != 200 {
				t.Fatalf("forget gave %s", got)
			}
			g.awaitLog(t, `"decision":"forgotten","state":"unreadable","reason":"of a later version"`)
			again := g.send(t, r)
			p.want(t, 2)
			if again.status != 202 {
				t.Errorf("the repeat got %s", again)
			}
			if l := g.list(t, ""); len(l.Records) != 1 || len(l.Unreadable) != 0 {
				t.Errorf("afterwards the listing is %+v", l)
			}
		})
	}
}

// spoilEmbedded puts a value of another version in the place of a record, in the
// file of a gateway that is restarted for it.
func spoilEmbedded(t testing.TB, g *gateway, id string) {
	t.Helper()
	g.stop(t)
	db, err := bolt.Open(filepath.Join(g.dir, "idempotency.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("records")).Put([]byte(id), []byte("\x02of a later version"))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	g.run(t)
}

// Bad input to forget changes nothing.
func TestForgetBadInput(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	g.send(t, request{key: "k", body: "x"})
	id := g.recordOf(t)
	for name, test := range map[string]struct {
		id, body string
		status   int
		text     string
	}{
		"unknown id":      {strings.Repeat("0", 32), `{"reason":"r"}`, 404, "no such record"},
		"malformed id":    {"k", `{"reason":"r"}`, 404, "no such record"},
		"no reason":       {id, `{}`, 400, "reason: it is missing"},
		"long reason":     {id, `{"reason":"` + strings.Repeat("x", 1001) + `"}`, 400, "1001 bytes"},
		"state":           {id, `{"reason":"r","state":"lost"}`, 400, "state"},
		"attempt":         {id, `{"reason":"r","attempt":"7"}`, 400, "attempt"},
		"value of state":  {id, `{"reason":"r","state":"completed","attempt":"` + strings.Repeat("0", 40) + `"}`, 400, "attempt"},
		"another attempt": {id, `{"reason":"r","attempt":"` + strings.Repeat("0", 32) + `"}`, 409, "another attempt"},
		"another state":   {id, `{"reason":"r","state":"uncertain"}`, 409, "completed"},
		"readable":        {id, `{"reason":"r","state":"unreadable"}`, 409, "changed"},
		"unknown member":  {id, `{"reason":"r","status":202}`, 400, "status"},
	} {
		if got := g.decide(t, test.id, "forget", test.body); got.status != test.status || !strings.Contains(got.body, test.text) {
			t.Errorf("%s: the answer is %s, want %d with %q", name, got, test.status, test.text)
		}
	}
	if got := g.ask(t, http.MethodGet, "/idempotency/records/"+id+"/forget", ""); got.status != 405 || got.header.Get("Allow") != "POST" {
		t.Errorf("forget by GET gave %s", got)
	}
	if again := g.send(t, request{key: "k", body: "x"}); !again.replayed() {
		t.Errorf("after all that the repeat got %s", again)
	}
	p.want(t, 1)
}

package integration

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/store/embedded"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis"
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
)

var listingRecords = flag.Int("listing.records", 20000, "how many records TestListingOfMany has; try a million")

// An operator gets a thousand unknown submits out of a million others at the
// cost of a thousand, and callers do not notice.
func TestListingOfMany(t *testing.T) {
	const unknown = 1000
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t, "--slowlog-log-slower-than", "5000", "--slowlog-max-len", "10000")
		store := redis.New(redis.Config{Addresses: []string{server.Address}, Timeout: time.Minute})
		fill(t, store, *listingRecords, unknown)
		if err := server.Client.SlowLogReset(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		listMany(t, "redis "+server.Address, unknown)
		slow, err := server.Client.SlowLogGet(t.Context(), -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		// A machine that is busy with other things makes some commands slow.
		if allowed := 5 + *listingRecords/10000; len(slow) > allowed {
			t.Errorf("Redis was held for more than 5 ms %d times, the last time for %s by %s", len(slow), slow[0].Duration, slow[0].Args[0])
		}
	})
	t.Run("embedded", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "idempotency.db")
		fill(t, embedded.New(embedded.Config{Path: path}), *listingRecords, unknown)
		listMany(t, "embedded "+path, unknown)
	})
}

// fill writes records, of which some are uncertain, and closes the store.
func fill(t *testing.T, store idempotency.Store, records, unknown int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	now, err := store.Now(ctx)
	if err != nil {
		t.Fatal(err)
	}
	payload := func(d idempotency.Details) []byte {
		d.Namespace, d.Method, d.Path = "videos", "POST", "/v1/videos"
		encoded, err := cbor.Marshal(d)
		if err != nil {
			t.Error(err)
		}
		return encoded
	}
	done := payload(idempotency.Details{Answer: &idempotency.Answer{Status: 202, Body: []byte(`{"id":"job","status":"queued"}`)}})
	lost := payload(idempotency.Details{Error: "the connection to the provider broke before a whole answer"})
	step := records / unknown

	const workers = 256
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < records; i += workers {
				key := idempotency.Key(fmt.Sprint("many-", i))
				c := idempotency.Claim{
					ID: idempotency.NewRecordID("videos", nil, key), Token: idempotency.NewToken(),
					Lease: time.Minute, Retention: 24 * time.Hour, NotAfter: now.Add(time.Hour), Payload: payload(idempotency.Details{Key: key}),
				}
				_, err := store.Claim(ctx, c)
				if err == nil && i%step == 0 && i/step < unknown {
					_, err = store.MarkUncertain(ctx, idempotency.Ending{ID: c.ID, Token: c.Token, Payload: lost})
				} else if err == nil {
					_, err = store.Complete(ctx, idempotency.Ending{ID: c.ID, Token: c.Token, Payload: done})
				}
				if err != nil {
					t.Errorf("fill the store: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// listMany lists the unknown submits while others submit.
func listMany(t *testing.T, store string, unknown int) {
	t.Helper()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{store: store, log: "log {\nlevel ERROR\n}"})
	submitted := 0
	submit := func() time.Duration {
		submitted++
		began := time.Now()
		if got := g.send(t, request{key: fmt.Sprint("k", submitted), body: "x"}); got.status != 202 {
			t.Errorf("a submit got %s", got)
		}
		return time.Since(began)
	}
	var before, during []time.Duration
	for range 200 {
		before = append(before, submit())
	}

	began := time.Now()
	listed := make(chan answer, 1)
	go func() {
		listed <- g.ask(t, "GET", fmt.Sprintf("/idempotency/records?state=uncertain&limit=%d", unknown), "")
	}()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	var got answer
	for got.header == nil && got.err == nil {
		select {
		case got = <-listed:
		case <-pace.C:
			during = append(during, submit())
		}
	}
	took := time.Since(began)
	during = append(during, submit())
	p.want(t, submitted)
	l := told[listing](t, got)
	if len(l.Records) != unknown || l.NextCursor != "" || l.Counts["uncertain"] != unknown {
		t.Errorf("the listing has %d records and counts %v, want %d", len(l.Records), l.Counts, unknown)
	}
	if !slices.IsSortedFunc(l.Records, func(a, b record) int { return a.CreatedAt.Compare(b.CreatedAt) }) {
		t.Error("the listing is not in the order of age")
	}
	// The others cost no more than a look at their header. A scan of Redis may
	// show a record twice.
	if gets := g.scrape(t)[storeCalls("get")]; gets > float64(unknown)*1.1 {
		t.Errorf("the listing has read %v records, want %d", gets, unknown)
	}
	slices.Sort(before)
	slices.Sort(during)
	t.Logf("listing %d unknown among %d records took %s; a submit took %s (median), %s (at most) before, and %s, %s during it (%d submits)",
		unknown, *listingRecords, took, before[len(before)/2], before[len(before)-1], during[len(during)/2], during[len(during)-1], len(during))
}

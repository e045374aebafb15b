package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// scanCount is how many keys the server looks at for one page. Neither the
// SCAN nor one of the reads that follow takes it a millisecond.
const scanCount = 512

// Scan implements idempotency.Store. A page is one SCAN, and one pipeline that
// reads the headers of what it found; the cursor is the server's.
func (s *Store) Scan(ctx context.Context, cursor string) (idempotency.ScanPage, error) {
	var from uint64
	if cursor != "" {
		var err error
		if from, err = strconv.ParseUint(cursor, 10, 64); err != nil {
			return idempotency.ScanPage{}, fmt.Errorf("%w: the cursor is not one of this store's", idempotency.ErrNotApplied)
		}
	}
	client := s.current()
	keys, next, err := client.Scan(ctx, from, globEscape.Replace(s.prefix)+"*", scanCount).Result()
	if err != nil {
		return idempotency.ScanPage{}, translate(err)
	}
	var page idempotency.ScanPage
	if next != 0 {
		page.Next = strconv.FormatUint(next, 10)
	}
	return page, s.readHeaders(ctx, client, keys, &page)
}

// globEscape takes the meaning from what SCAN's pattern would read as more
// than itself.
var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// readHeaders reads the headers of the records among the keys into the page.
func (s *Store) readHeaders(ctx context.Context, client *goredis.Client, keys []string, page *idempotency.ScanPage) error {
	pipe := client.Pipeline()
	var ids []idempotency.RecordID
	var values []*goredis.StringCmd
	for _, key := range keys {
		id := idempotency.RecordID(strings.TrimPrefix(key, s.prefix))
		if !id.Valid() {
			continue // somebody else's key
		}
		ids = append(ids, id)
		values = append(values, pipe.GetRange(ctx, key, 0, idempotency.RecordHeaderSize-1))
	}
	_, _ = pipe.Exec(ctx) // errors come with the values
	for i, id := range ids {
		var r idempotency.Record
		value, err := values[i].Bytes()
		switch {
		case goredis.HasErrorPrefix(err, "WRONGTYPE"):
			err = idempotency.ErrUnreadable
		case err != nil:
			return translate(err)
		case len(value) == 0:
			// It has expired since the SCAN, or is an empty string.
			var found bool
			r, found, err = s.Get(ctx, id)
			if err == nil && !found {
				continue
			}
			r.Payload = nil
		default:
			err = r.UnmarshalBinary(value)
		}
		switch {
		case errors.Is(err, idempotency.ErrUnreadable):
			page.Unreadable = append(page.Unreadable, id)
		case err != nil:
			return err
		default:
			page.Headers = append(page.Headers, idempotency.Header{ID: id, Record: r})
		}
	}
	return nil
}

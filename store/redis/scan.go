package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// scanCount is how many keys the server looks at for one page. Neither the
// SCAN nor one of the reads that follow takes it a millisecond.
const scanCount = 512

// Scan implements idempotency.Store. A page is one SCAN, and one pipeline that
// reads the headers of what it found. The servers of a Cluster are scanned one
// after the other, in the order of their addresses: the cursor is the address
// and the server's own cursor.
func (s *Store) Scan(ctx context.Context, cursor string) (idempotency.ScanPage, error) {
	at, err := parseCursor(cursor)
	if err != nil {
		return idempotency.ScanPage{}, err
	}
	servers, err := s.primaries(ctx)
	if err != nil {
		return idempotency.ScanPage{}, translate(err)
	}
	// A server may have gone since the page before: the next one is scanned then.
	i, found := slices.BinarySearchFunc(servers, at.address, func(client *goredis.Client, address string) int {
		return strings.Compare(client.Options().Addr, address)
	})
	if i == len(servers) {
		return idempotency.ScanPage{}, nil
	}
	if !found {
		at.position = 0
	}
	keys, next, err := servers[i].Scan(ctx, at.position, globEscape.Replace(s.prefix)+"*", scanCount).Result()
	if err != nil {
		return idempotency.ScanPage{}, translate(err)
	}
	var page idempotency.ScanPage
	switch {
	case next != 0:
		page.Next = scanCursor{next, servers[i].Options().Addr}.String()
	case i+1 < len(servers):
		page.Next = scanCursor{0, servers[i+1].Options().Addr}.String()
	}
	return page, s.readHeaders(ctx, s.current(), keys, &page)
}

// scanCursor is where a scan goes on.
type scanCursor struct {
	position uint64 // the server's own
	address  string
}

func (c scanCursor) String() string { return strconv.FormatUint(c.position, 10) + " " + c.address }

func parseCursor(text string) (c scanCursor, err error) {
	if text == "" {
		return scanCursor{}, nil // before all
	}
	position, address, _ := strings.Cut(text, " ")
	if c.position, err = strconv.ParseUint(position, 10, 64); err != nil {
		return scanCursor{}, fmt.Errorf("%w: the cursor is not one of this store's", idempotency.ErrNotApplied)
	}
	c.address = address
	return c, nil
}

// globEscape takes the meaning from what SCAN's pattern would read as more
// than itself.
var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// readHeaders reads the headers of the records among the keys into the page. The
// replies do not name their records: a script for each would keep the server
// from its work for longer, and nothing is decided by a header.
func (s *Store) readHeaders(ctx context.Context, client goredis.UniversalClient, keys []string, page *idempotency.ScanPage) error {
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

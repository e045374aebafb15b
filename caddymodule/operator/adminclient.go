package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// adminClient talks to the admin endpoint of a running Caddy.
//
// caddycmd.AdminAPIRequest is not used because it keeps the status of an error
// to itself, and commands exit by it.
type adminClient struct {
	http    http.Client
	address string
	url     string
	// origin that the endpoint knows; empty on a unix socket, where it allows
	// none.
	origin string
}

func newAdminClient(address string) (*adminClient, error) {
	parsed, err := caddy.ParseNetworkAddress(address)
	if err != nil || parsed.PortRangeSize() > 1 {
		return nil, fmt.Errorf("%q is not the address of an admin endpoint", address)
	}
	dial := parsed.JoinHostPort(0)
	url, origin := "http://"+dial, "http://"+dial
	if parsed.IsUnixNetwork() {
		dial, _, _ = strings.Cut(dial, "|") // the permissions of the socket
		url, origin = "http://127.0.0.1", ""
	}
	return &adminClient{
		address: address,
		url:     url,
		origin:  origin,
		http: http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, parsed.Network, dial)
			},
		}},
	}, nil
}

// refusal is an error of the admin API.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return r.message }

func (c *adminClient) get(path string) ([]byte, error) {
	return c.do(http.MethodGet, path, nil)
}

func (c *adminClient) post(path string, order any) ([]byte, error) {
	body, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	return c.do(http.MethodPost, path, bytes.NewReader(body))
}

// do returns the body of a good answer. Any other is a *refusal, if it comes
// from the admin API: somebody else's 404 does not say that there is no record.
func (c *adminClient) do(method, path string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequest(method, c.url+path, body)
	if err != nil {
		return nil, err
	}
	if c.origin != "" {
		req.Header.Set("Origin", c.origin) // for enforce_origin
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the admin endpoint: %w", err)
	}
	defer res.Body.Close()
	reply, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of the admin endpoint: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		var document caddy.APIError
		err := json.Unmarshal(reply, &document)
		if err != nil || document.Message == "" ||
			res.StatusCode == http.StatusNotFound && document.Message != idempotency.ErrNoRecord.Error() {
			return nil, fmt.Errorf("the endpoint at %s does not know %s: it answered with status %s", c.address, recordsPath, res.Status)
		}
		return nil, &refusal{res.StatusCode, document.Message}
	}
	return reply, nil
}

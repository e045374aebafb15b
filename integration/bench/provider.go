package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

const (
	answerSize = 300

	submitPath  = "/v1/videos"
	heldPath    = "/v1/held"       // answers when it is released
	countPath   = "/bench/count"   // how many submits were received whose key has ?prefix, up to a dash
	releasePath = "/bench/release" // answers what is held
)

// serveProvider is a provider that costs next to nothing: it accepts each
// submit and counts it.
func serveProvider(address string) error {
	var count atomic.Int64
	var mu sync.Mutex
	byPrefix := map[string]int{}
	submit := func(ctx *fasthttp.RequestCtx) int64 {
		prefix, _, _ := strings.Cut(string(ctx.Request.Header.Peek("Idempotency-Key")), "-")
		mu.Lock()
		byPrefix[prefix]++
		mu.Unlock()
		return count.Add(1)
	}
	held := make(chan struct{})
	accept := func(ctx *fasthttp.RequestCtx, n int64) {
		ctx.SetStatusCode(fasthttp.StatusAccepted)
		ctx.SetContentType("application/json")
		ctx.Response.Header.Set("X-Request-Id", strconv.FormatInt(n, 10))
		ctx.SetBody(answer(n))
	}
	server := fasthttp.Server{
		NoDefaultServerHeader: true,
		MaxRequestBodySize:    64 << 20,
		Handler: func(ctx *fasthttp.RequestCtx) {
			switch string(ctx.Path()) {
			case submitPath:
				accept(ctx, submit(ctx))
			case heldPath:
				mu.Lock()
				wait := held
				mu.Unlock()
				n := submit(ctx)
				<-wait
				accept(ctx, n)
			case releasePath:
				mu.Lock()
				close(held)
				held = make(chan struct{})
				mu.Unlock()
			case countPath:
				mu.Lock()
				n := byPrefix[string(ctx.QueryArgs().Peek("prefix"))]
				mu.Unlock()
				_, _ = fmt.Fprint(ctx, n)
			default:
				ctx.SetStatusCode(fasthttp.StatusNotFound)
			}
		},
	}
	return server.ListenAndServe(address)
}

// answer is the document of a job, of answerSize bytes.
func answer(n int64) []byte {
	id := fmt.Appendf(nil, `{"id":"job_%012d",`, n)
	return append(id, document("note", "the job waits for its turn. ", answerSize-len(id)+1)[1:]...)
}

// provider is the running provider, as the benchmark sees it.
type provider struct{ address string }

func (p provider) get(ctx context.Context, path string) ([]byte, error) {
	return get(ctx, "http://"+p.address+path)
}

// submits returns how many submits the provider has received whose keys begin
// with a prefix, or that had none. So what a round leaves behind does not count
// in the next.
func (p provider) submits(ctx context.Context, prefix string) (int, error) {
	text, err := p.get(ctx, countPath+"?prefix="+strings.TrimSuffix(prefix, "-"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(text)))
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	status, body, err := roundTrip(req)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers %d", url, status)
	}
	return body, err
}

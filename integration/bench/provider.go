package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

const (
	answerSize = 300

	submitPath  = "/v1/videos"
	heldPath    = "/v1/held"       // answers when it is released
	countPath   = "/bench/count"   // how many submits were received
	releasePath = "/bench/release" // answers what is held
)

// serveProvider is a provider that costs next to nothing: it accepts each
// submit and counts it.
func serveProvider(address string) error {
	var count atomic.Int64
	var mu sync.Mutex
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
				accept(ctx, count.Add(1))
			case heldPath:
				mu.Lock()
				wait := held
				mu.Unlock()
				n := count.Add(1)
				<-wait
				accept(ctx, n)
			case releasePath:
				mu.Lock()
				close(held)
				held = make(chan struct{})
				mu.Unlock()
			case countPath:
				_, _ = fmt.Fprint(ctx, count.Load())
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

// submits returns how many submits the provider has received.
func (p provider) submits(ctx context.Context) (int, error) {
	text, err := p.get(ctx, countPath)
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

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/proxy"
	"github.com/gofiber/storage/redis/v3"
	"github.com/valyala/fasthttp"
)

// serveFiber is gofiber's idempotency middleware before its proxy, with its
// storage in Redis. It is the nearest thing in Go: a key's answer is stored and
// replayed. It compares no bodies and knows no callers, two processes lock each
// other not at all, and an answer that was lost is a key that is free.
func serveFiber(address, provider, redisAddress string) error {
	app := fiber.New(fiber.Config{BodyLimit: 64 << 20})
	app.Use(idempotency.New(idempotency.Config{
		KeyHeader: "Idempotency-Key",
		Lifetime:  24 * time.Hour,
		Storage:   redis.New(redis.Config{URL: "redis://" + redisAddress, PoolSize: 64}),
	}))
	client := &fasthttp.Client{MaxConnsPerHost: 512, NoDefaultUserAgentHeader: true}
	app.All("/*", func(c fiber.Ctx) error {
		return proxy.Do(c, "http://"+provider+c.OriginalURL(), client)
	})
	return app.Listen(address, fiber.ListenConfig{DisableStartupMessage: true})
}

func (b *bench) startFiber(ctx context.Context, r *redisServer) (*system, error) {
	s := &system{name: "fiber", redis: r, stored: map[int]bool{}}
	var err error
	if s.address, err = freeAddress(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.process, err = b.start(ctx, s.name, s.address, self, "fiber", s.address, b.provider.address, r.address)
	return s, err
}

// startNginx runs nginx with a cache whose key is the idempotency key and whose
// lock lets one request through: what one builds without writing code. It is
// for one machine, and compares no bodies.
func (b *bench) startNginx(ctx context.Context) (*system, error) {
	s := &system{name: "nginx", stored: map[int]bool{}}
	var err error
	if s.address, err = freeAddress(); err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "nginx")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`daemon off;
worker_processes auto;
pid nginx.pid;
error_log stderr error;
%s
events {
	worker_connections 16384;
}
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	client_max_body_size 64m;
	client_body_buffer_size 2m;
	keepalive_requests 1000000000;
	proxy_cache_path cache levels=1:2 keys_zone=answers:256m max_size=64g inactive=24h;
	upstream provider {
		server %s;
		keepalive 512;
		keepalive_requests 1000000000;
	}
	server {
		listen %s backlog=4096;
		location / {
			proxy_pass http://provider;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_next_upstream off;
			proxy_cache answers;
			proxy_cache_methods POST;
			proxy_cache_key "$http_authorization $http_idempotency_key";
			proxy_cache_valid 200 201 202 24h;
			proxy_cache_lock on;
			proxy_cache_lock_timeout 5m;
			proxy_cache_lock_age 5m;
			set $keyless 0;
			if ($http_idempotency_key = "") {
				set $keyless 1;
			}
			proxy_cache_bypass $keyless;
			proxy_no_cache $keyless;
		}
	}
}
`, nginxUser(), b.provider.address, s.address)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s.process, err = b.start(ctx, s.name, s.address, b.nginx, "-p", dir, "-c", file, "-e", "stderr")
	return s, err
}

// nginxUser makes the workers of root's nginx stay root: its files are in a
// directory that nobody else may enter.
func nginxUser() string {
	if os.Getuid() == 0 {
		return "user root;"
	}
	return ""
}

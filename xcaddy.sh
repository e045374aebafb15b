#!/usr/bin/env bash
# Builds, runs and tests a Caddy binary with the idempotency module.
#
#   ./xcaddy.sh         build ./caddy from this checkout
#   ./xcaddy.sh run     build it if it is missing or older than the sources, and
#                       run Caddyfile.example
#   ./xcaddy.sh test    install what the tests need, and run them all
#   ./xcaddy.sh lint    run golangci-lint and govulncheck
#   ./xcaddy.sh bench   install what the benchmark needs, and measure the gateway
#                       against plain Caddy and two peers
#   ./xcaddy.sh seeded  check the tests: build with one deliberate mistake at a
#                       time, and expect the tests to notice
set -euo pipefail
cd "$(dirname "$0")"

module=github.com/caddy-idempotency/caddy-idempotency
xcaddy=github.com/caddyserver/xcaddy/cmd/xcaddy@v0.4.5
golangci_lint=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0

say() { echo "==> $*" >&2; }
fail() { echo "xcaddy.sh: $*" >&2; exit 1; }

need_go() {
	command -v go >/dev/null || fail "Go is missing: install Go 1.26 or later from https://go.dev/doc/install"
}

caddy_version() {
	go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2
}

# build OUTPUT: a Caddy binary with the module of this checkout. The made-up
# version makes xcaddy take the checkout; without one it asks for published
# versions.
build() {
	need_go
	local version
	version=$(caddy_version)
	say "building $1: Caddy $version with $module"
	go run "$xcaddy" build "$version" --output "$1" --with "$module@v0.0.0=$PWD"
	local modules
	modules=$("$1" list-modules) # whole: grep -q ends a pipe before its time
	grep -qx 'http.handlers.idempotency' <<<"$modules" ||
		fail "the built binary does not have the module http.handlers.idempotency"
}

is_current() {
	[ -x ./caddy ] && [ -z "$(find . -newer ./caddy \( -name '*.go' -o -name '*.lua' -o -name go.mod -o -path './caddymodule/page/*' \) -not -path '*/node_modules/*' -print -quit)" ]
}

# install COMMAND PACKAGE...: with the platform's package manager.
install() {
	local command=$1
	shift
	command -v "$command" >/dev/null && return
	local sudo=()
	[ "$(id -u)" = 0 ] || sudo=(sudo)
	say "installing $* for $command"
	if command -v apt-get >/dev/null; then
		"${sudo[@]}" apt-get update -qq >&2 && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
	elif command -v dnf >/dev/null; then
		"${sudo[@]}" dnf install -y -q "$@" >&2
	elif command -v apk >/dev/null; then
		"${sudo[@]}" apk add -q "$@" >&2
	elif command -v brew >/dev/null; then
		brew install -q "$@" >&2
	fi
	command -v "$command" >/dev/null || fail "$command is missing and could not be installed: install the package $* and run this again"
}

redis_package() {
	if command -v apt-get >/dev/null; then echo redis-server; else echo redis; fi
}

# browser: the command of the one that is there, or of the one to install.
browser() {
	local name
	for name in chromium chromium-browser google-chrome; do
		if command -v "$name" >/dev/null; then
			echo "$name"
			return
		fi
	done
	if command -v dnf >/dev/null; then echo chromium-browser; else echo chromium; fi
}

install_bench() {
	install redis-server "$(redis_package)"
	install wrk wrk
	if command -v apt-get >/dev/null; then install nginx nginx-light; else install nginx nginx; fi
}

run_tests() {
	need_go
	# The race detector needs a C compiler.
	if command -v apt-get >/dev/null; then install gcc gcc libc6-dev; else install gcc gcc; fi
	install redis-server "$(redis_package)"
	install node nodejs
	install npm npm
	install promtool prometheus # checks the alert rules
	install "$(browser)" chromium # shows the operators' page
	[ "$(node -p 'Number(process.versions.node.split(".")[0]) >= 18')" = true ] ||
		fail "Node.js $(node --version) is too old for the SDKs that the tests use: install Node.js 18 or later"
	say "installing the SDKs that the tests use"
	(cd integration/sdk && npm ci --no-audit --no-fund --loglevel=error) >&2
	install_bench
	say "installing the browser driver that the tests use"
	(cd integration/page && npm ci --no-audit --no-fund --loglevel=error) >&2

	# xcaddy builds so: what it has compiled need not be compiled again.
	export GOFLAGS="${GOFLAGS:-} -trimpath"
	local unformatted
	unformatted=$(git ls-files '*.go' | xargs gofmt -l)
	[ -z "$unformatted" ] || fail "gofmt would change: $unformatted"
	say "go vet"
	go vet ./...
	(cd integration/bench && go vet ./...)

	build ./caddy
	# The tests run a binary with the race detector: it ends, and fails the
	# test, if the gateway has a data race.
	work=$(mktemp -d) # not local: the trap runs after the function
	trap 'rm -rf "$work"' EXIT
	XCADDY_RACE_DETECTOR=1 build "$work/caddy"
	say "go test"
	IDEMPOTENCY_CADDY="$work/caddy" go test -race -timeout 30m ./... "$@"
	say "go test, of allocations, without the race detector"
	go test -run Allocat ./idempotency ./caddymodule
	say "go test, of the benchmark"
	(cd integration/bench && IDEMPOTENCY_CADDY="$work/caddy" go test -timeout 10m ./...)
}

case ${1:-build} in
build) build ./caddy ;;
run)
	is_current || build ./caddy
	say "the gateway listens on http://localhost:8080; stop it with Ctrl-C"
	exec ./caddy run --config Caddyfile.example --adapter caddyfile
	;;
test)
	shift
	run_tests "$@"
	;;
lint)
	need_go
	go run "$golangci_lint" run
	(cd integration/bench && go run "$golangci_lint" run)
	go run "$govulncheck" ./...
	;;
bench)
	shift
	need_go
	install_bench
	is_current || build ./caddy
	(cd integration/bench && go run . "$@")
	;;
seeded)
	shift
	need_go
	install redis-server "$(redis_package)"
	go run ./integration/seeded "$@"
	;;
*) fail "unknown command '$1': it is build, run, test, lint, bench or seeded" ;;
esac

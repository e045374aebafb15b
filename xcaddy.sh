#!/usr/bin/env bash
# Builds, runs and tests a Caddy binary with the idempotency module.
#
#   ./xcaddy.sh         build ./caddy from this checkout
#   ./xcaddy.sh run     build it if it is missing or older than the sources, and
#                       run Caddyfile.example; without PROVIDER_URL before a
#                       sandbox provider, which takes the flags
#   ./xcaddy.sh test    install what the tests need, and run them all
#   ./xcaddy.sh test quick
#                       run the tests to develop with, in less than a minute
#   ./xcaddy.sh test nightly
#                       run them all, and the random faults for ten minutes
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

caddy_tags=nobadger,nomysql,nopgx # as xcaddy

# build OUTPUT: a Caddy binary with the module of this checkout. The made-up
# version makes xcaddy take the checkout; without one it asks for published
# versions.
build() {
	need_go
	local version
	version=$(caddy_version)
	say "building $1: Caddy $version with $module"
	go run "$xcaddy" build "$version" --output "$1" --with "$module@v0.0.0=$PWD"
	has_module "$1"
}

# build_for_tests OUTPUT [FLAG...]: the same without xcaddy and without a
# question to the network. The main package is not in the checkout.
build_for_tests() {
	local output=$1
	shift
	cat >"$output.go" <<-END
		package main

		import (
			caddycmd "github.com/caddyserver/caddy/v2/cmd"
			_ "github.com/caddyserver/caddy/v2/modules/standard"
			_ "$module"
		)

		func main() { caddycmd.Main() }
	END
	echo "{\"Replace\": {\"$PWD/caddy-for-tests/main.go\": \"$output.go\"}}" >"$output.json"
	go build -overlay "$output.json" -tags "$caddy_tags" -ldflags '-w -s' "$@" -o "$output" ./caddy-for-tests
	has_module "$output"
}

has_module() {
	local modules
	modules=$("$1" list-modules) # whole: grep -q ends a pipe before its time
	grep -qx 'http.handlers.idempotency' <<<"$modules" ||
		fail "the built binary does not have the module http.handlers.idempotency"
}

is_current() {
	[ -x ./caddy ] && [ -z "$(find . -newer ./caddy \( -name '*.go' -o -name '*.lua' -o -name go.mod -o -path './caddymodule/operator/page/*' \) -not -path '*/node_modules/*' -print -quit)" ]
}

apt_updated=

# install COMMAND PACKAGE...: with the platform's package manager.
install() {
	local command=$1
	shift
	command -v "$command" >/dev/null && return
	local sudo=()
	[ "$(id -u)" = 0 ] || sudo=(sudo)
	say "installing $* for $command"
	if command -v apt-get >/dev/null; then
		[ -n "$apt_updated" ] || "${sudo[@]}" apt-get update -qq >&2
		apt_updated=1
		"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
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

# node_modules DIRECTORY: what its package-lock.json names.
node_modules() {
	local installed=$1/node_modules/.package-lock.json
	if [ ! -e "$installed" ] || [ "$1/package-lock.json" -nt "$installed" ]; then
		say "npm ci in $1"
		(cd "$1" && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json) >&2
	fi
}

# start NAME COMMAND...: in the background and in a process group of its own.
# $pid is its id. finish NAME PID: waits for it, shows what it wrote, and ends as
# it did.
start() {
	local log=$work/$1
	shift
	set -m
	"$@" >"$log" 2>&1 &
	set +m
	pid=$!
	running="$running $pid"
}

finish() {
	local ended=0
	wait "$2" || ended=$?
	[ ! -s "$work/$1" ] || { say "$1:"; cat "$work/$1" >&2; }
	[ "$ended" = 0 ] || say "$1 failed"
	return "$ended"
}

end_tests() {
	local pid
	for pid in $running; do kill -- "-$pid" 2>/dev/null || true; done
	rm -rf "$work"
}

check_format() {
	local unformatted
	unformatted=$(git ls-files '*.go' | xargs gofmt -l)
	[ -z "$unformatted" ] || fail "gofmt would change: $unformatted"
}

# Vet and what runs without the race detector compile what xcaddy compiles.
vet() { CGO_ENABLED=0 go vet ./... && (cd integration/bench && CGO_ENABLED=0 go vet ./...); }

prepare_tests() {
	need_go
	work=$(mktemp -d) # not local: the trap runs after the function
	running=
	trap end_tests EXIT
	export GOFLAGS="${GOFLAGS:-} -trimpath"
	check_format
}

unit_packages() { go list ./... | grep -v '/integration$'; }

# Most tests of the whole wait most of the time.
parallel=12

# One goroutine works on many megabytes: the race detector costs much and can
# find nothing.
large='^Test(HugeJSON|FingerprintOfLargeBody)$'

# What takes long among the packages: many servers, many megabytes, long runs.
slow="$large|^Test(LeastPrivilege|SlotMoves|FrozenReplica|ThousandAttempts|BadInput|WaitersUnderStress|Allocations)\$|"
slow+='^TestStore$/^(Sentinel|Cluster|TLS)$|^TestStore$/^Model$|^TestStore$/^Standalone$/^(Model|Linearizable)$'

# Tests of the whole that are quick and need nothing but Redis.
quick='^Test(FirstSubmitAndReplay|Reuse|Scopes|InvalidKeys|Refusals|LargeRefusal|UnknownOutcomes|NextUpstream|CallerHangsUp|RaceOverTwoGateways|'
quick+='StoreStatus|RepeatOrReuse|Bypass|Placeholders|TemporaryFiles|MetricsOfEachOutcome|OperatorCompletes|OperatorReleases|Commands|'
quick+='RedisComesLater|UnreadableRecord|StopDuringAttempt|WaitForRefused|RotationOverTwoGateways|TLS|Example)$'

run_quick_tests() {
	prepare_tests
	install redis-server "$(redis_package)"
	export CGO_ENABLED=0
	start "go vet" go vet ./...
	local vet=$pid
	start "building caddy" build_for_tests "$work/caddy"
	local caddy=$pid failed=
	# shellcheck disable=SC2046 # one word per package
	go test -short -skip "$slow" "$@" $(unit_packages) || failed=1
	finish "go vet" "$vet" || failed=1
	finish "building caddy" "$caddy" || exit 1
	IDEMPOTENCY_CADDY="$work/caddy" go test -parallel "$parallel" -run "$quick" "$@" ./integration || failed=1
	[ -z "$failed" ] || fail "tests failed"
}

run_tests() {
	local nightly=()
	if [ "${1:-}" = nightly ]; then
		shift
		nightly=(-random.for 10m)
	fi
	prepare_tests
	# The race detector needs a C compiler.
	if command -v apt-get >/dev/null; then install gcc gcc libc6-dev; else install gcc gcc; fi
	install redis-server "$(redis_package)"
	install node nodejs
	install npm npm
	install promtool prometheus # checks the alert rules
	install curl curl # with the next one, what the documents show
	install openssl openssl
	install "$(browser)" chromium # shows the operators' page
	[ "$(node -p 'Number(process.versions.node.split(".")[0]) >= 18')" = true ] ||
		fail "Node.js $(node --version) is too old for the SDKs that the tests use: install Node.js 18 or later"
	install_bench

	local began=$SECONDS failed=
	start "building caddy" build ./caddy
	local caddy=$pid
	start "the SDKs that the tests use" node_modules integration/sdk
	local sdk=$pid
	start "the browser driver that the tests use" node_modules integration/page
	local page=$pid
	# The tests run a binary with the race detector: it ends, and fails the
	# test, if the gateway has a data race.
	say "building the gateway with the race detector"
	build_for_tests "$work/caddy" -race
	start "go vet" vet
	local vet=$pid
	say "go test -race, of the packages ($((SECONDS - began)) s)"
	# shellcheck disable=SC2046 # one word per package
	go test -race -timeout 30m -skip "$large" "$@" $(unit_packages) || failed=1
	finish "go vet" "$vet"
	finish "the SDKs that the tests use" "$sdk"
	finish "the browser driver that the tests use" "$page"
	finish "building caddy" "$caddy"

	say "go test, of the whole ($((SECONDS - began)) s)"
	IDEMPOTENCY_CADDY="$work/caddy" CGO_ENABLED=0 go test -timeout 30m -parallel "$parallel" "$@" ./integration ${nightly[@]+"${nightly[@]}"} || failed=1
	say "go test, of allocations and large bodies, without the race detector ($((SECONDS - began)) s)"
	CGO_ENABLED=0 go test -run "Allocat|$large" ./idempotency ./caddymodule || failed=1
	say "go test, of the benchmark ($((SECONDS - began)) s)"
	(cd integration/bench && IDEMPOTENCY_CADDY="$work/caddy" CGO_ENABLED=0 go test -timeout 10m ./...) || failed=1
	say "all that took $((SECONDS - began)) s"
	[ -z "$failed" ] || fail "tests failed"
}

case ${1:-build} in
build) build ./caddy ;;
run)
	shift
	is_current || build ./caddy
	say "the gateway listens on http://localhost:8080; stop it with Ctrl-C"
	if [ -n "${PROVIDER_URL:-}" ]; then
		exec ./caddy run --config Caddyfile.example --adapter caddyfile
	fi
	./caddy idempotency sandbox "$@" &
	trap 'kill %1 2>/dev/null || true' EXIT
	./caddy run --config Caddyfile.example --adapter caddyfile
	;;
test)
	shift
	if [ "${1:-}" = quick ]; then
		shift
		run_quick_tests "$@"
	else
		run_tests "$@"
	fi
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

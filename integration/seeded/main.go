// Command seeded checks the tests: it builds the gateway with one deliberate
// mistake at a time, and expects the tests to notice. Run it with
//
//	./xcaddy.sh seeded [name...]
//
// The mistakes are laid over the sources for one build (go build -overlay).
// Nothing of them is in the sources or in a product binary.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mistake is one seeded bug, and the tests that have to catch it.
type mistake struct {
	name string
	file string
	// The text is replaced once. If it is not there any more, the mistake has
	// to be written anew.
	old, new string
	// Tests that catch it: a package, and a -run pattern.
	pkg, run string
}

const black = "./integration"

var mistakes = []mistake{
	{
		"lease as time to live", "store/redis/lua/record.lua",
		"then return lease_until + retention end", "then return lease_until end",
		black, "TestGatewayKilled",
	},
	{
		"blind set of the acceptance", "store/redis/lua/complete.lua",
		"if not record or record.token ~= ARGV[1] then", "if not record then",
		"./store/redis", "TestStore",
	},
	{
		"no token on release", "store/redis/lua/release.lua",
		"record.token ~= ARGV[1] or record.state == 'c'", "record.state == 'c'",
		"./store/redis", "TestStore",
	},
	{
		"a command is sent again", "store/redis/transport.go",
		"func (sentOnce) NoRetry() bool { return true }", "func (sentOnce) NoRetry() bool { return false }",
		"./store/redis", "TestSentOnce",
	},
	{
		"too few replicas are enough", "store/redis/replicas.go",
		"if replicas < int64(t.config.Replicas) {", "if replicas < 0 {",
		black, "TestFailover|TestReplicaDoesNotAnswer",
	},
	{
		"strict looks away", "store/redis/watch.go",
		"		if f.Refused && f.Setting != but {\n			return fmt", "		if false {\n			return fmt",
		"./store/redis", "TestStrict",
	},
	{
		"a replica is taken for a primary", "store/redis/inspect.go",
		`case hello["role"] != roleMaster && !s.config.Cluster:`, "case false:",
		"./store/redis", "TestBadInput",
	},
	{
		"no token in the embedded store", "store/embedded/records.go",
		"if err != nil || !found || record.Token != token {", "if err != nil || !found {",
		"./store/embedded", "TestStore",
	},
	{
		"an ended lease is free", "store/redis/lua/claim.lua",
		"if ARGV[5] ~= '1' then", "if ARGV[5] ~= '1' and record.state == 'u' then",
		black, "TestGatewayKilled",
	},
	{
		"a late claim is granted", "store/redis/lua/claim.lua",
		"if now > not_after then", "if false then",
		"./store/redis", "TestStore",
	},
	{
		"a changed record is another request's", "idempotency/seal.go",
		"other, err = key.seal(s.ID, r.Fingerprint).open(r.Payload)", "",
		"./idempotency", "TestEncryptedRecordSwapped",
	},
	{
		"answers are stored as they are", "idempotency/own.go",
		"seal.close(u.details)", "u.details.encode()",
		black, "TestEncryptedStore",
	},
	{
		"the caller's context", "caddymodule/forwarding.go",
		"context.WithCancelCause(context.WithoutCancel(caller))", "context.WithCancelCause(caller)",
		black, "TestCallerHangsUp",
	},
	{
		"the key header on body-less submits", "caddymodule/forwarding.go",
		`out.Header.Del("Idempotency-Key")`, `_ = out.Header`,
		black, "TestBodylessSubmitIsSentOnce",
	},
	{
		"a broken connection counts as never sent", "caddymodule/forwarding.go",
		"if wire.connected {", "if false {",
		black, "TestUnknownOutcomes",
	},
	{
		"499 counts as a refusal", "idempotency/policy.go",
		"status == http.StatusRequestTimeout || status == 499", "status == http.StatusRequestTimeout",
		"./idempotency", ".",
	},
	{
		"half an answer is an acceptance", "idempotency/policy.go",
		"	case !r.Whole:\n		return true\n	case !r.Undeclared", "	case !r.Undeclared",
		black, "TestUnknownOutcomes",
	},
	{
		"a 502 is a refusal", "idempotency/policy.go",
		"{400, 499}, {503, 503}", "{400, 499}, {502, 503}",
		black, "TestUnknownOutcomes",
	},
	{
		"an error page counts for the provider's answer", "idempotency/policy.go",
		"case r.ProviderStatus != 0 && r.ProviderStatus != r.Status &&", "case false &&",
		black, "TestRewrittenAnswers",
	},
	{
		"an error page stands for a provider that broke off", "idempotency/policy.go",
		"case r.Status == 0 || r.ProviderSilent:\n		return ConcludedUnknown", "case r.Status == 0:\n		return ConcludedUnknown",
		black, "TestErrorRoutesOfSubroute",
	},
	{
		"a record that was taken over is freed", "store/redis/lua/release.lua",
		"if record.resubmitted then", "if false then",
		"./store/redis", "TestStore",
	},
	{
		"an operator releases what is alive", "store/redis/lua/decide_release.lua",
		"record.token ~= ARGV[1] or not undecided(record)", "record.token ~= ARGV[1]",
		"./store/redis", "TestStore",
	},
	{
		"an attempt keeps what an operator has completed", "store/redis/lua/decide_complete.lua",
		"write('c', string.rep('\\0', 16), record.fingerprint", "write('c', record.token, record.fingerprint",
		"./store/redis", "TestStore",
	},
	{
		"errors go to handle_errors", "caddymodule/exchange.go",
		"	e.w.Header().Set(\"Cache-Control\", \"no-store\")\n	defer e.linger()()\n	e.w.WriteHeader(status)\n	return nil", "	return err",
		black, "TestHandleErrors",
	},
	{
		"no scope in the record's identity", "idempotency/identity.go",
		"	for _, s := range scope {\n		f.Add(s)\n	}\n", "",
		black, "TestScopes",
	},
	{
		"the last byte is not compared", "idempotency/fingerprint/body.go",
		"math.MaxInt64-1)+1), tee)", "math.MaxInt64-1)+1), firstMiB(tee))",
		black, "TestBodies",
	},
	{
		"a member twice is a member once", "idempotency/fingerprint/json.go",
		"if f.compare(members[i-1], members[i]) == 0 {", "if false {",
		"./idempotency/fingerprint", "TestJSONFingerprint",
	},
	{
		"JSON counts as the bytes of its form", "idempotency/fingerprint/fingerprint.go",
		`"fingerprint " + string(kind)`, `"fingerprint"`,
		"./idempotency/fingerprint", "TestKindsOfBodiesDiffer",
	},
	{
		"what stands behind a form does not count", "idempotency/fingerprint/multipart.go",
		`if f.end && (string(rest) == "--" ||`, `if bytes.HasPrefix(rest, []byte("--")) && (true ||`,
		"./idempotency/fingerprint", "TestAmbiguousForms",
	},
	{
		"no ignored members", "caddymodule/configure.go",
		"config.Ignore = append(config.Ignore, pointer)", "_ = pointer",
		black, "TestRepeatOrReuse",
	},
	{
		"no renewal", "idempotency/keeper.go",
		"			e.renewDue()\n", "",
		black, "TestProviderTakesFourLeases",
	},
	{
		"the queue of outcomes costs leases", "idempotency/keeper.go",
		"			e.renewDue()\n			more = e.settleDue(atOnce)", "			more = e.settleDue(atOnce)",
		"./idempotency", "TestLeasesComeBeforeTheQueue",
	},
	{
		"the gateway's own clock", "idempotency/clock.go",
		"return c.store.Add(time.Since(c.local)), true", "return time.Now(), true",
		black, "TestClocksApart",
	},
	{
		"a failed completion is forgotten", "idempotency/attempt.go",
		"a.engine.settleLater(u, a.policy.Lease+a.policy.Retention)", "_ = u",
		black, "TestRedisDiesBeforeCompletion",
	},
	{
		"a claim for a record that was lost is sent", "idempotency/own.go",
		"switch holder = e.own[s.ID].holder; {", "switch holder = nil; {",
		black, "TestStoreForgets|TestEvictionDuringSubmits",
	},
	{
		"a claim does not look at the marker", "store/redis/lua/claim.lua",
		"if KEYS[2] then", "if false then",
		"./store/redis", "TestMarker",
	},
	{
		"a claim is not taken back", "idempotency/claim.go",
		"	if mayBeGranted {", "	if false && mayBeGranted {",
		"./idempotency", ".",
	},
	{
		"a reload closes the store while an outcome is not stored", "caddymodule/pool.go",
		"return hold(key) }", "return func() {} }",
		black, "TestReloadWithUnstoredOutcome",
	},
	{
		"a provider's cookies are replayed", "idempotency/answer.go",
		"	\"Set-Cookie\":                true,\n", "",
		black, "TestReplayHeader",
	},
	{
		"a late acceptance is not counted", "caddymodule/observer.go",
		"	metrics.lateAcceptances.Inc()\n", "",
		black, "TestLateAcceptanceIsCounted",
	},
	{
		"outcomes under way do not count as unstored", "idempotency/keeper.go",
		"	e.settling = due\n", "",
		"./idempotency", "TestUnstoredWhileUnderWay",
	},
	{
		"a span has an error's text", "caddymodule/spans.go",
		"\"the store did not decide the claim\"", "string(e.r.Header.Get(\"Idempotency-Key\"))",
		black, "TestSecrets",
	},
	{
		"the provider's spans are not under the forwarding", "caddymodule/spans.go",
		"propagators().Inject(forward,", "propagators().Inject(e.r.Context(),",
		black, "TestTracing",
	},
}

// firstMiB is used by one of the mistakes.
const firstMiB = `
type firstMiBWriter struct{ w io.Writer; n int }
func firstMiB(w io.Writer) io.Writer { return &firstMiBWriter{w, 1 << 20} }
func (f *firstMiBWriter) Write(p []byte) (int, error) {
	n := min(len(p), f.n)
	f.n -= n
	_, err := f.w.Write(p[:n])
	return len(p), err
}
`

const caddyMain = `package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-idempotency/caddy-idempotency"
)

func main() { caddycmd.Main() }
`

func main() {
	missed := 0
	for _, m := range mistakes {
		if len(os.Args) > 1 && !slices.Contains(os.Args[1:], m.name) {
			continue
		}
		if err := check(m); err != nil {
			missed++
			fmt.Printf("MISSED  %s: %v\n", m.name, err)
			continue
		}
		fmt.Printf("caught  %s, by %s %s\n", m.name, m.pkg, m.run)
	}
	if missed > 0 {
		fmt.Printf("%d seeded mistakes were missed\n", missed)
		os.Exit(1)
	}
}

// check builds and tests with the mistake; nil means that a test failed.
func check(m mistake) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "seeded-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // the system's temporary directory is swept anyway

	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return err
	}
	if strings.Count(string(source), m.old) != 1 {
		return fmt.Errorf("%s does not have the text to replace, or has it twice: write the mistake anew", m.file)
	}
	changed := strings.Replace(string(source), m.old, m.new, 1)
	if strings.Contains(m.new, "firstMiB") {
		changed += firstMiB
	}
	overlay := map[string]map[string]string{"Replace": {}}
	lay := func(path, text string) error {
		laid := filepath.Join(work, fmt.Sprint(len(overlay["Replace"]))+filepath.Ext(path))
		overlay["Replace"][path] = laid
		return os.WriteFile(laid, []byte(text), 0o600)
	}
	overlayFile := filepath.Join(work, "overlay.json")
	mainDir := filepath.Join(root, "integration", "seeded", "caddy")
	err = errors.Join(lay(filepath.Join(root, m.file), changed), lay(filepath.Join(mainDir, "main.go"), caddyMain))
	if err != nil {
		return err
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlayFile, text, 0o600); err != nil {
		return err
	}

	binary := filepath.Join(work, "caddy")
	if m.pkg == black {
		build := exec.Command("go", "build", "-overlay", overlayFile, "-o", binary, mainDir)
		if output, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("it does not build: %w\n%s", err, output)
		}
	}
	vet := exec.Command("go", "test", "-overlay", overlayFile, "-run", "^$", m.pkg)
	vet.Env = append(os.Environ(), "IDEMPOTENCY_CADDY="+binary)
	if output, err := vet.CombinedOutput(); err != nil {
		return fmt.Errorf("its tests do not build: %w\n%s", err, output)
	}
	test := exec.Command("go", "test", "-overlay", overlayFile, "-count=1", "-failfast", "-timeout", "5m", "-run", m.run, m.pkg)
	test.Env = append(os.Environ(), "IDEMPOTENCY_CADDY="+binary)
	output, err := test.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return errors.New("all tests pass")
	case errors.As(err, &failed) && strings.Contains(string(output), "--- FAIL"):
		return nil
	default:
		return fmt.Errorf("the tests did not run: %w\n%s", err, output)
	}
}

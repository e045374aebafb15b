package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

const (
	dashboardFile = "../contrib/grafana/idempotency.json"
	rulesFile     = "../contrib/prometheus/idempotency.rules.yml"
	rulesTestFile = "../contrib/prometheus/idempotency.rules_test.yml"
)

// promtool runs Prometheus' own checker.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: it comes with Prometheus (Debian's package prometheus), and ./xcaddy.sh test installs it")
	}
	if output, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// The alert rules are valid and fire when they should, and only then.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", rulesFile)
	promtool(t, "test", "rules", rulesTestFile)
	tests := readFile(t, rulesTestFile)
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(readFile(t, rulesFile), -1)
	if len(alerts) == 0 {
		t.Error("there are no alerts")
	}
	for _, alert := range alerts {
		if !strings.Contains(tests, "alertname: "+alert[1]+"\n        exp_alerts:") {
			t.Errorf("%s is not seen to fire by the rules' own test", alert[1])
		}
	}
}

// panel is what the test reads of a Grafana panel.
type panel struct {
	ID      int
	Type    string
	Title   string
	GridPos struct{ H, W, X, Y int }
	Targets []struct{ Expr string }
}

func readDashboard(t *testing.T) []panel {
	t.Helper()
	var d struct{ Panels []panel }
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	return d.Panels
}

// The dashboard has the fields that Grafana's own schema knows, and all that it
// demands.
func TestDashboardSchema(t *testing.T) {
	t.Parallel()
	schema := cog.NewRuntime()
	schema.RegisterPanelcfgVariant(stat.VariantConfig())
	schema.RegisterPanelcfgVariant(timeseries.VariantConfig())
	schema.RegisterDataqueryVariant(prometheus.VariantConfig())
	var d dashboard.Dashboard //nolint:staticcheck // deprecated, and the only model that Grafana before 13 imports
	// Its error is not nil if there is none; an empty text says so.
	if err := d.UnmarshalJSONStrict([]byte(readFile(t, dashboardFile))); err != nil && err.Error() != "" {
		t.Error(err)
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	if len(d.Panels) == 0 {
		t.Error("the dashboard has no panels")
	}
}

// Each panel has an id and a place of its own, and expressions that Prometheus
// understands.
func TestDashboard(t *testing.T) {
	t.Parallel()
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1d", "$job", ".+", "$instance", ".+")
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	ids, places := map[int]bool{}, map[[2]int]string{}
	for _, p := range readDashboard(t) {
		if p.ID == 0 || ids[p.ID] {
			t.Errorf("%s has id %d, which is 0 or another's", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				place := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := places[place]; other != "" || place[0] >= 24 {
					t.Errorf("%s is over %q or beyond the edge", p.Title, other)
				}
				places[place] = p.Title
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for i, target := range p.Targets {
			expression := variables.Replace(target.Expr)
			if strings.Contains(expression, "$") {
				t.Errorf("%s has an unknown variable: %s", p.Title, target.Expr)
			}
			fmt.Fprintf(&rules, "  - record: panel:%d:%d\n    expr: %q\n", p.ID, i, expression)
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// What the dashboard and the alerts ask for is what a gateway exposes, down to
// the values of its labels. The dashboard leaves no metric out.
func TestContribMetricsExist(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	var asked strings.Builder
	for _, p := range readDashboard(t) {
		for _, target := range p.Targets {
			asked.WriteString(target.Expr + "\n")
		}
	}
	name := regexp.MustCompile(`caddy_idempotency_\w+`)
	exposed, values := map[string]bool{}, map[string]bool{}
	label := regexp.MustCompile(`\b(outcome|op|state)(?:=|=~|!=)"([^"]*)"`)
	g.awaitRecords(t, map[string]int{"uncertain": 0, "in_progress": 0, "completed": 0})
	for s := range g.scrape(t) {
		exposed[name.FindString(s)] = true
		for _, match := range label.FindAllStringSubmatch(s, -1) {
			values[match[1]+"="+match[2]] = true
		}
	}
	for document, text := range map[string]string{"the dashboard": asked.String(), rulesFile: readFile(t, rulesFile)} {
		metrics, labels := name.FindAllString(text, -1), label.FindAllStringSubmatch(text, -1)
		if len(metrics) == 0 || len(labels) == 0 {
			t.Errorf("%s has %d metrics and %d labels", document, len(metrics), len(labels))
		}
		for _, metric := range metrics {
			if !exposed[metric] {
				t.Errorf("%s asks for %s, which is not exposed", document, metric)
			}
		}
		for _, match := range labels {
			for value := range strings.SplitSeq(match[2], "|") {
				if !values[match[1]+"="+value] {
					t.Errorf("%s asks for %s %s, which is not exposed", document, match[1], value)
				}
			}
		}
	}
	for metric := range exposed {
		// A histogram is shown by its buckets and its count.
		if !strings.HasSuffix(metric, "_sum") && !strings.Contains(asked.String(), metric) {
			t.Errorf("the dashboard does not show %s", metric)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

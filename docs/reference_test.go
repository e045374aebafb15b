package docs_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/caddy-idempotency/caddy-idempotency/caddymodule"
	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
	"github.com/caddy-idempotency/caddy-idempotency/provider"
)

const (
	configuration = "configuration.md"
	operations    = "operations.md"
	clients       = "clients.md"
)

// source is the product's code of a directory and of those below it, without tests.
func source(t *testing.T, dir string) (*token.FileSet, []*ast.File) {
	t.Helper()
	files := token.NewFileSet()
	var all []*ast.File
	err := filepath.WalkDir(filepath.Join("..", dir), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if strings.HasSuffix(path, "test") || entry.Name() == "testdata" {
			return fs.SkipDir
		}
		packages, err := parser.ParseDir(files, path, //nolint:staticcheck // the files of one folder, whatever their build constraints
			func(info fs.FileInfo) bool { return !strings.HasSuffix(info.Name(), "_test.go") }, parser.ParseComments)
		if len(packages) > 1 {
			t.Errorf("%s has %d packages", path, len(packages))
		}
		for _, pkg := range packages {
			for _, name := range slices.Sorted(maps.Keys(pkg.Files)) {
				all = append(all, pkg.Files[name])
			}
		}
		return err
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%s has %d files, %v", dir, len(all), err)
	}
	return files, all
}

// text returns the value of an expression that is a text, as far as it is
// written down: of a sum what begins it.
func text(e ast.Expr) (value string, whole, found bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			value, err := strconv.Unquote(e.Value)
			return value, true, err == nil
		}
	case *ast.ParenExpr:
		return text(e.X)
	case *ast.BinaryExpr:
		if left, whole, found := text(e.X); found && e.Op == token.ADD {
			if right, rest, ok := text(e.Y); whole && ok {
				return left + right, rest, true
			}
			return left, false, true
		}
	case *ast.CallExpr: // fmt.Sprintf
		if name, ok := e.Fun.(*ast.SelectorExpr); ok && name.Sel.Name == "Sprintf" && len(e.Args) > 0 {
			value, whole, found := text(e.Args[0])
			before, _, dynamic := strings.Cut(value, "%")
			return strings.TrimRight(before, " "), whole && !dynamic, found
		}
	}
	return "", false, false
}

// part is what configuration.md has of one type of the module.
type part struct {
	title string // of its section
	value any
	// written at the end of the section's title, if the directive is another
	synopsis bool
}

var parts = map[string]part{
	"App":           {"Global option `idempotency`", caddymodule.App{}, true},
	"EmbeddedStore": {"Store `embedded`", caddymodule.EmbeddedStore{}, true},
	"RedisStore":    {"Store `redis`", caddymodule.RedisStore{}, true},
	"RedisTLS":      {"TLS", caddymodule.RedisTLS{}, false}, // its synopsis is within that of the store
	"Handler":       {"Directive `idempotency`", caddymodule.Handler{}, true},
	"Health":        {"Directive `idempotency_health`", caddymodule.Health{}, true},
}

// option is an entry of the reference.
type option struct {
	name, syntax, json, fallback string
}

var (
	optionTitle = regexp.MustCompile("^### `([^`]+)`$")
	signature   = regexp.MustCompile("^`([^`]+)` — JSON: (.+?) — default: (.+)$")
)

// reference returns the entries under a section.
func reference(t *testing.T, title string) []option {
	t.Helper()
	var all []option
	lines := read(t, configuration).section(t, title)
	for i, line := range lines {
		m := optionTitle.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var s []string
		if i+2 < len(lines) {
			s = signature.FindStringSubmatch(lines[i+2])
		}
		if s == nil {
			t.Errorf("%s: %s is not followed by its syntax, JSON name and default", configuration, m[1])
			continue
		}
		all = append(all, option{m[1], s[1], s[2], s[3]})
	}
	return all
}

// Every option that the Caddyfile parser knows is in the reference, and no
// other.
func TestOptions(t *testing.T) {
	_, files := source(t, "caddymodule")
	code := make(map[string]map[string]bool)
	for name := range parts {
		code[name] = make(map[string]bool)
	}
	for _, file := range files {
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || f.Recv == nil || !strings.HasPrefix(strings.ToLower(f.Name.Name), "unmarshal") || f.Name.Name == "UnmarshalJSON" {
				continue
			}
			receiver := f.Recv.List[0].Type
			if star, ok := receiver.(*ast.StarExpr); ok {
				receiver = star.X
			}
			names, known := code[receiver.(*ast.Ident).Name]
			if !known {
				t.Errorf("%s has options, and no section in the reference", receiver)
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				var options []ast.Expr
				switch n := n.(type) {
				case *ast.CaseClause:
					options = n.List
				case *ast.CompositeLit:
					for _, element := range n.Elts {
						if pair, ok := element.(*ast.KeyValueExpr); ok {
							options = append(options, pair.Key)
						}
					}
				}
				for _, e := range options {
					if name, _, found := text(e); found {
						names[name] = true
					}
				}
				return true
			})
		}
	}
	for name, part := range parts {
		docs := make(map[string]bool)
		for _, o := range reference(t, part.title) {
			first, _, _ := strings.Cut(o.syntax, " ")
			if first == o.name {
				docs[o.name] = true
			} else if !strings.HasPrefix(o.syntax, "store ") {
				t.Errorf("%s: the syntax of %s begins with %s", configuration, o.name, first)
			}
		}
		if len(code[name])+len(docs) > 0 {
			compare(t, "option of "+name, code[name], docs, configuration+", section "+part.title)
		}
	}
}

// canonical makes two ways to write a syntax one.
func canonical(line string) string {
	line = strings.Join(strings.Fields(line), " ")
	for _, same := range [][2]string{{"...>", ">..."}, {"]...", "...]"}, {" | ", "|"}, {"store redis", "redis"}, {"store embedded", "embedded"}} {
		line = strings.ReplaceAll(line, same[0], same[1])
	}
	return line
}

// The synopses are those of the code's comments.
func TestSynopses(t *testing.T) {
	_, files := source(t, "caddymodule")
	code := make(map[string]map[string]bool)
	for _, file := range files {
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || f.Name.Name != "UnmarshalCaddyfile" {
				continue
			}
			name := f.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name
			code[name] = make(map[string]bool)
			for line := range strings.Lines(f.Doc.Text()) {
				if strings.HasPrefix(line, "\t") {
					code[name][canonical(line)] = true
				}
			}
		}
	}
	for name, part := range parts {
		if !part.synopsis {
			continue
		}
		docs := make(map[string]bool)
		d := read(t, configuration)
		start := slices.Index(d.lines, "## "+part.title)
		for _, f := range d.fences() {
			if f.line > start && f.language == "text" {
				for line := range strings.Lines(f.body) {
					docs[canonical(line)] = true
				}
				break
			}
		}
		compare(t, "syntax of "+name, code[name], docs, configuration+", section "+part.title)
	}
}

// jsonNames returns the names of a struct's fields in JSON, those of structs
// without a section of their own included.
func jsonNames(of reflect.Type) map[string]bool {
	names := make(map[string]bool)
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		names[name] = true
		field := of.Field(i).Type
		if field.Kind() == reflect.Pointer {
			field = field.Elem()
		}
		if _, own := parts[field.Name()]; !own && field.Kind() == reflect.Struct {
			maps.Copy(names, jsonNames(field))
		}
	}
	return names
}

// Every JSON field of the modules is in the reference, and no other.
func TestJSONNames(t *testing.T) {
	for name, part := range parts {
		docs := make(map[string]bool)
		for _, o := range reference(t, part.title) {
			for _, name := range spans(o.json) {
				docs[name] = true
			}
		}
		if code := jsonNames(reflect.TypeOf(part.value)); len(code)+len(docs) > 0 {
			compare(t, "JSON field of "+name, code, docs, configuration+", section "+part.title)
		}
	}
}

// fieldDefaults returns what the comments of the fields call their defaults, by
// type and JSON name.
func fieldDefaults(t *testing.T) map[string]map[string]string {
	t.Helper()
	all := make(map[string]map[string]string)
	_, files := source(t, "caddymodule")
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			structure, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			defaults := make(map[string]string)
			for _, field := range structure.Fields.List {
				if field.Tag == nil {
					continue
				}
				tag, err := strconv.Unquote(field.Tag.Value)
				if err != nil {
					t.Fatal(err)
				}
				name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
				_, rest, found := strings.Cut(strings.Join(strings.Fields(field.Doc.Text()), " "), "Default: ")
				if found {
					defaults[name] = rest
				} else {
					defaults[name] = ""
				}
			}
			all[spec.Name.Name] = defaults
			return true
		})
	}
	return all
}

// A default of the reference is that of the field's comment, which Caddy's website
// shows.
func TestDefaultsOfComments(t *testing.T) {
	comments := fieldDefaults(t)
	for name, part := range parts {
		for _, o := range reference(t, part.title) {
			field := spans(o.json)[0]
			want, known := comments[name][field]
			if !known {
				continue // TestJSONNames says so
			}
			got := strings.FieldsFunc(o.fallback, func(r rune) bool { return r == ',' || r == ';' })[0]
			if want == "" {
				if got != "none" {
					t.Errorf("%s: the default of %s is %q, and the field's comment has none", configuration, o.name, got)
				}
				continue
			}
			agree := true
			for _, value := range spans(got) {
				value = strings.Trim(value, "{}")
				if i := strings.LastIndex(value, "."); i > 0 && strings.HasPrefix(value, "http.") {
					value = value[i+1:]
				}
				agree = agree && strings.Contains(strings.ToLower(want), strings.ToLower(value))
			}
			if len(spans(got)) == 0 {
				agree = strings.HasPrefix(want, got)
				if got == "off" {
					agree = strings.HasPrefix(want, "false") || strings.HasPrefix(want, "not at all")
				}
			}
			if !agree {
				t.Errorf("%s: the default of %s is %q, and the comment of its field says %q", configuration, o.name, got, want)
			}
		}
	}
}

// value calculates a constant expression, as far as defaults need it.
func value(e ast.Expr) (int64, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.ParseInt(e.Value, 0, 64)
	case *ast.ParenExpr:
		return value(e.X)
	case *ast.BinaryExpr:
		x, err := value(e.X)
		if err != nil {
			return 0, err
		}
		y, err := value(e.Y)
		if e.Op == token.MUL {
			return x * y, err
		}
		if e.Op == token.SHL {
			return x << y, err
		}
	case *ast.SelectorExpr:
		switch name := e.Sel.Name; name {
		case "Second":
			return int64(time.Second), nil
		case "Minute":
			return int64(time.Minute), nil
		case "Hour":
			return int64(time.Hour), nil
		case "DefaultStoreTimeout":
			return int64(idempotency.DefaultStoreTimeout), nil
		default:
			if field := reflect.ValueOf(idempotency.DefaultPolicy()).FieldByName(name); field.IsValid() && field.CanInt() {
				return field.Int(), nil
			}
		}
	}
	return 0, fmt.Errorf("%T is no constant that this test understands", e)
}

// derived are defaults that depend on another option.
var derived = setOf("replicas: timeout", "in_progress wait")

// The durations and sizes that the code falls back to are those of the
// reference.
func TestDefaultsOfCode(t *testing.T) {
	docs := make(map[string]string)
	for _, part := range parts {
		for _, o := range reference(t, part.title) {
			docs[o.name] = o.fallback
		}
	}
	_, files := source(t, "caddymodule")
	found := 0
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 3 {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "resolve" {
				return true
			}
			name, _, _ := text(call.Args[1])
			if derived[name] {
				return true
			}
			found++
			want, err := value(call.Args[2])
			if err != nil {
				t.Errorf("the default of %s: %v", name, err)
				return true
			}
			written := spans(docs[name])
			if len(written) == 0 {
				t.Errorf("%s has no default of %s", configuration, name)
				return true
			}
			var got int64
			duration, err := caddy.ParseDuration(written[0])
			if got = int64(duration); err != nil {
				var size uint64
				size, err = humanize.ParseBytes(written[0])
				got = int64(size)
			}
			if err != nil || got != want {
				t.Errorf("%s says that the default of %s is %s, and in the code it is %d", configuration, name, written[0], want)
			}
			return true
		})
	}
	if found < 6 {
		t.Errorf("the code has %d durations and sizes with a default: the test does not find them any more", found)
	}
	policy := idempotency.DefaultPolicy()
	for name, ranges := range map[string][]idempotency.StatusRange{"store_status": policy.StoreStatus, "refused_status": policy.RefusedStatus} {
		code := make(map[string]bool)
		for _, r := range ranges {
			status := strconv.Itoa(r.First)
			if r.Last == r.First+99 {
				status = status[:1] + "xx"
			}
			code[status] = true
		}
		compare(t, "default of "+name, code, setOf(spans(docs[name])...), configuration)
	}
}

// provisioned returns the context of a configuration with a handler that has no
// options, and the handler.
func provisioned(t *testing.T) (caddy.Context, *caddymodule.Handler) {
	t.Helper()
	var config caddy.Config
	err := json.Unmarshal([]byte(`{"admin": {"disabled": true}, "apps": {
		"idempotency": {"store": {"module": "embedded", "path": "`+filepath.ToSlash(filepath.Join(t.TempDir(), "i.db"))+`"}},
		"http": {"servers": {"s": {"listen": ["localhost:1"], "routes": [{"handle": [{"handler": "idempotency"}]}]}}}}}`), &config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := caddy.ProvisionContext(&config)
	if err != nil {
		t.Fatal(err)
	}
	app, err := ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	return ctx, app.(*caddyhttp.App).Servers["s"].Routes[0].Handlers[0].(*caddymodule.Handler)
}

// What a handler without options has set itself to is in the reference.
func TestDefaultsOfHandler(t *testing.T) {
	_, handler := provisioned(t)
	docs := make(map[string][]string)
	for _, o := range reference(t, parts["Handler"].title) {
		docs[o.name] = spans(o.fallback)
	}
	of := reflect.ValueOf(*handler)
	found := 0
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Type().Field(i).Tag.Get("json"), ",")
		if name == "" || of.Field(i).IsZero() {
			continue
		}
		found++
		var values []string
		switch v := of.Field(i).Interface().(type) {
		case string:
			values = []string{v}
		case []string:
			values = v
		default:
			values = []string{fmt.Sprint(v)}
		}
		if !slices.Equal(values, docs[name]) {
			t.Errorf("%s says that the default of %s is %q, and a handler has %q", configuration, name, docs[name], values)
		}
	}
	if found == 0 {
		t.Error("a handler without options has no defaults: the test does not find them any more")
	}
}

var metricName = regexp.MustCompile(`^(caddy_idempotency_\w+?)(?:\{([\w,]+)\})?$`)

// Every metric is in its table with its labels, and no other.
func TestMetrics(t *testing.T) {
	docs := make(map[string]bool)
	for _, row := range rows(read(t, operations).section(t, "Metrics")) {
		if m := metricName.FindStringSubmatch(spans(row[0])[0]); m != nil {
			docs[m[1]+"{"+m[2]+"}"] = true
		}
	}
	code := make(map[string]bool)
	_, files := source(t, "caddymodule")
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			// prometheus.NewX(options, labels) or prometheus.NewX(options, function)
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || len(call.Args) == 0 || !strings.HasPrefix(f.Sel.Name, "New") {
				return true
			}
			if pkg, ok := f.X.(*ast.Ident); !ok || pkg.Name != "prometheus" {
				return true
			}
			name := metricOf(call.Args[0])
			if name == "" {
				return true
			}
			var labels []string
			for _, arg := range call.Args[1:] {
				list, ok := arg.(*ast.CompositeLit)
				if !ok {
					continue
				}
				for _, element := range list.Elts {
					label, _, _ := text(element)
					labels = append(labels, label)
				}
			}
			code["caddy_idempotency_"+name+"{"+strings.Join(labels, ",")+"}"] = true
			return true
		})
	}
	compare(t, "metric", code, docs, operations+", section Metrics")

	// Those that have a series at once are real.
	ctx, _ := provisioned(t)
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	live := 0
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "caddy_idempotency_") {
			continue
		}
		live++
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		found := false
		for name := range docs {
			before, list, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
			want := strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
			slices.Sort(want)
			found = found || before == family.GetName() && slices.Equal(want, labels)
		}
		if !found {
			t.Errorf("%s{%s} is exposed, and not in %s", family.GetName(), strings.Join(labels, ","), operations)
		}
	}
	if live < 6 {
		t.Errorf("%d metrics are exposed", live)
	}
}

// metricOf returns the name in counter("name", …), prometheus.BuildFQName(…,
// "name") or prometheus.HistogramOpts{Name: "name"}.
func metricOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.CallExpr:
		switch f := e.Fun.(type) {
		case *ast.Ident: // counter or gauge
			name, _, _ := text(e.Args[0])
			return name
		case *ast.SelectorExpr:
			if f.Sel.Name == "BuildFQName" {
				name, _, _ := text(e.Args[len(e.Args)-1])
				return name
			}
		}
	case *ast.CompositeLit:
		for _, element := range e.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok && fmt.Sprint(pair.Key) == "Name" {
				name, _, _ := text(pair.Value)
				return name
			}
		}
	}
	return ""
}

// constants returns the values of all constants of a type.
func constants(t *testing.T, dir, of string) map[string]bool {
	t.Helper()
	values := make(map[string]bool)
	_, files := source(t, dir)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || spec.Type == nil || fmt.Sprint(spec.Type) != of {
				return true
			}
			for _, e := range spec.Values {
				if v, _, found := text(e); found {
					values[v] = true
				}
			}
			return true
		})
	}
	return values
}

// Every code has its row with the statuses that the code gives it, its own
// section, and an anchor of the front page, where error documents link to.
func TestCodes(t *testing.T) {
	code := constants(t, "idempotency", "Code")
	table := make(map[string]bool)
	for _, row := range rows(read(t, clients).section(t, "The codes")) {
		name := spans(row[0])[0]
		table[name] = true
		for i, format := range []idempotency.ProblemFormat{idempotency.FormatEnvelope, idempotency.FormatProblem} {
			if !code[name] {
				break
			}
			if status := strconv.Itoa(idempotency.Problem{Code: idempotency.Code(name)}.Status(format)); row[1+i] != status {
				t.Errorf("%s: %s has status %s with errors %s, and in the code %s", clients, name, row[1+i], format, status)
			}
		}
	}
	compare(t, "code", code, table, clients+", section The codes")

	sections, front := make(map[string]bool), make(map[string]bool)
	for anchor := range read(t, clients).anchors() {
		if strings.HasPrefix(anchor, "idempotency_") || code[anchor] {
			sections[anchor] = true
		}
	}
	for anchor := range read(t, "../README.md").anchors() {
		if strings.HasPrefix(anchor, "idempotency_") || code[anchor] {
			front[anchor] = true
		}
	}
	compare(t, "code", code, sections, "the headings of "+clients)
	compare(t, "code", code, front, "the anchors of README.md")
}

// Every outcome and every operation of the store, the values of metric labels,
// is in its place.
func TestLabelValues(t *testing.T) {
	docs := make(map[string]bool)
	for _, row := range rows(read(t, operations).section(t, "Outcomes")) {
		for _, name := range spans(row[0]) {
			docs[name] = true
		}
	}
	code := constants(t, "caddymodule", "outcome")
	delete(code, "claimed") // of a span only
	compare(t, "outcome", code, docs, operations+", section Outcomes")

	metrics := strings.Join(read(t, operations).section(t, "Metrics"), " ")
	_, list, _ := strings.Cut(metrics, "`op` is one of ")
	list, _, _ = strings.Cut(list, "All series")
	compare(t, "operation", setOf(idempotency.Operations()...), setOf(spans(list)...), operations+", the sentence \"`op` is one of\"")
}

// levels are the methods of a zap.Logger that write a line.
var levels = map[string]string{"Debug": "debug", "Info": "info", "Warn": "warn", "Error": "error", "Log": ""}

// message is a line of the log as the code writes it.
type message struct{ level, text, place string }

// messages finds the lines that the module logs: calls of a zap.Logger's methods
// with a text and fields.
func messages(t *testing.T) []message {
	t.Helper()
	var all []message
	files, parsed := source(t, "caddymodule")
	for _, file := range parsed {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			level, ok := levels[f.Sel.Name]
			if !ok || !isLogger(f.X) {
				return true
			}
			arg := call.Args[0]
			if f.Sel.Name == "Log" {
				arg = call.Args[1]
			}
			value, _, found := text(arg)
			place := files.Position(call.Pos()).String()
			switch {
			case value != "":
				all = append(all, message{level, value, place})
			case !found && level != "debug": // at debug the driver has its own words
				t.Errorf("%s: the message is not written down", place)
			}
			return true
		})
	}
	if len(all) < 20 {
		t.Errorf("the code has %d log lines: the test does not find them any more", len(all))
	}
	return all
}

// isLogger reports whether an expression is a logger, by its name.
func isLogger(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "logger"
	case *ast.SelectorExpr:
		return e.Sel.Name == "logger"
	case *ast.CallExpr:
		switch f := e.Fun.(type) {
		case *ast.Ident:
			return f.Name == "log"
		case *ast.SelectorExpr:
			return isLogger(f.X) // With, Named
		}
	}
	return false
}

// Every log line is in the table, under its level and up to its first semicolon
// or colon, and no other.
func TestLogLines(t *testing.T) {
	code, docs := make(map[string]bool), make(map[string]bool)
	var lines []message
	for _, m := range messages(t) {
		m.text = strings.TrimSpace(m.text)
		if i := strings.IndexAny(m.text, ";:("); i > 0 {
			m.text = strings.TrimSpace(m.text[:i])
		}
		lines = append(lines, m)
		code[m.text] = true
	}
	for _, row := range rows(read(t, operations).section(t, "Log lines")) {
		name := spans(row[2])[0]
		// A longer text may be shown of a message that the code puts together.
		for _, m := range lines {
			if strings.HasPrefix(name, m.text) && !code[name] {
				name = m.text
			}
			if name == m.text && m.level != "" && m.level != row[0] {
				t.Errorf("%s: %q has level %s, and at %s %s", operations, name, row[0], m.place, m.level)
			}
		}
		docs[name] = true
	}
	compare(t, "log line", code, docs, operations+", section Log lines")
}

// Every reason of an unknown outcome is in its table, and no other.
func TestReasons(t *testing.T) {
	code, docs := make(map[string]bool), make(map[string]bool)
	reasons := func(dir string, of func(n ast.Node) []ast.Expr) {
		_, files := source(t, dir)
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				for _, e := range of(n) {
					if reason, _, found := text(e); found {
						code[reason] = true
					}
				}
				return true
			})
		}
	}
	// What unknownReason returns.
	reasons("idempotency", func(n ast.Node) (results []ast.Expr) {
		if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name == "unknownReason" {
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if r, ok := n.(*ast.ReturnStmt); ok {
					results = append(results, r.Results...)
				}
				return true
			})
		}
		return results
	})
	// What is assigned to a variable of that name.
	reasons("caddymodule", func(n ast.Node) []ast.Expr {
		a, ok := n.(*ast.AssignStmt)
		if !ok || len(a.Lhs) != len(a.Rhs) {
			return nil
		}
		for i, e := range a.Lhs {
			if name, ok := e.(*ast.Ident); ok && name.Name == "reason" {
				return a.Rhs[i : i+1]
			}
		}
		return nil
	})
	for _, row := range rows(read(t, operations).section(t, "Reasons of an unknown outcome")) {
		docs[spans(row[0])[0]] = true
	}
	compare(t, "reason", code, docs, operations+", section Reasons of an unknown outcome")
}

// Every alert of the rules is in its table with its severity, and no other.
func TestAlerts(t *testing.T) {
	rules, err := os.ReadFile("../contrib/prometheus/idempotency.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	code, docs := make(map[string]bool), make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?s)- alert: (\w+).*?severity: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		code[m[1]+", "+m[2]] = true
	}
	for _, row := range rows(read(t, operations).section(t, "Alerts")) {
		for _, name := range spans(row[0]) {
			docs[name+", "+row[1]] = true
		}
	}
	compare(t, "alert", code, docs, operations+", section Alerts")
}

// Every subcommand and each of its flags is in the table, and no other.
func TestCommands(t *testing.T) {
	command := new(cobra.Command)
	caddycmd.Commands()["idempotency"].CobraFunc(command)
	code, docs := make(map[string]bool), make(map[string]bool)
	texts := make(map[string]string)
	section := read(t, operations).section(t, "The command")
	for _, row := range rows(section) {
		name, _, _ := strings.Cut(spans(row[0])[0], " ")
		docs[name] = true
		texts[name] = strings.Join(row, " ")
	}
	everywhere := strings.Join(section, "\n")
	for _, sub := range command.Commands() {
		code[sub.Name()] = true
		known := make(map[string]bool)
		for line := range strings.Lines(sub.Flags().FlagUsages()) {
			flag := regexp.MustCompile(`--([\w-]+)`).FindString(line)
			known[flag] = true
			where := texts[sub.Name()]
			if slices.Contains([]string{"--json", "--address", "--config", "--adapter"}, flag) {
				where = everywhere
			}
			if docs[sub.Name()] && !strings.Contains(where, "`"+flag) {
				t.Errorf("the flag %s of %s is in the code and missing in %s", flag, sub.Name(), operations)
			}
		}
		for _, span := range spans(texts[sub.Name()]) {
			if flag := regexp.MustCompile(`^--[\w-]+`).FindString(span); flag != "" && !known[flag] {
				t.Errorf("the flag %s of %s is in %s and missing in the code", flag, sub.Name(), operations)
			}
		}
	}
	compare(t, "command", code, docs, operations+", section The command")
}

// Every field of the admin API's documents is named where the API is.
func TestAdminFields(t *testing.T) {
	section := strings.Join(read(t, operations).section(t, "The admin API"), "\n")
	_, files := source(t, "caddymodule")
	found := 0
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !strings.HasSuffix(spec.Name.Name, "Document") && !strings.HasSuffix(spec.Name.Name, "Order") && spec.Name.Name != "revealed" {
				return true
			}
			structure, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range structure.Fields.List {
				if field.Tag == nil {
					continue
				}
				name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
				found++
				if !regexp.MustCompile(`["` + "`" + `?&]` + regexp.QuoteMeta(name) + `["` + "`" + `=]`).MatchString(section) {
					t.Errorf("the field %s of %s is in the code and missing in %s, section The admin API", name, spec.Name, operations)
				}
			}
			return true
		})
	}
	if found < 20 {
		t.Errorf("the admin API has %d fields: the test does not find them any more", found)
	}
}

// Every route of the admin API is in its table, and no other.
func TestAdminRoutes(t *testing.T) {
	info, err := caddy.GetModule("admin.api.idempotency")
	if err != nil {
		t.Fatal(err)
	}
	code, docs := make(map[string]bool), make(map[string]bool)
	for _, route := range info.New().(caddy.AdminRouter).Routes() {
		code[route.Pattern] = true
	}
	for _, row := range rows(read(t, operations).section(t, "The admin API")) {
		_, path, _ := strings.Cut(spans(row[0])[0], " ")
		path, _, _ = strings.Cut(path, "?")
		docs[path] = true
	}
	for pattern := range code {
		if strings.HasSuffix(pattern, "/") {
			delete(code, pattern) // the page and its files
		}
	}
	compare(t, "route", code, docs, operations+", section The admin API")
}

// Every placeholder of the module is in docs/, and no other.
func TestPlaceholders(t *testing.T) {
	placeholder := regexp.MustCompile(`\{(http\.idempotency\.[\w.]+)`)
	docs := make(map[string]bool)
	for _, d := range documents(t) {
		if !strings.HasPrefix(d.name, "docs/") {
			continue
		}
		for _, m := range placeholder.FindAllStringSubmatch(strings.Join(d.lines, "\n"), -1) {
			docs[m[1]] = true
		}
	}
	code := make(map[string]bool)
	_, files := source(t, "caddymodule")
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if e, ok := n.(*ast.BasicLit); ok {
				if name, _, _ := text(e); placeholder.MatchString("{" + name) {
					code[name] = true
				}
			}
			return true
		})
	}
	for name := range docs { // one with a part that varies
		for prefix := range code {
			if strings.HasSuffix(prefix, ".") && strings.HasPrefix(name, prefix) {
				delete(docs, name)
				docs[prefix] = true
			}
		}
	}
	compare(t, "placeholder", code, docs, "docs/")
}

// Every preset is in its table, and no other.
func TestPresets(t *testing.T) {
	docs := make(map[string]bool)
	for _, row := range rows(read(t, "providers.md").section(t, "Presets")) {
		docs[spans(row[0])[0]] = true
	}
	compare(t, "preset", setOf(provider.Names()...), docs, "providers.md, section Presets")
}

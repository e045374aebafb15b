package idempotency_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/caddy-idempotency/caddy-idempotency"

// goList runs go list in the module's root.
func goList(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(output)
}

// TestForbiddenImports keeps the protocol free of Caddy and of drivers, so that
// it can be read, tested and reused without them, the stores free of Caddy, and
// the product free of what is there for tests.
func TestForbiddenImports(t *testing.T) {
	const caddy = "github.com/caddyserver/"
	tests := map[string]string{
		module + "/integration":           "tests are not imported",
		module + "/store/storetest":       "tests are not imported",
		module + "/store/redis/redistest": "tests are not imported",
		"testing":                         "product code knows no tests",
	}
	with := func(rules map[string]string, prefix, reason string) map[string]string {
		rules = maps.Clone(rules)
		rules[prefix] = reason
		return rules
	}
	apart := map[string]string{
		caddy:                   "it can be read and used without Caddy",
		"github.com/redis/":     "it knows no store driver",
		"go.etcd.io/":           "it knows no store driver",
		module + "/idempotency": "it knows nothing of the gateway",
		module + "/store":       "it knows nothing of the gateway",
		module + "/caddymodule": "it knows nothing of the gateway",
	}
	rules := []struct {
		packages  string
		forbidden map[string]string // import path prefix -> reason
	}{
		{"./idempotency", map[string]string{
			caddy:                   "the protocol knows no Caddy",
			"github.com/redis/":     "the protocol knows no store driver",
			"go.etcd.io/":           "the protocol knows no store driver",
			module + "/store":       "stores import the protocol, never the reverse",
			module + "/caddymodule": "the glue imports the protocol, never the reverse",
			module + "/integration": "tests are not imported",
		}},
		{"./store/...", map[string]string{
			caddy:                   "stores know no Caddy",
			module + "/caddymodule": "stores know no Caddy",
			module + "/integration": "tests are not imported",
		}},
		{"./caddymodule", with(tests, module+"/caddymodule/operator", "what operators have stands on the module, never the reverse")},
		{"./caddymodule/operator", tests},
		{".", tests},
		{"./idempotency/fingerprint", map[string]string{
			caddy:                   "the protocol knows no Caddy",
			"github.com/redis/":     "the protocol knows no store driver",
			"go.etcd.io/":           "the protocol knows no store driver",
			module + "/store":       "bodies and digests know nothing of the gateway",
			module + "/caddymodule": "bodies and digests know nothing of the gateway",
		}},
		{"./provider", apart},
		{"./sandbox", apart},
	}
	for _, test := range rules {
		t.Run(test.packages, func(t *testing.T) {
			imports := strings.Fields(goList(t, "-deps", test.packages))
			if own := strings.TrimSuffix(strings.TrimPrefix(test.packages, "."), "/..."); !slices.ContainsFunc(imports, func(path string) bool {
				return strings.HasPrefix(path, module+own)
			}) {
				t.Fatalf("go list does not list the package itself among %d", len(imports))
			}
			for _, path := range imports {
				for prefix, reason := range test.forbidden {
					if path == prefix || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/") {
						t.Errorf("%s depends on %s: %s", test.packages, path, reason)
					}
				}
			}
		})
	}
}

// TestPackageDocs demands a package comment in one file of each package, the
// test's own files not counted, unless there is nothing else.
func TestPackageDocs(t *testing.T) {
	type pkg struct {
		Dir, ImportPath                              string
		GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
		IgnoredGoFiles                               []string // by build constraints
	}
	decoder := json.NewDecoder(strings.NewReader(goList(t, "-e", "-find", "-json=Dir,ImportPath,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles", "./...")))
	packages := 0
	for {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		packages++
		files := slices.Concat(p.GoFiles, p.CgoFiles)
		if len(files) == 0 {
			files = slices.Concat(p.TestGoFiles, p.XTestGoFiles, p.IgnoredGoFiles)
		}
		t.Run(p.ImportPath, func(t *testing.T) {
			docs := 0
			for _, name := range files {
				file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
				if err != nil {
					t.Fatal(err)
				}
				if isPackageDoc(file.Doc, file.Name.Name) {
					docs++
				}
			}
			if docs != 1 {
				t.Errorf("%d of %d files have a package comment, want one", docs, len(files))
			}
		})
	}
	if packages < 4 {
		t.Errorf("go list found %d packages", packages)
	}
}

func isPackageDoc(doc *ast.CommentGroup, name string) bool {
	start := "Package " + name + " "
	if name == "main" {
		start = "Command "
	}
	return doc != nil && strings.HasPrefix(strings.Join(strings.Fields(doc.Text()), " "), start)
}

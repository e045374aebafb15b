package caddymodule_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-idempotency/caddy-idempotency"
)

// adaptAndValidate does what caddy validate does.
func adaptAndValidate(text string) (adapted []byte, err error) {
	adapted, _, err = caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return nil, err
	}
	var config caddy.Config
	if err := json.Unmarshal(adapted, &config); err != nil {
		return nil, err
	}
	return adapted, caddy.Validate(&config)
}

func site(options string) string {
	return "{\n\tadmin off\n\tpersist_config off\n}\nhttp://localhost:1 {\n\tidempotency {\n" + options + "\n\t}\n\treverse_proxy localhost:2\n}\n"
}

func global(options string) string {
	return "{\n\tadmin off\n\tpersist_config off\n\tidempotency {\n" + options + "\n\t}\n}\nhttp://localhost:1 {\n\tidempotency\n\treverse_proxy localhost:2\n}\n"
}

// Nonsense is refused when the configuration is loaded, with the name of the
// option.
func TestRefusedConfigurations(t *testing.T) {
	t.Setenv("EMPTY", "")
	for name, test := range map[string]struct{ caddyfile, want string }{
		"unknown option":             {site("frobnicate yes"), `"frobnicate"`},
		"option of a later version":  {site("accept_if /code 0"), `"accept_if"`},
		"option twice":               {site("lease 1s\nlease 2s"), "lease is given twice"},
		"argument on the directive":  {"http://localhost:1 {\n\tidempotency * more {\n}\n}", "wrong argument count"},
		"no argument":                {site("lease"), "wrong argument count"},
		"empty argument":             {site(`lease ""`), "wrong argument count"},
		"too many arguments":         {site("lease 1s 2s"), "wrong argument count"},
		"argument of a flag":         {site("require_key yes"), "wrong argument count"},
		"empty list":                 {site("methods"), "wrong argument count"},
		"key_header":                 {site(`key_header "a b"`), `key_header: "a b"`},
		"methods GET":                {site("methods POST GET"), "methods: GET"},
		"methods unknown":            {site("methods post"), `methods: "post"`},
		"store_status":               {site("store_status 2xx abc"), `store_status: "abc"`},
		"store_status interim":       {site("store_status 1xx"), `store_status: "1xx"`},
		"store_status too large":     {site("store_status 600"), `store_status: "600"`},
		"refused_status":             {site("refused_status 6xx"), `refused_status: "6xx"`},
		"refused_status 408":         {site("refused_status 4xx 408"), "refused_status: 408"},
		"refused_status and store":   {site("store_status 2xx 409\nrefused_status 409"), "refused_status: 409"},
		"refused_status in a class":  {site("refused_status 202"), "refused_status: 202"},
		"upstream_timeout bare":      {site("upstream_timeout 30"), `upstream_timeout: "30" is not a duration`},
		"redis unix query":           {global("store redis unix:///x?dial_timeout=9s"), `"dial_timeout"`},
		"retention":                  {site("retention soon"), `retention: "soon"`},
		"retention too short":        {site("retention 10ms"), "retention: it is 10ms"},
		"lease too short":            {site("lease 99ms"), "lease: it is 99ms"},
		"lease negative":             {site("lease -1s"), "lease: it is -1s"},
		"lease from an empty env":    {site("lease {env.EMPTY}"), "lease: "},
		"lease from a missing env":   {site("lease {env.NOT_THERE_AT_ALL}"), "lease: "},
		"upstream_timeout":           {site("upstream_timeout 0s"), "upstream_timeout: it is 0s"},
		"max_request_body":           {site("max_request_body big"), `max_request_body: "big"`},
		"max_request_body zero":      {site("max_request_body 0"), `max_request_body: "0"`},
		"max_response_body":          {site("max_response_body -1"), `max_response_body: "-1"`},
		"on_uncertain":               {site("on_uncertain maybe"), `on_uncertain: "maybe"`},
		"on_store_error":             {site("on_store_error ignore"), `on_store_error: "ignore"`},
		"errors":                     {site("errors xml"), `errors: "xml"`},
		"global option unknown":      {global("stores redis"), `"stores"`},
		"global option twice":        {global("store embedded\nstore embedded"), "store is given twice"},
		"global block twice":         {"{\nidempotency {\n}\nidempotency {\n}\n}", "idempotency is given twice"},
		"global argument":            {"{\nidempotency redis\n}", "wrong argument count"},
		"store without a name":       {global("store"), "wrong argument count"},
		"store unknown":              {global("store postgres"), "idempotency.stores.postgres"},
		"embedded with two paths":    {global("store embedded a b"), "wrong argument count"},
		"embedded with an option":    {global("store embedded a {\npath b\n}"), `"path"`},
		"redis without address":      {global("store redis"), "store redis: an address is missing"},
		"redis with two addresses":   {global("store redis a:1 b:2"), "store redis: takes one address"},
		"redis address":              {global("store redis localhost"), `store redis: address "localhost"`},
		"redis option unknown":       {global("store redis a:1 {\nhost b\n}"), `"host"`},
		"redis option of later":      {global("store redis a:1 {\ncluster\n}"), `"cluster"`},
		"redis option twice":         {global("store redis a:1 {\ndb 1\ndb 2\n}"), "db is given twice"},
		"redis db":                   {global("store redis a:1 {\ndb one\n}"), `db: "one"`},
		"redis db negative":          {global("store redis a:1 {\ndb -1\n}"), "db is -1"},
		"redis db in both":           {global("store redis redis://a:1/2 {\ndb 1\n}"), "db is given twice"},
		"redis password in both":     {global("store redis redis://u:p@a:1 {\npassword q\n}"), "password is given twice"},
		"redis password from no env": {global("store redis a:1 {\npassword {env.NOT_THERE_AT_ALL}\n}"), "store redis: password: "},
		"redis timeout":              {global("store redis a:1 {\ntimeout 0s\n}"), "store redis: timeout is 0s"},
		"redis URL":                  {global("store redis redis://u:hidden-word@a:1/x"), "store redis: address is not a valid"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := adaptAndValidate(test.caddyfile)
			if err == nil {
				t.Fatalf("accepted:\n%s", test.caddyfile)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %q, want it to have %q", err, test.want)
			}
			if strings.Contains(err.Error(), "hidden-word") {
				t.Error("the error has the password")
			}
		})
	}
}

// Every option in one Caddyfile, and the JSON that it mirrors.
func TestAdaptedJSON(t *testing.T) {
	t.Setenv("LEASE", "5s")
	t.Setenv("SECRET", "word")
	const caddyfile = `{
	admin off
	persist_config off
	idempotency {
		store redis localhost:6379 {
			username gateway
			password {env.SECRET}
			db 3
			prefix videos
			timeout 250ms
		}
	}
}
http://localhost:1 {
	idempotency /v1/* {
		key_header X-Request-Key Idempotency-Key
		require_key
		methods POST PUT
		namespace provider
		scope {http.request.header.X-Tenant} fixed
		store_status 200 202
		refused_status 4xx 503
		retention 2d
		lease {env.LEASE}
		upstream_timeout 10m
		on_uncertain resubmit
		on_store_error forward
		errors problem
		max_request_body 10MiB
		max_response_body 64KiB
	}
	reverse_proxy localhost:2
}
`
	adapted, err := adaptAndValidate(caddyfile)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Apps struct {
			Idempotency json.RawMessage `json:"idempotency"`
			HTTP        struct {
				Servers map[string]struct {
					Routes []struct {
						Handle []struct {
							Routes []struct {
								Handle []json.RawMessage `json:"handle"`
							} `json:"routes"`
						} `json:"handle"`
					} `json:"routes"`
				} `json:"servers"`
			} `json:"http"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(adapted, &config); err != nil {
		t.Fatal(err)
	}
	const wantApp = `{"store":{"addresses":["localhost:6379"],"db":3,"module":"redis","password":"{env.SECRET}","prefix":"videos","timeout":"250ms","username":"gateway"}}`
	if got := string(config.Apps.Idempotency); got != wantApp {
		t.Errorf("the app is\n%s\nwant\n%s", got, wantApp)
	}
	const wantHandler = `{"errors":"problem","handler":"idempotency","key_header":["X-Request-Key","Idempotency-Key"],"lease":"{env.LEASE}",` +
		`"max_request_body":"10MiB","max_response_body":"64KiB","methods":["POST","PUT"],"namespace":"provider","on_store_error":"forward",` +
		`"on_uncertain":"resubmit","refused_status":["4xx","503"],"require_key":true,"retention":"2d",` +
		`"scope":["{http.request.header.X-Tenant}","fixed"],"store_status":["200","202"],"upstream_timeout":"10m"}`
	got := string(config.Apps.HTTP.Servers["srv0"].Routes[0].Handle[0].Routes[0].Handle[0])
	if got != wantHandler {
		t.Errorf("the handler is\n%s\nwant\n%s", got, wantHandler)
	}
}

// Numbers in JSON are nanoseconds and bytes, as everywhere in Caddy.
func TestNumbersInJSON(t *testing.T) {
	validate := func(lease, size string) error {
		var config caddy.Config
		err := json.Unmarshal([]byte(`{"admin":{"disabled":true},"apps":{"http":{"servers":{"s":{"listen":["localhost:1"],"routes":[{"handle":[
			{"handler":"idempotency","lease":`+lease+`,"max_request_body":`+size+`}]}]}}}}}`), &config)
		if err != nil {
			return err
		}
		return caddy.Validate(&config)
	}
	if err := validate("1000000000", "1024"); err != nil {
		t.Error(err)
	}
	if err := validate("1000", "1024"); err == nil || !strings.Contains(err.Error(), "lease: it is 1µs") {
		t.Errorf("a lease of 1000 ns gave %v", err)
	}
	for _, value := range []string{"true", "1.5", "[]"} {
		if err := validate(value, "1024"); err == nil {
			t.Errorf("lease %s was accepted", value)
		}
	}
}

// Loading a configuration touches neither the file nor the server.
func TestLoadingDoesNoIO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "not", "there", "idempotency.db")
	if _, err := adaptAndValidate(global("store embedded " + path)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(filepath.Dir(path))); !os.IsNotExist(err) {
		t.Errorf("validating made the directory of the embedded store: %v", err)
	}
	if _, err := adaptAndValidate(global("store redis 127.0.0.1:1")); err != nil {
		t.Errorf("an unreachable Redis fails the load: %v", err)
	}
}

// The example is a configuration that loads, and is formatted.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	if formatted := caddyfile.Format(text); string(formatted) != string(text) {
		t.Error("Caddyfile.example is not formatted: run caddy fmt --overwrite Caddyfile.example")
	}
	for _, store := range []string{"", "redis localhost:6379"} {
		t.Setenv("IDEMPOTENCY_STORE", store)
		if store == "" {
			os.Unsetenv("IDEMPOTENCY_STORE") // Setenv restores it
		}
		adapted, err := adaptAndValidate(string(text))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"": `"module":"embedded"`, "redis localhost:6379": `"module":"redis"`}[store]; !strings.Contains(string(adapted), want) {
			t.Errorf("with IDEMPOTENCY_STORE=%q the store is not %s", store, want)
		}
	}
}

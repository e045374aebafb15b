package caddymodule_test

import (
	"strings"
	"testing"
)

// A second proxy that gets a submit after the first, and a header that makes
// net/http send it again, are rejected, too.
func TestOtherWaysToSendAgain(t *testing.T) {
	const head = "{\n\tadmin off\n\tpersist_config off\n}\n"
	in := func(body string) string { return head + "http://localhost:1 {\n" + body + "}\n" }
	for name, test := range map[string]struct{ caddyfile, want string }{
		"handle_response":          {in("idempotency\nreverse_proxy a:1 {\n@bad status 5xx\nhandle_response @bad {\nreverse_proxy b:1\n}\n}\n"), "second provider"},
		"intercept":                {in("idempotency\nintercept {\n@bad status 5xx\nhandle_response @bad {\nreverse_proxy b:1\n}\n}\nreverse_proxy a:1\n"), "second provider"},
		"intercept before":         {in("route {\nintercept {\n@bad status 5xx\nhandle_response @bad {\nreverse_proxy b:1\n}\n}\nidempotency\nreverse_proxy a:1\n}\n"), "second provider"},
		"intercept before a route": {in("route {\nintercept {\n@bad status 5xx\nhandle_response @bad {\nreverse_proxy b:1\n}\n}\nroute /v1/* {\nidempotency\nreverse_proxy a:1\n}\n}\n"), "second provider"},
		"intercept around another": {in("handle /a/* {\nintercept {\n@bad status 5xx\nhandle_response @bad {\nreverse_proxy b:1\n}\n}\nreverse_proxy a:1\n}\nhandle {\nidempotency\nreverse_proxy a:1\n}\n"), ""},
		"proxy before the handler": {in("route {\nintercept {\n@bad status 5xx\nhandle_response @bad {\nrespond sorry 502\n}\n}\nroute /other/* {\nreverse_proxy a:1 b:1 {\nlb_retries 2\nlb_retry_match {\nmethod POST\n}\n}\n}\nidempotency\nreverse_proxy a:1\n}\n"), ""},
		"intercept with an answer": {in("route {\nintercept {\n@bad status 5xx\nhandle_response @bad {\nrespond sorry 502\n}\n}\nidempotency\nreverse_proxy a:1\n}\n"), ""},
		"handle_response, respond": {in("idempotency\nreverse_proxy a:1 {\n@bad status 5xx\nhandle_response @bad {\nrespond \"sorry\" 502\n}\n}\n"), ""},
		"forward_auth":             {in("idempotency\nroute {\nforward_auth auth:1 {\nuri /check\n}\nreverse_proxy a:1\n}\n"), ""},
		"header_up key":            {in("idempotency\nreverse_proxy a:1 {\nheader_up Idempotency-Key {http.request.header.Idempotency-Key}\n}\n"), "header_up"},
		"header_up x key, added":   {in("idempotency\nreverse_proxy a:1 {\nheader_up +x-idempotency-key abc\n}\n"), "header_up"},
		"header_up, another":       {in("idempotency\nreverse_proxy a:1 {\nheader_up X-Key abc\n}\n"), ""},
		"header_up, removal":       {in("idempotency\nreverse_proxy a:1 {\nheader_up -Idempotency-Key\n}\n"), ""},
		"request_header":           {in("route {\nidempotency\nrequest_header Idempotency-Key abc\nreverse_proxy a:1\n}\n"), "request_header"},
		"request_header before":    {in("request_header Idempotency-Key abc\nidempotency\nreverse_proxy a:1\n"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			site, _ := strings.CutPrefix(test.caddyfile, head+"http://localhost:1 {\n")
			site = strings.TrimSuffix(site, "}\n")
			for name, caddyfile := range map[string]string{
				"as it is": test.caddyfile,
				// Named routes are provisioned last, and what comes after one is there
				// as handlers by then.
				"handler in a named route": head + "&(guard) {\nidempotency\n}\nhttp://localhost:1 {\nroute {\n" +
					strings.Replace(site, "idempotency\n", "invoke guard\n", 1) + "}\n}\n",
			} {
				_, err := adaptAndValidate(caddyfile)
				switch {
				case test.want == "" && err != nil:
					t.Errorf("%s: rejected with %v", name, err)
				case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
					t.Errorf("%s: the error is %v, want it to have %q", name, err, test.want)
				}
			}
		})
	}
}

// A proxy behind the handler must not send a submit again, wherever the two
// stand in the routes.
func TestProxyRetries(t *testing.T) {
	const (
		bad  = "reverse_proxy a:1 b:1 {\nlb_retries 2\nlb_retry_match {\nmethod POST\n}\n}\n"
		good = "reverse_proxy a:1 b:1 {\nlb_retries 2\nlb_try_duration 1s\n}\n"
	)
	head := "{\n\tadmin off\n\tpersist_config off\n}\n"
	in := func(body string) string { return head + "http://localhost:1 {\n" + body + "}\n" }
	with := func(named, body string) string { return head + named + "http://localhost:1 {\n" + body + "}\n" }
	for name, test := range map[string]struct {
		caddyfile string
		rejected  bool
	}{
		"plain":                       {in("idempotency\n" + bad), true},
		"try duration":                {in("idempotency\n" + strings.Replace(bad, "lb_retries 2", "lb_try_duration 5s", 1)), true},
		"path":                        {in("idempotency\n" + strings.Replace(bad, "method POST", "path /v1/*", 1)), true},
		"expression":                  {in("idempotency\nreverse_proxy a:1 {\nlb_retries 1\nlb_retry_match `{rp.status_code} == 503`\n}\n"), true},
		"one set of two":              {in("idempotency\nreverse_proxy a:1 {\nlb_retries 1\nlb_retry_match {\nmethod GET\n}\nlb_retry_match {\nmethod PUT POST\n}\n}\n"), true},
		"another method of ours":      {in("idempotency {\nmethods PUT\n}\n" + strings.Replace(bad, "POST", "PUT", 1)), true},
		"proxy in a handle":           {in("idempotency\nhandle /v1/* {\n" + bad + "}\n"), true},
		"both in a handle":            {in("handle /v1/* {\nidempotency\n" + bad + "}\n"), true},
		"deep in routes":              {in("route {\nroute {\nidempotency\n}\nroute {\nhandle {\n" + bad + "}\n}\n}\n"), true},
		"snippets":                    {with("(guard) {\nidempotency\n}\n(provider) {\n"+bad+"}\n", "import guard\nimport provider\n"), true},
		"proxy in a named route":      {with("&(provider) {\n"+bad+"}\n", "idempotency\ninvoke provider\n"), true},
		"both in a named route":       {with("&(guarded) {\nroute {\nidempotency\n"+bad+"}\n}\n", "invoke guarded\n"), true},
		"handler in a named route":    {with("&(guard) {\nidempotency\n}\n", "route {\ninvoke guard\n"+bad+"}\n"), true},
		"second site of one server":   {head + "http://a.localhost:1 {\nidempotency\nreverse_proxy a:1\n}\nhttp://b.localhost:1 {\nidempotency\n" + bad + "}\n", true},
		"in handle_errors":            {in("handle_errors {\nidempotency\n" + bad + "}\n"), true},
		"dial retries only":           {in("idempotency\n" + good), false},
		"retry_match without retries": {in("idempotency\n" + strings.Replace(bad, "lb_retries 2\n", "", 1)), false},
		"other methods":               {in("idempotency\n" + strings.Replace(bad, "method POST", "method GET PUT", 1)), false},
		"method and path":             {in("idempotency\n" + strings.Replace(bad, "method POST", "method GET\npath /v1/*", 1)), false},
		"without the handler":         {in(bad), false},
		"before the handler":          {in("route {\n" + bad + "idempotency\n}\n"), false},
		"without it in handle_errors": {in("idempotency\nreverse_proxy a:1\nhandle_errors {\n" + bad + "}\n"), false},
		"in another handle":           {in("handle /a/* {\nidempotency\nreverse_proxy a:1\n}\nhandle {\n" + bad + "}\n"), false},
		"in another site":             {head + "http://a.localhost:1 {\nidempotency\nreverse_proxy a:1\n}\nhttp://b.localhost:1 {\n" + bad + "}\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := adaptAndValidate(test.caddyfile)
			if !test.rejected {
				if err != nil {
					t.Errorf("rejected with %v:\n%s", err, test.caddyfile)
				}
				return
			}
			if err == nil {
				t.Fatalf("accepted:\n%s", test.caddyfile)
			}
			for _, word := range []string{"lb_retries", "lb_retry_match", "remove lb_retry_match", "method GET"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error is %q, want it to have %q", err, word)
				}
			}
		})
	}
}

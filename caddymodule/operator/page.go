package operator

import (
	"embed"
	"errors"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// The operator's page: it reads and decides through the admin API alone.
//
//go:embed page
var pageFiles embed.FS

var pageTypes = map[string]string{
	"index.html": "text/html; charset=utf-8",
	"style.css":  "text/css; charset=utf-8",
	"script.js":  "text/javascript; charset=utf-8",
}

// servePage serves the operator's page below /idempotency/.
func servePage(w http.ResponseWriter, r *http.Request) error {
	name := strings.TrimPrefix(r.URL.Path, "/idempotency/")
	if name == "" {
		name = "index.html"
	}
	contentType, found := pageTypes[name]
	if !found {
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: errors.New("there is no such page")}
	}
	content, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", contentType)
	// Nothing but the page's own files and the API: text that a caller or a
	// provider has put into a record can neither run nor load anything.
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "+
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	// The admin endpoint knows a request of its own pages by their address.
	header.Set("Referrer-Policy", "same-origin")
	_, err = w.Write(content)
	return err
}

package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/intercept"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/rewrite"
	"go.uber.org/zap"
)

// checkRoutes looks for proxies behind an idempotency handler that would send
// a submit twice, in all routes of a server. Its error routes are looked at by
// themselves: they never get a submit that a handler before them has sent.
//
// Nothing in Caddy tells a handler what stands behind it, so the routes are
// read. It is called while they are being provisioned: what is not provisioned
// yet is there as JSON, what is provisioned already as handlers.
//
// It returns the idempotency handlers with the proxies behind them. One that
// stands in a named route is there once for each way to it.
func checkRoutes(server *caddyhttp.Server, logger *zap.Logger) ([]*guard, error) {
	c := routeCheck{named: server.NamedRoutes, logger: logger}
	if _, err := c.routes(server.Routes, nil); err != nil {
		return nil, err
	}
	if server.Errors != nil {
		if _, err := c.routes(server.Errors.Routes, nil); err != nil {
			return nil, err
		}
	}
	for _, route := range server.NamedRoutes {
		if _, err := c.routes(caddyhttp.RouteList{*route}, nil); err != nil {
			return nil, err
		}
	}
	return c.passed, nil
}

type routeCheck struct {
	named   map[string]*caddyhttp.Route
	calling []string // named routes that are being looked at
	logger  *zap.Logger
	// answering: the routes that are being looked at run when a proxy behind a
	// handler has its answer.
	answering bool
	// later are the idempotency handlers that a request may pass after the routes
	// that are being looked at.
	later []*guard
	// passed are those that a request has passed anywhere.
	passed []*guard
}

// guard is an idempotency handler on one way through the routes.
type guard struct {
	methods   []string
	namespace string
	scope     []string
	upstreams []string // of the proxies behind it, as they are written
}

// with returns guards and more, each once.
func with(guards []*guard, more ...*guard) []*guard {
	guards = slices.Clip(guards)
	for _, g := range more {
		if !slices.Contains(guards, g) {
			guards = append(guards, g)
		}
	}
	return guards
}

// methodsOf returns the methods of guards, each once.
func methodsOf(guards []*guard) (methods []string) {
	for _, g := range guards {
		methods = append(methods, g.methods...)
	}
	slices.Sort(methods)
	return slices.Compact(methods)
}

// element is what the check wants to know about one handler.
type element struct {
	guard   *guard                // an idempotency handler
	proxy   *proxyElement         // a reverse_proxy
	nested  []caddyhttp.RouteList // a handler with routes: each list is a way through
	onError caddyhttp.RouteList   // subroute: its error routes
	answers bool                  // the nested routes run after an answer or an error
	setsKey bool                  // it may put a key header on a request
	invokes string                // invoke: the name of a route
	// changesMethod: rewrite, with a method that may need no body.
	changesMethod bool
}

type proxyElement struct {
	retries bool
	// retriedOn are the methods that each matcher set of lb_retry_match is
	// restricted to; a set that is not restricted is nil.
	retriedOn        [][]string
	defaultKeepAlive bool
	asGET            bool // it rewrites requests to GET or HEAD
	// dials are its upstreams as they are written.
	dials []string
	// upstreams are their addresses; anyUpstream means that it may have others.
	upstreams   []string
	anyUpstream bool
}

// asks reports whether what the proxy sends may be a question: something behind
// it goes on with the request.
func (e element) asks() bool { return e.proxy.asGET && len(e.nested) > 0 }

func (p *proxyElement) addUpstream(dial string) {
	p.dials = append(p.dials, dial)
	address, err := caddy.ParseNetworkAddress(dial)
	if err != nil || strings.Contains(dial, "{") {
		p.anyUpstream = true
		return
	}
	p.upstreams = append(p.upstreams, reverseproxy.DialInfo{
		Network: address.Network, Host: address.Host, Port: strconv.Itoa(int(address.StartPort)),
	}.String())
}

// findQuestions looks at all proxies of a server, wherever they stand.
func findQuestions(server *caddyhttp.Server) (*questions, error) {
	q := &questions{upstreams: make(map[string]struct{})}
	others, anyOther := make(map[string]struct{}), false
	var find func(routes caddyhttp.RouteList) error
	find = func(routes caddyhttp.RouteList) error {
		for _, route := range routes {
			elements, err := elementsOf(route)
			if err != nil {
				return err
			}
			for _, e := range elements {
				q.methodChanged = q.methodChanged || e.changesMethod
				if e.proxy != nil {
					in := others
					if e.asks() {
						in = q.upstreams
						q.doubtful = q.doubtful || e.proxy.anyUpstream
					} else {
						anyOther = anyOther || e.proxy.anyUpstream
					}
					for _, address := range e.proxy.upstreams {
						in[address] = struct{}{}
					}
				}
				for _, list := range append(slices.Clone(e.nested), e.onError) {
					if err := find(list); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	lists := []caddyhttp.RouteList{server.Routes}
	if server.Errors != nil {
		lists = append(lists, server.Errors.Routes)
	}
	for _, route := range server.NamedRoutes {
		lists = append(lists, caddyhttp.RouteList{*route})
	}
	for _, list := range lists {
		if err := find(list); err != nil {
			return nil, err
		}
	}
	for address := range q.upstreams {
		if _, other := others[address]; other || anyOther {
			delete(q.upstreams, address)
			q.doubtful = true
		}
	}
	return q, nil
}

// routes follows a request through a list of routes. guards are the idempotency
// handlers that it has passed before; it returns those that it may have passed
// after.
func (c *routeCheck) routes(routes caddyhttp.RouteList, guards []*guard) ([]*guard, error) {
	before, later := slices.Clone(guards), c.later
	defer func() { c.later = later }()
	passed := make([][]*guard, len(routes))
	for i, route := range routes {
		c.later = slices.Clone(later)
		for _, next := range routes[i+1:] {
			if !route.Terminal && (route.Group == "" || route.Group != next.Group) {
				after, err := c.guardsIn(caddyhttp.RouteList{next})
				if err != nil {
					return nil, err
				}
				c.later = with(c.later, after...)
			}
		}
		reached := slices.Clone(before)
		for j, earlier := range routes[:i] {
			// Of the routes of a group only one runs, and after a terminal route
			// no other.
			if !earlier.Terminal && (earlier.Group == "" || earlier.Group != route.Group) {
				reached = with(reached, passed[j]...)
			}
		}
		after, err := c.route(route, reached)
		if err != nil {
			return nil, err
		}
		passed[i] = after
	}
	all := before
	for _, p := range passed {
		all = with(all, p...)
	}
	return all, nil
}

func (c *routeCheck) route(route caddyhttp.Route, guards []*guard) ([]*guard, error) {
	elements, err := elementsOf(route)
	if err != nil {
		return nil, err
	}
	later := c.later
	defer func() { c.later = later }()
	for i, e := range elements {
		c.later = slices.Clone(later)
		for _, next := range elements[i+1:] {
			after, err := c.guardsOf(next)
			if err != nil {
				return nil, err
			}
			c.later = with(c.later, after...)
		}
		if err := c.proxy(e.proxy, guards); err != nil {
			return nil, err
		}
		if e.setsKey && len(guards) > 0 {
			return nil, errors.New("header_up or request_header behind idempotency sets Idempotency-Key or X-Idempotency-Key: " +
				"with one of them Go's HTTP client sends a request without a body again by itself; the key of the caller goes to the provider without it")
		}
		if e.guard != nil {
			guards = with(guards, e.guard)
			c.passed = append(c.passed, e.guard)
		}
		lists := e.nested
		if e.invokes != "" && c.named[e.invokes] != nil && !slices.Contains(c.calling, e.invokes) {
			c.calling = append(c.calling, e.invokes)
			lists = append(lists, caddyhttp.RouteList{*c.named[e.invokes]})
		}
		entering, answering := guards, c.answering
		if e.answers && e.proxy == nil {
			// It sees the answers of all handlers behind it.
			entering = with(guards, c.later...)
		}
		c.answering = answering || e.answers && len(entering) > 0
		for _, list := range lists {
			after, err := c.routes(list, entering)
			if err != nil {
				return nil, err
			}
			if !e.answers {
				guards = with(guards, after...)
			}
		}
		c.answering = answering
		if len(e.onError) > 0 && len(guards) > 0 {
			c.answering = true
			if _, err := c.routes(e.onError, guards); err != nil {
				return nil, err
			}
			c.answering = answering
		}
		if e.invokes != "" && len(c.calling) > 0 && c.calling[len(c.calling)-1] == e.invokes {
			c.calling = c.calling[:len(c.calling)-1]
		}
	}
	return guards, nil
}

// guardsIn returns the idempotency handlers in routes, wherever they stand.
func (c *routeCheck) guardsIn(routes caddyhttp.RouteList) (guards []*guard, err error) {
	for _, route := range routes {
		elements, err := elementsOf(route)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			of, err := c.guardsOf(e)
			if err != nil {
				return nil, err
			}
			guards = append(guards, of...)
		}
	}
	return guards, nil
}

func (c *routeCheck) guardsOf(e element) ([]*guard, error) {
	var guards []*guard
	if e.guard != nil {
		guards = append(guards, e.guard)
	}
	lists := e.nested
	if e.invokes != "" && c.named[e.invokes] != nil && !slices.Contains(c.calling, e.invokes) {
		c.calling = append(c.calling, e.invokes)
		defer func() { c.calling = c.calling[:len(c.calling)-1] }()
		lists = append(slices.Clone(lists), caddyhttp.RouteList{*c.named[e.invokes]})
	}
	for _, list := range lists {
		of, err := c.guardsIn(list)
		if err != nil {
			return nil, err
		}
		guards = append(guards, of...)
	}
	return guards, nil
}

// proxy refuses a proxy behind a handler that sends a submit again after it may
// have reached the provider. Retries after a failed dial are harmless: nothing
// was sent.
func (c *routeCheck) proxy(p *proxyElement, guards []*guard) error {
	if p == nil || len(guards) == 0 {
		return nil
	}
	if c.answering {
		return errors.New("reverse_proxy in handle_response, intercept or an error route behind idempotency: " +
			"it would send a submit on to a second provider that the first may have accepted; answer there with respond or copy_response")
	}
	if p.asGET {
		return nil // a question (forward_auth), not the submit
	}
	for _, g := range guards {
		g.upstreams = append(g.upstreams, p.dials...)
	}
	if p.defaultKeepAlive {
		c.logger.Warn("reverse_proxy behind idempotency keeps idle connections for two minutes, longer than most providers do; " +
			"a submit written to a connection that the provider just closed ends as unknown: set transport http { keepalive 4s }, below the provider's own idle timeout")
	}
	if !p.retries {
		return nil
	}
	guarded := methodsOf(guards)
	for _, methods := range p.retriedOn {
		if methods == nil || slices.ContainsFunc(methods, func(m string) bool { return slices.Contains(guarded, m) }) {
			return fmt.Errorf("reverse_proxy behind idempotency has lb_retries or lb_try_duration with an lb_retry_match that covers %v: "+
				"it would send a submit again that the provider may have accepted; remove lb_retry_match (failed dials are retried without it), "+
				"or restrict each of its blocks to other methods, such as `method GET`", guarded)
		}
	}
	return nil
}

// elementsOf reads the handlers of a route, provisioned or not.
func elementsOf(route caddyhttp.Route) ([]element, error) {
	var elements []element
	for _, handler := range route.Handlers {
		elements = append(elements, provisionedElement(handler))
	}
	if route.Handlers != nil {
		return elements, nil
	}
	for _, raw := range route.HandlersRaw {
		e, err := rawElement(raw)
		if err != nil {
			return nil, err
		}
		elements = append(elements, e)
	}
	return elements, nil
}

func provisionedElement(handler caddyhttp.MiddlewareHandler) element {
	switch h := handler.(type) {
	case *Handler:
		return element{guard: &guard{methods: h.Methods, namespace: h.Namespace, scope: h.Scope}}
	case *caddyhttp.Subroute:
		e := element{nested: []caddyhttp.RouteList{h.Routes}}
		if h.Errors != nil {
			e.onError = h.Errors.Routes
		}
		return e
	case *caddyhttp.Invoke:
		return element{invokes: h.Name}
	case *reverseproxy.Handler:
		e := element{proxy: &proxyElement{}}
		if lb := h.LoadBalancing; lb != nil {
			e.proxy.retries = lb.Retries > 0 || lb.TryDuration > 0
			for _, set := range lb.RetryMatch {
				var methods []string
				for _, matcher := range set {
					if m, ok := matcher.(*caddyhttp.MatchMethod); ok {
						methods = *m
					}
				}
				e.proxy.retriedOn = append(e.proxy.retriedOn, methods)
			}
		}
		if transport, ok := h.Transport.(*reverseproxy.HTTPTransport); ok {
			// Provisioning has filled in the default.
			e.proxy.defaultKeepAlive = keepsDefault(transport.KeepAlive, defaultIdleConnTimeout)
		}
		if h.Rewrite != nil {
			e.proxy.asGET = isGET(h.Rewrite.Method)
		}
		e.proxy.anyUpstream = h.DynamicUpstreams != nil || h.DynamicUpstreamsRaw != nil
		for _, upstream := range h.Upstreams {
			e.proxy.addUpstream(upstream.Dial)
		}
		if h.Headers != nil {
			e.setsKey = setsKey(h.Headers.Request)
		}
		for _, response := range h.HandleResponse {
			e.nested = append(e.nested, response.Routes)
		}
		e.answers = true
		return e
	case *intercept.Intercept:
		e := element{answers: true}
		for _, response := range h.HandleResponse {
			e.nested = append(e.nested, response.Routes)
		}
		return e
	case *headers.Handler:
		return element{setsKey: setsKey(h.Request)}
	case *rewrite.Rewrite:
		return element{changesMethod: changesMethod(h.Method)}
	default:
		return element{}
	}
}

// defaultIdleConnTimeout is what Caddy's HTTP transport fills in.
const defaultIdleConnTimeout = caddy.Duration(120e9)

func keepsDefault(k *reverseproxy.KeepAlive, idle caddy.Duration) bool {
	return k == nil || (k.Enabled == nil || *k.Enabled) && k.IdleConnTimeout == idle
}

func isGET(method string) bool { return method == http.MethodGet || method == http.MethodHead }

func changesMethod(method string) bool { return method != "" && !alwaysFramed(strings.ToUpper(method)) }

// setsKey reports whether the operations may put a header on a request that
// makes net/http send it again by itself.
func setsKey(ops *headers.HeaderOps) bool {
	if ops == nil {
		return false
	}
	for _, fields := range []http.Header{ops.Add, ops.Set} {
		for name := range fields {
			switch http.CanonicalHeaderKey(name) {
			case "Idempotency-Key", "X-Idempotency-Key":
				return true
			}
			if strings.Contains(name, "{") {
				return true // a placeholder may be any name
			}
		}
	}
	return false
}

// rawHandler has the fields of all handlers that the check looks at.
type rawHandler struct {
	Handler string `json:"handler"`
	// idempotency
	Methods   []string `json:"methods"`
	Namespace string   `json:"namespace"`
	Scope     []string `json:"scope"`
	Provider  string   `json:"provider"` // a preset, which gives its name to the namespace
	// subroute
	Routes caddyhttp.RouteList `json:"routes"`
	// invoke
	Name string `json:"name"`
	// rewrite
	Method string `json:"method"`
	// headers
	Request *headers.HeaderOps `json:"request"`
	// reverse_proxy
	Headers *struct {
		Request *headers.HeaderOps `json:"request"`
	} `json:"headers"`
	Rewrite *struct {
		Method string `json:"method"`
	} `json:"rewrite"`
	Upstreams []struct {
		Dial string `json:"dial"`
	} `json:"upstreams"`
	DynamicUpstreams json.RawMessage `json:"dynamic_upstreams"`
	Transport        *struct {
		Protocol  string                  `json:"protocol"`
		KeepAlive *reverseproxy.KeepAlive `json:"keep_alive"`
	} `json:"transport"`
	LoadBalancing *struct {
		Retries     int                          `json:"retries"`
		TryDuration caddy.Duration               `json:"try_duration"`
		RetryMatch  []map[string]json.RawMessage `json:"retry_match"`
	} `json:"load_balancing"`
	// reverse_proxy and intercept
	HandleResponse []struct {
		Routes caddyhttp.RouteList `json:"routes"`
	} `json:"handle_response"`
	// subroute: its error routes; idempotency: a text
	Errors json.RawMessage `json:"errors"`
}

func rawElement(raw json.RawMessage) (element, error) {
	var name struct {
		Handler string `json:"handler"`
	}
	if err := json.Unmarshal(raw, &name); err != nil {
		return element{}, err
	}
	switch name.Handler {
	case "idempotency", "subroute", "invoke", "headers", "rewrite", "reverse_proxy", "intercept":
	default:
		return element{}, nil
	}
	var h rawHandler
	if err := json.Unmarshal(raw, &h); err != nil {
		return element{}, fmt.Errorf("%s: %w", name.Handler, err)
	}
	var e element
	switch h.Handler {
	case "idempotency":
		e.guard = &guard{methods: h.Methods, namespace: cmp.Or(h.Namespace, h.Provider), scope: h.Scope}
		if len(h.Methods) == 0 {
			e.guard.methods = defaultMethods
		}
	case "subroute":
		e.nested = []caddyhttp.RouteList{h.Routes}
		if h.Errors != nil {
			var onError caddyhttp.HTTPErrorConfig
			if err := json.Unmarshal(h.Errors, &onError); err != nil {
				return element{}, fmt.Errorf("subroute: errors: %w", err)
			}
			e.onError = onError.Routes
		}
	case "invoke":
		e.invokes = h.Name
	case "headers":
		e.setsKey = setsKey(h.Request)
	case "rewrite":
		e.changesMethod = changesMethod(h.Method)
	case "reverse_proxy":
		e.proxy = &proxyElement{asGET: h.Rewrite != nil && isGET(h.Rewrite.Method), anyUpstream: h.DynamicUpstreams != nil}
		for _, upstream := range h.Upstreams {
			e.proxy.addUpstream(upstream.Dial)
		}
		if h.Headers != nil {
			e.setsKey = setsKey(h.Headers.Request)
		}
		if lb := h.LoadBalancing; lb != nil {
			e.proxy.retries = lb.Retries > 0 || lb.TryDuration > 0
			for _, set := range lb.RetryMatch {
				var methods []string
				if m, ok := set["method"]; ok {
					if err := json.Unmarshal(m, &methods); err != nil {
						return element{}, fmt.Errorf("reverse_proxy: retry_match: method: %w", err)
					}
				}
				e.proxy.retriedOn = append(e.proxy.retriedOn, methods)
			}
		}
		if t := h.Transport; t == nil || t.Protocol == "http" {
			var k *reverseproxy.KeepAlive
			if t != nil {
				k = t.KeepAlive
			}
			e.proxy.defaultKeepAlive = keepsDefault(k, 0)
		}
	}
	for _, response := range h.HandleResponse {
		e.nested, e.answers = append(e.nested, response.Routes), true
	}
	return e, nil
}

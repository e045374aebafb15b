package caddymodule

import (
	"encoding/json"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("idempotency", parseGlobalOption)
	httpcaddyfile.RegisterHandlerDirective("idempotency", parseCaddyfile)
	// After encode, so that stored bodies are not compressed, and so after
	// basic_auth and forward_auth, so that replays are authorised; before every
	// handler that answers.
	httpcaddyfile.RegisterDirectiveOrder("idempotency", httpcaddyfile.After, "encode")
}

func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	if existing != nil {
		d.Next() // so that the error has its line
		return nil, d.Err("the global option idempotency is given twice")
	}
	app := new(App)
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: AppID, Value: caddyconfig.JSON(app, nil)}, nil
}

func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// once refuses an option that is given a second time in one block.
type once map[string]bool

func (seen once) option(d *caddyfile.Dispenser) error {
	name := d.Val()
	if seen[name] {
		return d.Errf("%s is given twice", name)
	}
	seen[name] = true
	return nil
}

// wrongValues is the error of an option that has too few values, too many, or an
// empty one.
func wrongValues(d *caddyfile.Dispenser, option string) error {
	return d.Errf("%s: wrong argument count, or an empty value", option)
}

// UnmarshalCaddyfile sets up the app from the global option. Syntax:
//
//	idempotency {
//		store <module> [<arguments...>] {
//			...
//		}
//		encryption_key <key> [<old-key>...]
//	}
//
// The store's own module reads what follows its name.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the option's name
	if d.NextArg() {
		return wrongValues(d, "idempotency")
	}
	seen := once{}
	for d.NextBlock(0) {
		if err := seen.option(d); err != nil {
			return err
		}
		switch option := d.Val(); option {
		case "store":
			if !d.NextArg() {
				return wrongValues(d, option)
			}
			name := d.Val()
			if _, err := caddy.GetModule("idempotency.stores." + name); err != nil {
				return d.Errf("store: there is none named %q", name)
			}
			unmarshaler, err := caddyfile.UnmarshalModule(d, "idempotency.stores."+name)
			if err != nil {
				return err
			}
			a.StoreRaw = caddyconfig.JSONModuleObject(unmarshaler, "module", name, nil)
		case "encryption_key":
			a.EncryptionKey = d.RemainingArgs()
			if len(a.EncryptionKey) == 0 {
				return wrongValues(d, option)
			}
		default:
			return d.Errf("unrecognized idempotency option %q", option)
		}
	}
	return nil
}

// UnmarshalCaddyfile sets up the store. Syntax:
//
//	redis <address...> {
//		cluster
//		sentinel <master-name>
//		username <user>
//		password <password>
//		db       <n>
//		tls {
//			ca          <pem-file...>
//			client_auth <cert-file> <key-file>
//			server_name <name>
//		}
//		prefix   <text>
//		timeout  <duration>
//		replicas <n> [<timeout>] [fsync]
//		strict
//	}
//
// An address is host:port, redis://, rediss:// or unix://. What it holds must
// not be given as an option again. There is more than one only with cluster or
// sentinel. With strict a store that has lost its marker is refused until an
// operator adopts it: caddy idempotency doctor --adopt --reason <text>.
func (s *RedisStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the module's name
	s.Addresses = d.RemainingArgs()
	if len(s.Addresses) == 0 {
		return d.Err("store redis: an address is missing")
	}
	seen := once{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := seen.option(d); err != nil {
			return err
		}
		if err := s.unmarshalOption(d); err != nil {
			return err
		}
	}
	return nil
}

func (s *RedisStore) unmarshalOption(d *caddyfile.Dispenser) error {
	option := d.Val()
	switch option {
	case "cluster", "strict":
		if d.NextArg() {
			return wrongValues(d, option)
		}
		if option == "cluster" {
			s.Cluster = true
		} else {
			s.Strict = true
		}
		return nil
	case "tls":
		s.TLS = new(RedisTLS)
		return s.TLS.unmarshal(d)
	case "replicas":
		return s.unmarshalReplicas(d)
	}

	var db string
	target, ok := map[string]*string{
		"sentinel": &s.Sentinel,
		"username": &s.Username,
		"password": &s.Password,
		"db":       &db,
		"prefix":   &s.Prefix,
		"timeout":  (*string)(&s.Timeout),
	}[option]
	if !ok {
		return d.Errf("unrecognized store redis option %q", option)
	}
	if !d.AllArgs(target) || *target == "" {
		return wrongValues(d, option)
	}
	if option == "db" {
		n, err := strconv.Atoi(db)
		if err != nil {
			return d.Errf("db: %q is not a number", db)
		}
		s.DB = &n
	}
	return nil
}

func (s *RedisStore) unmarshalReplicas(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return wrongValues(d, "replicas")
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return d.Errf("replicas: %q is not a number", args[0])
	}
	s.Replicas, args = n, args[1:]
	if last := len(args) - 1; last >= 0 && args[last] == "fsync" {
		s.ReplicasFsync, args = true, args[:last]
	}
	switch len(args) {
	case 0:
	case 1:
		s.ReplicasTimeout = Duration(args[0])
	default:
		return d.Errf("replicas: it takes a number, a timeout and fsync, and %q is neither", args[1])
	}
	return nil
}

func (t *RedisTLS) unmarshal(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return wrongValues(d, "tls")
	}
	seen := once{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := seen.option(d); err != nil {
			return err
		}
		var ok bool
		option := d.Val()
		switch option {
		case "ca":
			t.CA = d.RemainingArgs()
			ok = len(t.CA) > 0
		case "client_auth":
			ok = d.AllArgs(&t.ClientCertificateFile, &t.ClientCertificateKeyFile)
		case "server_name":
			ok = d.AllArgs(&t.ServerName) && t.ServerName != ""
		default:
			return d.Errf("unrecognized store redis tls option %q", option)
		}
		if !ok {
			return wrongValues(d, option)
		}
	}
	return nil
}

// UnmarshalCaddyfile sets up the store. Syntax:
//
//	embedded [<path>]
func (s *EmbeddedStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the module's name
	if d.NextArg() {
		s.Path = d.Val()
		if s.Path == "" {
			return d.Err("store embedded: the path is empty")
		}
	}
	if d.NextArg() {
		return d.Err("store embedded: wrong argument count: there is one path")
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		return d.Errf("unrecognized store embedded option %q", d.Val())
	}
	return nil
}

// UnmarshalCaddyfile sets up the handler. Syntax:
//
//	idempotency [<matcher>] {
//		key_header         <field...>
//		key_from           <namespace-uuid> <text>
//		require_key
//		methods            <method...>
//		namespace          <name>
//		provider           <name>
//		scope              <text...>
//		fingerprint        auto|raw
//		fingerprint_ignore <json-pointer...>
//		fingerprint_header <field...>
//		store_status       <code|class...>
//		accept_if          <json-pointer> [<value>]
//		refused_status     <code|class...>
//		retention          <duration>
//		lease              <duration>
//		upstream_timeout   <duration>
//		in_progress        reject | wait <duration>
//		on_uncertain       reject|resubmit
//		on_store_error     reject|forward
//		errors             envelope|problem
//		max_request_body   <size>
//		max_response_body  <size>
//		upstream_key       auto|keep|remove
//		job_id             <json-pointer>
//		label              <text>
//	}
//
// Each option may be given once. Values are checked when the configuration is
// provisioned, because they may hold placeholders.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return wrongValues(d, "idempotency")
	}
	seen := once{}
	for d.NextBlock(0) {
		if err := seen.option(d); err != nil {
			return err
		}
		if err := h.unmarshalOption(d); err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) unmarshalOption(d *caddyfile.Dispenser) error {
	option := d.Val()
	if list, ok := map[string]*[]string{
		"key_header":         &h.KeyHeader,
		"methods":            &h.Methods,
		"scope":              &h.Scope,
		"fingerprint_ignore": &h.FingerprintIgnore,
		"fingerprint_header": &h.FingerprintHeader,
		"store_status":       &h.StoreStatus,
		"refused_status":     &h.RefusedStatus,
	}[option]; ok {
		*list = d.RemainingArgs()
		if len(*list) == 0 {
			return wrongValues(d, option)
		}
		return nil
	}

	switch option {
	case "require_key":
		if d.NextArg() {
			return wrongValues(d, option)
		}
		h.RequireKey = true
		return nil
	case "key_from":
		h.KeyFrom = new(KeyFrom)
		if !d.AllArgs(&h.KeyFrom.Namespace, &h.KeyFrom.Text) {
			return wrongValues(d, option)
		}
		return nil
	case "accept_if":
		args := d.RemainingArgs()
		switch len(args) {
		case 1:
			h.AcceptIf = &AcceptIf{Pointer: args[0]}
		case 2:
			h.AcceptIf = &AcceptIf{Pointer: args[0], Value: &args[1]}
		default:
			return wrongValues(d, option)
		}
		return nil
	case "in_progress":
		targets := []*string{&h.InProgress, (*string)(&h.InProgressWait)}
		if d.CountRemainingArgs() == 1 {
			targets = targets[:1]
		}
		if !d.AllArgs(targets...) || h.InProgress == "" {
			return wrongValues(d, option)
		}
		return nil
	}

	target, ok := map[string]*string{
		"namespace":         &h.Namespace,
		"provider":          &h.Provider,
		"fingerprint":       &h.Fingerprint,
		"retention":         (*string)(&h.Retention),
		"lease":             (*string)(&h.Lease),
		"upstream_timeout":  (*string)(&h.UpstreamTimeout),
		"on_uncertain":      &h.OnUncertain,
		"on_store_error":    &h.OnStoreError,
		"errors":            &h.Errors,
		"max_request_body":  (*string)(&h.MaxRequestBody),
		"max_response_body": (*string)(&h.MaxResponseBody),
		"upstream_key":      &h.UpstreamKey,
		"job_id":            &h.JobID,
		"label":             &h.Label,
	}[option]
	if !ok {
		return d.Errf("unrecognized idempotency option %q", option)
	}
	if !d.AllArgs(target) || *target == "" {
		return wrongValues(d, option)
	}
	return nil
}

// Interface guards
var (
	_ caddyfile.Unmarshaler = (*App)(nil)
	_ caddyfile.Unmarshaler = (*Handler)(nil)
	_ caddyfile.Unmarshaler = (*RedisStore)(nil)
	_ caddyfile.Unmarshaler = (*EmbeddedStore)(nil)
	_ json.Unmarshaler      = (*Duration)(nil)
	_ json.Unmarshaler      = (*Size)(nil)
	_ caddy.Module          = App{}
)

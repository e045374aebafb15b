package caddymodule_test

import (
	"encoding/base64"
	"encoding/hex"
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
	"github.com/caddy-idempotency/caddy-idempotency/store/redis/redistest"
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

// padded returns an encryption key that begins with a word, and keyOf its
// hexadecimal form.
func padded(word string) string { return word + strings.Repeat(".", 32-len(word)) }
func keyOf(word string) string  { return hex.EncodeToString([]byte(padded(word))) }

// An encryption key can be written in any common form.
func TestEncryptionKeyForms(t *testing.T) {
	key := []byte("\xfb\xff" + padded("k")[2:]) // has both letters in which the alphabets differ
	t.Setenv("KEY", base64.StdEncoding.EncodeToString(key)+"\n")
	for name, text := range map[string]string{
		"base64":              base64.StdEncoding.EncodeToString(key),
		"without padding":     base64.RawStdEncoding.EncodeToString(key),
		"for URLs":            base64.URLEncoding.EncodeToString(key),
		"for URLs, unpadded":  base64.RawURLEncoding.EncodeToString(key),
		"hexadecimal":         hex.EncodeToString(key),
		"upper hexadecimal":   strings.ToUpper(hex.EncodeToString(key)),
		"from an environment": "{env.KEY}",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := adaptAndValidate(global("encryption_key " + text)); err != nil {
				t.Errorf("refused: %v", err)
			}
			// It is the same key in each of them.
			_, err := adaptAndValidate(global("encryption_key " + hex.EncodeToString(key) + " " + text))
			if err == nil || !strings.Contains(err.Error(), "key 2 is key 1 again") {
				t.Errorf("next to itself it gives %v", err)
			}
		})
	}
}

// Nonsense is refused when the configuration is loaded, with the name of the
// option.
func TestRefusedConfigurations(t *testing.T) {
	t.Setenv("EMPTY", "")
	for name, test := range map[string]struct{ caddyfile, want string }{
		"unknown option":             {site("frobnicate yes"), `"frobnicate"`},
		"option twice":               {site("lease 1s\nlease 2s"), "lease is given twice"},
		"argument on the directive":  {"http://localhost:1 {\n\tidempotency * more {\n}\n}", "idempotency: wrong argument count"},
		"no argument":                {site("lease"), "lease: wrong argument count"},
		"empty argument":             {site(`lease ""`), "lease: wrong argument count"},
		"too many arguments":         {site("lease 1s 2s"), "lease: wrong argument count"},
		"argument of a flag":         {site("require_key yes"), "require_key: wrong argument count"},
		"empty list":                 {site("methods"), "methods: wrong argument count"},
		"scope empty":                {site(`scope {http.request.header.X-Tenant} ""`), "scope: a value is empty"},
		"key_header":                 {site(`key_header "a b"`), `key_header: "a b"`},
		"key_header empty":           {site(`key_header X-Key ""`), "key_header"},
		"key_header Host":            {site("key_header X-Key host"), "key_header: host is about the connection"},
		"key_header chunked":         {site("key_header Transfer-Encoding"), "key_header: Transfer-Encoding"},
		"key_header Content-Length":  {site("key_header content-length"), "key_header: content-length"},
		"key_header Trailer":         {site("key_header Trailer"), "key_header: Trailer"},
		"key_header Connection":      {site("key_header Connection"), "key_header: Connection"},
		"methods GET":                {site("methods POST GET"), "methods: GET"},
		"methods unknown":            {site("methods post"), `methods: "post"`},
		"fingerprint":                {site("fingerprint json"), `fingerprint: "json"`},
		"fingerprint twice":          {site("fingerprint raw\nfingerprint auto"), "fingerprint is given twice"},
		"fingerprint_ignore":         {site("fingerprint_ignore /a trace"), `fingerprint_ignore: JSON pointer "trace"`},
		"fingerprint_ignore escape":  {site("fingerprint_ignore /a~2b"), `fingerprint_ignore: JSON pointer "/a~2b"`},
		"fingerprint_ignore all":     {site(`fingerprint_ignore ""`), "fingerprint_ignore: the empty JSON pointer"},
		"fingerprint_ignore none":    {site("fingerprint_ignore"), "fingerprint_ignore: wrong argument count"},
		"fingerprint_ignore twice":   {site("fingerprint_ignore /a\nfingerprint_ignore /b"), "fingerprint_ignore is given twice"},
		"fingerprint_ignore and raw": {site("fingerprint raw\nfingerprint_ignore /a"), "fingerprint_ignore: with fingerprint raw"},
		"fingerprint_header":         {site(`fingerprint_header X-A "b c"`), `fingerprint_header: "b c"`},
		"fingerprint_header Host":    {site("fingerprint_header host"), "fingerprint_header: host"},
		"fingerprint_header twice":   {site("fingerprint_header A\nfingerprint_header B"), "fingerprint_header is given twice"},
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
		"job_id":                     {site("job_id id"), `job_id: JSON pointer "id" does not start with a slash`},
		"on_store_error":             {site("on_store_error ignore"), `on_store_error: "ignore"`},
		"key_from namespace":         {site("key_from videos {http.request.uuid}"), `key_from: the namespace "videos" is not a UUID`},
		"key_from UUID as a URN":     {site("key_from urn:uuid:6ba7b811-9dad-11d1-80b4-00c04fd430c8 {http.request.uuid}"), "key_from: the namespace"},
		"key_from UUID in braces":    {site(`key_from "{6ba7b811-9dad-11d1-80b4-00c04fd430c8}" {http.request.uuid}`), "key_from: the namespace"},
		"key_from UUID undashed":     {site("key_from 6ba7b8119dad11d180b400c04fd430c8 {http.request.uuid}"), "key_from: the namespace"},
		"key_from env as namespace":  {site("key_from {env.EMPTY} {http.request.uuid}"), "key_from: the namespace"},
		"key_from fixed text":        {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 job"), "key_from: the text has no placeholder"},
		"key_from open brace":        {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 job-{id"), "key_from: the text has no placeholder"},
		"key_from closing brace":     {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 job-id}"), "key_from: the text has no placeholder"},
		"key_from escaped braces":    {site(`key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 "\{id\}"`), "key_from: the text has no placeholder"},
		"key_from empty text":        {site(`key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 ""`), "key_from: the text has no placeholder"},
		"key_from the body":          {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 job-{http.request.body}"), "key_from: {http.request.body}"},
		"key_from the body, base64":  {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {http.request.body_base64}"), "key_from: {http.request.body}"},
		"scope a field's name":       {site("scope {http.request.host} authorization"), "scope: authorization is the name of a header field, the same for all callers: write {http.request.header.Authorization}"},
		"scope X-Api-Key":            {site("scope X-Api-Key"), "scope: X-Api-Key is the name"},
		"scope Cookie":               {site("scope Cookie"), "scope: Cookie is the name"},
		"scope env not set":          {site("scope {env.NOT_THERE_AT_ALL} {header.X-Tenant}"), "scope: evaluated placeholder {env.NOT_THERE_AT_ALL} is empty"},
		"lease too long":             {site("lease 25h"), "lease: it is 25h0m0s, and may be 24h0m0s at most"},
		"retention too long":         {site("retention 3651d"), "retention: it is 87624h0m0s, and may be 87600h0m0s at most"},
		"scope not closed":           {site("scope {http.request.header.Authorization"), "is not closed"},
		"scope Xi-Api-Key":           {site("scope xi-api-key"), "scope: xi-api-key is the name of a header field, the same for all callers: write {http.request.header.Xi-Api-Key}"},
		"scope Azure's field":        {site("scope Ocp-Apim-Subscription-Key"), "scope: Ocp-Apim-Subscription-Key is the name"},
		"scope of each request":      {site("scope {http.request.uuid}"), "scope: {http.request.uuid} is another one for each request"},
		"scope of the time":          {site("scope {header.X-A}-{time.now.unix}"), "scope: {time.now.unix} is another one"},
		"scope of the port":          {site("scope {remote}"), "scope: {http.request.remote} is another one"},
		"scope of a token's id":      {site("scope {http.idempotency.jwt.jti}"), "scope: {http.idempotency.jwt.jti} is another one"},
		"scope of the key":           {site("key_header X-Key\nscope {header.x-key}"), "scope: {http.request.header.x-key} is the key itself"},
		"scope of the record":        {site("scope {http.idempotency.record}"), "scope: {http.idempotency.record} has no value there"},
		"scope of no claim":          {site("scope {http.idempotency.jwt.}"), "scope: {http.idempotency.jwt.} has no value there"},
		"scope misspelt":             {site("scope {http.idempotency.aws_acces_key}"), "scope: {http.idempotency.aws_acces_key} has no value there"},
		"key_from the record":        {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {http.idempotency.record}"), "key_from: {http.idempotency.record} has no value there"},
		"namespace placeholder":      {site("namespace {env.NAME}"), `namespace: "{env.NAME}" has braces`},
		"namespace twice":            {site("namespace a\nnamespace b"), "namespace is given twice"},
		"namespace empty":            {site(`namespace ""`), "namespace: wrong argument count"},
		"scope env empty":            {site("scope tenant-{env.EMPTY}"), "scope: evaluated placeholder {env.EMPTY} is empty"},
		"scope of the body":          {site("scope {header.Authorization} {http.request.body}"), "scope: {http.request.body}"},
		"key_from without text":      {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8"), "key_from: wrong argument count"},
		"key_from with two texts":    {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {http.request.uuid} b"), "key_from: wrong argument count"},
		"key_from bare":              {site("key_from"), "key_from: wrong argument count"},
		"key_from twice":             {site("key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {a}\nkey_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {b}"), "key_from is given twice"},
		"accept_if pointer":          {site("accept_if code 0"), `accept_if: JSON pointer "code" does not start with a slash`},
		"accept_if JSONPath":         {site("accept_if $.code 0"), `accept_if: JSON pointer "$.code"`},
		"accept_if escape":           {site("accept_if /a~b 0"), `accept_if: JSON pointer "/a~b"`},
		"accept_if of nothing":       {site(`accept_if "" ""`), "accept_if: it needs a pointer"},
		"accept_if of any document":  {site(`accept_if ""`), "accept_if: it needs a pointer"},
		"accept_if with two values":  {site("accept_if /code 0 1"), "accept_if: wrong argument count"},
		"accept_if bare":             {site("accept_if"), "accept_if: wrong argument count"},
		"accept_if twice":            {site("accept_if /code 0\naccept_if /status ok"), "accept_if is given twice"},
		"in_progress unknown":        {site("in_progress queue"), `in_progress: "queue" is neither reject nor wait`},
		"in_progress a duration":     {site("in_progress 10s"), `in_progress: "10s" is neither reject nor wait`},
		"in_progress unknown, long":  {site("in_progress queue 10s"), `in_progress: "queue" is neither reject nor wait`},
		"in_progress wait bare":      {site("in_progress wait"), "in_progress wait: it needs a duration"},
		"in_progress wait empty":     {site(`in_progress wait ""`), "in_progress wait: it needs a duration"},
		"in_progress wait zero":      {site("in_progress wait 0s"), "in_progress wait: it needs a duration, and a positive one"},
		"in_progress wait negative":  {site("in_progress wait -1s"), "in_progress wait: it needs a duration, and a positive one"},
		"in_progress wait soon":      {site("in_progress wait soon"), `in_progress wait: "soon" is not a duration`},
		"in_progress wait empty env": {site("in_progress wait {env.EMPTY}"), "in_progress wait: "},
		"in_progress wait too long":  {site("in_progress wait 31s\nupstream_timeout 30s"), "in_progress wait: it is 31s, longer than upstream_timeout (30s)"},
		"in_progress wait default":   {site("in_progress wait 301s"), "longer than upstream_timeout (5m0s)"},
		"in_progress reject, long":   {site("in_progress reject 10s"), "in_progress_wait: it needs in_progress wait"},
		"in_progress three words":    {site("in_progress wait 10s 20s"), "in_progress: wrong argument count"},
		"in_progress bare":           {site("in_progress"), "in_progress: wrong argument count"},
		"in_progress empty":          {site(`in_progress ""`), "in_progress: wrong argument count"},
		"in_progress empty, long":    {site(`in_progress "" 10s`), "in_progress: wrong argument count"},
		"in_progress twice":          {site("in_progress reject\nin_progress wait 10s"), "in_progress is given twice"},
		"upstream_key":               {site("upstream_key always"), `upstream_key: "always" is neither auto nor keep nor remove`},
		"upstream_key in capitals":   {site("upstream_key Keep"), `upstream_key: "Keep"`},
		"upstream_key empty":         {site(`upstream_key ""`), "upstream_key: wrong argument count"},
		"upstream_key two words":     {site("upstream_key keep remove"), "upstream_key: wrong argument count"},
		"upstream_key twice":         {site("upstream_key keep\nupstream_key keep"), "upstream_key is given twice"},
		"errors":                     {site("errors xml"), `errors: "xml"`},
		"global option unknown":      {global("stores redis"), `"stores"`},
		"global option twice":        {global("store embedded\nstore embedded"), "store is given twice"},
		"global block twice":         {"{\nidempotency {\n}\nidempotency {\n}\n}", "idempotency is given twice"},
		"global argument":            {"{\nidempotency redis\n}", "idempotency: wrong argument count"},
		"store without a name":       {global("store"), "store: wrong argument count"},
		"store unknown":              {global("store postgres"), `store: there is none named "postgres"`},
		"embedded with two paths":    {global("store embedded a b"), "store embedded: wrong argument count"},
		"embedded with an option":    {global("store embedded a {\npath b\n}"), `"path"`},
		"redis without address":      {global("store redis"), "store redis: an address is missing"},
		"redis with two addresses":   {global("store redis a:1 b:2"), "store redis: takes one address"},
		"redis address":              {global("store redis localhost"), "store redis: address 1 is not host:port"},
		"redis option unknown":       {global("store redis a:1 {\nhost b\n}"), `"host"`},
		"redis option twice":         {global("store redis a:1 {\ndb 1\ndb 2\n}"), "db is given twice"},
		"redis db":                   {global("store redis a:1 {\ndb one\n}"), `db: "one"`},
		"redis db negative":          {global("store redis a:1 {\ndb -1\n}"), "db is -1"},
		"redis db in both":           {global("store redis redis://a:1/2 {\ndb 1\n}"), "db is given twice"},
		"redis password in both":     {global("store redis redis://u:p@a:1 {\npassword q\n}"), "password is given twice"},
		"redis password from no env": {global("store redis a:1 {\npassword {env.NOT_THERE_AT_ALL}\n}"), "store redis: password has a placeholder"},
		"redis password in braces":   {global("store redis a:1 {\npassword \"ab{hidden-word}c\"\n}"), "store redis: password has a placeholder that is unknown or empty"},
		"redis username in braces":   {global("store redis a:1 {\nusername \"ab{hidden-word}c\"\n}"), "store redis: username has a placeholder"},
		"redis address in braces":    {global("store redis a:1 redis://u:{hidden-word}@b:2 {\ncluster\n}"), "store redis: address 2 has a placeholder"},
		"redis address no scheme":    {global("store redis u:hidden-word@a:1"), "store redis: address 1 is not host:port"},
		"redis timeout":              {global("store redis a:1 {\ntimeout 0s\n}"), "store redis: timeout is 0s"},
		"redis cluster and sentinel": {global("store redis a:1 {\ncluster\nsentinel m\n}"), "cluster and sentinel do not go together"},
		"redis cluster value":        {global("store redis a:1 {\ncluster yes\n}"), "cluster: wrong argument count"},
		"redis cluster twice":        {global("store redis a:1 {\ncluster\ncluster\n}"), "cluster is given twice"},
		"redis cluster db":           {global("store redis a:1 {\ncluster\ndb 1\n}"), "db is 1, and a Redis Cluster"},
		"redis cluster socket":       {global("store redis unix:///x {\ncluster\n}"), "cluster and a unix socket"},
		"redis sentinel without":     {global("store redis a:1 {\nsentinel\n}"), "sentinel: wrong argument count"},
		"redis sentinel empty env":   {global("store redis a:1 {\nsentinel {env.EMPTY}\n}"), "store redis: sentinel: "},
		"redis sentinel socket":      {global("store redis unix:///x {\nsentinel m\n}"), "sentinel and a unix socket"},
		"redis schemes":              {global("store redis a:1 rediss://b:2 {\ncluster\n}"), "some are rediss://"},
		"redis strict value":         {global("store redis a:1 {\nstrict yes\n}"), "strict: wrong argument count"},
		"redis replicas without":     {global("store redis a:1 {\nreplicas\n}"), "replicas: wrong argument count"},
		"redis replicas":             {global("store redis a:1 {\nreplicas one\n}"), `replicas: "one"`},
		"redis replicas negative":    {global("store redis a:1 {\nreplicas -1\n}"), "replicas is -1"},
		"redis replicas timeout":     {global("store redis a:1 {\nreplicas 1 soon\n}"), `replicas: timeout: "soon"`},
		"redis replicas too long":    {global("store redis a:1 {\nreplicas 1 500ms\n}"), "replicas: its timeout is 500ms"},
		"redis replicas zero":        {global("store redis a:1 {\nreplicas 0 100ms\n}"), "replicas is 0, and has a timeout"},
		"redis replicas more":        {global("store redis a:1 {\nreplicas 1 100ms disk\n}"), `replicas: it takes a number, a timeout and fsync, and "disk"`},
		"redis tls unknown":          {global("store redis a:1 {\ntls {\nverify no\n}\n}"), `"verify"`},
		"redis tls argument":         {global("store redis a:1 {\ntls on\n}"), "tls: wrong argument count"},
		"redis tls twice":            {global("store redis a:1 {\ntls {\nca x\nca y\n}\n}"), "ca is given twice"},
		"redis tls without ca":       {global("store redis a:1 {\ntls {\nca\n}\n}"), "ca: wrong argument count"},
		"redis tls ca not there":     {global("store redis a:1 {\ntls {\nca /not/there.pem\n}\n}"), "store redis: tls: ca: "},
		"redis tls ca no PEM":        {global("store redis a:1 {\ntls {\nca config_test.go\n}\n}"), "has no certificate in PEM"},
		"redis tls client without":   {global("store redis a:1 {\ntls {\nclient_auth x\n}\n}"), "client_auth: wrong argument count"},
		"redis tls client no PEM":    {global("store redis a:1 {\ntls {\nclient_auth config_test.go config_test.go\n}\n}"), "store redis: tls: client_auth: "},
		"redis tls plain address":    {global("store redis redis://a:1 {\ntls\n}"), "an address says redis://"},
		"redis tls socket":           {global("store redis unix:///x {\ntls\n}"), "tls and a unix socket"},
		"encryption_key empty":       {global("encryption_key"), "encryption_key: wrong argument count"},
		"encryption_key of option":   {global("encryption_key {\nold x\n}"), "encryption_key: wrong argument count"},
		"encryption_key option":      {global("encryption_key " + keyOf("x") + "\nencryption_key " + keyOf("y")), "encryption_key is given twice"},
		"encryption_key short":       {global("encryption_key " + base64.StdEncoding.EncodeToString([]byte("hidden-word"))), "encryption_key: key 1 has 11 bytes, and must have 32"},
		"encryption_key short hex":   {global("encryption_key " + keyOf("x") + " " + keyOf("hidden-word")[:62]), "encryption_key: key 2 has 31 bytes, and must have 32"},
		"encryption_key long":        {global("encryption_key " + keyOf("hidden-word") + "00"), "encryption_key: key 1 has 33 bytes"},
		"encryption_key passphrase":  {global("encryption_key hidden-word!"), "encryption_key: key 1 is neither base64 nor 64 hexadecimal digits"},
		"encryption_key odd hex":     {global("encryption_key " + keyOf("x")[:63]), "encryption_key: key 1 "},
		"encryption_key twice":       {global("encryption_key " + keyOf("x") + " " + keyOf("y") + " " + keyOf("x")), "encryption_key: key 3 is key 1 again"},
		"encryption_key in 2 forms":  {global("encryption_key " + keyOf("x") + " " + base64.RawURLEncoding.EncodeToString([]byte(padded("x")))), "encryption_key: key 2 is key 1 again"},
		"encryption_key no env":      {global("encryption_key {env.NOT_THERE_AT_ALL}"), "encryption_key: key 1 has a placeholder that is unknown or empty"},
		"encryption_key empty env":   {global("encryption_key {env.EMPTY}"), "encryption_key: key 1 has a placeholder"},
		"encryption_key in braces":   {global("encryption_key {hidden-word}"), "encryption_key: key 1 has a placeholder"},
		"redis URL":                  {global("store redis redis://u:hidden-word@a:1/x"), "store redis: address 1 is not a valid"},
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
			for word := range strings.FieldsSeq(test.caddyfile) {
				if len(word) > 60 && strings.Contains(err.Error(), word) {
					t.Error("the error has the encryption key")
				}
			}
		})
	}
}

// Every option in one Caddyfile, and the JSON that it mirrors.
func TestAdaptedJSON(t *testing.T) {
	t.Setenv("LEASE", "5s")
	t.Setenv("SECRET", "word")
	certificates := redistest.NewCertificates(t)
	t.Setenv("CA", certificates.CA)
	t.Setenv("CERT", certificates.Client)
	t.Setenv("KEY", certificates.ClientKey)
	t.Setenv("ENCRYPTION_KEY", keyOf("new"))
	const caddyfile = `{
	admin off
	persist_config off
	idempotency {
		store redis rediss://localhost:6379 rediss://localhost:6380 {
			sentinel {env.SECRET}
			username gateway
			password {env.SECRET}
			db 3
			tls {
				ca {env.CA}
				client_auth {env.CERT} {env.KEY}
				server_name redis.internal
			}
			prefix videos
			timeout 250ms
			replicas 2 100ms fsync
			strict
		}
		encryption_key {env.ENCRYPTION_KEY} 6f6c646f6c646f6c646f6c646f6c646f6c646f6c646f6c646f6c646f6c646f6c
	}
}
http://localhost:1 {
	idempotency /v1/* {
		key_header X-Request-Key Idempotency-Key
		key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 "job {http.request.header.X-Job-Id}"
		require_key
		methods POST PUT
		namespace provider
		scope {http.request.header.X-Tenant} fixed
		fingerprint auto
		fingerprint_ignore /metadata/trace /webhook_url
		fingerprint_header X-Model-Version
		store_status 200 202
		accept_if /base_resp/status_code 0
		refused_status 4xx 503
		retention 2d
		lease {env.LEASE}
		upstream_timeout 10m
		in_progress wait {env.LEASE}
		on_uncertain resubmit
		on_store_error forward
		errors problem
		max_request_body 10MiB
		max_response_body 64KiB
		upstream_key remove
		job_id /data/id
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
	const wantApp = `{"store":{"addresses":["rediss://localhost:6379","rediss://localhost:6380"],"db":3,"module":"redis","password":"{env.SECRET}",` +
		`"prefix":"videos","replicas":2,"replicas_fsync":true,"replicas_timeout":"100ms","sentinel":"{env.SECRET}","strict":true,"timeout":"250ms",` +
		`"tls":{"ca":["{env.CA}"],"client_certificate_file":"{env.CERT}","client_certificate_key_file":"{env.KEY}","server_name":"redis.internal"},` +
		`"username":"gateway"},` +
		`"encryption_key":["{env.ENCRYPTION_KEY}","6f6c646f6c646f6c646f6c646f6c646f6c646f6c646f6c646f6c646f6c646f6c"]}`
	if got := string(config.Apps.Idempotency); got != wantApp {
		t.Errorf("the app is\n%s\nwant\n%s", got, wantApp)
	}
	const wantHandler = `{"accept_if":{"pointer":"/base_resp/status_code","value":"0"},"errors":"problem","fingerprint":"auto","fingerprint_header":["X-Model-Version"],` +
		`"fingerprint_ignore":["/metadata/trace","/webhook_url"],"handler":"idempotency",` +
		`"in_progress":"wait","in_progress_wait":"{env.LEASE}","job_id":"/data/id",` +
		`"key_from":{"namespace":"6ba7b811-9dad-11d1-80b4-00c04fd430c8","text":"job {http.request.header.X-Job-Id}"},"key_header":["X-Request-Key","Idempotency-Key"],"lease":"{env.LEASE}",` +
		`"max_request_body":"10MiB","max_response_body":"64KiB","methods":["POST","PUT"],"namespace":"provider","on_store_error":"forward",` +
		`"on_uncertain":"resubmit","refused_status":["4xx","503"],"require_key":true,"retention":"2d",` +
		`"scope":["{http.request.header.X-Tenant}","fixed"],"store_status":["200","202"],"upstream_key":"remove","upstream_timeout":"10m"}`
	got := string(config.Apps.HTTP.Servers["srv0"].Routes[0].Handle[0].Routes[0].Handle[0])
	if got != wantHandler {
		t.Errorf("the handler is\n%s\nwant\n%s", got, wantHandler)
	}
}

// What can be said in a Caddyfile, and what is like it.
func TestAcceptedConfigurations(t *testing.T) {
	t.Setenv("WAIT", "10s")
	for name, options := range map[string]string{
		"key_from":                       "key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {http.request.header.X-Job-Id}",
		"key_from, capitals":             "key_from 6BA7B811-9DAD-11D1-80B4-00C04FD430C8 {http.request.header.X-Job-Id}",
		"key_from, two placeholders":     `key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 "{http.request.host} \{ {http.request.header.X-Job-Id}"`,
		"key_from, short placeholder":    "key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {header.X-Job-Id}",
		"accept_if":                      "accept_if /code 0",
		"accept_if, empty string":        `accept_if /error ""`,
		"accept_if, any value":           "accept_if /id",
		"accept_if, whole document":      `accept_if "" ok`,
		"accept_if, escapes":             "accept_if /a~1b~0c ok",
		"in_progress reject":             "in_progress reject",
		"in_progress wait":               "in_progress wait 10s",
		"in_progress wait as long as":    "in_progress wait 30s\nupstream_timeout 30s",
		"in_progress wait, from the env": "in_progress wait {env.WAIT}",
		"upstream_key auto":              "upstream_key auto",
		"store_status 503":               "store_status 2xx 503",
		"scope, fixed":                   "scope video-team",
		"scope, from the env":            "scope {env.WAIT} {header.Authorization}",
		"scope, what credentials say":    "scope {http.idempotency.jwt.sub} {http.idempotency.jwt.https://acme.example/tenant} {http.idempotency.aws_access_key}",
		"key_from, a claim":              "key_from 6ba7b811-9dad-11d1-80b4-00c04fd430c8 {http.idempotency.jwt.jti}",
		"upstream_key keep":              "upstream_key keep",
		"upstream_key remove":            "upstream_key remove",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := adaptAndValidate(site(options)); err != nil {
				t.Error(err)
			}
		})
	}
}

// The same in JSON, which no Caddyfile parser has looked at.
func TestOptionsInJSON(t *testing.T) {
	const namespace = `"namespace":"6ba7b811-9dad-11d1-80b4-00c04fd430c8"`
	for name, test := range map[string]struct{ options, want string }{
		"all": {`"key_from":{` + namespace + `,"text":"{http.request.uuid}"},"accept_if":{"pointer":"/code","value":"0"},` +
			`"in_progress":"wait","in_progress_wait":10000000000,"upstream_key":"keep"`, ""},
		"in_progress reject":             {`"in_progress":"reject"`, ""},
		"key_from empty":                 {`"key_from":{}`, "key_from: the namespace"},
		"key_from without namespace":     {`"key_from":{"text":"{http.request.uuid}"}`, "key_from: the namespace"},
		"key_from without text":          {`"key_from":{` + namespace + `}`, "key_from: the text has no placeholder"},
		"key_from with an unknown field": {`"key_from":{` + namespace + `,"text":"{http.request.uuid}","uuid":"x"}`, `"uuid"`},
		"key_from a text":                {`"key_from":"{http.request.uuid}"`, "cannot unmarshal"},
		"accept_if empty":                {`"accept_if":{}`, "accept_if: it needs a pointer"},
		"accept_if pointer":              {`"accept_if":{"pointer":"code","value":"0"}`, "accept_if: JSON pointer"},
		"accept_if a number":             {`"accept_if":{"pointer":"/code","value":0}`, "cannot unmarshal"},
		"accept_if with a typo":          {`"accept_if":{"path":"/code","value":"0"}`, `"path"`},
		"in_progress unknown":            {`"in_progress":"queue"`, `in_progress: "queue"`},
		"in_progress wait bare":          {`"in_progress":"wait"`, "in_progress wait: it needs a duration"},
		"in_progress wait zero":          {`"in_progress":"wait","in_progress_wait":0`, "in_progress wait: it needs a duration"},
		"in_progress wait too long":      {`"in_progress":"wait","in_progress_wait":"6m"`, "longer than upstream_timeout"},
		"in_progress reject, long":       {`"in_progress":"reject","in_progress_wait":"10s"`, "in_progress_wait: it needs in_progress wait"},
		"in_progress_wait alone":         {`"in_progress_wait":"10s"`, "in_progress_wait: it needs in_progress wait"},
		"scope empty":                    {`"scope":[""]`, "scope: a value is empty"},
		"store_status empty":             {`"store_status":[]`, "store_status: it is empty"},
		"refused_status empty":           {`"refused_status":[]`, ""},
		"upstream_key":                   {`"upstream_key":"always"`, `upstream_key: "always"`},
	} {
		t.Run(name, func(t *testing.T) {
			var config caddy.Config
			err := json.Unmarshal([]byte(`{"admin":{"disabled":true},"apps":{"http":{"servers":{"s":{"listen":["localhost:1"],"routes":[{"handle":[
				{"handler":"idempotency",`+test.options+`}]}]}}}}}`), &config)
			if err == nil {
				err = caddy.Validate(&config)
			}
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("the error is %v, want it to have %q", err, test.want)
			}
		})
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

package caddymodule

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/dustin/go-humanize"

	"github.com/caddy-idempotency/caddy-idempotency/idempotency"
)

// Duration is a length of time as caddy.Duration reads it ("30s", "1d"), or a
// placeholder such as {env.LEASE}, which is expanded when the configuration is
// loaded.
type Duration string

// UnmarshalJSON accepts a string or, as caddy.Duration does, a number of
// nanoseconds.
func (d *Duration) UnmarshalJSON(b []byte) error {
	text, number, err := textOrNumber(b)
	if number {
		text += "ns"
	}
	*d = Duration(text)
	return err
}

// resolve returns the duration, and fallback if none is configured.
func (d Duration) resolve(repl *caddy.Replacer, option string, fallback time.Duration) (time.Duration, error) {
	if d == "" {
		return fallback, nil
	}
	text, err := expand(repl, option, string(d))
	if err != nil {
		return 0, err
	}
	value, err := caddy.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a duration such as 30s", option, text)
	}
	return value, nil
}

// Size is a number of bytes, with or without a unit ("64MiB"), or a
// placeholder such as {env.MAX_BODY}, which is expanded when the configuration
// is loaded.
type Size string

// UnmarshalJSON accepts a string or a number of bytes.
func (s *Size) UnmarshalJSON(b []byte) error {
	text, _, err := textOrNumber(b)
	*s = Size(text)
	return err
}

// resolve returns the size in bytes, and fallback if none is configured.
func (s Size) resolve(repl *caddy.Replacer, option string, fallback int64) (int64, error) {
	if s == "" {
		return fallback, nil
	}
	text, err := expand(repl, option, string(s))
	if err != nil {
		return 0, err
	}
	value, err := humanize.ParseBytes(text)
	if err != nil || value == 0 || value > maxSize {
		return 0, fmt.Errorf("%s: %q is not a size such as 64MiB", option, text)
	}
	return int64(value), nil
}

// maxSize keeps sizes far from where adding to them overflows.
const maxSize = 1 << 50

func textOrNumber(b []byte) (text string, number bool, err error) {
	if len(b) > 0 && b[0] == '"' {
		err := json.Unmarshal(b, &text)
		return text, false, err
	}
	var n int64
	err = json.Unmarshal(b, &n)
	return strconv.FormatInt(n, 10), true, err
}

// expand replaces global placeholders in the value of an option. One that is
// unknown or empty is an error: an option must not silently become its
// default because a variable is not set.
func expand(repl *caddy.Replacer, option, text string) (string, error) {
	expanded, err := repl.ReplaceOrErr(text, true, true)
	if err != nil {
		return "", fmt.Errorf("%s: %w", option, err)
	}
	return expanded, nil
}

// expandSecret is expand for what must not be in an error. It may have stood in
// the braces itself. The error begins with the name.
func expandSecret(repl *caddy.Replacer, name, text string) (string, error) {
	expanded, err := repl.ReplaceOrErr(text, true, true)
	if err != nil {
		return "", fmt.Errorf("%s has a placeholder that is unknown or empty", name)
	}
	return expanded, nil
}

// parseEncryptionKeys reads the values of encryption_key. No error holds a key.
func parseEncryptionKeys(repl *caddy.Replacer, texts []string) (*idempotency.Keyring, error) {
	keys := make([][]byte, len(texts))
	for i, text := range texts {
		text, err := expandSecret(repl, fmt.Sprintf("encryption_key: key %d", i+1), text)
		if err != nil {
			return nil, err
		}
		if keys[i], err = decodeKey(strings.TrimSpace(text)); err != nil {
			return nil, fmt.Errorf("encryption_key: key %d is neither base64 nor 64 hexadecimal digits", i+1)
		}
	}
	keyring, err := idempotency.NewKeyring(keys...)
	if err != nil {
		return nil, fmt.Errorf("encryption_key: %w", err)
	}
	return keyring, nil
}

// decodeKey decodes hexadecimal digits or base64 of either alphabet, with or
// without padding. 32 bytes of base64 are 43 characters without padding, so none
// can be taken for hexadecimal.
func decodeKey(text string) ([]byte, error) {
	if key, err := hex.DecodeString(text); err == nil {
		return key, nil
	}
	text = strings.NewReplacer("-", "+", "_", "/").Replace(text)
	return base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(text, "="))
}

// parseStatuses reads the values of store_status or refused_status.
func parseStatuses(option string, values []string) ([]idempotency.StatusRange, error) {
	var ranges []idempotency.StatusRange
	for _, value := range values {
		r, err := parseStatus(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", option, err)
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

func parseStatus(value string) (idempotency.StatusRange, error) {
	if class, found := strings.CutSuffix(strings.ToLower(value), "xx"); found {
		if n, err := strconv.Atoi(class); err == nil && len(class) == 1 && 2 <= n && n <= 5 {
			return idempotency.StatusRange{First: 100 * n, Last: 100*n + 99}, nil
		}
	} else if n, err := strconv.Atoi(value); err == nil && len(value) == 3 && 200 <= n && n <= 599 {
		return idempotency.StatusRange{First: n, Last: n}, nil
	}
	return idempotency.StatusRange{}, fmt.Errorf("%q is not a final status such as 202, or a class from 2xx to 5xx", value)
}

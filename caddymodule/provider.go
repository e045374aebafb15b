package caddymodule

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-idempotency/caddy-idempotency/provider"
)

// configureProvider fills in what the preset says and the configuration does
// not: a single option overrides the preset's.
func (h *Handler) configureProvider() error {
	if h.Provider == "" {
		return nil
	}
	preset, found, err := provider.Lookup(h.Provider)
	if err != nil {
		return fmt.Errorf("provider: %w", err)
	}
	if !found {
		return fmt.Errorf("provider: there is no preset named %q; there are %s", h.Provider, strings.Join(provider.Names(), ", "))
	}
	options, err := presetOptions(preset)
	if err != nil {
		return fmt.Errorf("provider: preset %s: %w", preset.Name, err)
	}
	for _, required := range preset.Required {
		if field, known := optionField(reflect.ValueOf(h).Elem(), required.Option); !known || field.IsZero() {
			return fmt.Errorf("%s: provider %s requires it: %s", required.Option, preset.Name, required.Reason)
		}
	}
	if h.InProgress != "" {
		options.InProgressWait = "" // the two are one option
	}
	if h.Namespace == "" {
		h.Namespace = preset.Name
	}
	own, theirs := reflect.ValueOf(h).Elem(), reflect.ValueOf(options).Elem()
	for i := range own.NumField() {
		if own.Type().Field(i).IsExported() && own.Field(i).IsZero() {
			own.Field(i).Set(theirs.Field(i))
		}
	}
	return nil
}

// presetOptions reads the options of a preset as those of a directive.
func presetOptions(preset provider.Preset) (*Handler, error) {
	tokens, err := caddyfile.Tokenize([]byte("idempotency {\n"+preset.Options+"\n}\n"), "preset "+preset.Name)
	if err != nil {
		return nil, err
	}
	options := new(Handler)
	if err := options.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens)); err != nil {
		return nil, err
	}
	if options.Provider != "" {
		return nil, errors.New("it names another preset")
	}
	return options, nil
}

// optionField returns the field of a handler that an option sets.
func optionField(handler reflect.Value, option string) (reflect.Value, bool) {
	for i := range handler.NumField() {
		name, _, _ := strings.Cut(handler.Type().Field(i).Tag.Get("json"), ",")
		if name == option {
			return handler.Field(i), true
		}
	}
	return reflect.Value{}, false
}

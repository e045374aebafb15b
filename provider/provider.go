// Package provider has presets: what a provider's documentation says about its
// submits, as the Caddyfile lines that an operator would write.
//
// Each provider is one file, <name>.caddyfile: comments with the source and the
// date of each fact and with what is not certain, a block with the options of
// the directive idempotency, and a line "require <option> <reason>" for each
// option that has no safe default at this provider. To add a provider, add its
// file and a row to the table in the tests.
//
// The package knows neither Caddy nor what the options mean.
package provider

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

//go:embed *.caddyfile
var files embed.FS

// extension of a preset's file.
const extension = ".caddyfile"

// Preset is what one file says.
type Preset struct {
	// Name as in `provider <name>`. It is the handler's namespace, too, unless
	// another one is configured.
	Name string
	// Notes are the comments at the top of the file: what the provider is in the
	// first line, then the facts with their sources.
	Notes string
	// Options are the lines of the block idempotency, without indentation.
	Options string
	// Required are the options that the operator has to set.
	Required []Requirement
}

// Requirement is an option without a safe default.
type Requirement struct {
	Option string
	// Reason says why, and what to write.
	Reason string
}

// Title returns the first line of the notes.
func (p Preset) Title() string {
	title, _, _ := strings.Cut(p.Notes, "\n")
	return title
}

// Caddyfile returns the preset as the lines that `provider <name>` stands for.
func (p Preset) Caddyfile() string {
	var b strings.Builder
	for line := range strings.Lines(p.Notes) {
		b.WriteString(strings.TrimRight("# "+strings.TrimSuffix(line, "\n"), " ") + "\n")
	}
	b.WriteString("\nidempotency {\n\tnamespace " + p.Name + "\n")
	for line := range strings.Lines(p.Options) {
		b.WriteString("\t" + strings.TrimSuffix(line, "\n") + "\n")
	}
	for _, r := range p.Required {
		fmt.Fprintf(&b, "\t# %s is required: %s\n", r.Option, r.Reason)
	}
	b.WriteString("}\n")
	return b.String()
}

// Names returns the names of all presets in alphabetical order.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // the embedded directory is there
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = strings.TrimSuffix(entry.Name(), extension)
	}
	slices.Sort(names)
	return names
}

// Lookup returns a preset by its name, and false if there is none. An error is
// a mistake in the preset's file.
func Lookup(name string) (Preset, bool, error) {
	if !slices.Contains(Names(), name) {
		return Preset{}, false, nil
	}
	text, err := files.ReadFile(path.Join(".", name+extension))
	if err != nil {
		return Preset{}, false, err
	}
	p, err := parse(name, string(text))
	return p, err == nil, err
}

// parse reads a preset's file.
func parse(name, text string) (Preset, error) {
	p := Preset{Name: name}
	var notes, options []string
	inBlock, seen := false, false
	for number, line := range slices.Collect(strings.Lines(text)) {
		line = strings.TrimSpace(line)
		wrong := func(problem string) error {
			return fmt.Errorf("preset %s, line %d: %s", name, number+1, problem)
		}
		switch {
		case inBlock && line == "}":
			inBlock = false
		case inBlock:
			options = append(options, line)
		case line == "":
		case strings.HasPrefix(line, "#") && !seen:
			notes = append(notes, strings.TrimPrefix(strings.TrimPrefix(line, "#"), " "))
		case line == "idempotency {" && !seen:
			inBlock, seen = true, true
		case strings.HasPrefix(line, "require "):
			option, quoted, _ := strings.Cut(strings.TrimPrefix(line, "require "), " ")
			reason, err := strconv.Unquote(quoted)
			if err != nil || option == "" || reason == "" {
				return Preset{}, wrong(`want: require <option> "<reason>"`)
			}
			p.Required = append(p.Required, Requirement{option, reason})
		default:
			return Preset{}, wrong("it is neither a comment, nor the block idempotency, nor a requirement")
		}
	}
	switch {
	case len(notes) == 0:
		return Preset{}, errors.New("preset " + name + " has no notes")
	case !seen || inBlock:
		return Preset{}, errors.New("preset " + name + " has no whole block idempotency")
	}
	p.Notes, p.Options = strings.Join(notes, "\n"), strings.Join(options, "\n")
	return p, nil
}

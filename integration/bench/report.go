package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"
)

// report is what a run has found.
type report struct {
	Machine     []string
	LoadBefore  string
	LoadAfter   string
	Series      [][]*series // by setting
	Scale       []scale     `json:",omitempty"`
	InFlight    []inFlight  `json:",omitempty"`
	RecordBytes int64       `json:",omitempty"` // in Redis, with an answer of 300 bytes
}

// write prints the report and writes it as Markdown, JSON and a picture.
func (r *report) write(w io.Writer, dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := r.markdown()
	raw, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	picture, err := r.picture()
	if err != nil {
		return err
	}
	for extension, content := range map[string][]byte{".md": text, ".json": append(raw, '\n'), ".svg": picture} {
		if err := os.WriteFile(filepath.Join(dir, name+extension), content, 0o644); err != nil {
			return err
		}
	}
	_, err = w.Write(text)
	return err
}

func find(all []*series, name string) *series {
	for _, s := range all {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func number(f float64) string {
	switch {
	case f == 0:
		return "–"
	case f < 10:
		return fmt.Sprintf("%.1f", f)
	default:
		return thousands(fmt.Sprintf("%.0f", f))
	}
}

func thousands(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func ratio(s spread) string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Lowest, s.Highest)
}

func size(bytes int) string {
	switch {
	case bytes >= 1<<20:
		return fmt.Sprint(bytes>>20, " MiB")
	case bytes >= 1<<10:
		return fmt.Sprint(bytes>>10, " KiB")
	default:
		return fmt.Sprint(bytes, " B")
	}
}

// markdown is the report as text.
func (r *report) markdown() []byte {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("%s. Load average %s before and %s after.", strings.Join(r.Machine, ", "), r.LoadBefore, r.LoadAfter)
	for i, all := range r.Series {
		plain := find(all, namePlain)
		line("\nBodies of %s, %d connections, %d rounds of %d s:\n",
			size(plain.Body), plain.Connections, plain.Rounds, plain.Seconds)
		if i == 0 {
			r.mainTable(line, all, plain)
			continue
		}
		line("| | requests/s | to `reverse_proxy` | p50, µs | p99, µs |")
		line("|---|---|---|---|---|")
		for _, s := range all {
			line("| %s | %s | %s | %s | %s |", s.Name, number(s.each(rate).Median), ratio(s.ratio(plain)),
				number(s.each(p50).Median), number(s.each(p99).Median))
		}
		if plain.Connections == 1 {
			added(line, find(all, nameFresh), plain)
		}
	}
	for _, all := range r.Series {
		for _, s := range all {
			failed := 0
			for _, one := range s.Samples {
				failed += one.Failed
			}
			if failed > 0 {
				line("\n%d requests failed: %s, bodies of %s, %d connections.", failed, s.Name, size(s.Body), s.Connections)
			}
		}
	}
	r.rest(line)
	return b.Bytes()
}

func rate(s sample) float64 { return s.Rate }
func p50(s sample) float64  { return s.P50 }
func p99(s sample) float64  { return s.P99 }

func (r *report) mainTable(line func(string, ...any), all []*series, plain *series) {
	line("| | requests/s | to `reverse_proxy` | target | p50, µs | p99, µs | CPU gateway, µs | CPU store, µs | allocations | store calls |")
	line("|---|---|---|---|---|---|---|---|---|---|")
	for _, s := range all {
		target := ""
		if s.Target > 0 {
			target = fmt.Sprintf("%.2f", s.Target)
			if !reached(s.ratio(plain).Median, s.Target) {
				target += ", missed"
			}
		}
		line("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |", s.Name, number(s.each(rate).Median), ratio(s.ratio(plain)),
			target, number(s.each(p50).Median), number(s.each(p99).Median),
			number(s.each(func(s sample) float64 { return s.GatewayCPU }).Median),
			number(s.each(func(s sample) float64 { return s.StoreCPU }).Median),
			number(s.each(func(s sample) float64 { return s.Allocations }).Median),
			number(s.each(func(s sample) float64 { return s.StoreCalls }).Median))
	}
	printed := false
	for _, s := range all {
		earlier := find(all, s.Name+before)
		if earlier == nil {
			continue
		}
		if !printed {
			line("\nTo the binary before:\n\n| | requests/s | CPU gateway | allocations |\n|---|---|---|---|")
			printed = true
		}
		line("| %s | %s | %s | %s |", s.Name, ratio(s.ratio(earlier)),
			ratio(s.against(earlier, func(a, b sample) float64 { return a.GatewayCPU / b.GatewayCPU })),
			ratio(s.against(earlier, func(a, b sample) float64 { return a.Allocations / b.Allocations })))
	}
}

// added says what a fresh key adds to the latency of one caller.
func added(line func(string, ...any), fresh, plain *series) {
	whole := fresh.against(plain, func(own, others sample) float64 { return own.Mean - others.Mean })
	store := fresh.each(func(s sample) float64 { return s.StoreDuration })
	beyond := fresh.against(plain, func(own, others sample) float64 { return own.Mean - others.Mean - own.StoreDuration })
	verdict := "within"
	if math.Round(beyond.Median) > addedTarget {
		verdict = "over"
	}
	line("\nA fresh key on Redis adds %.0f µs (%.0f–%.0f) to a request, %.0f µs of it in its two calls of the store; the other %.0f µs (%.0f–%.0f) are %s the target of %d µs.",
		whole.Median, whole.Lowest, whole.Highest, store.Median, beyond.Median, beyond.Lowest, beyond.Highest, verdict, addedTarget)
}

// addedTarget is how much a fresh key may add beyond its calls of the store, in
// microseconds.
const addedTarget = 60

func (r *report) rest(line func(string, ...any)) {
	if len(r.Scale) > 0 {
		line("\nFresh keys, several gateways before one Redis on this machine, 48 connections in all:\n")
		line("| gateways | submits/s | CPU gateways, µs | CPU Redis, µs | one Redis carries, submits/s |")
		line("|---|---|---|---|---|")
		for _, s := range r.Scale {
			line("| %d | %s | %s | %s | %s |", s.Gateways, number(s.Rate), number(s.GatewayCPU), number(s.StoreCPU), number(1e6/s.StoreCPU))
		}
		line("\nWhat one Redis carries is computed: a second of its processor, by what a submit took of it.")
	}
	if len(r.InFlight) > 0 {
		line("\n| in flight | resident | idle | per submit |")
		line("|---|---|---|---|")
		for _, m := range r.InFlight {
			line("| %s submits, %s | %d MiB | %d MiB | %s KiB |", thousands(fmt.Sprint(m.Submits)), m.System, m.Bytes>>20, m.Idle>>20,
				number(float64(m.Bytes-m.Idle)/float64(m.Submits)/1024))
		}
	}
	if r.RecordBytes > 0 {
		line("\nThe record of a submit with an answer of %d bytes has %d bytes in Redis (`MEMORY USAGE`).", answerSize, r.RecordBytes)
	}
}

//go:embed chart.svg.tmpl
var chartText string

var chart = template.Must(template.New("chart").Parse(chartText))

// bar is one line of the picture.
type bar struct {
	Name, Text       string
	Class            string
	Y, Width         int
	Low, High        int // of the spread
	Target           int // 0 for none
	NameY, SpreadY   int
	TextX, TargetTop int
}

const (
	chartLeft  = 210
	chartScale = 120 // of one plain reverse_proxy
	chartRow   = 26
	chartTop   = 60
)

// picture draws the ratios of the first setting.
func (r *report) picture() ([]byte, error) {
	all := r.Series[0]
	plain := find(all, namePlain)
	widest := 0.0
	var bars []bar
	for i, s := range all {
		of := s.ratio(plain)
		widest = math.Max(widest, of.Highest)
		at := func(ratio float64) int { return chartLeft + int(ratio*chartScale) }
		y := chartTop + i*chartRow
		one := bar{
			Name: s.Name, Text: fmt.Sprintf("%.2f", of.Median), Class: "gateway",
			Y: y, Width: int(of.Median * chartScale), Low: at(of.Lowest), High: at(of.Highest),
			NameY: y + 13, SpreadY: y + 9, TextX: at(of.Highest) + 6, TargetTop: y - 3,
		}
		if s.Target > 0 {
			one.Target = at(s.Target)
			one.TextX = max(one.TextX, one.Target+6)
		}
		switch {
		case s == plain || strings.HasPrefix(s.Name, "Caddy"):
			one.Class = "caddy"
		case strings.HasPrefix(s.Name, "fiber"), strings.HasPrefix(s.Name, "nginx"):
			one.Class = "peer"
		}
		bars = append(bars, one)
	}
	var b bytes.Buffer
	err := chart.Execute(&b, map[string]any{
		"Bars": bars, "Width": chartLeft + int(widest*chartScale) + 70, "Height": chartTop + len(bars)*chartRow + 14,
		"Left": chartLeft, "One": chartLeft + chartScale, "Bottom": chartTop + len(bars)*chartRow - 4,
		"Title": fmt.Sprintf("Requests per second, to Caddy's reverse_proxy; bodies of %s, %d connections", size(plain.Body), plain.Connections),
		"Note":  "line: lowest and highest round; mark: target",
	})
	return b.Bytes(), err
}

// describeMachine says what the figures come from.
func describeMachine(caddy string) []string {
	processor := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				processor = strings.TrimSpace(value)
				break
			}
		}
	}
	machine := []string{
		fmt.Sprintf("On %d processors (%s) that everything shares, callers and provider included", runtime.NumCPU(), processor),
		runtime.Version(),
	}
	for _, version := range []struct {
		name string
		args []string
	}{
		{"Caddy", []string{caddy, "version"}},
		{"", []string{"redis-server", "--version"}},
		{"", []string{"nginx", "-v"}},
	} {
		output, err := exec.Command(version.args[0], version.args[1:]...).CombinedOutput()
		if err != nil {
			continue // a run says so in a clearer way
		}
		text := strings.TrimPrefix(strings.TrimSpace(string(output)), "nginx version: ")
		text = strings.Replace(text, "Redis server v=", "Redis ", 1)
		words := strings.Fields(version.name + " " + text)
		machine = append(machine, strings.Join(words[:min(2, len(words))], " "))
	}
	return machine
}

// loadAverage is the machine's load of the last minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

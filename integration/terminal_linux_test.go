package integration

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// On a terminal find asks for what is secret, and does not show what is typed.
func TestFindOnTerminal(t *testing.T) {
	t.Parallel()
	p := startProvider(t, nil)
	g := startGateway(t, p.url, options{})
	id := leaveUnknown(t, g, p, submitUnknown)
	terminal, err := pty.Start(exec.Command(caddyBinary, "idempotency", "find", "--address", g.admin))
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	shown := &logBuffer{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(shown, terminal) // ends with an error when the process ends
	}()
	for _, question := range []struct{ name, answer string }{
		{"Authorization: ", "Bearer caller"}, {"X-Api-Key: ", ""}, {"Idempotency-Key: ", submitUnknown.key},
	} {
		await(t, "the question "+question.name, func() bool {
			return strings.HasSuffix(shown.String(), question.name) && !echoes(t, terminal)
		})
		if _, err := io.WriteString(terminal, question.answer+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	<-ended
	if !strings.Contains(shown.String(), id) {
		t.Errorf("find did not find the record:\n%s", shown)
	}
	if strings.Contains(shown.String(), "caller") || strings.Contains(shown.String(), submitUnknown.key) {
		t.Errorf("the terminal shows what was typed:\n%s", shown)
	}
}

// echoes reports whether a terminal shows what is typed.
func echoes(t *testing.T, terminal *os.File) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

package stacktest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience bounds every wait. A machine under load is slow; nothing here measures time.
const Patience = 90 * time.Second

// Frequency is how often a test looks at what it waits for.
const Frequency = 100 * time.Millisecond

// Process is a program that runs.
type Process struct {
	Cmd *exec.Cmd
	// Done is closed when it has ended.
	Done chan struct{}
	// Lines is what it prints on both outputs, for whoever waits for a line; the rest goes to the test's log.
	Lines chan string
}

// Command is runledger with arguments, not yet started.
func Command(t testing.TB, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Program(t, "runledger"), args...)
	cmd.Env = append(cleanEnv(), env...)
	return cmd
}

// Start starts runledger.
func Start(t testing.TB, dir string, env []string, args ...string) *Process {
	t.Helper()
	return StartProgram(t, Program(t, "runledger"), dir, env, args...)
}

// StartProgram starts a program, which is stopped when the test has ended.
func StartProgram(t testing.TB, program, dir string, env []string, args ...string) *Process {
	t.Helper()
	p := &Process{Cmd: exec.Command(program, args...), Done: make(chan struct{}), Lines: make(chan string, 4096)}
	p.Cmd.Dir = dir
	p.Cmd.Env = append(cleanEnv(), env...)
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p.Cmd.Stdout, p.Cmd.Stderr = w, w
	require.NoError(t, p.Cmd.Start())
	require.NoError(t, w.Close())
	name := strings.Join(append([]string{filepath.Base(program)}, args...), " ")
	log := t.Output()
	go func() {
		defer close(p.Lines)
		in := bufio.NewScanner(r)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			fmt.Fprintln(log, name+": "+in.Text())
			select {
			case p.Lines <- in.Text():
			default:
			}
		}
	}()
	go func() {
		defer close(p.Done)
		_ = p.Cmd.Wait()
	}()
	t.Cleanup(func() { p.Stop(t) })
	return p
}

// cleanEnv is the environment without what would steer the program under test.
func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case strings.HasPrefix(name, "RUNLEDGER_"), strings.HasPrefix(name, "TEMPORAL_"), strings.HasPrefix(name, "OPENAI_"),
			strings.HasPrefix(name, "ANTHROPIC_"), strings.HasPrefix(name, "GEMINI_"), name == "DATABASE_URL":
		default:
			env = append(env, e)
		}
	}
	return env
}

// Line waits for a line that contains one of the texts.
func (p *Process) Line(t testing.TB, texts ...string) string {
	t.Helper()
	deadline := time.After(Patience)
	for {
		select {
		case line, ok := <-p.Lines:
			if !ok {
				t.Fatalf("the process ended before it printed %q", texts)
			}
			if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(line, text) }) {
				return line
			}
		case <-deadline:
			t.Fatalf("the process does not print %q", texts)
		}
	}
}

// Stop ends the process as Ctrl-C does and waits for it.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.End(t, syscall.SIGINT)
}

// Kill ends the process without a chance to do anything.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.End(t, syscall.SIGKILL)
}

// End sends the process a signal and waits for its end.
func (p *Process) End(t testing.TB, how syscall.Signal) {
	t.Helper()
	select {
	case <-p.Done:
		return
	default:
	}
	_ = p.Cmd.Process.Signal(how)
	select {
	case <-p.Done:
	case <-time.After(Patience):
		_ = p.Cmd.Process.Kill()
		<-p.Done
		t.Errorf("%v does not stop", p.Cmd.Args)
	}
}

// Freeze stops the process where it stands; Thaw lets it go on.
func (p *Process) Freeze(t testing.TB) {
	t.Helper()
	require.NoError(t, p.Cmd.Process.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = p.Cmd.Process.Signal(syscall.SIGCONT) })
}

// Thaw lets a frozen process go on.
func (p *Process) Thaw(t testing.TB) {
	t.Helper()
	require.NoError(t, p.Cmd.Process.Signal(syscall.SIGCONT))
}

// Receive waits for something, and fails with the words that say what did not come.
func Receive[T any](t testing.TB, from <-chan T, otherwise string) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(Patience):
		t.Fatal(otherwise)
	}
	return got
}

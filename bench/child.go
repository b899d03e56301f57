package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Child is this program once more, in a process and a part of its own: what is measured must not share its memory and its scheduler
// with what measures. It is told lines on its standard input, and ends when that does; what it prints are lines too.
type Child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

// partVariable names the part that a child plays, and argsVariable what it was given for that. They are no flags, so that a test's
// program can play parts as well.
const (
	partVariable = "RUNLEDGER_BENCH_PART"
	argsVariable = "RUNLEDGER_BENCH_ARGS"
)

// Part runs a child's part and ends the process, or returns at once in the program itself. It is the first thing that main does, and
// TestMain. A part ends when its standard input does.
func Part(parts map[string]func(args string) error) {
	part, ok := parts[os.Getenv(partVariable)]
	if !ok {
		return
	}
	if err := part(os.Getenv(argsVariable)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Getenv(partVariable), err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childLines bounds what a child has said and nobody has heard yet.
const childLines = 1 << 16

// StartChild starts a child. It is killed when ctx ends.
func StartChild(ctx context.Context, part, args string) (*Child, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Child{cmd: exec.CommandContext(ctx, path), lines: make(chan string, childLines)} //nolint:gosec // it is us
	c.cmd.Env = append(os.Environ(), partVariable+"="+part, argsVariable+"="+args)
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a child that is to be %s: %w", part, err)
	}
	go func() {
		defer close(c.lines)
		scan := bufio.NewScanner(out)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			c.lines <- scan.Text()
		}
	}()
	return c, nil
}

// PID is the child's process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Lines are what the child prints, closed when it has ended.
func (c *Child) Lines() <-chan string { return c.lines }

// Line waits for the next line.
func (c *Child) Line(ctx context.Context) (string, error) {
	select {
	case line, ok := <-c.lines:
		if !ok {
			return "", errors.New("the child has ended")
		}
		return line, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// Tell gives the child a line.
func (c *Child) Tell(line string) error {
	_, err := io.WriteString(c.in, line+"\n")
	return err
}

// Kill kills the child as a crash would.
func (c *Child) Kill() error { return c.cmd.Process.Kill() }

// childPatience is what a child gets to end by itself.
const childPatience = 15 * time.Second

// Stop lets the child end, and kills it when it does not. That it was killed is no error.
func (c *Child) Stop() error {
	_ = c.in.Close()
	kill := time.AfterFunc(childPatience, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	for range c.lines {
	}
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && !exit.Exited() { // by a signal
		return nil
	}
	return err
}

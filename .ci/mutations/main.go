// Command mutations takes the safeguards of the commit gate and of segments out, one at a time, and requires that tests notice.
//
//	go run ./.ci/mutations [NAME...]
//
// Each patch beside this file is one mutation. Lines before its diff say what it breaks and which tests must notice:
//
//	Breaks: the lease wait: a command is dispatched while another worker has it
//	Noticed by: ./ledger TestGateWaitsForALease
//
// A patch is applied to a copy of the tracked files. It has to apply and to compile, and each line's tests have to fail.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// testTimeout ends tests that a mutation lets hang; that they hang is noticed too.
const testTimeout = 60 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	mutations, err := load(filepath.Join(".ci", "mutations"), names)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "runledger-mutations-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copyTree(ctx, dir); err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	bad := 0
	for _, m := range mutations {
		began := time.Now()
		result := "noticed"
		if err := m.try(ctx, dir); err != nil {
			bad++
			result = "FAILED: " + err.Error()
		}
		fmt.Printf("%-16s %4.0f s  %s\n", m.name, time.Since(began).Seconds(), result)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Printf("mutations: %d noticed, %d not\n", len(mutations)-bad, bad)
	if bad > 0 {
		return fmt.Errorf("%d of %d failed", bad, len(mutations))
	}
	return nil
}

// mutation is one patch.
type mutation struct {
	name   string
	patch  []byte
	breaks string
	tests  []test
}

// test is a package and the tests of it that must notice.
type test struct{ pkg, run string }

// load reads the patches of those names, of all without names.
func load(dir string, names []string) ([]mutation, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("%s holds no patches; run this from the root of the tree", dir), err)
	}
	var all []mutation
	for _, file := range files {
		m := mutation{name: strings.TrimSuffix(filepath.Base(file), ".patch")}
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		if m.patch, err = os.ReadFile(file); err != nil {
			return nil, err
		}
		if err := m.readHeader(); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, m)
	}
	if len(all) == 0 || len(names) > len(all) {
		return nil, fmt.Errorf("found %d of the mutations %v", len(all), names)
	}
	return all, nil
}

func (m *mutation) readHeader() error {
	for line := range strings.Lines(string(m.patch)) {
		if strings.HasPrefix(line, "diff --git") {
			break
		}
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Breaks":
			m.breaks = value
		case "Noticed by":
			pkg, run, ok := strings.Cut(value, " ")
			if !ok {
				return fmt.Errorf("%q: want a package and its tests", line)
			}
			m.tests = append(m.tests, test{pkg, run})
		}
	}
	if m.breaks == "" || len(m.tests) == 0 {
		return errors.New("its header has to say what it breaks, and who notices")
	}
	return nil
}

// copyTree copies the files that git tracks, as they are now.
func copyTree(ctx context.Context, to string) error {
	list := exec.CommandContext(ctx, "git", "-c", "safe.directory=*", "ls-files", "-z") // a clone may belong to somebody else
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		raw, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not yet in git
		}
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, raw, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// try applies the patch, runs the tests and takes the patch back. The result is nil when all of them noticed.
func (m *mutation) try(ctx context.Context, dir string) (err error) {
	if err := m.apply(ctx, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.apply(context.WithoutCancel(ctx), dir, "-R")) }()
	for _, t := range m.tests {
		failed, err := t.fails(ctx, dir)
		if err != nil {
			return err
		}
		if len(failed) == 0 {
			return fmt.Errorf("%s -run %s passes without %s", t.pkg, t.run, m.breaks)
		}
	}
	return nil
}

// apply changes the copy by the patch. It is not a repository, so git goes by the files alone.
func (m *mutation) apply(ctx context.Context, dir string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "git", append([]string{"apply", "--recount"}, flags...)...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(m.patch)
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// fails runs the tests and returns those that fail. That no test is there is an error, as is a build that breaks.
func (t test) fails(ctx context.Context, dir string) (failed []string, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-failfast", "-timeout", testTimeout.String(), "-run", "^("+t.run+")$", t.pkg)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ran := 0
	var said strings.Builder
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var event struct{ Action, Test, Output string }
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("go test -json: %w in %q", err, line)
		}
		said.WriteString(event.Output)
		switch {
		case event.Action == "build-fail":
			return nil, errors.Join(fmt.Errorf("%s does not compile:\n%s", t.pkg, &said), cmd.Wait())
		case event.Test == "":
		case event.Action == "run":
			ran++
		case event.Action == "fail":
			failed = append(failed, event.Test)
		}
	}
	_ = cmd.Wait() // failing is what the tests are to do
	if ran == 0 {
		return nil, fmt.Errorf("%s has no test %s:\n%s", t.pkg, t.run, &said)
	}
	return failed, nil
}

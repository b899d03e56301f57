package devstack

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// inPath looks names up in dir alone.
func inPath(dir string) func(string) (string, error) {
	return func(name string) (string, error) { return exec.LookPath(filepath.Join(dir, name)) }
}

func TestNoTemporalAnywhere(t *testing.T) {
	t.Parallel()
	finder := temporalFinder{lookPath: inPath(t.TempDir()), cache: t.TempDir()}
	_, err := startTemporal(t.Context(), TemporalConfig{DataDir: dataFolder(t)}, finder)
	require.ErrorIs(t, err, ErrNotInstalled)
	require.ErrorContains(t, err, "install the CLI")
	require.ErrorContains(t, err, "install Go")
	require.ErrorContains(t, err, "TEMPORAL_ADDRESS")
}

func TestFindTemporal(t *testing.T) {
	t.Parallel()
	path, cache := t.TempDir(), t.TempDir()
	script(t, filepath.Join(cache, "temporal"), "exit 0")
	finder := temporalFinder{lookPath: inPath(path), cache: cache}
	got, err := finder.find(t.Context(), newLines())
	require.NoError(t, err)
	require.Equal(t, filepath.Join(cache, "temporal"), got)

	script(t, filepath.Join(path, "temporal"), "exit 0")
	got, err = finder.find(t.Context(), newLines())
	require.NoError(t, err)
	require.Equal(t, filepath.Join(path, "temporal"), got, "PATH goes first")
}

func TestBuildTemporal(t *testing.T) {
	t.Parallel()
	path, cache := t.TempDir(), filepath.Join(t.TempDir(), "temporal-v0")
	// Stands for the Go tool: says what it was asked, and finishes when the test has seen that it is reported on.
	gate := filepath.Join(path, "gate")
	require.NoError(t, exec.Command("mkfifo", gate).Run())
	script(t, filepath.Join(path, "go"), `
echo "$* $GOFLAGS $GOWORK" >"%s/asked"
read -r _ <"%s"
printf '#!/bin/sh\n' >"$GOBIN/temporal"
chmod +x "$GOBIN/temporal"`, path, gate)
	finder := temporalFinder{lookPath: inPath(path), cache: cache, report: time.Millisecond}
	said := newLines()
	type result struct {
		path string
		err  error
	}
	first, second := make(chan result, 1), make(chan result, 1)
	go func() {
		p, err := finder.find(t.Context(), said)
		first <- result{p, err}
	}()
	said.waitFor(t, "Still building")
	waiting := newLines()
	go func() {
		p, err := finder.find(t.Context(), waiting)
		second <- result{p, err}
	}()
	waiting.waitFor(t, "waiting for it")
	require.NoError(t, os.WriteFile(gate, []byte("go\n"), 0))

	for _, r := range []result{<-first, <-second} {
		require.NoError(t, r.err)
		require.Equal(t, filepath.Join(cache, "temporal"), r.path)
	}
	require.Contains(t, said.String(), "4 to 6 minutes")
	require.Contains(t, said.String(), "Built the Temporal CLI")
	require.NotContains(t, waiting.String(), "Building", "built once")
	asked, err := os.ReadFile(filepath.Join(path, "asked"))
	require.NoError(t, err)
	require.Equal(t, "install "+temporalModule+"  off", strings.TrimSpace(string(asked)))
	left, err := filepath.Glob(filepath.Join(cache, "build-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBuildTemporalThatFails(t *testing.T) {
	t.Parallel()
	path, cache := t.TempDir(), t.TempDir()
	script(t, filepath.Join(path, "go"), `touch "$GOBIN/temporal"; echo "no such module" >&2; exit 1`)
	finder := temporalFinder{lookPath: inPath(path), cache: cache, report: time.Hour}
	_, err := finder.find(t.Context(), newLines())
	require.ErrorContains(t, err, "no such module")
	require.ErrorContains(t, err, temporalModule)
	require.NoFileExists(t, filepath.Join(cache, "temporal"))
}

func TestBuildTemporalThatIsCalledOff(t *testing.T) {
	t.Parallel()
	path, cache := t.TempDir(), t.TempDir()
	script(t, filepath.Join(path, "go"), `sleep 1000 & wait`)
	finder := temporalFinder{lookPath: inPath(path), cache: cache, report: time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	said := newLines()
	done := make(chan error, 1)
	go func() {
		_, err := finder.find(ctx, said)
		done <- err
	}()
	said.waitFor(t, "Still building")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

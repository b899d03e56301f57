package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// One benchmark as a process of its own, with its report read back.
func TestReportsAreCollected(t *testing.T) {
	t.Parallel()
	reports, err := runAll(t.Context(), options{only: []string{"ledger"}, quick: true})
	require.NoError(t, err)
	require.Len(t, reports, 1)
	require.Equal(t, "commands through the commit gate", reports[0].Benchmark)
	require.NotEmpty(t, reports[0].Figures)
}

func TestUnknownBenchmarksAreRefused(t *testing.T) {
	t.Parallel()
	_, err := runAll(t.Context(), options{only: []string{"everything"}})
	require.ErrorContains(t, err, `there is no benchmark "everything"`)
}

// Every folder is run, or makes no report: those print what they measure themselves. The peers are a module of their own, with a server
// from npm and without a network, and are measured by themselves.
func TestNoBenchmarkIsForgotten(t *testing.T) {
	t.Parallel()
	without := []string{"all", "history", "long", "peers"}
	for _, b := range benchmarks() {
		require.DirExists(t, filepath.Join("..", b.name))
		without = append(without, b.name)
	}
	entries, err := os.ReadDir("..")
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() && len(globGo(t, e.Name())) > 0 {
			require.Contains(t, without, e.Name())
		}
	}
}

func globGo(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
	require.NoError(t, err)
	return files
}

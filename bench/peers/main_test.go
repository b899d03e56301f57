package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// restateProgram is set where there is npm.
var restateProgram string

func TestMain(m *testing.M) {
	if _, err := exec.LookPath("npm"); err == nil {
		if restateProgram, err = confine(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// A few runs, by the same measure. How fast they are depends on the machine; that each side was measured does not.
func TestPeersAreMeasured(t *testing.T) {
	t.Parallel()
	if restateProgram == "" {
		require.Empty(t, os.Getenv("CI"), "CI has to have npm")
		t.Skip("npm is not installed, so that Restate's server cannot be had")
	}
	r, err := measure(t.Context(), restateProgram, options{runs: 4, at: 2, rounds: 1})
	require.NoError(t, err)
	require.Len(t, r.Figures, 32)
	for _, f := range r.Figures {
		require.Positive(t, f.Value, f.Name)
		require.Positive(t, f.Limit, f.Name)
	}
}

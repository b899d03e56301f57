package devstack

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStack(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Temporal server")
	}
	t.Parallel()
	dir := dataFolder(t)
	began := time.Now()
	s, err := Start(t.Context(), Config{DataDir: dir, TemporalNamespace: "agents"})
	require.NoError(t, err)
	t.Logf("both answered after %v", time.Since(began).Round(time.Millisecond))
	defer s.Stop(context.Background())
	require.Equal(t, "1", query(t, s.DatabaseURL, "SELECT '1'"))
	require.NoError(t, temporalAnswers(t.Context(), s.TemporalAddress, "agents"))
	require.Equal(t, "agents", s.TemporalNamespace)
	require.NotEmpty(t, s.TemporalUIURL)

	began = time.Now()
	require.NoError(t, s.Stop(t.Context()))
	t.Logf("both ended after %v", time.Since(began).Round(time.Millisecond))
	require.NoError(t, s.Stop(t.Context()), "twice is fine")
	require.Empty(t, s.Lost(), "stopping is not losing")
	require.True(t, s.postgres.proc.hasEnded())
	require.True(t, s.temporal.proc.hasEnded())

	began = time.Now()
	again, err := Start(t.Context(), Config{DataDir: dir, TemporalNamespace: "agents"})
	require.NoError(t, err)
	t.Logf("both answered again after %v", time.Since(began).Round(time.Millisecond))
	defer again.Stop(context.Background())
	require.Equal(t, s.DatabaseURL, again.DatabaseURL)
	require.NoError(t, syscall.Kill(again.postgres.PID(), syscall.SIGKILL))
	require.ErrorContains(t, <-again.Lost(), "postgres ended by itself")
}

func TestStackUsesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Config{DatabaseURL: "postgres://there/db", TemporalAddress: "there:7233"})
	require.NoError(t, err)
	require.Equal(t, "postgres://there/db", s.DatabaseURL)
	require.Equal(t, "there:7233", s.TemporalAddress)
	require.Equal(t, "default", s.TemporalNamespace)
	require.Empty(t, s.TemporalUIURL)
	require.NoError(t, s.Stop(t.Context()))
}

func TestStackThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	blocker := startPG(t, quick(dir))
	_, err := Start(t.Context(), Config{DataDir: dir})
	require.ErrorIs(t, err, ErrInUse)
	l, err := lock(dir + "/temporal.lock")
	require.NoError(t, err, "Temporal's part of the folder is free")
	l.release()
	require.Equal(t, "1", query(t, blocker.URL(), "SELECT '1'"))
}

func TestResetOfNothing(t *testing.T) {
	t.Parallel()
	require.NoError(t, Reset(t.Context(), t.TempDir()+"/never-made"))
	require.ErrorContains(t, Reset(t.Context(), ""), "no data folder")
}

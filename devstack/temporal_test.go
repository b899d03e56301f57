package devstack

import (
	"net/http"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
)

func dial(t *testing.T, temporal *Temporal) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{
		HostPort: temporal.Address(), Namespace: temporal.Namespace(), Logger: discardTemporal(),
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestTemporalKeepsItsState(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	cfg := TemporalConfig{DataDir: dir, Namespace: "agents"}
	first := startTemporalServer(t, cfg)
	_, err := dial(t, first).CheckHealth(t.Context(), &client.CheckHealthRequest{})
	require.NoError(t, err)
	run, err := dial(t, first).ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "kept", TaskQueue: "none"}, "Nobody")
	require.NoError(t, err)
	page, err := http.Get(first.UIURL())
	require.NoError(t, err)
	page.Body.Close()
	require.Equal(t, http.StatusOK, page.StatusCode)
	require.FileExists(t, filepath.Join(dir, "temporal", "temporal.db"))
	require.NoError(t, first.Stop(t.Context()))
	require.NoError(t, first.Stop(t.Context()), "twice is fine")

	second := startTemporalServer(t, cfg)
	require.Equal(t, first.Address(), second.Address())
	require.Equal(t, first.UIURL(), second.UIURL())
	found, err := dial(t, second).DescribeWorkflowExecution(t.Context(), "kept", "")
	require.NoError(t, err)
	require.Equal(t, run.GetRunID(), found.GetWorkflowExecutionInfo().GetExecution().GetRunId())
	_, err = StartTemporal(t.Context(), cfg)
	require.ErrorIs(t, err, ErrInUse)

	// Killed, it knows as much.
	require.NoError(t, syscall.Kill(second.PID(), syscall.SIGKILL))
	<-second.Done()
	require.NoError(t, second.Stop(t.Context()))
	third := startTemporalServer(t, cfg)
	_, err = dial(t, third).DescribeWorkflowExecution(t.Context(), "kept", "")
	require.NoError(t, err)
}

func TestTemporalWithoutStateAndUI(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	temporal := startTemporalServer(t, TemporalConfig{DataDir: dir, UIPort: -1, InMemory: true})
	require.Empty(t, temporal.UIURL())
	require.Equal(t, "default", temporal.Namespace())
	require.NoFileExists(t, filepath.Join(dir, "temporal", "temporal.db"))
	_, err := dial(t, temporal).CheckHealth(t.Context(), &client.CheckHealthRequest{})
	require.NoError(t, err)
}

func TestTemporalThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	script(t, filepath.Join(path, "temporal"), `echo "unknown flag: $3" >&2; exit 1`)
	_, err := startTemporal(t.Context(), TemporalConfig{DataDir: dataFolder(t)}, temporalFinder{lookPath: inPath(path)})
	require.ErrorContains(t, err, "unknown flag: --ip")
}

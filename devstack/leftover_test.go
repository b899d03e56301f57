package devstack

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServersOfAKilledProgramAreTakenOver(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Temporal server")
	}
	t.Parallel()
	dir := dataFolder(t)
	left := abandon(t, dir)

	said := newLines()
	cfg := quick(dir)
	cfg.Log = logTo(said)
	pg := startPG(t, cfg)
	require.Equal(t, left.PostgresPID, pg.PID())
	require.Equal(t, left.URL, pg.URL())
	require.Equal(t, "1", query(t, pg.URL(), "SELECT '1'"))
	require.Contains(t, said.String(), "taking over")

	temporal := startTemporalServer(t, TemporalConfig{DataDir: dir})
	require.Equal(t, left.TemporalPID, temporal.PID())
	require.Equal(t, left.Address, temporal.Address())
	require.NotEmpty(t, temporal.UIURL())

	// What was taken over stops like what was started.
	require.NoError(t, temporal.Stop(t.Context()))
	require.NoError(t, pg.Stop(t.Context()))
	<-pg.Done()
	<-temporal.Done()
	require.False(t, alive(left.PostgresPID, pg.proc.born))
	require.False(t, alive(left.TemporalPID, temporal.proc.born))
}

func TestServersOfAKilledProgramThatWereStartedOtherwiseAreEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Temporal server")
	}
	t.Parallel()
	dir := dataFolder(t)
	left := abandon(t, dir)
	query(t, left.URL, "CREATE TABLE kept (v text)", "INSERT INTO kept VALUES ('here')", "SELECT 'ok'")

	cfg := quick(dir)
	cfg.Settings["work_mem"] = "5MB"
	pg := startPG(t, cfg)
	require.NotEqual(t, left.PostgresPID, pg.PID())
	require.Equal(t, "5MB", query(t, pg.URL(), "SHOW work_mem"))
	require.Equal(t, "here", query(t, pg.URL(), "SELECT v FROM kept"))

	temporal := startTemporalServer(t, TemporalConfig{DataDir: dir, Namespace: "another"})
	require.NotEqual(t, left.TemporalPID, temporal.PID())
	require.Equal(t, "another", temporal.Namespace())
}

func TestResetEndsWhatAKilledProgramLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Temporal server")
	}
	t.Parallel()
	for name, folder := range map[string]func(*testing.T) string{"open": dataFolder, "closed": closedFolder} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			left := abandon(t, dir)
			var pg, temporal record
			for file, rec := range map[string]*record{"postgres.json": &pg, "temporal.json": &temporal} {
				data, err := os.ReadFile(dir + "/" + file)
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(data, rec))
			}
			require.Equal(t, left.PostgresPID, pg.PID)
			require.True(t, alive(pg.PID, pg.Born))
			require.True(t, alive(temporal.PID, temporal.Born))
			notOurs := dir + "/notes.txt"
			require.NoError(t, os.WriteFile(notOurs, nil, 0o600))

			require.NoError(t, Reset(t.Context(), dir))

			require.False(t, alive(pg.PID, pg.Born))
			require.False(t, alive(temporal.PID, temporal.Born))
			require.NoDirExists(t, pg.Home)
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, entries, 1, "only what is not ours stays")
			require.NoError(t, os.Remove(notOurs))
		})
	}
}

func TestAStrangerWithTheSameProcessIDIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	pg := startPG(t, quick(dir))
	require.NoError(t, pg.Stop(t.Context()))

	stranger := exec.Command("/bin/sh", "-c", "read -r _")
	stdin, err := stranger.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, stranger.Start())
	t.Cleanup(func() { stdin.Close(); _ = stranger.Wait() })
	born, ok := birth(stranger.Process.Pid)
	require.True(t, ok)

	rec := pg.rec
	rec.PID, rec.Born = stranger.Process.Pid, born+"0"
	data, err := json.Marshal(rec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(pg.file("json"), data, 0o600))

	again := startPG(t, quick(dir))
	require.NotEqual(t, stranger.Process.Pid, again.PID())
	require.True(t, alive(stranger.Process.Pid, born))
}

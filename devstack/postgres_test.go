package devstack

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestPostgresKeepsDataPortAndPassword(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	pg := startPG(t, PostgresConfig{DataDir: dir})
	first := pg.URL()
	require.Equal(t, filepath.Join(dir, "postgres", "data"), pg.DataDir())
	require.Equal(t, "on", query(t, first, "CREATE TABLE kept (v text)", "INSERT INTO kept VALUES ('here')", "SHOW fsync"))
	require.Equal(t, "runledger", query(t, first, "SELECT current_database()"))
	require.Equal(t, "200", query(t, first, "SHOW max_connections"))

	require.NoError(t, pg.Stop(t.Context()))
	require.NoError(t, pg.Stop(t.Context()), "twice is fine")
	<-pg.Done()

	again := startPG(t, PostgresConfig{DataDir: dir})
	require.Equal(t, first, again.URL())
	require.Equal(t, "here", query(t, again.URL(), "SELECT v FROM kept"))
}

func TestPostgresIsClosedToOthers(t *testing.T) {
	t.Parallel()
	pg := startPG(t, quick(dataFolder(t)))

	require.Equal(t, "127.0.0.1", query(t, pg.URL(), "SHOW listen_addresses"))
	require.Empty(t, query(t, pg.URL(), "SHOW unix_socket_directories"))

	wrong, err := url.Parse(pg.URL())
	require.NoError(t, err)
	wrong.User = url.UserPassword("runledger", "guess")
	_, err = pgx.Connect(t.Context(), wrong.String())
	require.ErrorContains(t, err, "password authentication failed")

	for _, file := range []string{pg.file("json"), pg.file("log"), pg.file("lock")} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, file)
	}
}

func TestPostgresHasItsOwnProcessGroup(t *testing.T) {
	t.Parallel()
	pg := startPG(t, quick(dataFolder(t)))
	group, err := syscall.Getpgid(pg.PID())
	require.NoError(t, err)
	require.Equal(t, pg.PID(), group)
	require.NotEqual(t, syscall.Getpgrp(), group)
}

func TestPostgresOfRootRunsAsAnotherUser(t *testing.T) {
	needRoot(t)
	t.Parallel()
	pg := startPG(t, quick(dataFolder(t)))
	info, err := os.Stat(pg.DataDir())
	require.NoError(t, err)
	require.NotZero(t, ownerOf(info))
	process, err := os.Stat("/proc/" + strconv.Itoa(pg.PID()))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no /proc")
	}
	require.NoError(t, err)
	require.Equal(t, ownerOf(info), ownerOf(process))
}

func TestPostgresUnderAClosedFolder(t *testing.T) {
	needRoot(t)
	t.Parallel()
	dir := closedFolder(t)
	said := newLines()
	cfg := quick(dir)
	cfg.Log = logTo(said)
	pg := startPG(t, cfg)
	require.NotContains(t, pg.DataDir(), dir)
	require.Contains(t, said.String(), filepath.Dir(pg.DataDir()), "the log says where")
	info, err := os.Stat(filepath.Dir(pg.DataDir()))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	query(t, pg.URL(), "CREATE TABLE kept (v text)", "INSERT INTO kept VALUES ('here')", "SELECT 'ok'")
	require.NoError(t, pg.Stop(t.Context()))

	again := startPG(t, quick(dir))
	require.Equal(t, pg.DataDir(), again.DataDir())
	require.Equal(t, "here", query(t, again.URL(), "SELECT v FROM kept"))
	require.NoError(t, again.Stop(t.Context()))

	// The data folder is removed by hand, and with it the password.
	require.NoError(t, os.RemoveAll(dir))
	third := startPG(t, quick(dir))
	require.NotEqual(t, pg.URL(), third.URL())
	require.Equal(t, "here", query(t, third.URL(), "SELECT v FROM kept"))
	require.NoError(t, third.Stop(t.Context()))

	require.NoError(t, Reset(t.Context(), dir))
	require.NoDirExists(t, filepath.Dir(pg.DataDir()))
	require.NoDirExists(t, dir)
}

func TestPostgresIsFoundAgainFromAnotherTemporaryDirectory(t *testing.T) {
	needRoot(t)
	dir := closedFolder(t)
	first := openFolder(t)
	t.Setenv("TMPDIR", first)
	pg := startPG(t, quick(dir))
	require.Equal(t, first, filepath.Dir(filepath.Dir(pg.DataDir())))
	require.NoError(t, pg.Stop(t.Context()))

	closed := t.TempDir()
	require.NoError(t, os.Chmod(closed, 0o700))
	t.Setenv("TMPDIR", closed)
	again := startPG(t, quick(dir))
	require.Equal(t, pg.DataDir(), again.DataDir())
	require.NoError(t, again.Stop(t.Context()))

	require.NoError(t, Reset(t.Context(), dir))
	require.NoDirExists(t, pg.DataDir())
	fresh := startPG(t, quick(dir))
	require.Equal(t, "/tmp", filepath.Dir(filepath.Dir(fresh.DataDir())), "a temporary directory may be closed itself")
}

func TestPostgresRefusesAFolderThatOthersPutThere(t *testing.T) {
	needRoot(t)
	t.Parallel()
	stranger := 12345
	cases := map[string]struct {
		plant func(t *testing.T, path string)
		want  string
	}{
		"a stranger's folder": {
			plant: func(t *testing.T, path string) {
				require.NoError(t, os.Mkdir(path, 0o700))
				require.NoError(t, os.Chown(path, stranger, stranger))
			},
			want: "belongs to user 12345",
		},
		"a link": {
			plant: func(t *testing.T, path string) { require.NoError(t, os.Symlink(t.TempDir(), path)) },
			want:  "is not a folder",
		},
		"an open folder": {
			plant: func(t *testing.T, path string) {
				require.NoError(t, os.Mkdir(path, 0o700))
				require.NoError(t, os.Chmod(path, 0o777))
			},
			want: "is open to other users",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data") // closed to others
			planted := elsewhere(dir, "")[0]
			c.plant(t, planted)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(planted)) })
			_, err := StartPostgres(t.Context(), quick(dir))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, planted)
			if name != "an open folder" {
				require.ErrorContains(t, Reset(t.Context(), dir), "not removed")
			}
		})
	}
}

func TestPostgresIsFoundAgainAfterItWasKilled(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	pg := startPG(t, quick(dir))
	query(t, pg.URL(), "CREATE TABLE kept (v text)", "INSERT INTO kept VALUES ('here')", "SELECT 'ok'")
	require.NoError(t, syscall.Kill(pg.PID(), syscall.SIGKILL))
	<-pg.Done()
	require.NoError(t, pg.Stop(t.Context()))
	again := startPG(t, quick(dir))
	require.Equal(t, "here", query(t, again.URL(), "SELECT v FROM kept"))
}

func TestTwoProgramsOnOneFolder(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	// Both at once: one wins, whoever it is.
	type result struct {
		pg  *Postgres
		err error
	}
	results := make(chan result, 2)
	for range 2 {
		go func() {
			pg, err := StartPostgres(t.Context(), quick(dir))
			results <- result{pg, err}
		}()
	}
	a, b := <-results, <-results
	if a.pg == nil {
		a, b = b, a
	}
	require.NoError(t, a.err)
	defer a.pg.Stop(context.Background())
	require.ErrorIs(t, b.err, ErrInUse)
	_, err := StartPostgres(t.Context(), quick(dir))
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))

	require.ErrorIs(t, Reset(t.Context(), dir), ErrInUse)
	require.Equal(t, "1", query(t, a.pg.URL(), "SELECT '1'"), "a refused Reset touches nothing")
	require.NoError(t, a.pg.Stop(t.Context()))
	startPG(t, quick(dir))
}

func TestPostgresThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	pg := startPG(t, quick(dir))
	require.NoError(t, pg.Stop(t.Context()))

	cfg := quick(dir)
	cfg.Settings["shared_buffers"] = "plenty"
	_, err := StartPostgres(t.Context(), cfg)
	require.ErrorContains(t, err, `invalid value for parameter "shared_buffers": "plenty"`)
	require.ErrorContains(t, err, dir)
	startPG(t, quick(dir)) // the folder is free again
}

func TestPostgresOnAPortThatIsTaken(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	cfg := quick(dataFolder(t))
	cfg.Port = listener.Addr().(*net.TCPAddr).Port
	_, err = StartPostgres(t.Context(), cfg)
	require.ErrorContains(t, err, "use port "+strconv.Itoa(cfg.Port))
}

func TestPostgresTakesAnotherPortWhenTheOldOneIsTaken(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	pg := startPG(t, quick(dir))
	old := pg.rec.Ports[0]
	require.NoError(t, pg.Stop(t.Context()))
	listener, err := net.Listen("tcp", address(old))
	require.NoError(t, err)
	defer listener.Close()
	again := startPG(t, quick(dir))
	require.NotEqual(t, old, again.rec.Ports[0])
	require.Equal(t, "1", query(t, again.URL(), "SELECT '1'"))
}

func TestPostgresStartThatIsCalledOff(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := StartPostgres(ctx, quick(dir))
	require.ErrorIs(t, err, context.Canceled)
	startPG(t, quick(dir))
}

func TestPostgresOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := dataFolder(t)
	pg := startPG(t, quick(dir))
	require.NoError(t, pg.Stop(t.Context()))
	require.NoError(t, os.WriteFile(filepath.Join(pg.DataDir(), "PG_VERSION"), []byte("9\n"), 0o600))
	_, err := StartPostgres(t.Context(), quick(dir))
	require.ErrorIs(t, err, ErrNotInstalled)
	require.ErrorContains(t, err, "made by Postgres 9")
	require.ErrorContains(t, err, "dev --reset")
}

func TestPostgresInheritsNoSettings(t *testing.T) {
	t.Setenv("PGOPTIONS", "-c nonsense=1")
	t.Setenv("PGDATA", "/nowhere")
	for _, v := range postgresEnv() {
		require.False(t, strings.HasPrefix(v, "PG"), v)
	}
}

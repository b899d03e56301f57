package pgtest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/devstack"
	"runledger/internal/pgtest"
)

// hangEnv makes the test binary one that is in the middle of its tests when it is killed.
const hangEnv = "PGTEST_TEST_HANG"

var prepared atomic.Int32

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(ctx context.Context, url string) error {
		prepared.Add(1)
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "CREATE TABLE notes (note text)")
		return err
	}))
}

func TestDatabase(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn := connect(t, url)
			require.Zero(t, count(t, conn), "prepared and empty")
			_, err := conn.Exec(t.Context(), "INSERT INTO notes VALUES ('mine')")
			require.NoError(t, err)
			require.Equal(t, 1, count(t, conn))
		})
	}
}

func TestDatabaseIsDroppedWithItsTest(t *testing.T) {
	t.Parallel()
	var url string
	t.Run("inner", func(t *testing.T) {
		url = pgtest.Database(t)
		_, err := pgx.Connect(t.Context(), url) // left open
		require.NoError(t, err)
	})
	_, err := pgx.Connect(t.Context(), url)
	require.ErrorContains(t, err, "does not exist")
}

func TestServerIsItsTestsOwn(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, map[string]string{"max_connections": "20"})
	conn := connect(t, server.URL())
	var limit string
	require.NoError(t, conn.QueryRow(t.Context(), "SHOW max_connections").Scan(&limit))
	require.Equal(t, "20", limit)
	_, err := conn.Exec(t.Context(), "INSERT INTO notes VALUES ('mine')")
	require.NoError(t, err)

	server.Stop(t)
	server.Stop(t)
	require.Error(t, conn.Ping(t.Context()))
	server.Start(t)
	require.Equal(t, 1, count(t, connect(t, server.URL())))

	server.Kill(t)
	server.Start(t)
	require.Equal(t, 1, count(t, connect(t, server.URL())))
}

// TestHang is what TestServersEndWithAKilledBinary kills.
func TestHang(t *testing.T) {
	if os.Getenv(hangEnv) == "" {
		t.Skip("run by another test")
	}
	fmt.Println("URL " + pgtest.Database(t))
	fmt.Println("URL " + pgtest.Server(t, nil).URL())
	dir, err := pgtest.Folder(func(context.Context) error { return nil })
	require.NoError(t, err)
	other, err := devstack.StartPostgres(t.Context(), devstack.PostgresConfig{DataDir: dir})
	require.NoError(t, err)
	fmt.Println("URL " + other.URL())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestServersEndWithAKilledBinary(t *testing.T) {
	if os.Getenv(hangEnv) != "" {
		t.Skip("is the other test")
	}
	t.Parallel()
	tmp, err := os.MkdirTemp("", "pgtest-test-*")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	require.NoError(t, os.Chmod(tmp, 0o755))

	cmd := exec.Command(os.Args[0], "-test.run=^TestHang$")
	cmd.Env = append(os.Environ(), hangEnv+"=1", "TMPDIR="+tmp, "TEST_DATABASE_URL=")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var conns []*pgx.Conn
	for out := bufio.NewScanner(stdout); len(conns) < 3 && out.Scan(); {
		var url string
		if n, _ := fmt.Sscanf(out.Text(), "URL %s", &url); n == 1 {
			conns = append(conns, connect(t, url))
		}
	}
	require.Len(t, conns, 3)
	left, err := filepath.Glob(filepath.Join(tmp, "runledger-pgtest-*"))
	require.NoError(t, err)
	require.Len(t, left, 1)

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for _, conn := range conns {
		_, err := conn.WaitForNotification(t.Context()) // none comes; the server goes
		require.Error(t, err)
	}
	require.Eventually(t, func() bool {
		_, err := os.Stat(left[0])
		return os.IsNotExist(err)
	}, time.Minute, 20*time.Millisecond)
}

func TestPreparedOncePerServer(t *testing.T) {
	url := pgtest.Database(t)
	before := prepared.Load()
	require.NotEqual(t, url, pgtest.Database(t))
	require.Equal(t, before, prepared.Load())
}

func TestAnotherServerByEnvironment(t *testing.T) {
	if os.Getenv("TEST_DATABASE_URL") != "" {
		t.Skip("is the other test")
	}
	t.Parallel()
	tmp, err := os.MkdirTemp("", "pgtest-test-*")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(tmp, 0o755))
	pg, err := devstack.StartPostgres(t.Context(), devstack.PostgresConfig{DataDir: filepath.Join(tmp, "data")})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, pg.Stop(context.Background()))
		require.NoError(t, devstack.Reset(context.Background(), filepath.Join(tmp, "data")))
		require.NoError(t, os.RemoveAll(tmp))
	})

	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDatabase")
	cmd.Env = append(os.Environ(), "TEST_DATABASE_URL="+pg.URL())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))

	var left int
	conn := connect(t, pg.URL())
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname LIKE 'runledger_test_%'").Scan(&left))
	require.Zero(t, left, "the template is dropped too")
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func count(t *testing.T, conn *pgx.Conn) int {
	t.Helper()
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM notes").Scan(&n))
	return n
}

package devstack

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeServer holds a folder for a server that is a shell script. It is ready when it has made the file "ready".
func fakeServer(t *testing.T, body string) (*server, plan) {
	t.Helper()
	dir := t.TempDir()
	s, err := hold(dir, "fake", loggerOr(nil))
	require.NoError(t, err)
	t.Cleanup(s.lock.release)
	path := script(t, filepath.Join(dir, "fake.sh"), "%s", body)
	return s, plan{
		ports:   []int{0},
		command: func([]int) command { return command{path: path, dir: dir} },
		ready: func(context.Context, int, []int) error {
			_, err := os.Stat(filepath.Join(dir, "ready"))
			return err
		},
	}
}

func TestLaunchTriesAnotherPort(t *testing.T) {
	t.Parallel()
	s, p := fakeServer(t, `
echo start >>starts
[ "$(wc -l <starts)" -gt 2 ] || { echo "bind: Address already in use"; exit 1; }
touch ready
exec sleep 1000`)
	require.NoError(t, s.launch(t.Context(), p))
	require.NoError(t, s.Stop(t.Context()))
	starts, err := os.ReadFile(filepath.Join(s.dir, "starts"))
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(starts), "start"))
}

func TestLaunchWaitsForAKilledServersChildren(t *testing.T) {
	t.Parallel()
	s, p := fakeServer(t, `
[ -e first ] || { touch first; echo "FATAL:  pre-existing shared memory block (key 1, ID 2) is still in use"; exit 1; }
touch ready
exec sleep 1000`)
	require.NoError(t, s.launch(t.Context(), p))
	require.NoError(t, s.Stop(t.Context()))
}

func TestLaunchShowsOnlyWhatThisStartSaid(t *testing.T) {
	t.Parallel()
	s, p := fakeServer(t, `echo "out of luck" >&2; exit 3`)
	require.NoError(t, os.WriteFile(s.file("log"), []byte("of yesterday\n"), 0o600))
	err := s.launch(t.Context(), p)
	require.ErrorContains(t, err, "fake ended while it started")
	require.ErrorContains(t, err, "out of luck")
	require.ErrorContains(t, err, s.file("log"))
	require.NotContains(t, err.Error(), "yesterday")
	require.Zero(t, s.rec.PID)
}

func TestLaunchThatIsCalledOffLeavesNothing(t *testing.T) {
	t.Parallel()
	s, p := fakeServer(t, `echo waiting; exec sleep 1000`)
	ctx, cancel := context.WithCancel(t.Context())
	var pid int
	var born string
	p.ready = func(_ context.Context, id int, _ []int) error {
		pid = id
		born, _ = birth(id)
		cancel()
		return errors.New("never")
	}
	require.ErrorIs(t, s.launch(ctx, p), context.Canceled)
	require.NotEmpty(t, born)
	require.False(t, alive(pid, born))
}

func TestStopInsists(t *testing.T) {
	t.Parallel()
	s, p := fakeServer(t, `
trap '' TERM
touch ready
while :; do sleep 1000; done`)
	s.stop = []stopStep{{syscall.SIGTERM, 100 * time.Millisecond}}
	require.NoError(t, s.launch(t.Context(), p))
	require.NoError(t, s.Stop(t.Context()))
	require.True(t, s.proc.hasEnded())
}

func TestStopHurriesWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	s, p := fakeServer(t, `
trap '' TERM
touch ready
while :; do sleep 1000; done`)
	s.stop = []stopStep{{syscall.SIGTERM, time.Hour}}
	require.NoError(t, s.launch(t.Context(), p))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Stop(ctx))
	require.True(t, s.proc.hasEnded())
}

func TestSpawnRunsNothingThatWasNotRegistered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	require.NoError(t, err)
	defer out.Close()
	c := command{path: "/bin/sh", args: []string{"-c", "touch ran"}, dir: dir}
	var pid int
	var born string
	_, err = spawn(c, out, func(p int, b string) error {
		pid, born = p, b
		return errors.New("disk full")
	})
	require.ErrorContains(t, err, "disk full")
	require.NotEmpty(t, born)
	require.False(t, alive(pid, born))
	require.NoFileExists(t, filepath.Join(dir, "ran"))
}

func TestBirth(t *testing.T) {
	t.Parallel()
	me, ok := birth(os.Getpid())
	require.True(t, ok)
	again, _ := birth(os.Getpid())
	require.Equal(t, me, again)
	require.True(t, alive(os.Getpid(), me))
	require.False(t, alive(os.Getpid(), me+"x"))
	require.False(t, alive(os.Getpid(), ""))

	cmd := exec.Command("/bin/sh", "-c", "exit 0")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, _ = stdout.Read(make([]byte, 1)) // it has ended, or is about to
	_ = cmd.Wait()
	_, ok = birth(cmd.Process.Pid)
	require.False(t, ok)
}

func TestBirthWithoutProc(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ps"); err != nil {
		t.Skip("no ps")
	}
	me, ok := psBirth(os.Getpid())
	require.True(t, ok)
	require.Contains(t, me, "20", "a date")
	again, _ := psBirth(os.Getpid())
	require.Equal(t, me, again)

	// A zombie: it has ended, and nobody has asked how.
	cmd := exec.Command("/bin/sh", "-c", "exit 0")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	_, _ = stdout.Read(make([]byte, 1))
	require.Eventually(t, func() bool {
		_, proc := birth(cmd.Process.Pid)
		_, ps := psBirth(cmd.Process.Pid)
		return !proc && !ps
	}, time.Minute, time.Millisecond)
}

func TestProcBirthOfAnOddName(t *testing.T) {
	t.Parallel()
	rest := " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	born, ok := procBirth([]byte("7 (a) b (c)) S" + rest))
	require.True(t, ok)
	require.True(t, strings.HasSuffix(born, "/4711"), born)
	_, ok = procBirth([]byte("7 (sh) Z" + rest))
	require.False(t, ok, "a zombie has ended")
	_, ok = procBirth([]byte("7 (sh"))
	require.False(t, ok)
}

func TestLockOutlivesItsRemoval(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lock(path)
	require.NoError(t, err)
	_, err = lock(path)
	var held *heldError
	require.ErrorAs(t, err, &held)
	require.NoError(t, os.Remove(path))
	first.release()
	second, err := lock(path)
	require.NoError(t, err)
	require.True(t, sameFile(second.file, path))
	second.release()
}

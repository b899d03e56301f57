package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"runledger/devstack"
)

// watchEnv names, to a second process of a test binary, the folder it is to clear when the first has ended.
const watchEnv = "RUNLEDGER_PGTEST_WATCH"

// retryPause is how long the watcher waits before it tries again.
const retryPause = time.Second

// A watcher must begin before any TestMain does: what that does before it calls Main is not for a second process.
func init() {
	if dir := os.Getenv(watchEnv); dir != "" {
		os.Exit(watch(dir))
	}
}

// watch clears dir when its standard input ends, which is when the test binary closes it or is no more.
func watch(dir string) int {
	_, _ = io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	again := time.NewTicker(retryPause)
	defer again.Stop()
	for remove(ctx, dir) != nil {
		select {
		case <-again.C: // an orphaned initdb may still be writing there
		case <-ctx.Done():
			return 1 // nobody is left to tell
		}
	}
	return 0
}

// remove ends the servers of all data folders in dir and removes it.
func remove(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, devstack.Reset(ctx, filepath.Join(dir, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// root is the folder that holds the data folders of a test binary, and the process that clears it.
type root struct {
	dir     string
	watcher *exec.Cmd
	leash   io.WriteCloser // the watcher acts when this closes
}

func newRoot() (_ *root, err error) {
	r := &root{}
	if r.dir, err = os.MkdirTemp("", "runledger-pgtest-*"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(r.dir)
		}
	}()
	// Root's servers run as another user, who has to pass through.
	if err := os.Chmod(r.dir, 0o711); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r.watcher = exec.Command(self)
	r.watcher.Env = append(os.Environ(), watchEnv+"="+r.dir)
	// A group of its own, so that what ends the tests in a terminal does not end it; and no outputs, which `go test`
	// would wait for.
	r.watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if r.leash, err = r.watcher.StdinPipe(); err != nil {
		return nil, err
	}
	if err := r.watcher.Start(); err != nil {
		return nil, fmt.Errorf("start the watcher: %w", err)
	}
	return r, nil
}

// close clears the folder; the watcher finds nothing left to do and goes.
func (r *root) close(ctx context.Context) error {
	err := remove(ctx, r.dir)
	return errors.Join(err, r.leash.Close(), r.watcher.Wait())
}

package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"
)

// lockPoll is how often a lock that another process holds is tried again.
const lockPoll = 250 * time.Millisecond

// fileLock is an advisory lock that ends with its holder, however that ends. Children do not inherit it.
type fileLock struct{ file *os.File }

// heldError says that another process has the lock.
type heldError struct {
	path   string
	holder string
}

func (e *heldError) Error() string {
	return fmt.Sprintf("%s is locked by %s", e.path, e.holder)
}

// lock takes the lock, or returns a *heldError at once.
func lock(path string) (*fileLock, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			holder, _ := io.ReadAll(io.LimitReader(file, 20))
			file.Close()
			held := &heldError{path: path, holder: "another process"}
			if len(holder) > 0 { // else it has the lock since this very moment
				held.holder = "process " + string(holder)
			}
			return nil, held
		}
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// Reset removes lock files while it holds them. Whoever waited for one then holds a file that has no name.
		if !sameFile(file, path) {
			file.Close()
			continue
		}
		// For the message of a second one; the lock does not depend on it.
		_ = file.Truncate(0)
		_, _ = file.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
		return &fileLock{file: file}, nil
	}
}

// lockWait takes the lock when it becomes free; waiting is called once if it is not.
func lockWait(ctx context.Context, path string, waiting func()) (*fileLock, error) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for first := true; ; first = false {
		l, err := lock(path)
		var held *heldError
		if !errors.As(err, &held) {
			return l, err
		}
		if first {
			waiting()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s to finish with %s: %w", held.holder, path, ctx.Err())
		}
	}
}

func (l *fileLock) release() { _ = l.file.Close() }

func sameFile(file *os.File, path string) bool {
	held, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(held, named)
}

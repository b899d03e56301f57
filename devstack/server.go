package devstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// startTimeout bounds how long a server may take to answer. Postgres may have to recover after a crash first.
	startTimeout = 2 * time.Minute
	readyPoll    = 20 * time.Millisecond
	// portAttempts is how often a start is tried again because somebody else took a port between our choice and the
	// server's bind.
	portAttempts = 5
	// busyTimeout bounds the wait for the children of a server that was killed to let go of its data.
	busyTimeout = 10 * time.Second
	retryPause  = 200 * time.Millisecond

	logTail    = 2048
	logTooLong = 16 << 20
)

// ErrInUse says that another live process uses the data folder.
var ErrInUse = errors.New("data folder in use")

// ErrNotInstalled says that a server's program was found nowhere and could not be fetched. The text around it tells a
// person what to do.
var ErrNotInstalled = errors.New("not installed")

// record is what a data folder remembers of a server: the process, while it runs, and what the next start uses again.
type record struct {
	PID      int    `json:"pid,omitempty"`
	Born     string `json:"born,omitempty"`
	Ports    []int  `json:"ports,omitempty"`
	Shape    string `json:"shape,omitempty"`    // the options it was started with
	Home     string `json:"home,omitempty"`     // where its data stands
	Password string `json:"password,omitempty"` // of the database superuser
}

// server is one server of a data folder. It holds the folder's lock from hold to Stop.
type server struct {
	name string
	dir  string
	log  *slog.Logger
	stop []stopStep

	rec     record
	lock    *fileLock
	proc    *process
	logFrom int64 // where in the log this start begins

	mu      sync.Mutex
	stopped bool
}

// hold takes the data folder for the server name and reads its record.
func hold(dir, name string, log *slog.Logger) (*server, error) {
	s := &server{name: name, dir: dir, log: log}
	var held *heldError
	var err error
	s.lock, err = lock(s.file("lock"))
	if errors.As(err, &held) {
		return nil, fmt.Errorf("%w: %s runs %s in %s: stop it, or choose another data folder",
			ErrInUse, held.holder, name, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	data, err := os.ReadFile(s.file("json"))
	if err == nil {
		err = json.Unmarshal(data, &s.rec)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.lock.release()
		return nil, fmt.Errorf("read %s: %w", s.file("json"), err)
	}
	return s, nil
}

func (s *server) file(ext string) string { return filepath.Join(s.dir, s.name+"."+ext) }

func (s *server) save() error {
	data, err := json.Marshal(s.rec)
	if err != nil {
		return err
	}
	// CreateTemp makes it 0600, which the password needs.
	tmp, err := os.CreateTemp(s.dir, s.name+".json.*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), s.file("json"))
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

// plan says how a server is started and how one tells that it answers.
type plan struct {
	// shape tells servers apart that were started differently; one of another shape is not adopted.
	shape string
	// ports the server listens on. 0 means the one it had before if that is free, else any.
	ports   []int
	command func(ports []int) command
	// ready returns nil once the server, which has this process id, answers on the ports.
	ready func(ctx context.Context, pid int, ports []int) error
}

// adoptOrEnd deals with a server that a killed program left behind. It reports whether that one goes on to serve.
func (s *server) adoptOrEnd(ctx context.Context, want plan) (bool, error) {
	if !alive(s.rec.PID, s.rec.Born) {
		return false, nil
	}
	s.proc = adopt(s.rec.PID, s.rec.Born)
	if s.rec.Shape == want.shape && samePorts(s.rec.Ports, want.ports) {
		err := want.ready(ctx, s.rec.PID, s.rec.Ports)
		if err == nil {
			s.logFrom = s.logSize()
			s.log.Info("taking over the server that an earlier run left behind", "server", s.name, "pid", s.rec.PID)
			return true, nil
		}
		s.log.Warn("the server that an earlier run left behind does not answer", "server", s.name, "err", err)
	}
	s.log.Info("ending the server that an earlier run left behind", "server", s.name, "pid", s.rec.PID)
	return false, s.end(ctx)
}

func samePorts(have, want []int) bool {
	return slices.EqualFunc(have, want, func(h, w int) bool { return w == 0 || h == w })
}

// launch starts the server and returns when it answers.
func (s *server) launch(ctx context.Context, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	began := time.Now()
	for attempt := 1; ; attempt++ {
		ports, err := choosePorts(p.ports, s.rec.Ports)
		if err != nil {
			return err
		}
		err = s.launchOnce(ctx, p, ports)
		if err == nil {
			return nil
		}
		said := s.tail()
		if ctx.Err() == nil && attempt < portAttempts && strings.Contains(strings.ToLower(said), "address already in use") {
			continue
		}
		if ctx.Err() == nil && stillBusy(said) && time.Since(began) < busyTimeout {
			if pause(ctx, retryPause) == nil {
				attempt--
				continue
			}
		}
		return fmt.Errorf("%w; the end of %s:\n%s", err, s.file("log"), said)
	}
}

// stillBusy recognises the words in which Postgres says that processes of a killed server still hold its memory.
func stillBusy(said string) bool {
	return strings.Contains(said, "pre-existing shared memory block")
}

func (s *server) launchOnce(ctx context.Context, p plan, ports []int) error {
	out, err := s.openLog()
	if err != nil {
		return err
	}
	defer out.Close()
	s.rec.Ports, s.rec.Shape = ports, p.shape
	s.proc, err = spawn(p.command(ports), out, func(pid int, born string) error {
		s.rec.PID, s.rec.Born = pid, born
		return s.save()
	})
	if err != nil {
		return err
	}
	err = s.await(ctx, p, ports)
	if err != nil {
		return errors.Join(err, s.end(context.WithoutCancel(ctx)))
	}
	return nil
}

func (s *server) await(ctx context.Context, p plan, ports []int) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := p.ready(ctx, s.proc.pid, ports)
		if err == nil && !s.proc.hasEnded() {
			return nil
		}
		select {
		case <-s.proc.ended:
			return fmt.Errorf("%s ended while it started", s.name)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to answer: %w (last: %v)", s.name, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// end stops the process and notes in the record that there is none.
func (s *server) end(ctx context.Context) error {
	if err := s.proc.stop(ctx, s.stop); err != nil {
		return fmt.Errorf("stop %s: %w", s.name, err)
	}
	s.rec.PID, s.rec.Born = 0, ""
	if err := s.save(); err != nil {
		return fmt.Errorf("stop %s: %w", s.name, err)
	}
	return nil
}

// Stop ends the server and gives the data folder free. The context bounds how long it may be polite.
func (s *server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	if err := s.end(ctx); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	s.stopped = true
	s.lock.release()
	return nil
}

// openLog opens the server's log at its end.
func (s *server) openLog() (*os.File, error) {
	if s.logSize() > logTooLong {
		if err := os.Rename(s.file("log"), s.file("log.old")); err != nil {
			return nil, err
		}
	}
	s.logFrom = s.logSize()
	return os.OpenFile(s.file("log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
}

func (s *server) logSize() int64 {
	info, err := os.Stat(s.file("log"))
	if err != nil {
		return 0
	}
	return info.Size()
}

// tail is the last that the server said since it was started.
func (s *server) tail() string {
	file, err := os.Open(s.file("log"))
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	from := max(s.logFrom, s.logSize()-logTail)
	said, err := io.ReadAll(io.NewSectionReader(file, from, logTail))
	if err != nil {
		return err.Error()
	}
	if len(said) == 0 {
		return "(nothing)"
	}
	return strings.TrimSpace(string(said))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

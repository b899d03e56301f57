package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Config says which servers a program needs and where their data stands.
type Config struct {
	// DataDir is the data folder, made if missing. Needed unless both servers are given.
	DataDir string
	// DatabaseURL is a Postgres that runs already. Empty: one is started.
	DatabaseURL string
	// TemporalAddress is host:port of a Temporal server that runs already. Empty: one is started.
	TemporalAddress string
	// TemporalNamespace defaults to "default".
	TemporalNamespace string
	// TemporalUIPort is where a started Temporal serves its Web UI. 0: the port it had before, or any free one.
	TemporalUIPort int
	// TemporalDynamicConfig is TemporalConfig.DynamicConfig of a Temporal that is started.
	TemporalDynamicConfig []string
	// Log hears what is done. Nil: nobody.
	Log *slog.Logger
	// Progress hears, in whole lines for a person, what takes longer than a moment. Nil: nobody.
	Progress io.Writer
}

// Stack is a Postgres and a Temporal that can be used.
type Stack struct {
	DatabaseURL       string
	TemporalAddress   string
	TemporalNamespace string
	// TemporalUIURL is empty where Temporal was given and not started.
	TemporalUIURL string

	postgres *Postgres
	temporal *Temporal
	lost     chan error
	stopping chan struct{}
	stopOnce sync.Once
}

// Start starts what cfg does not bring. It returns when both servers answer; ctx bounds the start, not their life.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	if cfg.TemporalNamespace == "" {
		cfg.TemporalNamespace = defaultNamespace
	}
	s := &Stack{
		DatabaseURL:       cfg.DatabaseURL,
		TemporalAddress:   cfg.TemporalAddress,
		TemporalNamespace: cfg.TemporalNamespace,
		lost:              make(chan error, 2),
		stopping:          make(chan struct{}),
	}
	// Side by side: each spends most of its start waiting. The first that fails ends the other's wait.
	both, bothCtx := errgroup.WithContext(ctx)
	if cfg.DatabaseURL == "" {
		both.Go(func() (err error) {
			s.postgres, err = StartPostgres(bothCtx, PostgresConfig{
				DataDir: cfg.DataDir, Log: cfg.Log, Progress: cfg.Progress,
			})
			return err
		})
	}
	if cfg.TemporalAddress == "" {
		both.Go(func() (err error) {
			s.temporal, err = StartTemporal(bothCtx, TemporalConfig{
				DataDir: cfg.DataDir, Namespace: cfg.TemporalNamespace, UIPort: cfg.TemporalUIPort,
				DynamicConfig: cfg.TemporalDynamicConfig, Log: cfg.Log, Progress: cfg.Progress,
			})
			return err
		})
	}
	if err := both.Wait(); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	if s.postgres != nil {
		s.DatabaseURL = s.postgres.URL()
		go s.watch(s.postgres.server)
	}
	if s.temporal != nil {
		s.TemporalAddress = s.temporal.Address()
		s.TemporalUIURL = s.temporal.UIURL()
		go s.watch(s.temporal.server)
	}
	return s, nil
}

// Lost delivers an error for each started server that ended without having been stopped.
func (s *Stack) Lost() <-chan error { return s.lost }

func (s *Stack) watch(srv *server) {
	select {
	case <-s.stopping:
		return
	case <-srv.proc.ended:
	}
	select {
	case <-s.stopping: // both at once: it was us
	default:
		s.lost <- fmt.Errorf("devstack: %s ended by itself; the end of %s:\n%s", srv.name, srv.file("log"), srv.tail())
	}
}

// Stop ends what Start started, Temporal first. The data stays.
func (s *Stack) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { close(s.stopping) })
	var errs []error
	if s.temporal != nil {
		errs = append(errs, s.temporal.Stop(ctx))
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	return errors.Join(errs...)
}

// Reset ends what a killed program left behind in the data folder and removes what this package keeps there, wherever
// the database stands. Other files of the folder stay. It refuses with [ErrInUse] while a program uses the folder.
func Reset(ctx context.Context, dataDir string) error {
	if err := reset(ctx, dataDir); err != nil {
		return fmt.Errorf("devstack: reset %s: %w", dataDir, err)
	}
	return nil
}

func reset(ctx context.Context, dataDir string) error {
	dir, err := resolve(dataDir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return removeElsewhere(dir, "")
	}
	return resetFolder(ctx, dir)
}

func resetFolder(ctx context.Context, dir string) error {
	steps := map[string][]stopStep{postgresName: postgresStop, temporalName: temporalStop}
	var held []*server
	for name, stop := range steps {
		s, err := hold(dir, name, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer s.lock.release()
		s.stop = stop
		held = append(held, s)
	}
	// Nothing is removed before both are known to be ours.
	for _, s := range held {
		if alive(s.rec.PID, s.rec.Born) {
			s.proc = adopt(s.rec.PID, s.rec.Born)
			if err := s.end(ctx); err != nil {
				return err
			}
		}
	}
	for _, s := range held {
		if s.name == postgresName {
			if err := removeElsewhere(dir, s.rec.Home); err != nil {
				return err
			}
		}
		// The lock goes last: until then nobody else can start here.
		for _, path := range []string{filepath.Join(dir, s.name), s.file("log"), s.file("log.old"), s.file("json"), s.file("lock")} {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	if isEmpty(dir) {
		return os.Remove(dir)
	}
	return nil
}

// prepareFolder makes the data folder and returns its true path.
func prepareFolder(dir string) (string, error) {
	dir, err := resolve(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return "", err
		}
		// As root, another user has to pass through to the database, whatever the umask; what stands in the folder
		// is closed by itself.
		mode := os.FileMode(0o700)
		if os.Geteuid() == 0 {
			mode = 0o711
		}
		if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
		if err := os.Chmod(dir, mode); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// resolve gives the one true path of a data folder, which need not exist: names that follow from it must not depend on
// the way it was spelled.
func resolve(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("no data folder given")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(parent, filepath.Base(abs)), nil
	}
	return abs, nil
}

func loggerOr(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

func writerOr(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

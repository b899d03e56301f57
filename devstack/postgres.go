package devstack

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	postgresName = "postgres"
	// databaseName is the database made for Runledger and the superuser that owns it.
	databaseName = "runledger"
	// probeTimeout bounds one question whether a server answers.
	probeTimeout = 5 * time.Second
)

// postgresStop asks for a fast shutdown, which ends sessions and writes a checkpoint, then for an immediate one, after
// which the next start recovers.
var postgresStop = []stopStep{{syscall.SIGINT, 6 * time.Second}, {syscall.SIGQUIT, 2 * time.Second}}

// PostgresConfig says where and how a Postgres server runs.
type PostgresConfig struct {
	// DataDir is the data folder, made if missing.
	DataDir string
	// Port on 127.0.0.1. 0: the one it had before if that is free, else any.
	Port int
	// Settings of the server, beyond and before our own. Tests pass fsync=off.
	Settings map[string]string
	// DownloadURL is the repository that server binaries are fetched from where none are installed. Empty: the
	// environment's RUNLEDGER_POSTGRES_DOWNLOAD_URL, else the one of embedded-postgres.
	DownloadURL string
	Log         *slog.Logger
	Progress    io.Writer
}

// Postgres is a running Postgres server.
type Postgres struct {
	*server
}

// StartPostgres starts a server, or takes over the one that a killed program left behind in the data folder. It
// returns when the server accepts connections; ctx bounds the start, not the server's life.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	p, err := startPostgres(ctx, cfg, installedPostgres())
	if err != nil {
		return nil, fmt.Errorf("devstack: start Postgres in %s: %w", cfg.DataDir, err)
	}
	return p, nil
}

func startPostgres(ctx context.Context, cfg PostgresConfig, binaries postgresFinder) (_ *Postgres, err error) {
	cfg.Log, cfg.Progress = loggerOr(cfg.Log), writerOr(cfg.Progress)
	dir, err := prepareFolder(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	s, err := hold(dir, postgresName, cfg.Log)
	if err != nil {
		return nil, err
	}
	s.stop = postgresStop
	defer func() {
		if err != nil {
			s.lock.release()
		}
	}()

	settings := postgresSettings(cfg.Settings)
	shape, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	want := plan{shape: string(shape), ports: []int{cfg.Port}}
	want.ready = func(ctx context.Context, pid int, ports []int) error {
		return postgresAnswers(ctx, s.rec.Home, pid, ports[0])
	}
	if adopted, err := s.adoptOrEnd(ctx, want); adopted || err != nil {
		return &Postgres{s}, err
	}

	c, err := newCluster(ctx, s, settings, cfg, binaries)
	if err != nil {
		return nil, err
	}
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	// What a killed server left there must not be taken for the new one's word: in containers process ids repeat.
	stale, _ := os.ReadFile(postmasterFile(c.home))
	want.ready = func(ctx context.Context, pid int, ports []int) error {
		if now, _ := os.ReadFile(postmasterFile(c.home)); len(stale) > 0 && bytes.Equal(now, stale) {
			return errors.New("has not begun")
		}
		return postgresAnswers(ctx, c.home, pid, ports[0])
	}
	want.command = c.serve
	if err := s.launch(ctx, want); err != nil {
		return nil, err
	}
	cfg.Log.Info("Postgres started", "data", c.data(), "port", s.rec.Ports[0], "binaries", c.bin, "user", c.account.String())
	return &Postgres{s}, nil
}

// URL is the connection string of the database "runledger", with its password.
func (p *Postgres) URL() string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(databaseName, p.rec.Password),
		Host:     address(p.rec.Ports[0]),
		Path:     "/" + databaseName,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// DataDir is where the database really stands.
func (p *Postgres) DataDir() string { return filepath.Join(p.rec.Home, "data") }

// PID is the process id of the server, for tests that kill it.
func (p *Postgres) PID() int { return p.proc.pid }

// Done is closed when the server has ended, asked or not.
func (p *Postgres) Done() <-chan struct{} { return p.proc.ended }

// postgresSettings is what the server is started with, as -c arguments in a fixed order.
func postgresSettings(extra map[string]string) []string {
	settings := map[string]string{
		"max_connections": "200",
		"cluster_name":    databaseName,
	}
	maps.Copy(settings, extra)
	// Not for the caller to change: nobody else is let in, and the log goes where a failed start is explained from.
	maps.Copy(settings, map[string]string{
		"listen_addresses":        loopback,
		"unix_socket_directories": "",
		"logging_collector":       "off",
		"log_destination":         "stderr",
		"password_encryption":     "scram-sha-256",
	})
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// postmasterFile is where a server writes its process id and, once it accepts connections, the word "ready".
func postmasterFile(home string) string { return filepath.Join(home, "data", "postmaster.pid") }

// postgresAnswers asks whether the process pid serves home on port: by its own word, which tells it from a stranger
// who got the port, and by one exchange of bytes, which tells it from one that hangs.
func postgresAnswers(ctx context.Context, home string, pid, port int) error {
	said, err := os.ReadFile(postmasterFile(home))
	if err != nil {
		return errors.New("has not begun")
	}
	lines := strings.Split(string(said), "\n")
	if len(lines) < 8 || lines[0] != strconv.Itoa(pid) || strings.TrimSpace(lines[7]) != "ready" {
		return errors.New("does not accept connections yet")
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	// SSLRequest: the one question of the protocol that needs no user. Any answer is one byte.
	if _, err := conn.Write([]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// newPassword is for the superuser; letters and digits only, since it is written into SQL.
func newPassword() string { return rand.Text() }

package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/devstack"
)

const (
	// urlEnv names a server to use instead of starting one.
	urlEnv = "TEST_DATABASE_URL"
	// namePrefix begins the name of every database made here, so that leftovers on a shared server can be told.
	namePrefix = "runledger_test_"
	// patience bounds what happens outside of a test's own time: start, stop and removal.
	patience = 2 * time.Minute
)

// quick is for data that nobody will miss.
func quick() map[string]string {
	return map[string]string{
		"fsync":              "off",
		"synchronous_commit": "off",
		"full_page_writes":   "off",
		// Many tests at a time, each with its pools.
		"max_connections": "400",
	}
}

// binary is what the tests of one test binary share.
type binary struct {
	ready   bool // Main was called
	prepare func(ctx context.Context, url string) error

	mu    sync.Mutex
	root  *root // nil until a server is started
	stops []func(ctx context.Context) error

	shared sharedServer
}

// shared is the state of this process; testing gives a TestMain no other place to keep it.
var shared binary

// sharedServer is the one that Database makes databases on.
type sharedServer struct {
	once     sync.Once
	err      error
	admin    string // the server, by a database that is always there
	template string // the prepared database that the others are copied from
	server   *devstack.Postgres
}

// Main runs the tests of a binary and then ends what they started. It returns the code to exit with. The prepare
// function, which may be nil, makes an empty database what every test wants to begin with; it closes what it opens.
func Main(m *testing.M, prepare func(ctx context.Context, url string) error) int {
	shared.ready, shared.prepare = true, prepare
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest: end the test binary's servers:", err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

// Database makes a prepared database for this test alone and returns its URL. It is dropped when the test has ended,
// with the connections that are still open.
func Database(t testing.TB) string {
	t.Helper()
	if !shared.ready {
		t.Fatal("pgtest: call pgtest.Main from TestMain")
	}
	s := &shared.shared
	s.once.Do(func() { s.err = shared.start() })
	if s.err != nil {
		t.Fatalf("pgtest: start the shared server: %v", s.err)
	}
	name := namePrefix + strings.ToLower(rand.Text())
	if err := execute(s.admin, "CREATE DATABASE "+name+" TEMPLATE "+s.template); err != nil {
		t.Fatalf("pgtest: make database %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := execute(s.admin, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("pgtest: drop database %s: %v", name, err)
		}
	})
	return withDatabase(s.admin, name)
}

// start makes the shared server and the template ready.
func (b *binary) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := &b.shared
	s.admin = os.Getenv(urlEnv)
	if s.admin == "" {
		dir, err := b.folder()
		if err != nil {
			return err
		}
		if s.server, err = devstack.StartPostgres(ctx, devstack.PostgresConfig{DataDir: dir, Settings: quick()}); err != nil {
			return err
		}
		s.admin = s.server.URL()
	}
	template := namePrefix + "template_" + strings.ToLower(rand.Text())
	if err := execute(s.admin, "CREATE DATABASE "+template); err != nil {
		return err
	}
	s.template = template
	if b.prepare == nil {
		return nil
	}
	if err := b.prepare(ctx, withDatabase(s.admin, template)); err != nil {
		return fmt.Errorf("prepare the template: %w", err)
	}
	return nil
}

func (b *binary) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := &b.shared
	for _, stop := range b.stops {
		if err := stop(ctx); err != nil {
			return err
		}
	}
	switch {
	case s.server != nil:
		if err := s.server.Stop(ctx); err != nil {
			return err
		}
	case s.template != "":
		if err := execute(s.admin, "DROP DATABASE "+s.template+" WITH (FORCE)"); err != nil {
			return err
		}
	}
	if b.root == nil {
		return nil
	}
	return b.root.close(ctx)
}

// Folder makes a data folder for a server that the test binary starts with package devstack beside those of this package.
// stop, which ends it, is called after the tests, and is content when it was never started. The watcher knows the folder:
// what a killed binary left running there is ended too.
func Folder(stop func(ctx context.Context) error) (string, error) {
	dir, err := shared.folder()
	if err != nil {
		return "", fmt.Errorf("pgtest: make a data folder: %w", err)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.stops = append(shared.stops, stop)
	return dir, nil
}

// folder makes a data folder for one more server of this binary.
func (b *binary) folder() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.root == nil {
		r, err := newRoot()
		if err != nil {
			return "", err
		}
		b.root = r
	}
	return filepath.Join(b.root.dir, strings.ToLower(rand.Text())), nil
}

// execute runs one statement on a connection of its own, with its own patience: it is called from cleanups, where a
// test's context has ended.
func execute(url, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// withDatabase is server's URL for another database.
func withDatabase(server, name string) string {
	u, err := url.Parse(server)
	if err != nil {
		// pgx has connected by this URL before.
		panic(fmt.Sprintf("pgtest: %s is not a URL: %v", urlEnv, err))
	}
	u.Path = "/" + name
	return u.String()
}

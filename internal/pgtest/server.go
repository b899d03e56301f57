package pgtest

import (
	"context"
	"maps"
	"syscall"
	"testing"

	"runledger/devstack"
)

// Instance is a Postgres server of one test. It is for one goroutine.
type Instance struct {
	cfg     devstack.PostgresConfig
	current *devstack.Postgres
	url     string
}

// Server starts a server for this test alone, with settings on top of the quick ones, and prepares its database. It
// ends with the test.
func Server(t testing.TB, settings map[string]string) *Instance {
	t.Helper()
	if !shared.ready {
		t.Fatal("pgtest: call pgtest.Main from TestMain")
	}
	dir, err := shared.folder()
	if err != nil {
		t.Fatalf("pgtest: make a data folder: %v", err)
	}
	i := &Instance{cfg: devstack.PostgresConfig{DataDir: dir, Settings: quick()}}
	maps.Copy(i.cfg.Settings, settings)
	t.Cleanup(func() {
		i.Stop(t)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := devstack.Reset(ctx, dir); err != nil {
			t.Errorf("pgtest: remove the server: %v", err)
		}
	})
	i.Start(t)
	// The URL lasts: from here on the port is ours to insist on.
	i.url = i.current.URL()
	if shared.prepare != nil {
		if err := shared.prepare(context.Background(), i.url); err != nil {
			t.Fatalf("pgtest: prepare the server's database: %v", err)
		}
	}
	return i
}

// URL is the connection string of the server's database, the same over all its restarts.
func (i *Instance) URL() string { return i.url }

// Start starts the server again after Stop or Kill.
func (i *Instance) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pg, err := devstack.StartPostgres(ctx, i.cfg)
	if err != nil {
		t.Fatalf("pgtest: start the server: %v", err)
	}
	i.current = pg
	if i.url != "" && pg.URL() != i.url {
		t.Fatalf("pgtest: the server came back at another port: somebody took its own")
	}
}

// Stop ends the server in order: sessions are ended, data is written. Stopping a stopped one is fine.
func (i *Instance) Stop(t testing.TB) {
	t.Helper()
	if i.current == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := i.current.Stop(ctx); err != nil {
		t.Fatalf("pgtest: stop the server: %v", err)
	}
}

// Kill ends the server by SIGKILL, as a crash would.
func (i *Instance) Kill(t testing.TB) {
	t.Helper()
	if err := syscall.Kill(i.current.PID(), syscall.SIGKILL); err != nil {
		t.Fatalf("pgtest: kill the server: %v", err)
	}
	<-i.current.Done()
	i.Stop(t) // gives its data folder free
}

package bench

import (
	"context"
	"errors"
	"io"
	"os"

	"runledger/devstack"
	"runledger/ledger"
)

// Database is a migrated Postgres, with durable writes, for a benchmark alone.
type Database struct {
	URL string

	postgres *devstack.Postgres
	dir      string
}

// StartDatabase starts it. Progress hears what takes longer than a moment.
func StartDatabase(ctx context.Context, progress io.Writer) (_ *Database, err error) {
	d := &Database{}
	if d.dir, err = TempDir(); err != nil {
		return nil, err
	}
	d.postgres, err = devstack.StartPostgres(ctx, devstack.PostgresConfig{DataDir: d.dir, Progress: progress,
		Settings: map[string]string{"max_connections": "400"}})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(d.dir))
	}
	d.URL = d.postgres.URL()
	if _, err = ledger.Migrate(ctx, d.URL); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

// Stop ends it and removes its data.
func (d *Database) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return errors.Join(d.postgres.Stop(ctx), os.RemoveAll(d.dir))
}

// TempDir makes a folder that Postgres can reach, which runs under another user where we are root.
func TempDir() (string, error) {
	dir, err := os.MkdirTemp("", "runledger-bench-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // Postgres runs under another user where we are root
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

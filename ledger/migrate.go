package ledger

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate brings a database to the newest schema and tells how many migrations it applied. Processes that start at once
// wait for one another.
func Migrate(ctx context.Context, url string) (applied int, err error) {
	provider, closeDB, err := migrationProvider(url)
	if err != nil {
		return 0, fmt.Errorf("migrate ledger: %w", err)
	}
	defer closeDB()
	results, err := provider.Up(ctx)
	if err != nil {
		return len(results), fmt.Errorf("migrate ledger: %w", err)
	}
	return len(results), nil
}

func migrationProvider(url string) (*goose.Provider, func(), error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	db := stdlib.OpenDB(*cfg)
	closeDB := func() { _ = db.Close() }
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		closeDB()
		return nil, nil, err
	}
	// Asked every second for five minutes; by default it is every five seconds, which a second process would wait for nothing.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		closeDB()
		return nil, nil, err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		closeDB()
		return nil, nil, err
	}
	return provider, closeDB, nil
}

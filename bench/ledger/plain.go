package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// plain inserts what a command writes, with nothing read, nothing decided and nothing locked.
type plain struct {
	pool   *pgxpool.Pool
	halves [2][][]byte // the rows of both transactions
}

func openPlain(ctx context.Context, url string, writers int, size written) (*plain, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(writers) //nolint:gosec // small
	p := &plain{}
	for i := range size.rows {
		row := make([]byte, size.bytes/size.rows)
		_, _ = rand.Read(row)
		half := i * 2 / size.rows
		p.halves[half] = append(p.halves[half], row)
	}
	p.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	return p, err
}

const insert = `INSERT INTO plain (body) SELECT unnest($1::bytea[])`

func (p *plain) command(ctx context.Context, _ int) error {
	for _, rows := range p.halves {
		if _, err := p.pool.Exec(ctx, insert, rows); err != nil {
			return err
		}
	}
	return nil
}

// pgbench does the same. It reports false where there is none.
func pgbench(ctx context.Context, url string, writers int, during time.Duration, size written) (commands float64, ok bool, err error) {
	path, err := exec.LookPath("pgbench")
	if err != nil {
		return 0, false, nil //nolint:nilerr // it need not be there
	}
	dir, err := os.MkdirTemp("", "runledger-pgbench-")
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var script strings.Builder
	for half := range 2 {
		rows := (size.rows + 1 - half) / 2
		fmt.Fprintf(&script, "INSERT INTO plain (body) SELECT decode(repeat('a7', %d), 'hex') FROM generate_series(1, %d);\n", size.bytes/size.rows, rows)
	}
	file := filepath.Join(dir, "command.sql")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		return 0, false, err
	}
	seconds := strconv.Itoa(max(3, int(during.Seconds())))                                                                                                       // it counts the time in which its clients connect
	said, err := exec.CommandContext(ctx, path, "-n", "-M", "prepared", "-f", file, "-c", strconv.Itoa(writers), "-j", "2", "-T", seconds, url).CombinedOutput() //nolint:gosec // our own words
	if err != nil {
		return 0, false, fmt.Errorf("pgbench: %w: %s", err, said)
	}
	_, rest, found := strings.Cut(string(said), "tps = ")
	number, _, _ := strings.Cut(rest, " ")
	if commands, err = strconv.ParseFloat(number, 64); err != nil || !found {
		return 0, false, fmt.Errorf("pgbench said no rate: %s", said)
	}
	return commands, true, nil
}

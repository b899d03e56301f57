package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Ledger reads and writes the record. It is safe for concurrent use.
type Ledger struct {
	pool     *pgxpool.Pool
	log      *slog.Logger
	notifier *notifier
	listener *listener
	meter    Meter
	tally    *tally
	memory   *memory
	group    *group
}

// Options of a Ledger. The zero value is fine.
type Options struct {
	// MaxConns bounds the connections of the pool; 0 means 16. Every stream and every activity borrows one for the length of
	// one transaction only; the listener has its own.
	MaxConns int32
	Log      *slog.Logger
	// Meter, if set, is told what the ledger does.
	Meter Meter
}

// Open connects to a migrated database. Close it when done.
func Open(ctx context.Context, url string, opts Options) (*Ledger, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	cfg.MaxConns = opts.MaxConns
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 16
	}
	// A statement or a lock that takes this long is a fault; failing it is better than a gate that hangs.
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "30s"
	// So is a process that stops between the two halves of a transaction: it would hold up its conversation.
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "15s"
	// Every statement here finds its rows by an index. Where a table is young, a plan that reads all of it looks cheaper, and a
	// connection that has made it goes on with it while the table grows. No statement is long enough to be worth compiling.
	cfg.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
	cfg.ConnConfig.RuntimeParams["jit"] = "off"
	cfg.ConnConfig.RuntimeParams["application_name"] = "runledger"
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
		return nil
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if opts.Meter == nil {
		opts.Meter = noMeter{}
	}
	l := &Ledger{pool: pool, log: opts.Log, meter: opts.Meter, tally: &tally{}, memory: newMemory()}
	l.group = &group{pool: pool, tally: l.tally}
	l.notifier = startNotifier(pool, l.tally, opts.Log)
	l.listener = startListener(cfg.ConnConfig.Copy(), l.tally, opts.Log)
	return l, nil
}

// Close sends the notifications that wait, stops listening and closes the pool. Closing twice is fine.
func (l *Ledger) Close() {
	l.notifier.stop()
	l.listener.stop()
	l.pool.Close()
}

// Ping reports whether the database answers.
func (l *Ledger) Ping(ctx context.Context) error {
	if err := l.pool.Ping(ctx); err != nil {
		return fmt.Errorf("ping ledger: %w", err)
	}
	return nil
}

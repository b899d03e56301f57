package ledger_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// locks are the rows that a transaction on a command locks, in the order in which it has to.
var locks = []struct{ name, row string }{
	{"run", `SELECT FROM agent_executions WHERE run_id = $1 `},
	{"counter", `SELECT FROM conversations WHERE id = (SELECT conversation_id FROM agent_executions WHERE run_id = $1) `},
	{"command", `SELECT FROM commands WHERE run_id = $1 AND command_id = 'a' `},
}

// held tells which of the locks somebody has on a run.
func (b *bench) held(t testing.TB, runID string) (names []string) {
	t.Helper()
	for _, l := range locks {
		_, err := b.db.Exec(t.Context(), l.row+"FOR UPDATE NOWAIT", runID)
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "55P03" { // lock_not_available
			names = append(names, l.name)
			continue
		}
		require.NoError(t, err)
	}
	return names
}

// blocked runs do while a row is locked as how says, and returns which locks are held while it waits.
func (b *bench) blocked(t testing.TB, runID, row, how string, do func(context.Context) error) (names []string) {
	t.Helper()
	tx, err := b.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), row+how, runID)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- do(context.WithoutCancel(t.Context())) }()
	b.awaitBlocked(t, 1)
	names = b.held(t, runID)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-done)
	return names
}

// Transactions that lock the same rows in another order wait for each other for ever.
func TestLockOrder(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ctx context.Context, b *bench, c command, no int) error{
		"begin": func(ctx context.Context, b *bench, c command, _ int) error {
			_, err := b.Begin(ctx, c.begin())
			return err
		},
		"commit": func(ctx context.Context, b *bench, c command, no int) error {
			_, err := b.Commit(ctx, c.commit(no, `1`))
			return err
		},
		"conclude": func(ctx context.Context, b *bench, c command, no int) error {
			_, err := b.Conclude(ctx, c.conclude(no, agent.Released, agent.Transient(agent.CodeToolFailed, "x")))
			return err
		},
		"settle": func(ctx context.Context, b *bench, c command, _ int) error {
			_, err := b.Settle(ctx, agent.SettleCall{Call: c.call()})
			return err
		},
	} {
		for i, lock := range locks {
			t.Run(name+" waits for the "+lock.name, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				c := command{run: b.accepted(t, twoStep(t)), id: "a"}
				no := b.begins(t, c)
				var want []string // those before it, and the one it waits for
				for _, l := range locks[:i+1] {
					want = append(want, l.name)
				}
				got := b.blocked(t, c.run.RunID, lock.row, "FOR UPDATE", func(ctx context.Context) error { return do(ctx, b, c, no) })
				require.Equal(t, want, got)
			})
		}
	}
}

// A transaction that will change the run's row does not begin by sharing it: two that do wait for each other for ever.
func TestLockOfARunIsNotUpgraded(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ctx context.Context, b *bench, scope agent.Scope) error{
		"finish": func(ctx context.Context, b *bench, scope agent.Scope) error {
			_, err := b.Finish(ctx, agent.FinishCall{Scope: scope, Status: agent.FailedStatus})
			return err
		},
		"record": func(ctx context.Context, b *bench, scope agent.Scope) error {
			_, err := b.Record(ctx, agent.RecordCall{Scope: scope, Status: agent.Waiting})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			scope := agent.Scope{RunID: b.accepted(t, twoStep(t)).RunID, Epoch: 1}
			got := b.blocked(t, scope.RunID, locks[0].row, "FOR SHARE", func(ctx context.Context) error { return do(ctx, b, scope) })
			require.Equal(t, []string{"run"}, got)
		})
	}
}

package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// account is a table of a user's own, next to the ledger's.
func (b *bench) account(t testing.TB) {
	t.Helper()
	b.exec(t, `CREATE TABLE account (balance int NOT NULL)`)
	b.exec(t, `INSERT INTO account VALUES (100)`)
}

func (b *bench) balance(t testing.TB) int {
	t.Helper()
	return value[int](t, b, `SELECT balance FROM account`)
}

// withdraw is what a same-transaction tool does. It tells the balance that is left.
func (c command) withdraw(dispatchNo int, during func()) func(context.Context, agent.Tx) (agent.Commit, error) {
	return func(ctx context.Context, tx agent.Tx) (agent.Commit, error) {
		n, err := tx.Exec(ctx, `UPDATE account SET balance = balance - $1`, 30)
		if err != nil || n != 1 {
			return agent.Commit{}, errors.Join(err, errors.New("no account"))
		}
		left := 0
		err = tx.Query(ctx, func(columns func(...any) error) error { return columns(&left) }, `SELECT balance FROM account`)
		if during != nil {
			during()
		}
		result, _ := json.Marshal(left)
		return c.commit(dispatchNo, string(result)), err
	}
}

func TestCommitTx(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.account(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	no := b.begins(t, a)
	decided, err := b.CommitTx(t.Context(), a.commit(no, ""), a.withdraw(no, nil))
	require.NoError(t, err)
	require.True(t, decided.Mine)
	require.Equal(t, "70", string(b.row(t, a).Result))
	require.Equal(t, 70, b.balance(t))
	require.Equal(t, agent.CheckpointSaved, b.events(t, run)[len(b.events(t, run))-1].Type)
	// The reply was lost: the record tells, and nothing is done twice.
	decided, err = b.CommitTx(t.Context(), a.commit(no, ""), a.withdraw(no, nil))
	require.NoError(t, err)
	require.True(t, decided.Mine)
	require.Equal(t, agent.Committed, decided.Row.State)
	require.Equal(t, 70, b.balance(t))
}

// A dispatch that has lost its command while its tool was at work has done nothing.
func TestCommitTxOvertaken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.account(t)
	run := b.accepted(t, twoStep(t))
	zombie, next := command{run: run, id: "a"}, command{run: run, id: "a", attempt: 2}
	first := b.begins(t, zombie)
	decided, err := b.CommitTx(t.Context(), zombie.commit(first, ""), zombie.withdraw(first, func() {
		b.expire(t, zombie)
		require.Equal(t, 2, b.begins(t, next))
	}))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	require.Equal(t, agent.Dispatched, decided.Row.State)
	require.Equal(t, 100, b.balance(t))
	_, err = b.CommitTx(t.Context(), next.commit(2, ""), next.withdraw(2, nil))
	require.NoError(t, err)
	require.Equal(t, 70, b.balance(t))
	decided, err = b.CommitTx(t.Context(), zombie.commit(first, ""), zombie.withdraw(first, nil))
	require.NoError(t, err)
	require.False(t, decided.Mine)
	require.Equal(t, 70, b.balance(t), "too late, and not even tried")
}

func TestCommitTxUndoes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.account(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	no := b.begins(t, a)
	last := b.last(t, run)
	broke := errors.New("not today")
	_, err := b.CommitTx(t.Context(), a.commit(no, ""), func(ctx context.Context, tx agent.Tx) (agent.Commit, error) {
		_, err := tx.Exec(ctx, `UPDATE account SET balance = 0`)
		require.NoError(t, err)
		return agent.Commit{}, broke
	})
	require.ErrorIs(t, err, broke)
	_, err = b.CommitTx(t.Context(), a.commit(no, ""), func(ctx context.Context, tx agent.Tx) (agent.Commit, error) {
		_, err := tx.Exec(ctx, `UPDATE no_such_table SET x = 0`)
		return agent.Commit{}, err
	})
	require.ErrorContains(t, err, "no_such_table")
	require.Equal(t, 100, b.balance(t))
	require.Equal(t, last, b.last(t, run))
	require.Equal(t, agent.Dispatched, b.row(t, a).State)

	b.finish(t, run, agent.Cancelled)
	_, err = b.CommitTx(t.Context(), a.commit(no, ""), a.withdraw(no, nil))
	requireCode(t, err, agent.CodeStaleEpoch)
	require.Equal(t, 100, b.balance(t))
}

package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// errOvertaken undoes what a tool has done in a transaction whose dispatch no longer owns the command.
var errOvertaken = errors.New("the command belongs to another dispatch")

// CommitTx lets a tool work in the transaction that puts its result on record, so that both happen or neither. work gives
// the commit with its result; it is not called when the dispatch does not own the command, and its error undoes everything
// and comes back as it is, wrapped. work may be called again by another CommitTx whose transaction was undone.
//
// The run's row is locked while work is at it, the conversation's counter is not: other commands of the run go on.
func (l *Ledger) CommitTx(ctx context.Context, c agent.Commit, work func(context.Context, agent.Tx) (agent.Commit, error)) (_ agent.Decided, err error) {
	defer l.measured(GateCommit, time.Now(), &err)
	var decided agent.Decided
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return decided, fmt.Errorf("commit command %s of run %s: %w", c.CommandID, c.RunID, err)
	}
	defer conn.Release()
	t := &txn{tx: conn}
	err = t.commitTx(ctx, c, work, &decided)
	if err != nil && conn.Conn().PgConn().TxStatus() != 'I' {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		_, _ = conn.Exec(undo, "ROLLBACK")
	}
	switch {
	case errors.Is(err, errOvertaken):
		return decided, nil
	case err != nil:
		return agent.Decided{}, fmt.Errorf("commit command %s of run %s: %w", c.CommandID, c.RunID, err)
	}
	l.goesOn(ctx, t, c.Epoch)
	t.tell(l.notifier)
	t.count(l.meter)
	return decided, nil
}

func (t *txn) commitTx(ctx context.Context, c agent.Commit, work func(context.Context, agent.Tx) (agent.Commit, error), decided *agent.Decided) error {
	var batch pgx.Batch
	batch.Queue("BEGIN")
	batch.Queue(runHeadColumns+"FOR SHARE", c.RunID).QueryRow(t.scanHead(c.RunID))
	batch.Queue(commandRowColumns, c.RunID, c.CommandID).Query(func(rows pgx.Rows) (err error) {
		t.command, err = collectCommandRow(rows)
		return err
	})
	if err := t.tx.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	owned := func() error {
		may, _, err := t.speaks(c.Call, c.Dispatch, c.DispatchNo, false, true)
		if err != nil {
			return err
		}
		if !may || t.command.State != agent.Dispatched {
			*decided = agent.Decided{Row: t.command, Mine: t.command.State == agent.Committed && t.command.Owner == c.Dispatch}
			return errOvertaken
		}
		return nil
	}
	if err := owned(); err != nil {
		return err
	}
	result, err := work(ctx, toolTx{t.tx})
	if err != nil {
		return err
	}
	// The command's row was only looked at before. Who owns it now decides.
	scope := txnScope{runID: c.RunID, epoch: c.Epoch, commandID: c.CommandID, withState: true, begun: true}
	return t.transact(ctx, scope, func(t *txn) error {
		if err := owned(); err != nil {
			return err
		}
		*decided = agent.Decided{Row: t.command, Mine: true}
		return t.commit(result, nil)
	})
}

// toolTx is a transaction as a tool sees it.
type toolTx struct{ tx session }

func (t toolTx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (t toolTx) Query(ctx context.Context, scan func(columns func(dest ...any) error) error, sql string, args ...any) error {
	rows, err := t.tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

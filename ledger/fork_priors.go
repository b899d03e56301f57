package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// askPriors keeps a fork from making a call that the run it was forked from has made: the same command with the same arguments.
// Its result goes on record as this run's; of a call in doubt, the doubt. Known is false when the call may be made. What the
// policy forbids it forbids all the same.
func (t *txn) askPriors(ctx context.Context, b agent.Begin, begun *agent.Begun) (known bool, err error) {
	if !t.run.forked || t.command != nil && t.command.DispatchNo > 0 || b.Refusal != nil && b.Refusal.Decision != policyAsk {
		return false, nil
	}
	p, err := t.findPrior(ctx, b)
	if err != nil || p == nil {
		return false, err
	}
	if b.Checkpoint != "" || p.row.State == agent.Committed { // there are checkpoints to write
		var batch pgx.Batch
		t.queueState(&batch, t.run.runID)
		if err := t.tx.SendBatch(ctx, &batch).Close(); err != nil {
			return false, err
		}
	}
	if t.command == nil {
		t.command = &agent.CommandRow{RunID: b.RunID, CommandID: b.CommandID}
	}
	t.takeRow(b)
	if err := t.emit(b, t.now); err != nil {
		return false, err
	}
	t.command.DispatchNo, t.command.InputHash = p.row.DispatchNo, b.InputHash // emit goes by what this run has done so far
	t.writeRow(b, p.row.DispatchNo, t.now)
	begun.DispatchNo, begun.Row = p.row.DispatchNo, t.command
	if p.row.State != agent.Committed {
		begun.Verdict = agent.MustDoubt
		return true, t.doubtPrior(b, p)
	}
	begun.Verdict = agent.Inject
	return true, t.reusePrior(b, p)
}

// prior is a call that another run has made.
type prior struct {
	row       agent.CommandRow
	input     []byte
	latencyMS int64
	from      agent.ForkedFrom
	key       string
	http      *agent.HTTPRecordedData
}

// findPrior finds the call that is about to be made among those on record, nil when it is not there. One with a result comes
// before one in doubt.
func (t *txn) findPrior(ctx context.Context, b agent.Begin) (*prior, error) {
	rows, err := t.tx.Query(ctx, `SELECT c.run_id, c.kind, c.tool, c.state, c.input_hash, c.input, c.dispatch_no, c.sequence_number, c.latency_ms,
			coalesce(c.result, (SELECT p.bytes FROM payloads p WHERE p.hash = c.result_hash)), c.reused_from,
			(SELECT e.event_data FROM agent_execution_events e WHERE e.run_id = c.run_id AND e.command_id = c.command_id
				AND e.event_type = 'http_recorded' ORDER BY e.sequence_number DESC LIMIT 1),
			coalesce((SELECT e.event_data ->> 'idempotency_key' FROM agent_execution_events e WHERE e.run_id = c.run_id AND e.command_id = c.command_id
				AND e.event_type = 'command_in_doubt' ORDER BY e.sequence_number DESC LIMIT 1), '')
		FROM fork_priors f JOIN commands c ON c.run_id = f.source_run_id AND c.command_id = f.command_id
		WHERE f.run_id = $1 AND f.command_id = $2 AND c.state IN ('committed', 'dispatched', 'in_doubt')
		ORDER BY c.state, c.emitted_at`, b.RunID, b.CommandID)
	if err != nil {
		return nil, err
	}
	priors, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*prior, error) {
		var p prior
		var result []byte
		var from *agent.ForkedFrom
		c := &p.row
		err := row.Scan(&c.RunID, &c.Kind, &c.Tool, &c.State, &c.InputHash, &p.input, &c.DispatchNo, &c.Sequence, &p.latencyMS, &result, &from, &p.http, &p.key)
		c.Result, p.from = result, agent.ForkedFrom{RunID: c.RunID, Sequence: c.Sequence}
		if from != nil {
			p.from = *from
		}
		if p.key == "" {
			p.key = agent.IdempotencyKey(c.RunID, b.CommandID)
		}
		return &p, err
	})
	if err != nil {
		return nil, err
	}
	for _, p := range priors {
		if p.of(b) {
			return p, nil
		}
	}
	return nil, nil
}

// of reports whether it is the same call: to the same tool, with the same arguments however they were written.
func (p *prior) of(b agent.Begin) bool {
	if p.row.Kind != b.Kind || p.row.Tool != textSafe(b.Tool) {
		return false
	}
	return p.row.InputHash == b.InputHash || b.Kind == agent.ToolCommand && agent.ArgumentsHash(p.input) == b.ArgumentsHash
}

// reusePrior puts the result of another run's call on record as that of the command at hand.
func (t *txn) reusePrior(b agent.Begin, p *prior) error {
	c := agent.Commit{Call: b.Call, Dispatch: b.Dispatch, DispatchNo: p.row.DispatchNo, Result: p.row.Result, HTTP: p.http,
		Event: agent.CommandCommittedData{Kind: b.Kind, Tool: b.Tool, Output: agent.ShowValue(p.row.Result), LatencyMS: p.latencyMS, ReusedFrom: &p.from}}
	if b.FailureMessage != nil { // the answer to a model's turn
		m := *b.FailureMessage
		m.Content = string(p.row.Result)
		c.Message, c.Checkpoint = &m, agent.ToolComplete
	}
	if err := t.commit(c, nil); err != nil {
		return err
	}
	return t.markReused(b.CommandID, p.from)
}

// doubtPrior puts on record that nobody knows how another run's call ended, with the key under which that run made it.
func (t *txn) doubtPrior(b agent.Begin, p *prior) error {
	reason := &agent.Error{Code: agent.CodeInDoubt, NodeID: b.NodeID, CommandID: b.CommandID,
		Message: fmt.Sprintf("run %s, from which this one was forked, has made this call, and how it ended is not known", p.row.RunID)}
	if err := t.decide(b.Dispatch, agent.CommandInDoubt, reason, 0); err != nil {
		return err
	}
	data, err := json.Marshal(agent.CommandInDoubtData{Kind: b.Kind, Tool: b.Tool, Reason: reason.Message, IdempotencyKey: p.key})
	if err != nil {
		return err
	}
	t.newEvents[len(t.newEvents)-1].Data, err = jsonbSafe(data)
	return err
}

func (t *txn) markReused(commandID string, from agent.ForkedFrom) error {
	doc, err := json.Marshal(from)
	if err != nil {
		return errors.Join(fmt.Errorf("mark command %s", commandID), err)
	}
	t.writes.Queue(`UPDATE commands SET reused_from = $3 WHERE run_id = $1 AND command_id = $2`, t.run.runID, commandID, string(doc))
	return nil
}

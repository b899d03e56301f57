package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

const commandColumns = `c.command_id, c.node_id, c.kind, c.tool, c.model, c.effect_class, c.state, c.dispatch_no, c.input_hash, c.input,
	c.result_hash, c.result_bytes, c.error, c.usage, c.latency_ms, c.sequence_number, c.emitted_at, c.decided_at, c.resolution, c.reused_from`

func scanCommand(row pgx.CollectableRow) (agent.Command, error) {
	var (
		c              agent.Command
		input, failure []byte
	)
	err := row.Scan(&c.CommandID, &c.NodeID, &c.Kind, &c.Tool, &c.Model, &c.Effect, &c.State, &c.Dispatches, &c.InputHash, &input,
		&c.ResultHash, &c.ResultBytes, &failure, &c.Usage, &c.LatencyMS, &c.Sequence, &c.EmittedAt, &c.DecidedAt, &c.Resolution, &c.ReusedFrom)
	if err != nil {
		return c, err
	}
	c.Input = input
	if failure != nil {
		c.Error = &agent.Error{}
		return c, json.Unmarshal(failure, c.Error)
	}
	return c, nil
}

// Commands lists a run's commands in the order they were emitted, without their results.
func (l *Ledger) Commands(ctx context.Context, runID string) ([]agent.Command, error) {
	rows, err := l.pool.Query(ctx, `SELECT `+commandColumns+` FROM commands c WHERE c.run_id = $1 AND c.state <> 'fenced'
		ORDER BY c.emitted_at, c.command_id`, runID)
	if err != nil {
		return nil, fmt.Errorf("commands of run %s: %w", runID, err)
	}
	commands, err := pgx.CollectRows(rows, scanCommand)
	if err != nil {
		return nil, fmt.Errorf("commands of run %s: %w", runID, err)
	}
	return commands, nil
}

// Fenced lists the commands of a run that were scheduled and given up before they began.
func (l *Ledger) Fenced(ctx context.Context, runID string) ([]string, error) {
	rows, err := l.pool.Query(ctx, `SELECT command_id FROM commands WHERE run_id = $1 AND state = 'fenced' ORDER BY command_id`, runID)
	if err != nil {
		return nil, fmt.Errorf("fenced commands of run %s: %w", runID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("fenced commands of run %s: %w", runID, err)
	}
	return ids, nil
}

// Command reads one command with its whole result. Error: *agent.NotFoundError.
func (l *Ledger) Command(ctx context.Context, runID, commandID string) (agent.Command, error) {
	rows, err := l.pool.Query(ctx, `SELECT `+commandColumns+` FROM commands c WHERE c.run_id = $1 AND c.command_id = $2 AND c.state <> 'fenced'`, runID, commandID)
	if err != nil {
		return agent.Command{}, fmt.Errorf("read command %s: %w", commandID, err)
	}
	c, err := pgx.CollectExactlyOneRow(rows, scanCommand)
	if err != nil {
		return agent.Command{}, notFound(err, "command", commandID)
	}
	results, err := l.Results(ctx, runID, []string{commandID})
	if err != nil {
		return agent.Command{}, err
	}
	if r, ok := results[commandID]; ok {
		c.Result = r.Result
	}
	return c, nil
}

// Results reads how commands of a run were decided, by command id. Commands without an outcome are left out.
func (l *Ledger) Results(ctx context.Context, runID string, commandIDs []string) (map[string]agent.CommandResult, error) {
	rows, err := l.pool.Query(ctx, `SELECT c.command_id, c.kind, c.state, c.error,
			coalesce(c.result, (SELECT p.bytes FROM payloads p WHERE p.hash = c.result_hash))
		FROM commands c WHERE c.run_id = $1 AND c.command_id = ANY ($2) AND c.state IN ('committed', 'failed', 'aborted')`, runID, commandIDs)
	if err != nil {
		return nil, fmt.Errorf("results of run %s: %w", runID, err)
	}
	return collectResults(rows, runID)
}

// ResultHeads is Results of which no more than the first maxBytes bytes of each are read.
func (l *Ledger) ResultHeads(ctx context.Context, runID string, commandIDs []string, maxBytes int) (map[string]agent.CommandResult, error) {
	rows, err := l.pool.Query(ctx, `SELECT c.command_id, c.kind, c.state, c.error, c.result_bytes,
			coalesce(substring(c.result FROM 1 FOR $3), (SELECT substring(p.bytes FROM 1 FOR $3) FROM payloads p WHERE p.hash = c.result_hash)),
			(SELECT a.arguments FROM approvals a WHERE a.approval_id = c.approval_id AND a.edited IS NOT NULL)
		FROM commands c WHERE c.run_id = $1 AND c.command_id = ANY ($2) AND c.state IN ('committed', 'failed', 'aborted')`, runID, commandIDs, maxBytes)
	if err != nil {
		return nil, fmt.Errorf("results of run %s: %w", runID, err)
	}
	results := map[string]agent.CommandResult{}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var (
			id                      string
			r                       agent.CommandResult
			failure, result, edited []byte
		)
		err := row.Scan(&id, &r.Kind, &r.State, &failure, &r.Bytes, &result, &edited)
		r.Result, r.Edited = result, edited
		if err == nil && failure != nil {
			r.Error = &agent.Error{}
			err = json.Unmarshal(failure, r.Error)
		}
		results[id] = r
		return struct{}{}, err
	})
	if err != nil {
		return nil, fmt.Errorf("results of run %s: %w", runID, err)
	}
	return results, nil
}

func collectResults(rows pgx.Rows, runID string) (map[string]agent.CommandResult, error) {
	results := map[string]agent.CommandResult{}
	for rows.Next() {
		var (
			id              string
			r               agent.CommandResult
			failure, result []byte
		)
		if err := rows.Scan(&id, &r.Kind, &r.State, &failure, &result); err != nil {
			rows.Close()
			return nil, fmt.Errorf("results of run %s: %w", runID, err)
		}
		r.Result = result
		if failure != nil {
			r.Error = &agent.Error{}
			if err := json.Unmarshal(failure, r.Error); err != nil {
				rows.Close()
				return nil, fmt.Errorf("results of run %s: %w", runID, err)
			}
		}
		results[id] = r
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("results of run %s: %w", runID, err)
	}
	return results, nil
}

// NodeResults reads how the nodes of a run ended, by node id: the result of the command that ended the node, or the error
// that the plan went on with. Nodes that were skipped, or have not ended, are left out.
func (l *Ledger) NodeResults(ctx context.Context, runID string, nodeIDs []string) (map[string]agent.CommandResult, error) {
	rows, err := l.pool.Query(ctx, `SELECT e.node_id, coalesce(c.kind, ''), coalesce(c.state, 'failed'), e.event_data -> 'error',
			coalesce(c.result, (SELECT p.bytes FROM payloads p WHERE p.hash = c.result_hash))
		FROM agent_execution_events e
		LEFT JOIN commands c ON c.run_id = e.run_id AND c.command_id = e.event_data ->> 'result_command'
		WHERE e.run_id = $1 AND e.node_id = ANY ($2) AND e.event_type IN ('node_finished', 'node_failed')
		ORDER BY e.sequence_number`, runID, nodeIDs)
	if err != nil {
		return nil, fmt.Errorf("node results of run %s: %w", runID, err)
	}
	return collectResults(rows, runID)
}

// Checkpoints lists a run's checkpoints in order.
func (l *Ledger) Checkpoints(ctx context.Context, runID string) ([]agent.Checkpoint, error) {
	rows, err := l.pool.Query(ctx, `SELECT id, run_id, checkpoint_type, step_number, sequence_number, epoch, execution_state, created_at
		FROM execution_checkpoints WHERE run_id = $1 ORDER BY sequence_number`, runID)
	if err != nil {
		return nil, fmt.Errorf("checkpoints of run %s: %w", runID, err)
	}
	checkpoints, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent.Checkpoint, error) {
		var c agent.Checkpoint
		err := row.Scan(&c.CheckpointID, &c.RunID, &c.Type, &c.Step, &c.Sequence, &c.Epoch, &c.State, &c.CreatedAt)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoints of run %s: %w", runID, err)
	}
	return checkpoints, nil
}

// ReplayContext reads a run's events together with the results that stand beside them, and folds them. Error: *agent.GoneError when they
// are no longer kept.
func (l *Ledger) ReplayContext(ctx context.Context, runID string) (*agent.ReplayContext, error) {
	rows, err := l.pool.Query(ctx, `SELECT e.sequence_number, e.event_type, e.conversation_id, e.run_id, e.root_run_id, e.message_id, e.node_id,
			e.command_id, e.attempt, e.created_at, e.event_data, e.epoch,
			CASE WHEN e.event_type IN ('command_committed', 'timer_fired', 'uuid_recorded', 'random_recorded') THEN coalesce(c.result, (SELECT p.bytes FROM payloads p WHERE p.hash = c.result_hash)) END
		FROM agent_execution_events e LEFT JOIN commands c ON c.run_id = e.run_id AND c.command_id = e.command_id
		WHERE e.run_id = $1 ORDER BY e.sequence_number`, runID)
	if err != nil {
		return nil, fmt.Errorf("replay context of run %s: %w", runID, err)
	}
	records, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agent.Recorded, error) {
		var r agent.Recorded
		var result []byte
		err := row.Scan(&r.Sequence, &r.Type, &r.ConversationID, &r.RunID, &r.RootRunID, &r.MessageID, &r.NodeID, &r.CommandID,
			&r.Attempt, &r.CreatedAt, &r.Data, &r.Epoch, &result)
		r.Result = result
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("replay context of run %s: %w", runID, err)
	}
	if err := stillKept(ctx, l.pool, runID); err != nil { // asked after what was read
		return nil, err
	}
	rc, err := agent.BuildFromEvents(records)
	if err != nil {
		return nil, fmt.Errorf("replay context of run %s: %w", runID, err)
	}
	return rc, nil
}

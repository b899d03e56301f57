package ledger

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// commandRows reads and locks the run's commands that meet a condition, in the order of their outcomes as far as they have one.
func (t *txn) commandRows(ctx context.Context, where string) ([]*agent.CommandRow, error) {
	rows, err := t.tx.Query(ctx, `SELECT command_id FROM commands WHERE run_id = $1 AND `+where+` ORDER BY decided_at, emitted_at, command_id`, t.run.runID)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	commands := make([]*agent.CommandRow, 0, len(ids))
	for _, id := range ids {
		rows, err := t.tx.Query(ctx, commandRowColumns+`FOR NO KEY UPDATE OF c`, t.run.runID, id)
		if err != nil {
			return nil, err
		}
		c, err := collectCommandRow(rows)
		if err != nil {
			return nil, err
		}
		commands = append(commands, c)
	}
	return commands, nil
}

// announce appends what was decided after the run's terminal event, when only the rows could be changed.
func (t *txn) announce(ctx context.Context) error {
	decided, err := t.commandRows(ctx, "unannounced")
	if err != nil {
		return err
	}
	for _, c := range decided {
		if c.Resolution != nil {
			if err := t.event(agent.CommandResolved, c.NodeID, c.CommandID, c.DispatchNo, c.Resolution); err != nil {
				return err
			}
		}
		if err := t.announceOutcome(ctx, c); err != nil {
			return err
		}
		t.writes.Queue(`UPDATE commands SET unannounced = false, sequence_number = $3 WHERE run_id = $1 AND command_id = $2`,
			t.run.runID, c.CommandID, c.Sequence)
	}
	return nil
}

func (t *txn) announceOutcome(ctx context.Context, c *agent.CommandRow) error {
	var input []byte
	var latencyMS int64
	err := t.tx.QueryRow(ctx, `SELECT input, latency_ms FROM commands WHERE run_id = $1 AND command_id = $2`, t.run.runID, c.CommandID).Scan(&input, &latencyMS)
	if err != nil {
		return err
	}
	var content string
	switch c.State {
	case agent.Committed:
		if err := t.announceHTTP(c, input); err != nil {
			return err
		}
		data := agent.CommandCommittedData{Kind: c.Kind, Tool: c.Tool, Hash: c.ResultHash, Output: agent.ShowValue(c.Result), LatencyMS: latencyMS}
		if err := t.event(agent.CommandCommitted, c.NodeID, c.CommandID, c.DispatchNo, data); err != nil {
			return err
		}
		content = string(c.Result)
	case agent.CommandFailed:
		data := agent.CommandFailedData{Kind: c.Kind, Tool: c.Tool, Error: c.Error, LatencyMS: latencyMS}
		if err := t.event(agent.CommandFailedType, c.NodeID, c.CommandID, c.DispatchNo, data); err != nil {
			return err
		}
		content = c.Error.Error()
	default: // it may be dispatched again
		return nil
	}
	c.Sequence = t.last
	message, err := t.answerTo(ctx, c)
	if err != nil || message == nil {
		return err
	}
	message.Content = content
	return t.message(message)
}

// announceHTTP appends http_recorded for a request whose response came after the run's end. What a person gives as a result
// need not be a response.
func (t *txn) announceHTTP(c *agent.CommandRow, input []byte) error {
	if c.Kind != agent.HTTPCommand || c.Resolution == nil || c.Resolution.By != agent.ByLateResult && c.Resolution.By != agent.ByReconcile {
		return nil
	}
	var request agent.HTTPRequest
	var response agent.HTTPResponse
	if json.Unmarshal(input, &request) != nil || json.Unmarshal(c.Result, &response) != nil {
		return nil
	}
	return t.event(agent.HTTPRecorded, c.NodeID, c.CommandID, c.DispatchNo,
		agent.HTTPRecordedData{Kind: c.Kind, Request: request.Exchange(), Response: response.Exchange()})
}

// reopenFailed lets the commands be tried again whose failure has ended a node, or the planning, and with it the run; or would
// have, had the run not been lost before. Failures that a model has answered, that the plan went on with, or after which a
// node has another try, stay. nodeIDs are the nodes that have failed by the record and are tried again.
//
// The effects inside of such a command that have failed are tried again with it: nobody knows which of them it failed of.
func (t *txn) reopenFailed(nodes []agent.Node, nodeIDs []string, commands []*agent.CommandRow) error {
	again := map[string]bool{}
	for _, id := range nodeIDs { // one whose own code asks for effects has no command of its own
		again[id] = !slices.ContainsFunc(commands, func(c *agent.CommandRow) bool { return c.CommandID == id })
	}
	for _, c := range commands {
		if t.endedIts(c, nodes) {
			again[c.CommandID] = true
		}
	}
	for _, c := range commands {
		owner, inner := agent.OwnerCommandID(c.CommandID)
		if !inner {
			owner = c.CommandID
		}
		if !again[owner] {
			continue
		}
		data := agent.CommandReopenedData{Reason: "the run was resumed"}
		if err := t.event(agent.CommandReopened, c.NodeID, c.CommandID, c.DispatchNo, data); err != nil {
			return err
		}
		// An approval holds for another try. A denial, or a question that nobody has answered in time, is of the earlier one, and an
		// approval of other arguments is none: it is asked anew, and nothing is done before somebody has answered that.
		t.writes.Queue(`UPDATE commands SET state = 'released', base_no = dispatch_no, lease_until = NULL, error = NULL, decided_at = NULL,
			sequence_number = 0, approval_id = (SELECT a.approval_id FROM approvals a
				WHERE a.approval_id = commands.approval_id AND a.state = 'approved' AND NOT $3)
			WHERE run_id = $1 AND command_id = $2`, t.run.runID, c.CommandID, c.Error != nil && c.Error.Code == agent.CodeMismatch)
	}
	return nil
}

// endedIts reports whether the failure of a command has ended its node, or the planning, without the plan going on; or will,
// as soon as an execution meets it. The run's state is the one with the failed nodes open again.
func (t *txn) endedIts(c *agent.CommandRow, nodes []agent.Node) bool {
	if _, inner := agent.OwnerCommandID(c.CommandID); inner {
		return false
	}
	if c.Kind == agent.PlanCommand {
		return t.state.PlanSequence == 0
	}
	if _, _, ofTurn := agent.TurnTool(c.CommandID); ofTurn {
		return false // its model reads it
	}
	i := slices.IndexFunc(nodes, func(n agent.Node) bool { return n.ID == c.NodeID })
	if i < 0 || nodes[i].OnError.Handled() || t.state.Done(i) {
		return false
	}
	return nodes[i].Kind == agent.ReactNode || c.CommandID == lastTry(nodes[i])
}

// lastTry is the command of a node's last try.
func lastTry(n agent.Node) string {
	if n.Retry == nil {
		return n.ID
	}
	return agent.RetryCommandID(n.ID, n.Retry.MaxAttempts)
}

// cutShort reports whether a node has failed with tries left: the run was being stopped. Nothing has gone on from there.
func cutShort(n agent.Node, failed []*agent.CommandRow) bool {
	return n.Retry != nil && !slices.ContainsFunc(failed, func(c *agent.CommandRow) bool { return c.CommandID == lastTry(n) })
}

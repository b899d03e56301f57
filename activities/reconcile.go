package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"runledger/agent"
	"runledger/tool"
)

const (
	// reconcileTimeout bounds one question to a tool about a lost call, reconcileTries how often it is asked.
	reconcileTimeout = 10 * time.Second
	reconcileTries   = 3
)

// finding is what a tool knows of a lost dispatch of its effect.
type finding struct {
	found      bool
	conclusive bool
	result     effectResult
}

// reconcileLost asks the tool what became of a dispatch whose worker was lost. Decided is false when the gate has to be asked
// again, with what was found out.
func (a *Activities) reconcileLost(ctx context.Context, c *command, begun agent.Begun) (row agent.CommandRow, decided bool, err error) {
	f, err := a.find(ctx, c, begun.DispatchNo)
	switch {
	case err != nil:
		c.begin.Reconciles, c.begin.Unfound = false, agent.Preview(err.Error(), agent.MaxErrorBytes)
	case f.found:
		row, err = a.commitFound(ctx, c, begun.DispatchNo, f.result)
		return row, true, err
	case !f.conclusive:
		c.begin.Reconciles, c.begin.Unfound = false, "it has not found the effect, which does not prove that there is none"
	case begun.Remaining > 0:
		// Until its deadline the lost call may still arrive. Only what is found after it is the last word.
		return row, true, retryLater(agent.CodeLeased, begun.Remaining, "command %s may still be at work until its deadline", c.call.CommandID)
	default:
		c.begin.VoidNo = begun.DispatchNo
	}
	return row, false, nil
}

// settleDoubt asks the tool of a command that was called in doubt because its activity had to be given up.
func (a *Activities) settleDoubt(ctx context.Context, call agent.SettleCall, row agent.CommandRow) (agent.CommandRow, error) {
	t, ok := a.lookup(row.Tool).(tool.Reconciler)
	if !ok {
		return row, nil
	}
	input, err := a.ledger.CommandInput(ctx, call.RunID, call.CommandID)
	if err != nil {
		return row, err
	}
	c := command{call: call.Call, begin: agent.Begin{Tool: row.Tool, Kind: row.Kind, Dispatch: row.Owner}}
	c.reconcile = a.toolFinding(t, agent.ToolCall{Call: call.Call, Tool: row.Tool}, input, nil)
	f, err := a.find(ctx, &c, row.DispatchNo)
	if err != nil || !f.found {
		return row, nil //nolint:nilerr // nothing was learned: the command stays in doubt
	}
	return a.commitFound(ctx, &c, row.DispatchNo, f.result)
}

// commitFound puts the result of a lost dispatch on record.
func (a *Activities) commitFound(ctx context.Context, c *command, dispatchNo int, r effectResult) (agent.CommandRow, error) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	commit := c.commit(dispatchNo, r, 0)
	commit.Reconciled = true
	return untilWritten(ctx, func(ctx context.Context) (agent.Decided, error) { return a.ledger.Commit(ctx, commit) })
}

// find asks a few times: a question that fails has not changed anything.
func (a *Activities) find(ctx context.Context, c *command, dispatchNo int) (f finding, err error) {
	d := dispatch{no: dispatchNo, key: agent.IdempotencyKey(c.call.RunID, c.call.CommandID)}
	for try := 1; ; try++ {
		f, err = a.findOnce(ctx, c, d)
		if large := tooLarge(*c, len(f.result.result)); large != nil {
			return finding{}, large
		}
		if err == nil || try == reconcileTries || errors.Is(err, tool.ErrNotReconcilable) {
			return f, err
		}
		a.log.WarnContext(ctx, "reconcile failed", "run_id", c.call.RunID, "command_id", c.call.CommandID, "try", try, "error", err)
		select {
		case <-time.After(backoff(try)):
		case <-ctx.Done():
			return f, ctx.Err()
		}
	}
}

func (a *Activities) findOnce(ctx context.Context, c *command, d dispatch) (f finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			a.log.ErrorContext(ctx, "a reconcile panicked", "run_id", c.call.RunID, "command_id", c.call.CommandID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return c.reconcile(ctx, d)
}

// toolFinding makes the question to a tool. message is what the conversation keeps of the call, without its content.
func (a *Activities) toolFinding(t tool.Reconciler, in agent.ToolCall, args json.RawMessage, message *agent.Message) func(context.Context, dispatch) (finding, error) {
	return func(ctx context.Context, d dispatch) (finding, error) {
		found, err := t.Reconcile(ctx, tool.Call{Key: d.key, RunID: in.RunID, CommandID: in.CommandID, Attempt: d.no, Arguments: args,
			Progress: func(string) {}, Effects: noEffects{"when it reconciles"}})
		if err != nil || !found.Found {
			return finding{conclusive: found.Conclusive}, err
		}
		if !json.Valid(found.Output) {
			return finding{}, fmt.Errorf("tool %s found an output that is not JSON", in.Tool)
		}
		return finding{found: true, result: toolResult(in.Tool, found.Output, message)}, nil
	}
}

package activities_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
)

// others start workflows that a test answers for.
type others struct {
	mu        sync.Mutex
	started   []agent.WorkflowStart
	cancelled []string
	execute   func(ctx context.Context, w agent.WorkflowStart) (json.RawMessage, error)
}

func (f *others) Execute(ctx context.Context, w agent.WorkflowStart) (json.RawMessage, error) {
	f.mu.Lock()
	f.started = append(f.started, w)
	f.mu.Unlock()
	return f.execute(ctx, w)
}

func (f *others) Cancel(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancelled = append(f.cancelled, id)
	return nil
}

// callWorkflow is one attempt at the workflow of node a.
func (l *lab) callWorkflow(t testing.TB, f *others, how try, in agent.Call) (agent.Reply, error) {
	t.Helper()
	cfg := activities.Config{Ledger: l.Ledger, Tools: l.tools}
	if f != nil {
		cfg.Workflows = f
	}
	return attemptWith(t, cfg, how, func(a *activities.Activities) func(context.Context, agent.WorkflowCall) (agent.Reply, error) {
		return a.CallWorkflow
	},
		agent.WorkflowCall{Call: in})
}

// shipping is a run of one workflow node, a.
func (l *lab) shipping(t testing.TB, queue, args string) agent.Run {
	t.Helper()
	return l.accept(t, agent.ModePlan, `{"output": "a", "nodes": [{"id": "a", "kind": "workflow", "workflow": "Ship", "task_queue": "`+queue+`", "args": `+args+`}]}`)
}

func TestWorkflowIsCalled(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for args, want := range map[string][]string{`null`: nil, `{"a": {"$from": "/input"}}`: {`{"a":"do it"}`}, `[]`: {}, `[1, {"$from": "/metadata/k"}]`: {`1`, `{"a/b": [1, 2]}`}} {
		run := l.shipping(t, "orders", args)
		f := &others{execute: func(context.Context, agent.WorkflowStart) (json.RawMessage, error) {
			return json.RawMessage(`{"shipped": true}`), nil
		}}
		reply, err := l.callWorkflow(t, f, try{}, call(run, 1))
		require.NoError(t, err)
		require.Equal(t, agent.OutcomeCommitted, reply.Outcome, args)
		require.Len(t, f.started, 1)
		w := f.started[0]
		require.Equal(t, []string{run.RunID + "/a", "Ship", "orders", run.RunID, "a"}, []string{w.ID, w.Name, w.TaskQueue, w.RunID, w.CommandID})
		require.Len(t, w.Args, len(want))
		for i := range want {
			require.JSONEq(t, want[i], string(w.Args[i]))
		}
		again, err := l.callWorkflow(t, f, try{}, call(run, 2))
		require.NoError(t, err)
		require.Equal(t, reply.Hash, again.Hash)
		require.Len(t, f.started, 1, "what is committed is not asked for again")
	}
}

// Whoever comes after a lost worker asks for the workflow under the same id; after somebody has let the command begin anew it is another.
func TestWorkflowIDs(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.shipping(t, "orders", `null`)
	f := &others{execute: func(context.Context, agent.WorkflowStart) (json.RawMessage, error) { crash(); return nil, nil }}
	_, err := l.callWorkflow(t, f, try{}, call(run, 1))
	require.ErrorIs(t, err, errCrashed)
	l.expire(t, run)
	f.execute = func(context.Context, agent.WorkflowStart) (json.RawMessage, error) {
		return nil, agent.Failed(agent.CodeWorkflowFailed, "out of stock")
	}
	reply, err := l.callWorkflow(t, f, try{attempt: 2}, call(run, 1))
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeFailed, reply.Outcome)
	require.Equal(t, agent.CodeWorkflowFailed, reply.Error.Code)
	require.Equal(t, f.started[0], f.started[1])

	l.exec(t, `UPDATE commands SET state = 'released', base_no = dispatch_no, lease_until = NULL, error = NULL, decided_at = NULL WHERE run_id = $1`, run.RunID)
	f.execute = func(context.Context, agent.WorkflowStart) (json.RawMessage, error) { return json.RawMessage(`1`), nil }
	reply, err = l.callWorkflow(t, f, try{}, call(run, 2))
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Equal(t, run.RunID+"/a@3", f.started[2].ID)
}

// What cannot be started fails the command, and nothing is asked for.
func TestWorkflowThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	l := setup(t)
	f := &others{execute: func(context.Context, agent.WorkflowStart) (json.RawMessage, error) { return json.RawMessage(`1`), nil }}
	for i, c := range []struct {
		run     agent.Run
		on      *others
		code    agent.Code
		message string
	}{
		{l.shipping(t, "elsewhere", `null`), f, agent.CodeWorkflowFailed, "may not start workflow Ship on task queue elsewhere"},
		{l.shipping(t, "orders", `null`), nil, agent.CodeWorkflowFailed, "this worker cannot start workflows"},
		{l.shipping(t, "orders", `{"x": {"$from": "/metadata/nothing"}}`), f, agent.CodeReference, "nothing at /nothing"},
	} {
		reply, err := l.callWorkflow(t, c.on, try{}, call(c.run, 1))
		require.NoError(t, err, i)
		require.Equal(t, agent.OutcomeFailed, reply.Outcome, i)
		require.Equal(t, c.code, reply.Error.Code, i)
		require.Contains(t, reply.Error.Message, c.message, i)
	}
	require.Empty(t, f.started)
}

// A run that is cancelled tells the workflow; a worker that stops does not.
func TestWorkflowIsToldToStop(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.shipping(t, "orders", `null`)
	f := &others{}
	f.execute = func(ctx context.Context, _ agent.WorkflowStart) (json.RawMessage, error) {
		_, err := l.RequestCancel(context.Background(), "local", run.RunID, "me", "enough")
		if err != nil {
			return nil, fmt.Errorf("cancel: %w", err)
		}
		<-ctx.Done()
		return nil, agent.Transient(agent.CodeWorkflowFailed, "wait: %w", ctx.Err())
	}
	reply, err := l.callWorkflow(t, f, try{}, call(run, 1))
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeAborted, reply.Outcome)
	require.Equal(t, []string{run.RunID + "/a"}, f.cancelled)
}

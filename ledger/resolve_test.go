package ledger_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// inDoubt is a run with a command that nobody knows about.
func (b *bench) inDoubt(t testing.TB, id string) (agent.Run, command) {
	t.Helper()
	run := b.accepted(t, twoStep(t))
	c := command{run: run, id: id, effect: agent.External, inner: id != "a"}
	b.doubt(t, c)
	return run, c
}

func (b *bench) doubt(t testing.TB, c command) {
	t.Helper()
	decided, err := b.Conclude(t.Context(), c.conclude(b.begins(t, c), agent.CommandInDoubt,
		&agent.Error{Code: agent.CodeInDoubt, Message: "no answer", CommandID: c.id, NodeID: "a"}))
	require.NoError(t, err)
	require.True(t, decided.Mine)
}

// innerInDoubt is a run with a command at work, and an effect inside of it that nobody knows about.
func (b *bench) innerInDoubt(t testing.TB) (run agent.Run, outer, inner command) {
	t.Helper()
	run = b.accepted(t, twoStep(t))
	outer, inner = command{run: run, id: "a"}, command{run: run, id: "a/charge", effect: agent.External, inner: true}
	require.Equal(t, 1, b.begins(t, outer))
	b.doubt(t, inner)
	return run, outer, inner
}

// doubtBecauseOf is what the first dispatch of a tool says when an effect inside of it is in doubt.
func (b *bench) doubtBecauseOf(t testing.TB, outer, inner command) agent.Decided {
	t.Helper()
	decided, err := b.Conclude(t.Context(), outer.conclude(1, agent.CommandInDoubt,
		&agent.Error{Code: agent.CodeInDoubt, Message: "charge is in doubt", CommandID: inner.id, NodeID: "a"}))
	require.NoError(t, err)
	return decided
}

func (b *bench) resolve(t testing.TB, c command, r agent.Resolution) agent.Command {
	t.Helper()
	got, err := b.Resolve(t.Context(), owner, c.run.RunID, c.id, r)
	require.NoError(t, err)
	return got
}

func (b *bench) status(t testing.TB, run agent.Run) agent.Status {
	t.Helper()
	read, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	return read.Status
}

// news are the resolutions that the run's execution is told of.
func (b *bench) news(t testing.TB, run agent.Run) []agent.Intent {
	t.Helper()
	all := []agent.Intent{}
	require.NoError(t, json.Unmarshal([]byte(value[string](t, b,
		`SELECT coalesce(jsonb_agg(payload ORDER BY id), '[]')::text FROM intents WHERE run_id = $1 AND kind = 'resolved'`, run.RunID)), &all))
	return all
}

func TestResolveCommitted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, c := b.inDoubt(t, "a")
	_, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.InDoubt})
	require.NoError(t, err)
	from := b.last(t, run) + 1
	said := agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"sent": 1.0}`), By: "ada", Note: "seen in the mailbox"}
	got := b.resolve(t, c, said)
	require.Equal(t, agent.Committed, got.State)
	require.Equal(t, `{"sent": 1.0}`, string(got.Result), "exact bytes")
	require.Nil(t, got.Error)
	require.Equal(t, &agent.CommandResolvedData{Outcome: agent.OutcomeCommitted, By: "ada", Note: "seen in the mailbox", Hash: got.ResultHash}, got.Resolution)
	require.Equal(t, []agent.EventType{agent.CommandResolved, agent.CommandCommitted}, b.types(t, run, from))
	events := b.events(t, run)
	require.Equal(t, agent.CommandResolvedData{Outcome: agent.OutcomeCommitted, By: "ada", Note: "seen in the mailbox", Hash: got.ResultHash},
		data[agent.CommandResolvedData](t, events[len(events)-2]))
	require.Equal(t, agent.Running, b.status(t, run))
	require.Equal(t, []agent.Intent{{CommandID: "a", DispatchNo: 1}}, b.news(t, run))

	// The execution schedules it again, and the gate ends its node.
	begun := b.begin(t, command{run: run, id: "a", effect: agent.External, schedule: 2})
	require.Equal(t, agent.Inject, begun.Verdict)
	require.Equal(t, []agent.EventType{agent.CommandResolved, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, b.types(t, run, from))

	// The same word again changes nothing, another one is a conflict, and the dispatch that was given up is too late.
	last := b.last(t, run)
	require.Equal(t, agent.Committed, b.resolve(t, c, said).State)
	for _, other := range []agent.Resolution{{Outcome: agent.OutcomeFailed, By: "ada"}, {Outcome: agent.OutcomeRetry}, {Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`2`)}} {
		_, err := b.Resolve(t.Context(), owner, run.RunID, "a", other)
		var conflict *agent.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, agent.ConflictNotInDoubt, conflict.Reason)
	}
	decided, err := b.Commit(t.Context(), c.commit(1, `"mine"`))
	require.NoError(t, err)
	require.Equal(t, `{"sent": 1.0}`, string(decided.Row.Result), "first word wins")
	require.Equal(t, last, b.last(t, run))
}

func TestResolveFailed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, c := b.inDoubt(t, "a")
	from := b.last(t, run) + 1
	got := b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeFailed, By: "ada", Note: "bounced"})
	require.Equal(t, agent.CommandFailed, got.State)
	require.Equal(t, "resolved as failed by ada: bounced", got.Error.Message)
	require.Equal(t, []agent.EventType{agent.CommandResolved, agent.CommandFailedType}, b.types(t, run, from))
	require.Equal(t, agent.InjectFailure, b.begin(t, command{run: run, id: "a", effect: agent.External, schedule: 2}).Verdict)
	require.Equal(t, agent.CommandFailed, b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeFailed, By: "bob"}).State, "the same word")
}

// A person may let a command be dispatched again, also one that was dispatched as often as allowed.
func TestResolveRetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, c := b.inDoubt(t, "a")
	b.exec(t, `UPDATE commands SET dispatch_no = 5`)
	from := b.last(t, run) + 1
	require.Equal(t, agent.Released, b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeRetry, By: "ada"}).State)
	require.Equal(t, []agent.Intent{{CommandID: "a", DispatchNo: 5}}, b.news(t, run))
	state, err := b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, state.Open)
	require.Empty(t, state.InDoubt)
	again := command{run: run, id: "a", effect: agent.External, schedule: 2}
	require.Equal(t, 6, b.begins(t, again))
	require.Equal(t, []agent.EventType{agent.CommandResolved}, b.types(t, run, from))

	decided, err := b.Commit(t.Context(), c.commit(1, `"of the lost one"`))
	require.NoError(t, err)
	require.False(t, decided.Mine, "the dispatch that was given up does not count any more")
	// In doubt again, it can be resolved again, and otherwise.
	b.exec(t, `UPDATE commands SET lease_until = now() - interval '1 ms'`)
	require.Equal(t, agent.MustDoubt, b.begin(t, command{run: run, id: "a", effect: agent.External, schedule: 2, attempt: 2}).Verdict)
	require.Equal(t, agent.CommandFailed, b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeFailed}).State)
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a"}, `1`)
	_, err := b.Settle(t.Context(), agent.SettleCall{Call: command{run: run, id: "y"}.call()})
	require.NoError(t, err)
	last := b.last(t, run)
	resolve := func(owner, runID, id string) error {
		_, err := b.Resolve(t.Context(), owner, runID, id, agent.Resolution{Outcome: agent.OutcomeRetry})
		return err
	}
	var conflict *agent.ConflictError
	require.ErrorAs(t, resolve(owner, run.RunID, "a"), &conflict)
	var missing *agent.NotFoundError
	require.ErrorAs(t, resolve(owner, run.RunID, "z"), &missing)
	require.ErrorAs(t, resolve(owner, run.RunID, "y"), &missing, "a fence is no command")
	require.ErrorAs(t, resolve("stranger", run.RunID, "a"), &missing)
	require.ErrorAs(t, resolve(owner, newID(), "a"), &missing)
	require.Equal(t, last, b.last(t, run))
	require.Empty(t, b.news(t, run))
}

// After a run's terminal event nothing is appended: what is said of a command changes its row alone.
func TestResolveAfterTheEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said func(b *bench, c command) error
		want agent.CommandState
	}{
		"a person": {func(b *bench, c command) error {
			_, err := b.Resolve(t.Context(), owner, c.run.RunID, c.id, agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`1`), By: "ada"})
			return err
		}, agent.Committed},
		"a person says failed": {func(b *bench, c command) error {
			_, err := b.Resolve(t.Context(), owner, c.run.RunID, c.id, agent.Resolution{Outcome: agent.OutcomeFailed, By: "ada"})
			return err
		}, agent.CommandFailed},
		"a person says retry": {func(b *bench, c command) error {
			_, err := b.Resolve(t.Context(), owner, c.run.RunID, c.id, agent.Resolution{Outcome: agent.OutcomeRetry, By: "ada"})
			return err
		}, agent.Released},
		"a late result": {func(b *bench, c command) error {
			decided, err := b.Commit(t.Context(), c.commit(1, `1`))
			require.True(t, decided.Mine)
			return err
		}, agent.Committed},
		"a late failure": {func(b *bench, c command) error {
			_, err := b.Conclude(t.Context(), c.conclude(1, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "no")))
			return err
		}, agent.CommandFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run, doubtful := b.inDoubt(t, "a")
			b.finish(t, run, agent.Cancelled)
			last := b.last(t, run)
			require.NoError(t, c.said(b, doubtful))
			row := b.row(t, doubtful)
			require.Equal(t, c.want, row.State)
			require.Zero(t, row.Sequence, "it has no event yet")
			require.True(t, value[bool](t, b, `SELECT unannounced FROM commands`))
			require.Equal(t, last, b.last(t, run))
			require.Empty(t, b.news(t, run))
			require.Equal(t, agent.Cancelled, b.status(t, run))
		})
	}
}

// A late result may come from an execution that has been replaced: it is the one write that it is allowed.
func TestLateResultOfAnEarlierEpoch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, c := b.inDoubt(t, "a")
	b.exec(t, `UPDATE agent_executions SET epoch = 2`)
	from := b.last(t, run) + 1
	b.commits(t, c, 1, `"late"`)
	require.Equal(t, []agent.EventType{agent.CommandResolved, agent.CommandCommitted}, b.types(t, run, from), "the new execution ends the node")
	require.Equal(t, []agent.Intent{{CommandID: "a", DispatchNo: 1}}, b.news(t, run))
	require.Equal(t, 2, value[int](t, b, `SELECT epoch FROM intents WHERE kind = 'resolved'`))
	begun := b.begin(t, command{run: run, id: "a", effect: agent.External, epoch: 2})
	require.Equal(t, agent.Inject, begun.Verdict)
	_, err := b.Commit(t.Context(), command{run: run, id: "a"}.commit(1, `2`))
	requireCode(t, err, agent.CodeStaleEpoch)
}

// What the dispatch that was given up knows for certain settles the doubt.
func TestLateConclusions(t *testing.T) {
	t.Parallel()
	for state, c := range map[agent.CommandState]struct {
		events []agent.EventType
		want   agent.CommandState
	}{
		agent.CommandFailed:  {[]agent.EventType{agent.CommandResolved, agent.CommandFailedType}, agent.CommandFailed},
		agent.Released:       {[]agent.EventType{agent.CommandResolved}, agent.Released},
		agent.CommandInDoubt: {nil, agent.CommandInDoubt},
		agent.CommandAborted: {nil, agent.CommandInDoubt},
	} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run, doubtful := b.inDoubt(t, "a")
			from := b.last(t, run) + 1
			decided, err := b.Conclude(t.Context(), doubtful.conclude(1, state, agent.Failed(agent.CodeToolFailed, "no")))
			require.NoError(t, err)
			require.Equal(t, c.want, decided.Row.State)
			require.Equal(t, c.events, b.types(t, run, from))
			require.Len(t, b.news(t, run), min(1, len(c.events)))
		})
	}
}

// A command that is in doubt because of an effect inside of it goes on when that one is resolved.
func TestResolveAnEffectOfACommand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, outer, inner := b.innerInDoubt(t)
	b.doubtBecauseOf(t, outer, inner)
	from := b.last(t, run) + 1
	b.resolve(t, inner, agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"status": 200}`), By: "ada"})
	require.Equal(t, []agent.EventType{agent.CommandResolved, agent.CommandCommitted, agent.CommandResolved}, b.types(t, run, from))
	require.Equal(t, []agent.Intent{{CommandID: "a", DispatchNo: 1}}, b.news(t, run), "the execution knows of the outer one only")
	require.Equal(t, agent.MayExecute, b.begin(t, command{run: run, id: "a", schedule: 2}).Verdict)
	require.Equal(t, agent.Inject, b.begin(t, command{run: run, id: "a/charge", effect: agent.External, inner: true, schedule: 2}).Verdict)
}

// The answer that a person gives for a tool call of a react loop stands in the conversation, under the id that the model gave.
func TestResolveAToolCallOfATurn(t *testing.T) {
	t.Parallel()
	for outcome, content := range map[agent.Outcome]string{agent.OutcomeCommitted: `{"ok":true}`, agent.OutcomeFailed: "TOOL_FAILED: resolved as failed by ada"} {
		b := setup(t)
		run := b.accepted(t, agent.ReactPlan())
		b.runs(t, command{run: run, id: "main#1", kind: agent.ModelCommand, inner: true}, `{"tool_calls":[{"id":"x"},{"id":"y"}]}`)
		call := command{run: run, id: "main#1.1", effect: agent.External, inner: true}
		b.doubt(t, call)
		b.resolve(t, call, agent.Resolution{Outcome: outcome, Result: json.RawMessage(`{"ok":true}`), By: "ada"})
		messages, _, err := b.Messages(t.Context(), run.ConversationID, 0, 10)
		require.NoError(t, err)
		last := messages[len(messages)-1]
		require.Equal(t, agent.ToolMessage, last.Role)
		require.Equal(t, "y", last.ToolCallID)
		require.Equal(t, content, last.Content)
	}
}

// A tool that has found out what became of a lost dispatch speaks for it, once its lease is over.
func TestReconciledResult(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	lost := command{run: run, id: "a", effect: agent.External}
	no := b.begins(t, lost)
	next := command{run: run, id: "a", effect: agent.External, attempt: 2}
	found := next.commit(no, `"found"`)
	found.Reconciled = true
	decided, err := b.Commit(t.Context(), found)
	require.NoError(t, err)
	require.False(t, decided.Mine, "it may still be at work")
	b.expire(t, lost)
	begin := next.begin()
	begin.Reconciles = true
	last := b.last(t, run)
	begun, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	require.Equal(t, agent.MustReconcile, begun.Verdict)
	require.Equal(t, no, begun.DispatchNo)
	require.Equal(t, last, b.last(t, run), "nothing is written")
	decided, err = b.Commit(t.Context(), found)
	require.NoError(t, err)
	require.True(t, decided.Mine)
	require.Equal(t, []agent.EventType{agent.CommandResolved, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, b.types(t, run, last+1))
	events := b.events(t, run)
	require.Equal(t, agent.ByReconcile, data[agent.CommandResolvedData](t, events[len(events)-4]).By)
	require.Empty(t, b.news(t, run), "the execution waits for this very activity")
	again, err := b.Commit(t.Context(), found)
	require.NoError(t, err)
	require.True(t, again.Mine, "the reply was lost")
	late, err := b.Commit(t.Context(), lost.commit(no, `"late"`))
	require.NoError(t, err)
	require.False(t, late.Mine)
	require.Equal(t, `"found"`, string(late.Row.Result))
}

// R2-10: what the policy refuses is on record with its reason, and is not executed, now or later.
func TestPolicyRefusal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	from := b.last(t, run) + 1
	a := command{run: run, id: "a"}
	begin := a.begin()
	begin.Refusal = &agent.Refusal{Decision: "forbid", Reason: "not on a Sunday"}
	begin.FailureMessage = &agent.Message{Role: agent.ToolMessage, ToolCallID: "x", CommandID: "a"}
	for range 2 { // the second time it is on record
		begun, err := b.Begin(t.Context(), begin)
		require.NoError(t, err)
		require.Equal(t, agent.InjectFailure, begun.Verdict)
		require.Equal(t, agent.CodeRefused, begun.Row.Error.Code)
		require.Equal(t, "the policy says forbid: not on a Sunday", begun.Row.Error.Message)
	}
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.PolicyDecided, agent.CommandFailedType}, b.types(t, run, from))
	require.Equal(t, agent.PolicyDecidedData{Decision: "forbid", Reason: "not on a Sunday", Kind: agent.ToolCommand, Tool: "put", Effect: agent.Idempotent},
		data[agent.PolicyDecidedData](t, b.events(t, run)[from]))
	require.Zero(t, b.row(t, a).Dispatches)
	require.Equal(t, agent.InjectFailure, b.begin(t, command{run: run, id: "a", schedule: 2}).Verdict)
	require.Equal(t, "POLICY_REFUSED: the policy says forbid: not on a Sunday", value[string](t, b, `SELECT content FROM messages WHERE role = 'tool'`))

	// What is committed is injected, whatever a policy that came later says.
	done := command{run: run, id: "b", kind: agent.ModelCommand}
	b.runs(t, done, `{"text":"x"}`)
	begin = done.begin()
	begin.Refusal = &agent.Refusal{Decision: "forbid"}
	begun, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	require.Equal(t, agent.Inject, begun.Verdict)
}

// Runs with a command that somebody has to look at are found, whatever became of them.
func TestRunsWithDoubts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ended, c := b.inDoubt(t, "a")
	b.finish(t, ended, agent.Cancelled)
	open, _ := b.inDoubt(t, "a")
	b.accepted(t, nil)
	find := func() (ids []string) {
		runs, _, err := b.Runs(t.Context(), agent.RunFilter{Owner: owner, InDoubt: true, Limit: 10})
		require.NoError(t, err)
		for _, r := range runs {
			ids = append(ids, r.RunID)
		}
		return ids
	}
	require.Equal(t, []string{open.RunID, ended.RunID}, find())
	b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeFailed})
	require.Equal(t, []string{open.RunID}, find())
}

func TestLargeResolution(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, c := b.inDoubt(t, "a")
	big, err := json.Marshal(make([]int, 40_000))
	require.NoError(t, err)
	got := b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeCommitted, Result: big})
	require.Equal(t, string(big), string(got.Result))
	require.Equal(t, ledger.ResultHash(big), got.ResultHash)
}

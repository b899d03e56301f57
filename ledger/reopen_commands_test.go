package ledger_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// again lists the commands that the newest resume has reopened.
func (b *bench) again(t testing.TB, run agent.Run) []string {
	t.Helper()
	ids := []string{}
	for _, e := range b.events(t, run) {
		switch e.Type {
		case agent.RunReopened:
			ids = []string{}
		case agent.CommandReopened:
			ids = append(ids, e.CommandID)
		default:
		}
	}
	return ids
}

const ( // nodes of one tool call each
	retried  = `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {}, "retry": {"max_attempts": 3}}, {"id": "b", "kind": "tool", "tool": "put", "args": {}}]}`
	cutOff   = `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {}, "on_error": "continue", "retry": {"max_attempts": 2}}, {"id": "b", "kind": "tool", "tool": "put", "args": {}}]}`
	handled  = `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {}, "on_error": "continue"}, {"id": "s", "kind": "tool", "tool": "put", "args": {}, "on_error": "skip_dependents"}, {"id": "b", "kind": "tool", "tool": "put", "args": {}}]}`
	twoTools = `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {}}, {"id": "b", "kind": "tool", "tool": "put", "args": {}}]}`
)

// R0-18: which failures a resume tries again. Those that ended their node without the plan going on; no others.
func TestWhichFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	type doing func(b *bench, t testing.TB, run agent.Run)
	failing := func(id string, index int) doing {
		return func(b *bench, t testing.TB, run agent.Run) { b.fails(t, command{run: run, id: id, index: index}) }
	}
	nodeFails := func(no int, id string, index int, handled bool) doing {
		return func(b *bench, t testing.TB, run agent.Run) { b.nodeFails(t, run, no, id, index, handled) }
	}
	ends := func(b *bench, t testing.TB, run agent.Run) { b.finish(t, run, agent.FailedStatus) }
	react := func(b *bench, t testing.TB, run agent.Run) {
		b.turns(t, command{run: run, id: "main#1"}, `{"tool_calls":[{"id":"x"}]}`)
	}
	for name, c := range map[string]struct {
		plan  string // "" is react
		do    []doing
		lost  bool
		nodes []string
		want  []string
	}{
		"a tool node": {twoTools, []doing{failing("a", 0), nodeFails(1, "a", 0, false), ends}, false, []string{"a"}, []string{"a"}},
		"two of them": {twoTools, []doing{failing("b", 1), failing("a", 0), nodeFails(1, "a", 0, false), nodeFails(2, "b", 1, false), ends}, false, []string{"a", "b"}, []string{"b", "a"}},
		"one that nobody wrote down before the run was lost": {twoTools, []doing{failing("a", 0)}, true, nil, []string{"a"}},
		"the last of all tries":                              {retried, []doing{failing("a", 0), failing("a~2", 0), failing("a~3", 0), nodeFails(1, "a", 0, false), ends}, false, []string{"a"}, []string{"a~3"}},
		"not a try of a node that another one stopped":       {retried, []doing{failing("a", 0), failing("b", 1), nodeFails(1, "b", 1, false), nodeFails(2, "a", 0, false), ends}, false, []string{"a", "b"}, []string{"b"}},
		"nor one that the plan would go on with":             {cutOff, []doing{failing("a", 0), failing("b", 1), nodeFails(1, "b", 1, false), nodeFails(2, "a", 0, true), ends}, false, []string{"a", "b"}, []string{"b"}},
		"but one that it did go on with":                     {cutOff, []doing{failing("a", 0), failing("a~2", 0), nodeFails(1, "a", 0, true), failing("b", 1), nodeFails(2, "b", 1, false), ends}, false, []string{"b"}, []string{"b"}},
		"not a try that another one follows":                 {retried, []doing{failing("a", 0), failing("a~2", 0)}, true, nil, []string{}},
		"the last of all tries, of a run that was lost":      {retried, []doing{failing("a", 0), failing("a~2", 0), failing("a~3", 0)}, true, nil, []string{"a~3"}},
		"not what the plan goes on with":                     {handled, []doing{failing("a", 0), nodeFails(1, "a", 0, true), failing("s", 1), nodeFails(2, "s", 1, true), failing("b", 2), nodeFails(3, "b", 2, false), ends}, false, []string{"b"}, []string{"b"}},
		"not what the plan will go on with":                  {handled, []doing{failing("a", 0), failing("s", 1)}, true, nil, []string{}},
		"a turn's model call":                                {"", []doing{react, failing("main#1.0", 0), failing("main#2", 0), nodeFails(1, "main", 0, false), ends}, false, []string{"main"}, []string{"main#2"}},
		"not a tool call that a model reads":                 {"", []doing{react, failing("main#1.0", 0)}, true, nil, []string{}},
		"nothing, of a loop at its limit":                    {"", []doing{react, nodeFails(1, "main", 0, false), ends}, false, []string{"main"}, []string{}},
		"a tool with the effects inside of it that have failed": {twoTools, []doing{func(b *bench, t testing.TB, run agent.Run) {
			b.begins(t, command{run: run, id: "a"})
			b.fails(t, command{run: run, id: "a/x", inner: true})
			b.runs(t, command{run: run, id: "a/y", inner: true}, `1`)
			decided, err := b.Conclude(t.Context(), command{run: run, id: "a"}.conclude(1, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "x")))
			require.NoError(t, err)
			require.True(t, decided.Mine)
		}, nodeFails(1, "a", 0, false), ends}, false, []string{"a"}, []string{"a/x", "a"}},
		"not an effect of a tool that goes on": {twoTools, []doing{func(b *bench, t testing.TB, run agent.Run) {
			b.begins(t, command{run: run, id: "a"})
			b.fails(t, command{run: run, id: "a/x", inner: true})
		}}, true, nil, []string{}},
		"the effects of a node's own code": {twoTools, []doing{failing("a/x", 0), nodeFails(1, "a", 0, false), ends}, false, []string{"a"}, []string{"a/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			plan := agent.ReactPlan()
			if c.plan != "" {
				plan = compiled(t, c.plan)
			}
			run := b.accepted(t, plan)
			for _, do := range c.do {
				do(b, t, run)
			}
			if c.lost {
				b.lose(t, run)
			}
			now, _ := b.resumes(t, run)
			require.Equal(t, c.want, b.again(t, run))
			require.Equal(t, c.nodes, reopened(t, b.events(t, run)).NodeIDs)
			failed := []string{}
			for _, id := range c.want {
				again := command{run: now, id: id, epoch: 2, inner: true}
				require.Equal(t, 2, b.begins(t, again), id)
				failed = append(failed, id)
			}
			for _, row := range value[[]string](t, b, `SELECT coalesce(array_agg(command_id), '{}') FROM commands WHERE state = 'failed'`) {
				require.NotContains(t, failed, row)
				require.Equal(t, agent.InjectFailure, b.begin(t, command{run: now, id: row, epoch: 2, inner: true}).Verdict)
			}
			b.requireVerifies(t, run)
			requireFolds(t, b, run)
		})
	}
}

// requireFolds: the state is that of the events, with the checkpoints and without.
func requireFolds(t testing.TB, b *bench, run agent.Run) {
	t.Helper()
	fold, err := agent.Fold(b.events(t, run))
	require.NoError(t, err)
	state, err := b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, fold, state)
}

// A planner that failed plans again; a reopened command has its tries anew.
func TestResumePlansAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, nil)
	planner := func(epoch int, attempt int32) agent.Begin {
		begin := command{run: run, id: agent.PlanNodeID, kind: agent.PlanCommand, epoch: epoch, attempt: attempt, inner: true}.begin()
		begin.Plan = &agent.PlanStartedData{Source: "planner"}
		return begin
	}
	for n := range agent.MaxDispatches {
		begun, err := b.Begin(t.Context(), planner(1, int32(n+1)))
		require.NoError(t, err)
		require.Equal(t, n+1, begun.DispatchNo)
		c := command{run: run, id: agent.PlanNodeID, kind: agent.PlanCommand, attempt: int32(n + 1), inner: true}
		_, err = b.Conclude(t.Context(), c.conclude(n+1, agent.Released, agent.Transient(agent.CodeModelFailed, "busy")))
		require.NoError(t, err)
	}
	b.finish(t, run, agent.FailedStatus)
	now, _ := b.resumes(t, run)
	require.Equal(t, []string{agent.PlanNodeID}, b.again(t, run))
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Nil(t, in.Plan)
	for n := range agent.MaxDispatches {
		begun, err := b.Begin(t.Context(), planner(2, int32(n+1)))
		require.NoError(t, err)
		require.Equal(t, agent.MaxDispatches+n+1, begun.DispatchNo)
		c := command{run: now, id: agent.PlanNodeID, kind: agent.PlanCommand, attempt: int32(n + 1), epoch: 2, inner: true}
		_, err = b.Conclude(t.Context(), c.conclude(begun.DispatchNo, agent.Released, agent.Transient(agent.CodeModelFailed, "busy")))
		require.NoError(t, err)
	}
	b.requireVerifies(t, run)
}

// Commands that a cancellation stopped begin anew, with all their tries; what is in doubt stays so.
func TestResumeAfterACancellation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, compiled(t, twoTools))
	for n := range agent.MaxDispatches {
		require.Equal(t, n+1, b.begins(t, command{run: run, id: "a", attempt: int32(n + 1)}))
		b.exec(t, `UPDATE commands SET state = 'released' WHERE command_id = 'a'`)
	}
	b.begins(t, command{run: run, id: "b", index: 1, effect: agent.External})
	b.finish(t, run, agent.Cancelled)
	require.Equal(t, agent.CommandAborted, b.row(t, command{run: run, id: "a"}).State)
	require.Equal(t, agent.CommandInDoubt, b.row(t, command{run: run, id: "b"}).State)
	now, wrote := b.resumes(t, run)
	require.Equal(t, []agent.EventType{agent.RunReopened}, wrote)
	a := command{run: now, id: "a", epoch: 2}
	no := b.begins(t, a)
	require.Equal(t, agent.MaxDispatches+1, no)
	require.Equal(t, []string{"a"}, b.again(t, run))
	decided, err := b.Conclude(t.Context(), a.conclude(no, agent.Released, agent.Transient(agent.CodeToolFailed, "busy")))
	require.NoError(t, err)
	require.Equal(t, agent.Released, decided.Row.State, "it has not been tried as often as it may")
	require.Equal(t, agent.IsInDoubt, b.begin(t, command{run: now, id: "b", index: 1, effect: agent.External, epoch: 2}).Verdict)
	b.requireVerifies(t, run)
}

// What the lost worker has at work stays its own until its lease is over. Then it is done again, or in doubt, or its tool finds out.
func TestResumeMeetsWhatALostWorkerHasAtWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		effect     agent.EffectClass
		reconciles bool
		want       agent.Verdict
	}{
		"idempotent":                         {agent.Idempotent, false, agent.MayExecuteAgain},
		"external":                           {agent.External, false, agent.MustDoubt},
		"external, of a tool that finds out": {agent.External, true, agent.MustReconcile},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, twoStep(t))
			lost := command{run: run, id: "a", effect: c.effect}
			require.Equal(t, 1, b.begins(t, lost))
			resumed, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, Lost: 1})
			require.NoError(t, err)
			next := command{run: resumed.Run, id: "a", effect: c.effect, epoch: 2}
			require.Equal(t, agent.MustWait, b.begin(t, next).Verdict)
			b.expire(t, lost)
			begin := next.begin()
			begin.Reconciles = c.reconciles
			begun, err := b.Begin(t.Context(), begin)
			require.NoError(t, err)
			require.Equal(t, c.want, begun.Verdict)
			b.requireVerifies(t, run)
		})
	}
}

// What an earlier epoch was to be told is told to nobody; the new one is told of its start alone.
func TestResumeDropsWhatWasOnItsWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, c := b.inDoubt(t, "a")
	b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeRetry, By: "ada"})
	before, err := b.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, before, 1)
	_, err = b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, Lost: 1})
	require.NoError(t, err)
	claimed, err := b.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	require.EqualValues(t, "start", claimed[0].Kind)
	require.Equal(t, 2, claimed[0].Epoch)
	// A dispatcher that has stood still marks a start of the earlier epoch: that says nothing of the new one.
	before[0].Kind = "start"
	require.NoError(t, b.IntentDelivered(t.Context(), before[0]))
	require.Equal(t, agent.Queued, b.status(t, run))
	require.NoError(t, b.IntentDelivered(t.Context(), claimed[0]))
	require.Equal(t, agent.Running, b.status(t, run))
}

// A run that was cancelled before Temporal knew of it is resumed like any other.
func TestResumeOfARunThatNeverStarted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, _, err := b.Accept(t.Context(), acceptance(twoStep(t)))
	require.NoError(t, err)
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "ada", "no")
	require.NoError(t, err)
	require.Nil(t, b.read(t, run).StartedAt)
	resumed := b.resume(t, run)
	require.Zero(t, resumed.Step)
	claimed, err := b.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	require.NoError(t, b.IntentDelivered(t.Context(), claimed[0]))
	require.NotNil(t, b.read(t, run).StartedAt)
	b.runs(t, command{run: resumed.Run, id: "a", epoch: 2}, `1`)
	b.requireVerifies(t, run)
}

// A resumed run that is cancelled before its new execution begins ends at once, with all that the old one left open.
func TestCancelOfAResumedRunThatHasNotStarted(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]func(b *bench, t testing.TB, run agent.Run){
		"that nobody has tried to start": func(b *bench, t testing.TB, run agent.Run) {
			got, err := b.RequestCancel(t.Context(), owner, run.RunID, "ada", "no")
			require.NoError(t, err)
			require.Equal(t, agent.Cancelled, got.Status)
		},
		"whose start comes to nothing": func(b *bench, t testing.TB, run agent.Run) {
			claimed, err := b.ClaimIntents(t.Context(), 10)
			require.NoError(t, err)
			require.Len(t, claimed, 1)
			_, err = b.RequestCancel(t.Context(), owner, run.RunID, "ada", "no")
			require.NoError(t, err)
			ended, err := b.EndUnstarted(t.Context(), claimed[0])
			require.NoError(t, err)
			require.True(t, ended)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, compiled(t, twoTools))
			b.fails(t, command{run: run, id: "a"})
			b.begins(t, command{run: run, id: "b", index: 1, effect: agent.External})
			started := b.read(t, run).StartedAt
			_, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, Lost: 1})
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, b.again(t, run))
			cancel(b, t, run)
			require.Equal(t, agent.Cancelled, b.status(t, run))
			require.Equal(t, started, b.read(t, run).StartedAt)
			require.Equal(t, agent.CommandAborted, b.row(t, command{run: run, id: "a"}).State)
			require.Equal(t, agent.CommandInDoubt, b.row(t, command{run: run, id: "b"}).State)
			b.requireVerifies(t, run)
			b.resume(t, run)
			b.requireVerifies(t, run)
		})
	}
}

// A worker of an earlier epoch that is still alive can write nothing.
func TestAnEarlierEpochWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, compiled(t, twoTools))
	a, other := command{run: run, id: "a"}, command{run: run, id: "b", index: 1, effect: agent.External}
	no := b.begins(t, a)
	b.begins(t, other)
	b.lose(t, run)
	b.resumes(t, run)
	old := agent.Scope{RunID: run.RunID, Epoch: 1, Facts: []agent.Fact{fact(1, agent.NodeSkipped, "b", agent.NodeSkippedData{Index: 1})}}
	last, rows := b.last(t, run), value[string](t, b, `SELECT jsonb_agg(c ORDER BY command_id)::text FROM commands c`)
	unchanged := func(what string) {
		require.Equal(t, last, b.last(t, run), what)
		require.Equal(t, rows, value[string](t, b, `SELECT jsonb_agg(c ORDER BY command_id)::text FROM commands c`), what)
	}
	for what, write := range map[string]func() error{
		"Begin":                    func() error { _, err := b.Begin(t.Context(), command{run: run, id: "c"}.begin()); return err },
		"Begin of its own command": func() error { _, err := b.Begin(t.Context(), a.begin()); return err },
		"Commit":                   func() error { _, err := b.Commit(t.Context(), a.commit(no, `1`)); return err },
		"CommitTx": func() error {
			_, err := b.CommitTx(t.Context(), a.commit(no, `1`), nil)
			return err
		},
		"Conclude": func() error {
			_, err := b.Conclude(t.Context(), a.conclude(no, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "x")))
			return err
		},
		"Settle": func() error {
			_, err := b.Settle(t.Context(), agent.SettleCall{Call: a.call()})
			return err
		},
		"Record": func() error {
			_, err := b.Record(t.Context(), agent.RecordCall{Scope: old, Status: agent.InDoubt})
			return err
		},
		"Finish": func() error {
			_, err := b.Finish(t.Context(), agent.FinishCall{Scope: old, Status: agent.Cancelled})
			return err
		},
		"RecordEffect": func() error {
			_, err := b.RecordEffect(t.Context(), agent.NewValue{EffectCall: agent.EffectCall{Scope: old, NodeID: "a", CommandID: "a/now-1", Kind: agent.NowCommand}})
			return err
		},
	} {
		requireCode(t, write(), agent.CodeStaleEpoch)
		unchanged(what)
	}
	_, owned, err := b.Renew(t.Context(), run.RunID, "a", 1, no)
	require.NoError(t, err)
	require.False(t, owned)
	require.NoError(t, b.AppendOutput(t.Context(), run.RunID, "a", no, []agent.OutputChunk{{Chunk: 1, Channel: "text", Text: "x"}}))
	unchanged("Renew and output")
	require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM model_output`))
	require.NoError(t, json.Unmarshal([]byte(rows), new([]any)))

	// But for the result of the command that is in doubt.
	b.commits(t, other, 1, `{"sent":1}`)
	require.Equal(t, []agent.EventType{agent.CommandResolved, agent.CommandCommitted}, b.types(t, run, last+1))
	b.requireVerifies(t, run)
}

// R2-10: what nobody has approved is asked for anew when the run is resumed; an approval holds for the next try.
func TestResumeAndApprovals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(b *bench, t testing.TB, approvalID string)
		fails  bool // by itself, after somebody has approved it
		asks   bool // anew
	}{
		"denied": {func(b *bench, t testing.TB, id string) {
			_, err := b.DecideApproval(t.Context(), owner, id, agent.ApprovalAnswer{By: "ada"})
			require.NoError(t, err)
		}, false, true},
		"expired": {func(b *bench, t testing.TB, id string) {
			b.exec(t, `UPDATE approvals SET expires_at = now() - interval '1 s' WHERE approval_id = $1`, id)
		}, false, true},
		"approved, and failed": {func(b *bench, t testing.TB, id string) {
			_, err := b.DecideApproval(t.Context(), owner, id, agent.ApprovalAnswer{Approve: true, By: "ada"})
			require.NoError(t, err)
		}, true, false},
		"not answered when the run ended": {func(*bench, testing.TB, string) {}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, compiled(t, twoTools))
			cmd := command{run: run, id: "a", effect: agent.External}
			asking := func(cmd command) agent.Begun {
				begin := cmd.begin()
				begin.Refusal, begin.ArgumentsHash = &agent.Refusal{Decision: "ask", Reason: "it costs"}, agent.ArgumentsHash(begin.Input)
				if cmd.epoch > 1 {
					begin.Node = nil
				}
				begun, err := b.Begin(t.Context(), begin)
				require.NoError(t, err)
				return begun
			}
			first := asking(cmd)
			require.Equal(t, agent.MustAwait, first.Verdict)
			c.answer(b, t, first.Awaits.ApprovalID)
			cmd.schedule = 2
			again := asking(cmd)
			if c.fails {
				require.Equal(t, agent.MayExecute, again.Verdict)
				_, err := b.Conclude(t.Context(), cmd.conclude(again.DispatchNo, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "no")))
				require.NoError(t, err)
			}
			b.finish(t, run, agent.FailedStatus)
			now, _ := b.resumes(t, run)
			next := command{run: now, id: "a", effect: agent.External, epoch: 2}
			begun := asking(next)
			if !c.asks {
				require.Equal(t, agent.MayExecute, begun.Verdict)
				b.requireVerifies(t, run)
				return
			}
			require.Equal(t, agent.MustAwait, begun.Verdict)
			require.NotEqual(t, first.Awaits.ApprovalID, begun.Awaits.ApprovalID)
			_, err := b.DecideApproval(t.Context(), owner, begun.Awaits.ApprovalID, agent.ApprovalAnswer{Approve: true, By: "ada"})
			require.NoError(t, err)
			next.schedule = 2
			require.Equal(t, agent.MayExecute, asking(next).Verdict)
			b.requireVerifies(t, run)
		})
	}
}

// What a run that is lost waits for goes on waiting in its next epoch.
func TestResumeOfARunThatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, compiled(t, twoTools))
	asking := func(c command) agent.Begun {
		begin := c.begin()
		begin.Refusal, begin.ArgumentsHash = &agent.Refusal{Decision: "ask"}, agent.ArgumentsHash(begin.Input)
		if c.epoch > 1 {
			begin.Node = nil
		}
		begun, err := b.Begin(t.Context(), begin)
		require.NoError(t, err)
		return begun
	}
	first := asking(command{run: run, id: "a"})
	_, err := b.Pause(t.Context(), owner, run.RunID, "ada", "lunch")
	require.NoError(t, err)
	resumed, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, Lost: 1})
	require.NoError(t, err)
	b.requireVerifies(t, run)
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.NotZero(t, in.PausedBy, "it is paused still")
	require.Equal(t, agent.Paused, in.State.Status)
	_, err = b.Unpause(t.Context(), owner, run.RunID, "ada", "")
	require.NoError(t, err)
	next := command{run: resumed.Run, id: "a", epoch: 2}
	again := asking(next)
	require.Equal(t, agent.MustAwait, again.Verdict)
	require.Equal(t, first.Awaits.ApprovalID, again.Awaits.ApprovalID, "nobody is asked twice")
	_, err = b.DecideApproval(t.Context(), owner, first.Awaits.ApprovalID, agent.ApprovalAnswer{Approve: true, By: "ada"})
	require.NoError(t, err)
	next.schedule = 2
	require.Equal(t, agent.MayExecute, asking(next).Verdict)
	b.requireVerifies(t, run)
	requireFolds(t, b, run)
}

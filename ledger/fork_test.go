package ledger_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// forkOf asks for a fork of a run with nothing changed.
func forkOf(run agent.Run, at int64) agent.Fork {
	id := newID()
	return agent.Fork{Owner: owner, Source: run.RunID, Sequence: at, By: "ada", Run: agent.Run{RunID: id, RootRunID: id, ConversationID: newID(), MessageID: newID(),
		RequestID: "request", Epoch: 1, Input: run.Input, Definition: run.Definition}}
}

func (b *bench) forks(t testing.TB, f agent.Fork) agent.Run {
	t.Helper()
	run, created, err := b.Fork(t.Context(), f)
	require.NoError(t, err)
	require.True(t, created)
	return run
}

// verifies holds a run's record to its own rules.
func (b *bench) verifies(t testing.TB, run agent.Run) []agent.Difference {
	t.Helper()
	record, err := b.RunRecord(t.Context(), run.RunID)
	require.NoError(t, err)
	return agent.VerifyRun(record, agent.Testimony{Absent: agent.WitnessNotConfigured}).Differences
}

// dump is every row that is of a run.
func (b *bench) dump(t testing.TB, run agent.Run) string {
	t.Helper()
	return value[string](t, b, `SELECT concat_ws(E'\n',
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM agent_executions r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM conversations r WHERE id = $2),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM agent_execution_events r WHERE conversation_id = $2),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM commands r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM execution_checkpoints r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM intents r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM inputs r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM messages r WHERE conversation_id = $2))`, run.RunID, run.ConversationID)
}

// Whatever has happened in a run, at every number of its record there is a fork whose record keeps all the rules: its state is the
// fold of its events, its results have the bytes that the source has, and nothing of the source is changed.
func TestForksOfAnythingAreWholeRecords(t *testing.T) {
	t.Parallel()
	b := setup(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 2 {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		plan := &agent.Plan{}
		for i := range 8 {
			n := agent.Node{ID: fmt.Sprint("n", i), Kind: agent.ToolNode, Tool: "put"}
			if random.IntN(3) == 0 {
				n.OnError = agent.OnErrorContinue
			}
			if i > 4 {
				n.DependsOn = []string{fmt.Sprint("n", random.IntN(4))}
			}
			plan.Nodes = append(plan.Nodes, n)
		}
		run := b.accepted(t, plan)
		w := &worker{t: t, b: b, run: run, plan: plan, rand: random}
		var group sync.WaitGroup
		for i := range plan.Nodes {
			group.Go(func() { w.node(i) })
		}
		group.Wait()
		if round%2 == 0 {
			b.finish(t, run, agent.FailedStatus)
		}
		require.Empty(t, b.verifies(t, run))
		before := b.dump(t, run)
		effects := []map[agent.EffectClass]agent.ForkEffect{nil, {agent.Idempotent: agent.ForkRerun}}
		for _, e := range b.events(t, run) {
			f := forkOf(run, e.Sequence)
			f.Effects = effects[random.IntN(2)]
			plan, err := b.PlanFork(t.Context(), f)
			require.NoError(t, err)
			fork := b.forks(t, f)
			require.Equal(t, &agent.ForkedFrom{RunID: run.RunID, Sequence: e.Sequence}, fork.ForkedFrom)
			require.Empty(t, b.verifies(t, fork), "at %d", e.Sequence)
			requireWholeRecord(t, b, fork)
			in, err := b.StartInput(t.Context(), fork.RunID)
			require.NoError(t, err)
			fold, err := agent.Fold(b.events(t, fork))
			require.NoError(t, err)
			require.Equal(t, fold, in.State)
			require.Len(t, plan.Outcomes, fold.Committed+fold.FailedCommands)
			commands, err := b.Commands(t.Context(), fork.RunID)
			require.NoError(t, err)
			require.Len(t, commands, len(plan.Outcomes))
			for _, c := range commands {
				require.Equal(t, plan.Outcomes[c.CommandID].Sequence, c.ReusedFrom.Sequence)
				require.Equal(t, b.row(t, command{run: run, id: c.CommandID}).Result, b.row(t, command{run: fork, id: c.CommandID}).Result)
			}
			if again := forkOf(fork, 0); random.IntN(3) == 0 { // a fork of the fork has the same
				require.Empty(t, b.verifies(t, b.forks(t, again)))
			}
		}
		require.Equal(t, before, b.dump(t, run))
	}
}

// forkedRun is a run of a call that may be repeated and one that may not, and a third that is at work; and its fork at a number.
func forkedRun(t testing.TB, b *bench) agent.Run {
	t.Helper()
	run := b.accepted(t, compiled(t, `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {"n": 1e2}}, {"id": "b", "kind": "tool", "tool": "put", "args": {"n": 2}},
		{"id": "c", "kind": "tool", "tool": "put", "args": {"n": 3}, "depends_on": ["a"]}]}`))
	b.runs(t, command{run: run, id: "a"}, `{"n":1.0,"big":"`+strings.Repeat("x", 40<<10)+`"}`)
	b.runs(t, command{run: run, id: "b", index: 1, effect: agent.External}, `{"n":2.0}`)
	b.begins(t, command{run: run, id: "c", index: 2, effect: agent.External})
	return run
}

// What a run has from another one is marked as that, and a mark that is set, taken away or changed by hand is found.
func TestTamperedForksAreFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := forkedRun(t, b)
	row := func(t testing.TB, fork agent.Run, set string) {
		t.Helper()
		b.exec(t, `UPDATE commands SET `+set+` WHERE run_id = $1 AND command_id = 'a'`, fork.RunID)
	}
	event := func(t testing.TB, fork agent.Run, typ agent.EventType, set string) {
		t.Helper()
		b.exec(t, `UPDATE agent_execution_events SET event_data = `+set+` WHERE run_id = $1 AND event_type = $2`, fork.RunID, typ)
	}
	for name, change := range map[string]func(testing.TB, agent.Run){
		"the mark of a row": func(t testing.TB, fork agent.Run) { row(t, fork, `reused_from = NULL`) },
		"the source of a row": func(t testing.TB, fork agent.Run) {
			row(t, fork, `reused_from = jsonb_set(reused_from, '{sequence_number}', '1')`)
		},
		"the marks of the events": func(t testing.TB, fork agent.Run) {
			event(t, fork, agent.CommandCommitted, `event_data - 'reused_from'`)
		},
		"the number of run_forked": func(t testing.TB, fork agent.Run) {
			event(t, fork, agent.RunForked, `jsonb_set(event_data, '{from_sequence_number}', '2')`)
		},
		"the count of run_forked": func(t testing.TB, fork agent.Run) {
			event(t, fork, agent.RunForked, `jsonb_set(event_data, '{reused}', '3')`)
		},
		"the end of run_forked": func(t testing.TB, fork agent.Run) {
			event(t, fork, agent.RunForked, `jsonb_set(event_data, '{through_sequence_number}', '9')`)
		},
		"the source of the run": func(t testing.TB, fork agent.Run) {
			b.exec(t, `UPDATE agent_executions SET forked_from_run = NULL WHERE run_id = $1`, fork.RunID)
		},
		"the number of the run": func(t testing.TB, fork agent.Run) {
			b.exec(t, `UPDATE agent_executions SET forked_from_sequence = 3 WHERE run_id = $1`, fork.RunID)
		},
		"a result with all its hashes": func(t testing.TB, fork agent.Run) {
			row(t, fork, `result = '{"n":7}', result_hash = encode(sha256('{"n":7}'), 'hex'), result_bytes = 7`)
			b.exec(t, `UPDATE agent_execution_events SET event_data = jsonb_set(event_data, '{result_hash}', to_jsonb(encode(sha256('{"n":7}'), 'hex')))
				WHERE run_id = $1 AND event_type = 'command_committed' AND command_id = 'a'`, fork.RunID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fork := b.forks(t, forkOf(run, 0))
			require.Empty(t, b.verifies(t, fork))
			change(t, fork)
			var found []agent.Check
			for _, d := range b.verifies(t, fork) {
				found = append(found, d.Check)
			}
			require.Contains(t, found, agent.CheckFork)
		})
	}
	b.exec(t, `UPDATE commands SET reused_from = '{"run_id": "`+newID()+`", "sequence_number": 1}' WHERE run_id = $1 AND command_id = 'a'`, run.RunID)
	require.Equal(t, agent.CheckFork, b.verifies(t, run)[0].Check, "the run is no fork")
}

// The plan of a fork is the source's text: numbers and keys as they were written, of which arguments are made.
func TestForkHasThePlansOwnText(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := forkedRun(t, b)
	fork := b.forks(t, forkOf(run, 0))
	require.Equal(t, value[string](t, b, `SELECT plan::text FROM agent_executions WHERE run_id = $1`, run.RunID),
		value[string](t, b, `SELECT plan::text FROM agent_executions WHERE run_id = $1`, fork.RunID))
	require.Contains(t, value[string](t, b, `SELECT plan::text FROM agent_executions WHERE run_id = $1`, fork.RunID), "1e2")
}

// A call of the source that the fork comes to is answered by what stands of it by then.
func TestForkAsksWhatTheSourceKnows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after func(testing.TB, *bench, command, int) // what becomes of the source's call, before the fork and after
		hash          string
		args          string
		refuse        *agent.Refusal
		verdict       agent.Verdict
	}{
		"at work":                  {verdict: agent.MustDoubt},
		"committed since":          {after: func(t testing.TB, b *bench, c command, no int) { b.commits(t, c, no, `{"n":3.0}`) }, verdict: agent.Inject},
		"committed before":         {before: func(t testing.TB, b *bench, c command, no int) { b.commits(t, c, no, `{"n":3.0}`) }, verdict: agent.Inject},
		"committed, written anew":  {after: func(t testing.TB, b *bench, c command, no int) { b.commits(t, c, no, `{"n":3.0}`) }, hash: "other", args: `{ "n": 1.0 }`, verdict: agent.Inject},
		"committed, another call":  {after: func(t testing.TB, b *bench, c command, no int) { b.commits(t, c, no, `{"n":3.0}`) }, hash: "other", args: `{"n":2}`, verdict: agent.MayExecute},
		"committed, to be asked":   {after: func(t testing.TB, b *bench, c command, no int) { b.commits(t, c, no, `{"n":3.0}`) }, refuse: &agent.Refusal{Decision: "ask"}, verdict: agent.Inject},
		"committed, and forbidden": {after: func(t testing.TB, b *bench, c command, no int) { b.commits(t, c, no, `{"n":3.0}`) }, refuse: &agent.Refusal{Decision: "forbid"}, verdict: agent.InjectFailure},
		"failed before": {before: func(t testing.TB, b *bench, c command, no int) {
			_, err := b.Conclude(t.Context(), c.conclude(no, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "no")))
			require.NoError(t, err)
		}, verdict: agent.MayExecute},
		"failed since": {after: func(t testing.TB, b *bench, c command, no int) {
			_, err := b.Conclude(t.Context(), c.conclude(no, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "no")))
			require.NoError(t, err)
		}, verdict: agent.MayExecute},
		"in doubt": {after: func(t testing.TB, b *bench, c command, no int) {
			_, err := b.Conclude(t.Context(), c.conclude(no, agent.CommandInDoubt, agent.Unknown(agent.CodeToolFailed, "who knows")))
			require.NoError(t, err)
		}, verdict: agent.MustDoubt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := forkedRun(t, b)
			source := command{run: run, id: "c", index: 2, effect: agent.External}
			if c.before != nil {
				c.before(t, b, source, 1)
			}
			fork := b.forks(t, forkOf(run, 0))
			if c.before != nil && name == "committed before" {
				require.Equal(t, agent.Committed, b.row(t, command{run: fork, id: "c"}).State, "it is part of the record")
			}
			b.exec(t, `UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, fork.RunID)
			if c.after != nil {
				c.after(t, b, source, 1)
			}
			before := b.dump(t, run)
			mine := command{run: fork, id: "c", index: 2, effect: agent.External, hash: c.hash}
			begin := mine.begin()
			begin.Refusal = c.refuse
			if c.args != "" {
				begin.Input = json.RawMessage(c.args)
			}
			begin.ArgumentsHash = agent.ArgumentsHash(begin.Input)
			begun, err := b.Begin(t.Context(), begin)
			require.NoError(t, err)
			require.Equal(t, c.verdict, begun.Verdict)
			require.Equal(t, before, b.dump(t, run))
			require.Empty(t, b.verifies(t, fork))
			switch c.verdict {
			case agent.Inject:
				require.JSONEq(t, `{"n":3.0}`, string(begun.Row.Result))
				require.Equal(t, run.RunID, b.row(t, mine).ReusedFrom.RunID)
				in, err := b.StartInput(t.Context(), fork.RunID)
				require.NoError(t, err)
				require.True(t, in.State.Finished.Has(2), "its node has ended with it")
				requireWholeRecord(t, b, fork)
			case agent.MustDoubt:
				again := b.begin(t, mine)
				require.Equal(t, agent.IsInDoubt, again.Verdict)
				_, err := b.Resolve(t.Context(), owner, fork.RunID, "c", agent.Resolution{Outcome: agent.OutcomeRetry, By: "ada"})
				require.NoError(t, err)
				retry := mine
				retry.schedule = 2
				require.Equal(t, 2, b.begins(t, retry), "somebody has said that it may be made")
				b.commits(t, retry, 2, `{"n":4}`)
				require.Nil(t, b.row(t, mine).ReusedFrom)
				require.Empty(t, b.verifies(t, fork))
			default:
			}
		})
	}
}

// The same request under a key gives the same run, however many ask at once.
func TestForkOnceUnderAKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := forkedRun(t, b)
	ids := make([]string, 8)
	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			f := forkOf(run, 0)
			f.Key, f.RequestHash = "k", "h"
			fork, _, err := b.Fork(t.Context(), f)
			if err != nil {
				t.Error(err)
			}
			ids[i] = fork.RunID
		})
	}
	group.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	require.Equal(t, 1, value[int](t, b, `SELECT count(*) FROM agent_executions WHERE forked_from_run = $1`, run.RunID))
	f := forkOf(run, 0)
	f.Key, f.RequestHash = "k", "other"
	_, _, err := b.Fork(t.Context(), f)
	var conflict *agent.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, agent.ConflictKeyReused, conflict.Reason)
}

// Who may, and of what.
func TestForkRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := forkedRun(t, b)
	last := b.last(t, run)
	var missing *agent.NotFoundError
	var wrong *agent.ForkError
	var conflict *agent.ConflictError
	refused := func(change func(*agent.Fork), target any) {
		t.Helper()
		f := forkOf(run, 0)
		change(&f)
		_, err := b.PlanFork(t.Context(), f)
		require.ErrorAs(t, err, target)
		_, _, err = b.Fork(t.Context(), f)
		require.ErrorAs(t, err, target)
	}
	refused(func(f *agent.Fork) { f.Owner = "team-b" }, &missing)
	refused(func(f *agent.Fork) { f.Source = newID() }, &missing)
	refused(func(f *agent.Fork) { f.Source = "x" }, &missing)
	refused(func(f *agent.Fork) { f.Sequence = last + 1 }, &wrong)
	require.Equal(t, "sequence_number", wrong.Field)
	refused(func(f *agent.Fork) { f.CheckpointID = newID() }, &wrong)
	require.Equal(t, agent.ForkCheckpoint, wrong.Field)
	refused(func(f *agent.Fork) { f.Rerun = []string{"a", "z"} }, &wrong)
	require.Equal(t, "rerun/1", wrong.Field)
	other := forkedRun(t, b)
	checkpoints, err := b.Checkpoints(t.Context(), other.RunID)
	require.NoError(t, err)
	refused(func(f *agent.Fork) { f.CheckpointID = checkpoints[0].CheckpointID }, &wrong)

	waiting := acceptance(twoStep(t))
	waiting.NewConversation, waiting.Run.ConversationID, waiting.Strategy = false, run.ConversationID, agent.Enqueue
	queued, _, err := b.Accept(t.Context(), waiting)
	require.NoError(t, err)
	refused(func(f *agent.Fork) { f.Source = queued.RunID }, &conflict)
	require.Equal(t, 0, value[int](t, b, `SELECT count(*) FROM agent_executions WHERE forked_from_run IS NOT NULL`))

	anybody := forkOf(run, 0)
	anybody.Owner = agent.AnyOwner
	fork := b.forks(t, anybody)
	require.Equal(t, owner, value[string](t, b, `SELECT owner FROM conversations WHERE id = $1`, fork.ConversationID), "it is the source's owner's")
}

// Inputs, messages to the loop and limits that a run was given up to the number are the fork's too.
func TestForkTakesAlongWhatTheRunWasGiven(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := acceptance(agent.ReactPlan())
	a.PlanSource, a.Run.Definition.Mode = "react", agent.ModeReact
	run, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	b.exec(t, `UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, run.RunID)
	_, _, err = b.Signal(t.Context(), owner, run.RunID, agent.Input{Name: "go", InputID: "1", Value: json.RawMessage(`{"a": 1}`), By: "ada"})
	require.NoError(t, err)
	_, err = b.ChangeLimits(t.Context(), owner, run.RunID, agent.Limits{MaxSteps: 7, MaxParallel: 8, Timeout: agent.DefaultRunTimeout}, "ada", "")
	require.NoError(t, err)
	steer := acceptance(nil)
	steer.NewConversation, steer.Run.ConversationID, steer.Strategy, steer.Run.Input = false, run.ConversationID, agent.Steer, "be quick"
	_, _, err = b.Accept(t.Context(), steer)
	require.NoError(t, err)
	heard := b.last(t, run)
	turn := command{run: run, id: "main#1", kind: agent.ModelCommand}
	begin := turn.begin()
	begin.Heard, begin.Ends, begin.Node.Kind = heard, true, agent.ReactNode
	begun, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	commit := turn.commit(begun.DispatchNo, `{"text":"quick","tool_calls":[{"id":"x","name":"put","arguments":"{}"}]}`)
	commit.Ends, commit.Turn, commit.Heard, commit.Event.Turn, commit.Checkpoint = false, 1, heard, 1, agent.LLMComplete
	commit.Message = &agent.Message{Role: agent.AssistantMessage, Content: "quick", ToolCalls: json.RawMessage(`[{"id":"x"}]`), CommandID: "main#1"}
	_, err = b.Commit(t.Context(), commit)
	require.NoError(t, err)

	fork := b.forks(t, forkOf(run, 0))
	require.Equal(t, 7, fork.Definition.Limits.MaxSteps)
	require.Equal(t, `{"a": 1}`, value[string](t, b, `SELECT convert_from(value, 'UTF8') FROM inputs WHERE run_id = $1 AND command_id = ''`, fork.RunID))
	said, by, err := b.Steered(t.Context(), fork.RunID)
	require.NoError(t, err)
	require.Len(t, said, 1)
	require.Equal(t, "be quick", said[0].Content)
	require.Equal(t, map[string]int64{"main#1": said[0].Sequence}, by)
	in, err := b.StartInput(t.Context(), fork.RunID)
	require.NoError(t, err)
	require.Equal(t, said[0].Sequence, in.Heard)
	require.Equal(t, map[string]int{"main": 1}, in.State.Turns)
	require.Empty(t, b.verifies(t, fork))
	messages, _, err := b.Messages(t.Context(), fork.ConversationID, 0, 10)
	require.NoError(t, err)
	require.Len(t, messages, 3)
	require.Equal(t, "quick", messages[2].Content)

	// In the history of a later run's fork a turn has heard the same, at its number there.
	b.finish(t, run, agent.FailedStatus)
	later := b.forks(t, forkOf(b.acceptedIn(t, run.ConversationID, twoStep(t)), 0))
	before, err := b.Transcript(t.Context(), later.ConversationID, later.StartSequence, 10, 100)
	require.NoError(t, err)
	require.Len(t, before, 3)
	require.Equal(t, "quick", before[0].Content)
	require.True(t, before[1].Steers)
	require.False(t, before[2].Steers)
	require.NotZero(t, before[0].Heard)
	require.Equal(t, before[1].Sequence, before[0].Heard)

	tighter := forkOf(run, 0)
	tighter.Limits.MaxSteps = 3
	require.Equal(t, 3, b.forks(t, tighter).Definition.Limits.MaxSteps)
	early := b.forks(t, forkOf(run, heard-1))
	said, _, err = b.Steered(t.Context(), early.RunID)
	require.NoError(t, err)
	require.Empty(t, said, "it was said later")
}

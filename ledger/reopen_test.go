package ledger_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func (b *bench) resume(t testing.TB, run agent.Run) agent.Resumed {
	t.Helper()
	resumed, err := b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: run.RunID, By: "ada", Reason: "mended"})
	require.NoError(t, err)
	return resumed
}

// resumes is resume, with the run handed to Temporal again. It gives the run's record as it is then, and the types of the events
// that the resume wrote.
func (b *bench) resumes(t testing.TB, run agent.Run) (agent.Run, []agent.EventType) {
	t.Helper()
	from := b.last(t, run) + 1
	resumed := b.resume(t, run)
	b.exec(t, `UPDATE intents SET delivered_at = now(), attempts = 1 WHERE run_id = $1 AND epoch = $2`, run.RunID, resumed.Run.Epoch)
	b.exec(t, `UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, run.RunID)
	b.requireVerifies(t, run)
	return resumed.Run, b.types(t, run, from)
}

// turns commits the model call of a turn of a loop, whose first one opens its node.
func (b *bench) turns(t testing.TB, c command, result string) {
	t.Helper()
	c.kind, c.inner = agent.ModelCommand, true
	begin := c.begin()
	_, turn, _ := strings.Cut(c.id, "#")
	n, err := strconv.Atoi(turn)
	require.NoError(t, err)
	if n == 1 {
		begin.Node = &agent.NodeStartedData{Kind: agent.ReactNode}
	}
	begun, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	commit := c.commit(begun.DispatchNo, result)
	commit.Event.Turn, commit.Event.Tool, commit.Checkpoint = n, "", agent.LLMComplete
	_, err = b.Commit(t.Context(), commit)
	require.NoError(t, err)
}

// lose ends a run as the watcher does when Temporal has ended its execution.
func (b *bench) lose(t testing.TB, run agent.Run) {
	t.Helper()
	ended, err := b.EndLost(t.Context(), b.looked(t, run), agent.FailedStatus, &agent.Error{Code: agent.CodeExecutionLost, Message: "terminated"})
	require.NoError(t, err)
	require.True(t, ended)
}

func (b *bench) fails(t testing.TB, c command) {
	t.Helper()
	decided, err := b.Conclude(t.Context(), c.conclude(b.begins(t, c), agent.CommandFailed, &agent.Error{Code: agent.CodeToolFailed, Message: "no", NodeID: c.call().NodeID, CommandID: c.id}))
	require.NoError(t, err)
	require.True(t, decided.Mine)
}

// nodeFails records that a node has failed.
func (b *bench) nodeFails(t testing.TB, run agent.Run, no int, nodeID string, index int, handled bool) {
	t.Helper()
	_, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: run.Epoch,
		Facts: []agent.Fact{fact(no, agent.NodeFailed, nodeID, agent.NodeFailedData{Index: index, Error: &agent.Error{Code: agent.CodeToolFailed}, Handled: handled})}}})
	require.NoError(t, err)
}

func (b *bench) read(t testing.TB, run agent.Run) agent.Run {
	t.Helper()
	read, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	return read
}

func reopened(t testing.TB, events []agent.Event) agent.RunReopenedData {
	t.Helper()
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].Type == agent.RunReopened {
			return data[agent.RunReopenedData](t, events[i])
		}
	}
	t.Fatal("no run_reopened")
	return agent.RunReopenedData{}
}

// A run that ended badly, or stands still, gets another epoch: one event, a row as if it had just been accepted, and a start.
func TestResume(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end    func(b *bench, t testing.TB, run agent.Run)
		before agent.Status
		lost   int
	}{
		"failed":                  {func(b *bench, t testing.TB, run agent.Run) { b.finish(t, run, agent.FailedStatus) }, agent.FailedStatus, 0},
		"cancelled":               {func(b *bench, t testing.TB, run agent.Run) { b.finish(t, run, agent.Cancelled) }, agent.Cancelled, 0},
		"stuck":                   {(*bench).stick, agent.Stuck, 0},
		"lost, and ended as that": {(*bench).lose, agent.FailedStatus, 0},
		"lost":                    {func(*bench, testing.TB, agent.Run) {}, agent.Running, 1},
		"stuck and lost":          {(*bench).stick, agent.Stuck, 1},
		"ended as lost, and lost": {(*bench).lose, agent.FailedStatus, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, twoStep(t))
			b.runs(t, command{run: run, id: "a"}, `{"n":1}`)
			c.end(b, t, run)
			from := b.last(t, run) + 1
			got, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, By: "ada", Reason: "men\x00ded", Lost: c.lost})
			require.NoError(t, err)
			require.Equal(t, 1, got.Step)
			require.Equal(t, 2, got.Run.Epoch)
			require.Equal(t, agent.Queued, got.Run.Status)
			require.Nil(t, got.Run.Error)
			require.Nil(t, got.Run.FinishedAt)
			require.NotNil(t, got.Run.StartedAt)
			require.Equal(t, b.read(t, run), got.Run)
			require.Equal(t, []agent.EventType{agent.RunReopened}, b.types(t, run, from))
			events := b.events(t, run)
			require.Equal(t, agent.RunReopenedData{Epoch: 2, Status: c.before, By: "ada", Reason: "men\uFFFDded", Step: 1}, reopened(t, events))
			require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM intents WHERE run_id = $1 AND epoch = 2 AND kind = 'start' AND delivered_at IS NULL`, run.RunID))
			b.requireVerifies(t, run)
			in, err := b.StartInput(t.Context(), run.RunID)
			require.NoError(t, err)
			require.Equal(t, 2, in.Epoch)
			require.NotNil(t, in.Plan)
			require.True(t, in.State.Finished.Has(0))
			fold, err := agent.Fold(events)
			require.NoError(t, err)
			require.Equal(t, fold, in.State)

			_, err = b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: run.RunID})
			var conflict *agent.ConflictError
			require.ErrorAs(t, err, &conflict, "it is at work again")
			require.Equal(t, agent.ConflictRunOpen, conflict.Reason)
		})
	}
}

func TestResumeRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	open := b.accepted(t, twoStep(t))
	completed := b.accepted(t, twoStep(t))
	b.runs(t, command{run: completed, id: "a"}, `1`)
	b.runs(t, command{run: completed, id: "b", index: 1, kind: agent.ModelCommand}, `{"text":"x"}`)
	b.finish(t, completed, agent.Completed)
	failed := b.accepted(t, twoStep(t))
	b.finish(t, failed, agent.FailedStatus)
	cancelling := b.accepted(t, twoStep(t))
	_, err := b.RequestCancel(t.Context(), owner, cancelling.RunID, "", "")
	require.NoError(t, err)
	again := b.accepted(t, twoStep(t))
	b.lose(t, again)
	b.resumes(t, again)
	b.lose(t, b.read(t, again))
	paused := b.accepted(t, twoStep(t))
	_, err = b.Pause(t.Context(), owner, paused.RunID, "me", "")
	require.NoError(t, err)
	_, err = b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: paused.RunID})
	require.ErrorContains(t, err, "is paused; unpause lets it go on")
	for name, c := range map[string]struct {
		resume agent.Resume
		reason string // of the conflict, "" for not found
	}{
		"paused":                            {agent.Resume{Owner: owner, RunID: paused.RunID}, agent.ConflictRunOpen},
		"at work":                           {agent.Resume{Owner: owner, RunID: open.RunID}, agent.ConflictRunOpen},
		"being cancelled":                   {agent.Resume{Owner: owner, RunID: cancelling.RunID}, agent.ConflictRunOpen},
		"completed":                         {agent.Resume{Owner: owner, RunID: completed.RunID}, agent.ConflictRunEnded},
		"unknown":                           {agent.Resume{Owner: owner, RunID: newID()}, ""},
		"no id":                             {agent.Resume{Owner: owner, RunID: "x"}, ""},
		"another's":                         {agent.Resume{Owner: "stranger", RunID: failed.RunID}, ""},
		"lost, and completed":               {agent.Resume{Owner: agent.AnyOwner, RunID: completed.RunID, Lost: 1}, agent.ConflictRunEnded},
		"lost, and failed by itself":        {agent.Resume{Owner: agent.AnyOwner, RunID: failed.RunID, Lost: 1}, agent.ConflictRunEnded},
		"lost, and being cancelled":         {agent.Resume{Owner: agent.AnyOwner, RunID: cancelling.RunID, Lost: 1}, agent.ConflictRunOpen},
		"lost in an epoch that it has left": {agent.Resume{Owner: agent.AnyOwner, RunID: again.RunID, Lost: 1}, agent.ConflictRunOpen},
	} {
		last := value[int64](t, b, `SELECT sum(last_sequence)::bigint FROM conversations`)
		_, err := b.Resume(t.Context(), c.resume)
		if c.reason == "" {
			var missing *agent.NotFoundError
			require.ErrorAs(t, err, &missing, name)
		} else {
			var conflict *agent.ConflictError
			require.ErrorAs(t, err, &conflict, name)
			require.Equal(t, c.reason, conflict.Reason, name)
		}
		require.Equal(t, last, value[int64](t, b, `SELECT sum(last_sequence)::bigint FROM conversations`), name)
	}
}

func TestOfManyResumesOneWins(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.lose(t, run)
	release := b.hold(t, run.ConversationID)
	var group sync.WaitGroup
	results := make(chan error, 6)
	for i := range cap(results) {
		group.Go(func() {
			_, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID, Lost: i % 2})
			results <- err
		})
	}
	b.awaitBlocked(t, cap(results))
	release()
	group.Wait()
	close(results)
	won := 0
	for err := range results {
		if err == nil {
			won++
			continue
		}
		var conflict *agent.ConflictError
		require.ErrorAs(t, err, &conflict)
	}
	require.Equal(t, 1, won)
	require.Equal(t, 2, b.read(t, run).Epoch)
	b.requireVerifies(t, run)
}

// What was decided after the run's end gets its events when it is reopened, once.
func TestResumeAnnouncesWhatCameAfterTheEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said   func(b *bench, t testing.TB, c command)
		events []agent.EventType
		by     string
		then   agent.Verdict
	}{
		"a late result": {func(b *bench, t testing.TB, c command) { b.commits(t, c, 1, `{"sent":1}`) },
			[]agent.EventType{agent.CommandResolved, agent.CommandCommitted}, agent.ByLateResult, agent.Inject},
		"a late failure": {func(b *bench, t testing.TB, c command) {
			_, err := b.Conclude(t.Context(), c.conclude(1, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "no")))
			require.NoError(t, err)
		}, []agent.EventType{agent.CommandResolved, agent.CommandFailedType, agent.CommandReopened}, agent.ByLateResult, agent.MayExecute},
		"a person's result": {func(b *bench, t testing.TB, c command) {
			b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"sent":2}`), By: "ada"})
		}, []agent.EventType{agent.CommandResolved, agent.CommandCommitted}, "ada", agent.Inject},
		"a person says failed": {func(b *bench, t testing.TB, c command) {
			b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeFailed, By: "ada"})
		}, []agent.EventType{agent.CommandResolved, agent.CommandFailedType, agent.CommandReopened}, "ada", agent.MayExecute},
		"a person says retry": {func(b *bench, t testing.TB, c command) {
			b.resolve(t, c, agent.Resolution{Outcome: agent.OutcomeRetry, By: "ada"})
		}, []agent.EventType{agent.CommandResolved}, "ada", agent.MayExecute},
		"nobody knows": {func(*bench, testing.TB, command) {}, nil, "", agent.IsInDoubt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run, doubtful := b.inDoubt(t, "a")
			b.finish(t, run, agent.Cancelled)
			c.said(b, t, doubtful)
			now, wrote := b.resumes(t, run)
			require.Equal(t, append([]agent.EventType{agent.RunReopened}, c.events...), wrote)
			for _, e := range b.events(t, run) {
				if e.Type == agent.CommandResolved {
					require.Equal(t, c.by, data[agent.CommandResolvedData](t, e).By)
				}
			}
			require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM commands WHERE unannounced`))
			begun := b.begin(t, command{run: now, id: "a", effect: agent.External, epoch: 2})
			require.Equal(t, c.then, begun.Verdict)
			b.finish(t, now, agent.Cancelled)
			b.requireVerifies(t, run)
			_, wrote = b.resumes(t, run)
			require.NotContains(t, wrote, agent.CommandResolved, "only once")
		})
	}
}

// The tool call of a react turn whose outcome came after the end answers its turn in the conversation.
func TestResumeAnnouncesToolCallsOfATurn(t *testing.T) {
	t.Parallel()
	for outcome, content := range map[agent.Outcome]string{agent.OutcomeCommitted: `{"ok":true}`, agent.OutcomeFailed: "TOOL_FAILED: resolved as failed by ada"} {
		b := setup(t)
		run := b.accepted(t, agent.ReactPlan())
		b.turns(t, command{run: run, id: "main#1"}, `{"tool_calls":[{"id":"x"},{"id":"y"}]}`)
		call := command{run: run, id: "main#1.1", effect: agent.External, inner: true}
		b.doubt(t, call)
		b.finish(t, run, agent.Cancelled)
		b.resolve(t, call, agent.Resolution{Outcome: outcome, Result: json.RawMessage(`{"ok":true}`), By: "ada"})
		now, wrote := b.resumes(t, run)
		require.NotContains(t, wrote, agent.CommandReopened, "the model reads it")
		messages, _, err := b.Messages(t.Context(), run.ConversationID, 0, 10)
		require.NoError(t, err)
		last := messages[len(messages)-1]
		require.Equal(t, agent.ToolMessage, last.Role)
		require.Equal(t, "y", last.ToolCallID)
		require.Equal(t, content, last.Content)
		require.Contains(t, []agent.Verdict{agent.Inject, agent.InjectFailure}, b.begin(t, command{run: now, id: "main#1.1", effect: agent.External, inner: true, epoch: 2}).Verdict)
	}
}

// An effect inside of a command that was resolved after the end: the effect's response is recorded, and the command goes on.
func TestResumeAnnouncesInnerEffects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	outer, inner := command{run: run, id: "a"}, command{run: run, id: "a/charge", kind: agent.HTTPCommand, effect: agent.External, inner: true}
	b.begins(t, outer)
	begin := inner.begin()
	begin.Model, begin.Input = nil, json.RawMessage(`{"method":"POST","url":"https://pay.example/charge?key=s3cret"}`)
	begun, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	require.Equal(t, 1, begun.DispatchNo)
	_, err = b.Conclude(t.Context(), inner.conclude(1, agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt, CommandID: inner.id, NodeID: "a"}))
	require.NoError(t, err)
	b.doubtBecauseOf(t, outer, inner)
	b.finish(t, run, agent.Cancelled)
	b.commits(t, inner, 1, `{"status":200,"json":{"paid":true}}`)
	now, wrote := b.resumes(t, run)
	require.Equal(t, agent.RunReopened, wrote[0])
	require.ElementsMatch(t, []agent.EventType{agent.RunReopened, agent.CommandResolved, agent.HTTPRecorded, agent.CommandCommitted, agent.CommandResolved}, wrote)
	for i, e := range b.events(t, run) {
		if e.Type != agent.HTTPRecorded {
			continue
		}
		require.Equal(t, agent.CommandCommitted, b.events(t, run)[i+1].Type, "it stands right before its command_committed")
		require.Equal(t, "https://pay.example/charge", data[agent.HTTPRecordedData](t, e).Request.URL)
		require.Equal(t, 200, data[agent.HTTPRecordedData](t, e).Response.Status)
	}
	require.Equal(t, agent.MayExecute, b.begin(t, command{run: now, id: "a", epoch: 2}).Verdict)
	require.Equal(t, agent.Inject, b.begin(t, command{run: now, id: "a/charge", kind: agent.HTTPCommand, effect: agent.External, inner: true, epoch: 2}).Verdict)
}

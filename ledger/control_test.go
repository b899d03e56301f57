package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// intents are what a run is to be told, with those that were told.
func (b *bench) intents(t testing.TB, run agent.Run) (kinds []ledger.IntentKind, said []agent.Intent) {
	t.Helper()
	rows, err := b.db.Query(t.Context(), `SELECT kind, id, payload FROM intents WHERE run_id = $1 AND kind <> 'start' ORDER BY id`, run.RunID)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var kind ledger.IntentKind
		var id int64
		var i agent.Intent
		require.NoError(t, rows.Scan(&kind, &id, &i))
		i.ID = id
		kinds, said = append(kinds, kind), append(said, i)
	}
	require.NoError(t, rows.Err())
	return kinds, said
}

func TestPause(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	dispatchNo := b.begins(t, a)
	from := b.last(t, run) + 1
	paused, err := b.Pause(t.Context(), owner, run.RunID, "ada", "look\x00")
	require.NoError(t, err)
	require.Equal(t, agent.Paused, paused.Status)
	require.Equal(t, "ada", paused.Pause.By)
	require.Equal(t, "look\ufffd", paused.Pause.Reason)
	require.WithinDuration(t, time.Now(), paused.Pause.Since, time.Minute)
	atWork, err := b.AtWork(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Len(t, atWork, 1)
	require.Equal(t, []any{"a", "put", agent.Idempotent, 1}, []any{atWork[0].CommandID, atWork[0].Tool, atWork[0].Effect, atWork[0].Attempt})

	again, err := b.Pause(t.Context(), owner, run.RunID, "bob", "me too")
	require.NoError(t, err)
	require.Equal(t, paused.Pause, again.Pause, "whoever was first has paused it")

	// Another command does not begin, and nothing is written of it but the facts that it carries.
	kinds, said := b.intents(t, run)
	require.Equal(t, []ledger.IntentKind{ledger.PauseIntent}, kinds)
	fact := agent.Fact{No: 1, Type: agent.NodeSkipped, NodeID: "c", Data: json.RawMessage(`{"node_index": 7}`)}
	begun := b.begin(t, command{run: run, id: "b", index: 1, kind: agent.ModelCommand, facts: []agent.Fact{fact}})
	require.Equal(t, agent.Begun{Verdict: agent.IsPaused, PausedBy: said[0].ID}, begun)
	// The one at work goes on, with the effects that it asks for, and is committed.
	inner := command{run: run, id: "a/now", effect: agent.Idempotent, inner: true, kind: agent.HTTPCommand}
	call := inner.begin()
	call.Within = &agent.Within{CommandID: "a", DispatchNo: dispatchNo, Dispatch: a.dispatch()}
	inside, err := b.Begin(t.Context(), call)
	require.NoError(t, err)
	require.Equal(t, agent.MayExecute, inside.Verdict)
	b.commits(t, inner, 1, `{"status": 200}`)
	b.commits(t, a, dispatchNo, `{"v": 1}`)
	require.Equal(t, []agent.EventType{agent.RunPaused, agent.NodeSkipped, agent.CommandEmitted, agent.CommandCommitted, agent.CommandCommitted,
		agent.NodeFinished, agent.CheckpointSaved}, b.types(t, run, from))
	b.requireVerifies(t, run)

	_, err = b.Unpause(t.Context(), owner, run.RunID, "bob", "")
	require.NoError(t, err)
	_, err = b.Unpause(t.Context(), owner, run.RunID, "bob", "")
	requireConflict(t, err, agent.ConflictNotPaused)
	kinds, said = b.intents(t, run)
	require.Equal(t, []ledger.IntentKind{ledger.PauseIntent, ledger.UnpauseIntent}, kinds)
	require.Less(t, said[0].ID, said[1].ID, "the numbers tell which came last")
	b.runs(t, command{run: run, id: "b", index: 1, kind: agent.ModelCommand, schedule: 2}, `{"text": "2"}`)
	b.finish(t, run, agent.Completed)
	b.requireVerifies(t, run)
	_, err = b.Pause(t.Context(), owner, run.RunID, "ada", "")
	requireConflict(t, err, agent.ConflictRunEnded)
	_, err = b.Pause(t.Context(), "stranger", run.RunID, "ada", "")
	var missing *agent.NotFoundError
	require.ErrorAs(t, err, &missing)
}

// What has waited for its next attempt does not begin it, whatever the last one left.
func TestPausedRetries(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, b *bench, a command){
		"released": func(t *testing.T, b *bench, a command) {
			_, err := b.Conclude(t.Context(), a.conclude(1, agent.Released, agent.Transient(agent.CodeToolFailed, "busy")))
			require.NoError(t, err)
		},
		"its worker was lost": func(t *testing.T, b *bench, a command) { b.expire(t, a) },
		"aborted in an earlier epoch": func(t *testing.T, b *bench, a command) {
			b.exec(t, `UPDATE commands SET state = 'aborted', owner_epoch = 0 WHERE run_id = $1 AND command_id = 'a'`, a.run.RunID)
		},
		"fenced": func(t *testing.T, b *bench, a command) {
			b.exec(t, `UPDATE commands SET state = 'fenced', dispatch_no = 0 WHERE run_id = $1 AND command_id = 'a'`, a.run.RunID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, twoStep(t))
			a := command{run: run, id: "a"}
			b.begins(t, a)
			prepare(t, b, a)
			_, err := b.Pause(t.Context(), owner, run.RunID, "ada", "")
			require.NoError(t, err)
			from := b.last(t, run) + 1
			a.schedule = 2
			require.Equal(t, agent.IsPaused, b.begin(t, a).Verdict)
			require.Empty(t, b.types(t, run, from))
			_, err = b.Unpause(t.Context(), owner, run.RunID, "ada", "")
			require.NoError(t, err)
			b.begins(t, a)
		})
	}
}

// What is on record is told to whoever asks, paused or not: it begins nothing.
func TestPausedRunStillTellsWhatIsOnRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	no := b.begins(t, a)
	_, err := b.Pause(t.Context(), owner, run.RunID, "ada", "")
	require.NoError(t, err)
	require.Equal(t, agent.MayProceed, b.begin(t, a).Verdict, "its reply was lost")
	b.commits(t, a, no, `{"v": 1}`)
	later := a
	later.schedule = 2
	require.Equal(t, agent.Inject, b.begin(t, later).Verdict)
}

// group are goroutines that may fail.
type group struct {
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

func (g *group) Go(do func() error) {
	g.wg.Go(func() {
		if err := do(); err != nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.errs = append(g.errs, err)
		}
	})
}

func (g *group) Wait() error {
	g.wg.Wait()
	return errors.Join(g.errs...)
}

// Dispatches race with an operator who pauses and lets go on. By its numbers, nothing begins while the run is paused.
func TestPauseRacesWithBegins(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	const workers, pauses = 4, 8
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	over := make(chan struct{})
	var work group
	for w := range workers {
		work.Go(func() error {
			for i := 0; ; i++ {
				select {
				case <-over:
					return nil
				default:
				}
				c := command{run: run, id: fmt.Sprintf("a#%d.%d", w+1, i), inner: true}
				begun, err := b.Begin(ctx, c.begin())
				if err != nil {
					return err
				}
				if begun.Verdict == agent.IsPaused {
					continue
				}
				decided, err := b.Commit(ctx, c.commit(begun.DispatchNo, `{}`))
				if err != nil || !decided.Mine {
					return fmt.Errorf("commit %s: %w", c.id, err)
				}
			}
		})
	}
	var control group
	control.Go(func() error {
		defer close(over)
		for range pauses {
			if _, err := b.Pause(ctx, owner, run.RunID, "ada", ""); err != nil {
				return err
			}
			if _, err := b.Unpause(ctx, owner, run.RunID, "ada", ""); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, control.Wait())
	require.NoError(t, work.Wait())

	paused, open := false, map[string]bool{}
	for _, e := range b.events(t, run) {
		switch e.Type {
		case agent.RunPaused:
			paused = true
		case agent.RunUnpaused:
			paused = false
		case agent.CommandEmitted:
			require.False(t, paused, "event %d: %s begins while the run is paused", e.Sequence, e.CommandID)
			open[e.CommandID] = true
		case agent.CommandCommitted:
			require.True(t, open[e.CommandID])
			delete(open, e.CommandID)
		default:
		}
	}
	require.Empty(t, open)
	require.Equal(t, pauses, value[int](t, b, `SELECT count(*)::int FROM agent_execution_events WHERE run_id = $1 AND event_type = 'run_paused'`, run.RunID))
	require.Positive(t, value[int](t, b, `SELECT count(*)::int FROM commands WHERE run_id = $1 AND state = 'committed'`, run.RunID))
}

func TestPauseBeforeTheStart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := acceptance(twoStep(t))
	run, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	paused, err := b.Pause(t.Context(), owner, run.RunID, "ada", "")
	require.NoError(t, err)
	require.Equal(t, agent.Paused, paused.Status)
	_, said := b.intents(t, run)
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, said[0].ID, in.PausedBy, "the execution starts paused, whether the signal comes or not")
	intents, err := b.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, ledger.StartIntent, intents[0].Kind)
	require.NoError(t, b.IntentDelivered(t.Context(), intents[0]))
	require.Equal(t, agent.Paused, b.status(t, run), "started, and paused still")
	_, err = b.Unpause(t.Context(), owner, run.RunID, "ada", "")
	require.NoError(t, err)
	require.Equal(t, agent.Running, b.status(t, run))
	in, err = b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Zero(t, in.PausedBy)
}

// A pause lies over what the run waits for otherwise, wherever a status is shown or looked for.
func TestPausedOverEveryStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []agent.Status{agent.Running, agent.Waiting, agent.InDoubt, agent.LimitReached, agent.Stuck} {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, twoStep(t))
			b.exec(t, `UPDATE agent_executions SET status = $2, status_before = CASE $2 WHEN 'stuck' THEN 'waiting' END WHERE run_id = $1`, run.RunID, string(status))
			_, err := b.Pause(t.Context(), owner, run.RunID, "ada", "")
			require.NoError(t, err)
			shown := agent.Paused
			if status == agent.Stuck {
				shown = status // that it cannot go on at all is the graver news
			}
			require.Equal(t, shown, b.status(t, run))
			for _, f := range []struct {
				status agent.Status
				found  bool
			}{{shown, true}, {status, status == shown}} {
				runs, _, err := b.Runs(t.Context(), agent.RunFilter{Owner: owner, ConversationID: run.ConversationID, Status: f.status, Limit: 10})
				require.NoError(t, err)
				require.Equal(t, f.found, len(runs) == 1, f.status)
			}
			execution, err := b.ExecutionStatus(t.Context(), run.ConversationID)
			require.NoError(t, err)
			require.True(t, execution.IsRunning)
			extent, err := b.Extent(t.Context(), agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID})
			require.NoError(t, err)
			require.True(t, extent.Open)
			next := acceptance(twoStep(t))
			next.NewConversation, next.Run.ConversationID, next.Strategy = false, run.ConversationID, agent.Enqueue
			queued, _, err := b.Accept(t.Context(), next)
			require.NoError(t, err)
			released, err := b.ReleaseQueued(t.Context())
			require.NoError(t, err)
			require.Zero(t, released, "a paused run holds the queue")
			ahead, err := b.QueuedBehind(t.Context(), queued.RunID)
			require.NoError(t, err)
			require.Equal(t, []agent.RunAhead{{RunID: run.RunID, Status: shown}}, ahead)
			_, err = b.Pause(t.Context(), owner, queued.RunID, "ada", "")
			requireConflict(t, err, agent.ConflictNotBegun)
			_, err = b.ChangeLimits(t.Context(), owner, queued.RunID, agent.Limits{MaxSteps: 1}, "ada", "")
			requireConflict(t, err, agent.ConflictNotBegun)

			_, err = b.Unpause(t.Context(), owner, run.RunID, "ada", "")
			require.NoError(t, err)
			require.Equal(t, status, b.status(t, run), "what it waits for otherwise has not changed")
		})
	}
}

func TestCancelOfAPausedRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	_, err := b.Pause(t.Context(), owner, run.RunID, "ada", "")
	require.NoError(t, err)
	cancelling, err := b.RequestCancel(t.Context(), owner, run.RunID, "bob", "enough")
	require.NoError(t, err)
	require.Equal(t, agent.Cancelling, cancelling.Status)
	for _, call := range []func(context.Context, string, string, string, string) (agent.Run, error){b.Pause, b.Unpause} {
		_, err = call(t.Context(), owner, run.RunID, "ada", "")
		requireConflict(t, err, agent.ConflictRunEnded)
	}
	_, err = b.Begin(t.Context(), command{run: run, id: "a"}.begin())
	requireCode(t, err, agent.CodeCancelled)
	b.finish(t, run, agent.Cancelled)
	ended, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, agent.Cancelled, ended.Status)
	require.Nil(t, ended.Pause)
	b.requireVerifies(t, run)
	resumed, err := b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: run.RunID, By: "ada"})
	require.NoError(t, err)
	require.Equal(t, agent.Queued, resumed.Run.Status, "the end has ended the pause")
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Zero(t, in.PausedBy)
	b.requireVerifies(t, run)
}

func TestChangeLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.exec(t, `UPDATE agent_executions SET status = 'limit_reached' WHERE run_id = $1`, run.RunID)
	require.Equal(t, run.Definition.Limits, run.Limits())
	changed, err := b.ChangeLimits(t.Context(), owner, run.RunID, agent.Limits{MaxTokens: 10}, "ada", "why")
	require.NoError(t, err)
	want := run.Definition.Limits
	want.MaxTokens = 10
	require.Equal(t, want, changed.Limits())
	require.Equal(t, run.Definition.Limits, changed.Definition.Limits, "the definition is part of the record")
	require.Equal(t, agent.LimitReached, changed.Status, "whether that is enough is for the run to say")
	changed, err = b.ChangeLimits(t.Context(), owner, run.RunID, agent.Limits{MaxSteps: 7, OnLimit: agent.OnLimitFail}, "bob", "")
	require.NoError(t, err)
	want.MaxSteps, want.OnLimit = 7, agent.OnLimitFail
	require.Equal(t, want, changed.Limits(), "on top of the change before")
	events := b.events(t, run)
	said := data[agent.LimitsChangedData](t, events[len(events)-2])
	require.Equal(t, []string{"ada", "why"}, []string{said.By, said.Reason})
	require.Equal(t, want, data[agent.LimitsChangedData](t, events[len(events)-1]).Limits)
	kinds, told := b.intents(t, run)
	require.Equal(t, []ledger.IntentKind{ledger.LimitsIntent, ledger.LimitsIntent}, kinds)
	require.Equal(t, want, *told[1].Limits)
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, want, in.Limits, "a new execution goes by them")

	b.finish(t, run, agent.FailedStatus)
	_, err = b.ChangeLimits(t.Context(), owner, run.RunID, agent.Limits{MaxSteps: 9}, "ada", "")
	requireConflict(t, err, agent.ConflictRunEnded)
	resumed, err := b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: run.RunID, By: "ada", Limits: &agent.Limits{MaxSteps: 9}})
	require.NoError(t, err)
	want.MaxSteps = 9
	require.Equal(t, want, resumed.Run.Limits())
	types := b.types(t, run, 0)
	require.Equal(t, []agent.EventType{agent.RunReopened, agent.LimitsChanged}, types[len(types)-2:])
	b.requireVerifies(t, run)
}

// Two who raise different limits at once both have their way.
func TestChangesOfLimitsRace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	release := b.hold(t, run.ConversationID)
	var both group
	for _, limits := range []agent.Limits{{MaxTokens: 10}, {MaxToolCalls: 20}} {
		both.Go(func() error {
			_, err := b.ChangeLimits(context.WithoutCancel(t.Context()), owner, run.RunID, limits, "ada", "")
			return err
		})
	}
	b.awaitBlocked(t, 2)
	release()
	require.NoError(t, both.Wait())
	now, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, []int{10, 20}, []int{now.Limits().MaxTokens, now.Limits().MaxToolCalls})
}

// Tokens are counted by the row as by the event, whatever command used them, so that workflow and fold agree.
func TestTokensOfCommands(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a"}, `{"v": 1}`)
	c := command{run: run, id: "b", index: 1, kind: agent.ModelCommand}
	commit := c.commit(b.begins(t, c), `{"text": "2", "usage": {"input_tokens": 999}}`)
	commit.Event.Usage = json.RawMessage(`{"input_tokens": 30, "output_tokens": 12}`)
	decided, err := b.Commit(t.Context(), commit)
	require.NoError(t, err)
	require.Equal(t, 42, decided.Row.Tokens)
	c.schedule = 2
	require.Equal(t, 42, b.begin(t, c).Row.Tokens, "read again")
	state, err := b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []int{42, 1}, []int{state.Tokens, state.ToolCalls})
}

// What an execution of a later epoch walks through once more is what has begun of the last turn.
func TestWalkedToolCalls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, agent.ReactPlan())
	for turn := 1; turn <= 2; turn++ {
		model := command{run: run, id: agent.TurnCommandID(agent.MainNodeID, turn), kind: agent.ModelCommand, inner: true}
		commit := model.commit(b.begins(t, model), `{"text": ""}`)
		commit.Event.Turn, commit.Turn = turn, turn
		commit.Message = &agent.Message{Role: agent.AssistantMessage, CommandID: model.id, ToolCalls: json.RawMessage(
			`[{"id":"x","name":"put","arguments":"{\"b\":1, \"a\":\"\\u0000\"}"},{"id":"y","name":"put","arguments":"{\"a\":\"\\u0000\",\"b\":1}"},{"id":"\u0000","name":"look"}]`)}
		_, err := b.Commit(t.Context(), commit)
		require.NoError(t, err)
		for k := range 2 {
			b.runs(t, command{run: run, id: agent.TurnToolCommandID(agent.MainNodeID, turn, k), inner: true}, `{}`)
		}
	}
	b.begins(t, command{run: run, id: "main#2.2", inner: true})
	_, err := b.Settle(t.Context(), agent.SettleCall{Call: command{run: run, id: "main#2.3", inner: true}.call(), Reason: agent.Failed(agent.CodeInternal, "gone")})
	require.NoError(t, err)
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []string{"main#2.0", "main#2.1", "main#2.2"}, in.Walked, "of the last turn, and what was only scheduled not")
	require.Equal(t, []agent.RepeatedCall{{Digest: agent.CallDigest("put", json.RawMessage(`{"a":"\u0000","b":1}`)), Count: 2}, {Digest: agent.CallDigest("look", nil), Count: 1}},
		in.Calls, "of the turns before")
}

// After the time that a call names no effect begins, and none is tried again; what is on record is told.
func TestNothingBeginsOutOfTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	at := func(c command, until time.Time) agent.Verdict {
		begin := c.begin()
		begin.Until = until
		begun, err := b.Begin(t.Context(), begin)
		require.NoError(t, err)
		return begun.Verdict
	}
	early, late := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	a, lost := command{run: run, id: "a"}, command{run: run, id: "b", index: 1}
	last := b.last(t, run)
	require.Equal(t, agent.IsOutOfTime, at(a, early))
	require.Equal(t, last, b.last(t, run), "nothing is written")
	require.Equal(t, agent.MayExecute, at(a, late))
	b.concludes(t, a, 1, agent.Released, agent.Failed(agent.CodeToolFailed, "nobody there"))
	require.Equal(t, agent.IsOutOfTime, at(a, early))
	require.Equal(t, agent.MayExecute, at(a, late))
	b.commits(t, a, 2, "1")
	require.Equal(t, agent.Inject, at(a, early))

	no := b.begins(t, lost)
	inner := command{run: run, id: "b/get", effect: agent.Idempotent, inner: true, kind: agent.HTTPCommand}.begin()
	inner.Within, inner.Until = &agent.Within{CommandID: "b", DispatchNo: no, Dispatch: lost.dispatch()}, early
	begun, err := b.Begin(t.Context(), inner)
	require.NoError(t, err)
	require.Equal(t, agent.MayExecute, begun.Verdict, "what a tool at work asks for")
	b.expire(t, lost)
	lost.schedule = 7
	require.Equal(t, agent.IsOutOfTime, at(lost, early), "its worker was lost")
	require.Equal(t, agent.MayExecuteAgain, at(lost, late))
}

package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// stopped is what became of a run's commands, by command id.
func (b *bench) stopped(t testing.TB, run agent.Run) map[string]agent.StopOutcome {
	t.Helper()
	commands, err := b.StoppedCommands(t.Context(), run.RunID)
	require.NoError(t, err)
	outcomes := map[string]agent.StopOutcome{}
	for _, c := range commands {
		require.NotEmpty(t, c.NodeID)
		outcomes[c.CommandID] = c.Outcome
	}
	require.Len(t, outcomes, len(commands))
	return outcomes
}

func (b *bench) concludes(t testing.TB, c command, no int, state agent.CommandState, reason *agent.Error) {
	t.Helper()
	decided, err := b.Conclude(t.Context(), c.conclude(no, state, reason))
	require.NoError(t, err)
	require.True(t, decided.Mine)
}

func (b *bench) settles(t testing.TB, c command) agent.CommandRow {
	t.Helper()
	row, err := b.Settle(t.Context(), agent.SettleCall{Call: c.call(), Reason: &agent.Error{Code: agent.CodeCancelled, Message: "enough"}})
	require.NoError(t, err)
	return row
}

// What was decided before somebody asked the run to stop was not stopped.
func TestStoppedCommands(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	of := func(id string, effect agent.EffectClass) command {
		return command{run: run, id: "a#" + id, inner: true, effect: effect}
	}
	busy, no := agent.Transient(agent.CodeToolFailed, "busy"), agent.Failed(agent.CodeToolFailed, "no")
	unknown, enough := agent.Unknown(agent.CodeInDoubt, "cut off"), agent.Failed(agent.CodeCancelled, "enough")

	opens := command{run: run, id: "a"} // the node
	b.concludes(t, opens, b.begins(t, opens), agent.CommandFailed, no)
	b.runs(t, of("done", ""), `1`)
	doubted := of("doubted", agent.External)
	b.concludes(t, doubted, b.begins(t, doubted), agent.CommandInDoubt, unknown)
	open := []command{of("commits", agent.External), of("fails", ""), of("aborts", ""), of("doubts", agent.External), of("waits", agent.External),
		of("works", ""), of("mails", agent.External)}
	for _, c := range open {
		b.begins(t, c)
	}
	b.concludes(t, open[4], 1, agent.Released, busy)

	_, err := b.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
	require.NoError(t, err)
	want := map[string]agent.StopOutcome{"a#doubted": agent.StopInDoubt}
	for _, c := range open {
		want[c.id] = agent.StopOpen
	}
	require.Equal(t, want, b.stopped(t, run))

	b.commits(t, open[0], 1, `2`)
	b.concludes(t, open[1], 1, agent.CommandFailed, no)
	b.concludes(t, open[2], 1, agent.CommandAborted, enough)
	b.concludes(t, open[3], 1, agent.CommandInDoubt, unknown)
	require.Equal(t, agent.CommandAborted, b.settles(t, open[4]).State)
	require.Equal(t, agent.Fenced, b.settles(t, of("scheduled", "")).State)
	_, err = b.RecordEffect(t.Context(), agent.NewValue{EffectCall: agent.EffectCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, NodeID: "a",
		CommandID: "a/now-1", Kind: agent.NowCommand}})
	require.NoError(t, err)
	for id, outcome := range map[string]agent.StopOutcome{"commits": agent.StopCommitted, "fails": agent.StopFailed, "aborts": agent.StopAborted,
		"doubts": agent.StopInDoubt, "waits": agent.NeverStarted, "scheduled": agent.NeverStarted} {
		want["a#"+id] = outcome
	}
	require.Equal(t, want, b.stopped(t, run))
	b.finish(t, run, agent.Cancelled)
	want["a#works"], want["a#mails"] = agent.StopAborted, agent.StopInDoubt
	require.Equal(t, want, b.stopped(t, run))

	commands, err := b.StoppedCommands(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, agent.StoppedCommand{CommandID: "a#scheduled", NodeID: "a", Outcome: agent.NeverStarted}, commands[len(commands)-1])
	require.Equal(t, agent.StoppedCommand{CommandID: "a#doubted", NodeID: "a", Kind: agent.ToolCommand, Tool: "put", Effect: agent.External,
		Outcome: agent.StopInDoubt}, commands[0])

	// The record tells them apart, for whoever reads it later.
	for _, e := range b.events(t, run) {
		if e.Type == agent.CommandAbortType {
			require.Equal(t, e.CommandID == "a#waits", data[agent.CommandAbortedData](t, e).NeverStarted, e.CommandID)
		}
	}
	b.requireVerifies(t, run)

	// What a person says of a doubt after the end is what became of the command.
	b.resolve(t, open[6], agent.Resolution{Outcome: agent.OutcomeCommitted, Result: []byte(`3`), By: "ada"})
	b.resolve(t, open[3], agent.Resolution{Outcome: agent.OutcomeRetry, By: "ada"})
	want["a#mails"], want["a#doubts"] = agent.StopCommitted, agent.StopAborted
	require.Equal(t, want, b.stopped(t, run))

	// Another execution of the run is stopped for itself.
	_, err = b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID})
	require.NoError(t, err)
	b.started(t, run)
	next := command{run: run, id: "a#next", inner: true, epoch: 2}
	b.begins(t, next)
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "me", "again")
	require.NoError(t, err)
	want = map[string]agent.StopOutcome{"a": agent.StopOpen, "a#next": agent.StopOpen, "a#doubted": agent.StopInDoubt, "a#doubts": agent.StopOpen}
	require.Equal(t, want, b.stopped(t, run))
}

// A run that was resumed, and cancelled before that began: what waited to be tried again has not been.
func TestCancelOfAResumeThatNeverBegan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a"}
	b.concludes(t, a, b.begins(t, a), agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "no"))
	aborted := command{run: run, id: "a#1", inner: true}
	b.begins(t, aborted)
	b.finish(t, run, agent.FailedStatus)
	for range 2 {
		_, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID})
		require.NoError(t, err)
		asked, err := b.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
		require.NoError(t, err)
		require.Equal(t, agent.Cancelled, asked.Status)
		require.Equal(t, agent.CommandAborted, b.row(t, a).State)
		b.requireVerifies(t, run)
	}
	require.Equal(t, agent.RunCancelled, b.types(t, run, 1)[len(b.types(t, run, 1))-1])

	_, err := b.Resume(t.Context(), agent.Resume{Owner: agent.AnyOwner, RunID: run.RunID})
	require.NoError(t, err)
	a.epoch = 4
	require.Equal(t, agent.MayExecute, b.begin(t, a).Verdict, "the next execution tries it again")
}

func TestStoppedCommandsWhereNobodyAsked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a"}, `1`)
	b.begins(t, command{run: run, id: "b", index: 1})
	require.Equal(t, map[string]agent.StopOutcome{"b": agent.StopOpen}, b.stopped(t, run))
	b.finish(t, run, agent.Cancelled)
	require.Equal(t, map[string]agent.StopOutcome{"b": agent.StopAborted}, b.stopped(t, run))
}

// The first word stands: a second one neither replaces the reason nor tells the execution again.
func TestCancelTwiceKeepsTheFirstReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for _, reason := range []string{"first", "second"} {
		asked, err := b.RequestCancel(t.Context(), owner, run.RunID, reason, reason)
		require.NoError(t, err)
		require.Equal(t, agent.Cancelling, asked.Status)
	}
	ended, err := b.EndLost(t.Context(), b.quietOne(t, run), agent.Cancelled, &agent.Error{Message: "in Temporal"})
	require.NoError(t, err)
	require.True(t, ended)
	events := b.events(t, run)
	require.Equal(t, agent.RunCancelledData{Reason: "first", By: "first"}, data[agent.RunCancelledData](t, events[len(events)-1]))
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "me", "third")
	var conflict *agent.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, agent.ConflictRunEnded, conflict.Reason)
	require.ErrorContains(t, err, "has ended: cancelled")
}

// quietOne is a run as the watcher would look at it.
func (b *bench) quietOne(t testing.TB, run agent.Run) ledger.QuietRun {
	t.Helper()
	read, _, err := b.WorkerRun(t.Context(), run.RunID)
	require.NoError(t, err)
	events := b.own(t, run)
	return ledger.QuietRun{RunID: run.RunID, Epoch: read.Epoch, Status: read.Status, Sequence: events[len(events)-1].Sequence, Started: true}
}

// own are the events of a run without those of the runs below it.
func (b *bench) own(t testing.TB, run agent.Run) []agent.Event {
	t.Helper()
	return slices.DeleteFunc(b.events(t, run), func(e agent.Event) bool { return e.RunID != run.RunID })
}

// expected reports whether an error is a refusal that whoever comes too late has to expect.
func expected(err error) bool {
	var conflict *agent.ConflictError
	failure, _ := agent.AsError(err)
	return err == nil || errors.As(err, &conflict) || failure != nil && (failure.Code == agent.CodeStaleEpoch || failure.Code == agent.CodeCancelled)
}

// Whoever races with whom: a run ends once, and as its last word says.
func TestARunEndsOnceWhoeverRaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ends := map[agent.Status]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(4, seed)) //nolint:gosec // the same races every time
		run, _, err := b.Accept(t.Context(), acceptance(twoStep(t)))
		require.NoError(t, err)
		start := ledger.Intent{RunID: run.RunID, Epoch: 1, Kind: ledger.StartIntent}
		c := command{run: run, id: "a"} // the command that a worker is at
		if r.IntN(4) > 0 {              // else no dispatcher has tried it
			start = b.claim(t)[0]
			if r.IntN(4) > 0 {
				require.NoError(t, b.IntentDelivered(t.Context(), start))
				b.runs(t, c, `1`)
				c = command{run: run, id: "b", index: 1, kind: agent.ModelCommand}
				if r.IntN(2) == 0 {
					b.runs(t, c, `{"text": "done"}`)
				}
			}
		}
		c.effect = []agent.EffectClass{agent.Idempotent, agent.External}[r.IntN(2)]
		quiet := b.quietOne(t, run)
		finish := func(status agent.Status) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				_, err := b.Finish(ctx, agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: status, By: "temporal",
					Error: &agent.Error{Code: agent.CodeNodeFailed, Message: "because"}})
				if failure, ok := agent.AsError(err); ok && failure.Code == agent.CodeInternal && status == agent.Completed {
					return nil // there is no answer to complete with
				}
				return err
			}
		}
		cancel := func(ctx context.Context) error {
			_, err := b.RequestCancel(ctx, owner, run.RunID, "me", "enough")
			return err
		}
		racers := []func(context.Context) error{cancel, cancel, finish(agent.Completed), finish(agent.FailedStatus), finish(agent.Cancelled),
			func(ctx context.Context) error { _, err := b.EndUnstarted(ctx, start); return err },
			func(ctx context.Context) error {
				_, err := b.EndLost(ctx, quiet, agent.FailedStatus, &agent.Error{Code: agent.CodeExecutionLost})
				return err
			},
			func(ctx context.Context) error {
				_, err := b.EndLost(ctx, quiet, agent.Cancelled, &agent.Error{Code: agent.CodeCancelled})
				return err
			},
			func(ctx context.Context) error { _, err := b.ClaimIntents(ctx, 10); return err },
			func(ctx context.Context) error {
				if _, err := b.Begin(ctx, c.begin()); err != nil {
					return err
				}
				_, err := b.Commit(ctx, c.commit(1, `{"text": "done"}`))
				return err
			},
		}
		r.Shuffle(len(racers), func(i, k int) { racers[i], racers[k] = racers[k], racers[i] })
		ctx, stop := context.WithTimeout(t.Context(), soon)
		var group sync.WaitGroup
		for _, race := range racers[:3+r.IntN(len(racers)-2)] {
			group.Go(func() {
				if err := race(ctx); !expected(err) {
					t.Errorf("seed %d: %v", seed, err)
				}
			})
		}
		group.Wait()
		stop()
		if read, _, err := b.WorkerRun(t.Context(), run.RunID); err != nil || !read.Status.Terminal() {
			require.NoError(t, finish(agent.Cancelled)(t.Context()), "as its workflow would")
		}
		ends[b.endedOnce(t, run, fmt.Sprintf("seed %d", seed))]++
	}
	require.Len(t, ends, 3, "%v: every end has won some race", ends)
}

// endedOnce checks how a run has ended, and returns it.
func (b *bench) endedOnce(t testing.TB, run agent.Run, message string) agent.Status {
	t.Helper()
	read, _, err := b.WorkerRun(t.Context(), run.RunID)
	require.NoError(t, err)
	var terminal []agent.EventType
	events := b.own(t, run)
	for _, e := range events {
		if e.Type.Terminal() {
			terminal = append(terminal, e.Type)
		}
	}
	as := map[agent.Status]agent.EventType{agent.Completed: agent.RunCompleted, agent.FailedStatus: agent.RunFailed, agent.Cancelled: agent.RunCancelled}
	require.Equal(t, []agent.EventType{as[read.Status]}, terminal, message)
	require.Equal(t, terminal[0], events[len(events)-1].Type, message)
	for id, outcome := range b.stopped(t, run) {
		require.NotEqual(t, agent.StopOpen, outcome, "%s: %s", message, id)
	}
	b.requireVerifies(t, run)
	return read.Status
}

// A worker of another process hears of a stop, and of nothing else.
func TestSubscribeStops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := open(t, b.url, 0)
	stops := map[string]func(agent.Run) error{
		"a cancellation": func(run agent.Run) error {
			_, err := other.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
			return err
		},
		"a failure": func(run agent.Run) error {
			_, err := other.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.FailedStatus,
				Error: &agent.Error{Code: agent.CodeNodeFailed}})
			return err
		},
		"a lost execution": func(run agent.Run) error {
			_, err := other.EndLost(t.Context(), b.quietOne(t, run), agent.FailedStatus, &agent.Error{Code: agent.CodeExecutionLost})
			return err
		},
	}
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			run := b.accepted(t, twoStep(t))
			awaitListening(t, b, 2)
			news, cancel := b.SubscribeStops(run.RunID)
			defer cancel()
			drain(news)
			events, cancelEvents := b.Subscribe(run.ConversationID)
			defer cancelEvents()
			drain(events)
			_, err := other.Begin(t.Context(), command{run: run, id: "a"}.begin())
			require.NoError(t, err)
			awaitClosed(t, events)
			require.Empty(t, news)
			require.NoError(t, stop(run))
			awaitClosed(t, news)
			status, owned, err := b.Renew(t.Context(), run.RunID, "a", 1, 1)
			require.NoError(t, err)
			require.True(t, status == agent.Cancelling || !owned, "there is a reason to stop")
		})
	}
}

// below accepts a run as the child of another, as a node would that starts it.
func (b *bench) below(t testing.TB, parent agent.Run) agent.Run {
	t.Helper()
	a := acceptance(twoStep(t))
	a.NewConversation, a.Run.ConversationID = false, parent.ConversationID
	a.Run.ParentRunID, a.Run.RootRunID = parent.RunID, parent.RootRunID
	run, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	return run
}

// started hands a run to Temporal.
func (b *bench) started(t testing.TB, run agent.Run) agent.Run {
	t.Helper()
	b.exec(t, `UPDATE intents SET delivered_at = now(), attempts = 1 WHERE run_id = $1`, run.RunID)
	b.exec(t, `UPDATE agent_executions SET status = 'running', started_at = now() WHERE run_id = $1`, run.RunID)
	return run
}

// askedToStop is the one reason for which a run was asked to stop.
func (b *bench) askedToStop(t testing.TB, run agent.Run) string {
	t.Helper()
	return value[string](t, b, `SELECT payload ->> 'reason' FROM intents WHERE run_id = $1 AND kind = 'cancel'`, run.RunID)
}

func TestCancelReachesTheRunsBelow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	above := b.accepted(t, twoStep(t))
	root := b.started(t, b.below(t, above))
	child, queued := b.started(t, b.below(t, root)), b.below(t, root)
	grandchild := b.started(t, b.below(t, child))
	done := b.started(t, b.below(t, root))
	orphan := b.started(t, b.below(t, done))
	b.runs(t, command{run: done, id: "a"}, `1`)
	b.runs(t, command{run: done, id: "b", index: 1, kind: agent.ModelCommand}, `{"text": "done"}`)
	b.finish(t, done, agent.Completed)
	beside := b.started(t, b.below(t, above))
	news, cancel := b.SubscribeStops(grandchild.RunID)
	defer cancel()

	for range 2 { // asking again changes nothing
		_, err := b.RequestCancel(t.Context(), owner, root.RunID, "me", "enough")
		require.NoError(t, err)
		require.Equal(t, "enough", b.askedToStop(t, root))
		require.Equal(t, "its parent run "+root.RunID+" was cancelled", b.askedToStop(t, child))
		require.Equal(t, "its parent run "+child.RunID+" was cancelled", b.askedToStop(t, grandchild))
		require.Equal(t, "its parent run "+done.RunID+" was cancelled", b.askedToStop(t, orphan))
	}
	awaitClosed(t, news)
	for _, run := range []agent.Run{child, grandchild, orphan} {
		require.Equal(t, agent.Cancelling, b.status(t, run))
	}
	require.Equal(t, agent.Cancelled, b.status(t, queued), "it never started")
	events := b.events(t, queued)
	require.Equal(t, agent.RunCancelledData{By: "me", Reason: "its parent run " + root.RunID + " was cancelled"},
		data[agent.RunCancelledData](t, events[len(events)-1]))
	require.Equal(t, agent.Completed, b.status(t, done))
	require.Equal(t, agent.Running, b.status(t, above))
	require.Equal(t, agent.Running, b.status(t, beside))
}

func TestAnEndReachesTheRunsBelow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(b *bench, run agent.Run) error
		want string // why its children stop, "" when they go on
	}{
		"cancelled": {func(b *bench, run agent.Run) error {
			_, err := b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Cancelled, By: "me"})
			return err
		}, "was cancelled"},
		"failed": {func(b *bench, run agent.Run) error {
			_, err := b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.FailedStatus,
				Error: &agent.Error{Code: agent.CodeNodeFailed}})
			return err
		}, "failed"},
		"lost": {func(b *bench, run agent.Run) error {
			_, err := b.EndLost(t.Context(), b.quietOne(t, run), agent.FailedStatus, &agent.Error{Code: agent.CodeExecutionLost})
			return err
		}, "failed"},
		"completed": {func(b *bench, run agent.Run) error {
			b.runs(t, command{run: run, id: "a"}, `1`)
			b.runs(t, command{run: run, id: "b", index: 1, kind: agent.ModelCommand}, `{"text": "done"}`)
			_, err := b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Completed})
			return err
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, twoStep(t))
			child := b.started(t, b.below(t, run))
			require.NoError(t, c.end(b, run))
			if c.want == "" {
				require.Equal(t, agent.Running, b.status(t, child))
				return
			}
			require.Equal(t, agent.Cancelling, b.status(t, child))
			require.Equal(t, "its parent run "+run.RunID+" "+c.want, b.askedToStop(t, child))
			if name == "lost" {
				return
			}
			// Its worker died after the end was written and before the children were asked: the activity is tried again.
			late := b.started(t, b.below(t, run))
			require.NoError(t, c.end(b, run))
			require.Equal(t, agent.Cancelling, b.status(t, late))
		})
	}
}

// Cancellations of a family, from its top and from its middle, meet its workers, who all share one counter. A deadlock would be
// an error.
func TestCancellationsOfAFamilyDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 15 {
		root := b.accepted(t, twoStep(t))
		family := []agent.Run{root}
		for range 3 {
			child := b.started(t, b.below(t, root))
			family = append(family, child, b.started(t, b.below(t, child)))
		}
		ctx, stop := context.WithTimeout(t.Context(), soon)
		var group sync.WaitGroup
		do := func(f func() error) {
			group.Go(func() {
				if err := f(); !expected(err) {
					t.Error(err)
				}
			})
		}
		for i, run := range family {
			if i%3 != 2 {
				do(func() error { _, err := b.RequestCancel(ctx, owner, run.RunID, "me", "enough"); return err })
			}
			do(func() error {
				c := command{run: run, id: "a"}
				if _, err := b.Begin(ctx, c.begin()); err != nil {
					return err
				}
				_, err := b.Commit(ctx, c.commit(1, `1`))
				return err
			})
			do(func() error {
				_, err := b.Finish(ctx, agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Cancelled, By: "me"})
				return err
			})
		}
		group.Wait()
		require.NoError(t, ctx.Err())
		stop()
		for i, run := range family {
			b.endedOnce(t, run, fmt.Sprint(i))
		}
	}
}

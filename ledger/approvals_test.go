package ledger_test

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/policy"
)

const asked = `{"n":1.0}` // what command.begin asks for

// ask takes a command to the gate under a rule that wants an approval.
func (c command) ask(input string) agent.Begin {
	b := c.begin()
	b.Input, b.Kind = json.RawMessage(input), agent.ToolCommand
	b.InputHash, b.ArgumentsHash = "hash of "+input, agent.ArgumentsHash(json.RawMessage(input))
	b.Refusal = &agent.Refusal{Decision: policy.Ask, Reason: "money", Expires: agent.Duration(time.Hour)}
	b.FailureMessage = &agent.Message{Role: agent.ToolMessage, ToolCallID: "call", ToolName: "put", CommandID: c.id}
	return b
}

func (b *bench) beginAs(t testing.TB, begin agent.Begin) agent.Begun {
	t.Helper()
	begun, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	return begun
}

// waits takes a command to the gate and gives the approval that it waits for.
func (b *bench) waits(t testing.TB, c command) agent.Approval {
	t.Helper()
	begun := b.beginAs(t, c.ask(asked))
	require.Equal(t, agent.MustAwait, begun.Verdict)
	require.Equal(t, agent.CommandWaiting, begun.Row.State)
	require.Equal(t, agent.ForApproval, begun.Awaits.For)
	a, err := b.Approval(t.Context(), owner, begun.Awaits.ApprovalID)
	require.NoError(t, err)
	return a
}

func (b *bench) decidesApproval(t testing.TB, id string, answer agent.ApprovalAnswer) agent.Approval {
	t.Helper()
	a, err := b.DecideApproval(t.Context(), owner, id, answer)
	require.NoError(t, err)
	return a
}

// late lets an approval be over.
func (b *bench) late(t testing.TB, id string) {
	t.Helper()
	b.exec(t, `UPDATE approvals SET expires_at = clock_timestamp() - interval '1 ms' WHERE approval_id = $1`, id)
}

func (b *bench) verified(t testing.TB, run agent.Run) {
	t.Helper()
	record, err := b.RunRecord(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Empty(t, agent.VerifyRun(record, agent.Testimony{Absent: agent.WitnessNotConfigured}).Differences)
}

func requireConflict(t testing.TB, err error, reason string) {
	t.Helper()
	var conflict *agent.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, reason, conflict.Reason, conflict.Detail)
}

var yes = agent.ApprovalAnswer{Approve: true, By: "ann"}

// Asked, answered, executed: in this order, the node opened once, and nothing is dispatched before the answer.
func TestApprovalOrderOfTheRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a", effect: agent.External}
	from := b.last(t, run) + 1
	open := b.waits(t, a)
	require.Equal(t, agent.Approval{ApprovalID: open.ApprovalID, RunID: run.RunID, ConversationID: run.ConversationID, NodeID: "a", CommandID: "a", Tool: "put",
		Effect: agent.External, Arguments: json.RawMessage(asked), ArgumentsHash: agent.ArgumentsHash(json.RawMessage(`{ "n": 1.0 }`)), Reason: "money",
		State: agent.ApprovalOpen, RequestedAt: open.RequestedAt, ExpiresAt: open.RequestedAt.Add(time.Hour)}, open)
	require.Zero(t, b.row(t, a).Dispatches)

	// Other schedules and attempts wait for the same question.
	for _, again := range []command{{run: run, id: "a", effect: agent.External, attempt: 2}, {run: run, id: "a", effect: agent.External, schedule: 2}} {
		begun := b.beginAs(t, again.ask(asked))
		require.Equal(t, agent.MustAwait, begun.Verdict)
		require.Equal(t, open.ApprovalID, begun.Awaits.ApprovalID)
		require.LessOrEqual(t, time.Duration(begun.Awaits.Remaining), time.Hour)
	}
	b.exec(t, `UPDATE agent_executions SET status = 'waiting' WHERE run_id = $1`, run.RunID)
	given := b.decidesApproval(t, open.ApprovalID, agent.ApprovalAnswer{Approve: true, By: "ann", Note: "fine"})
	require.Equal(t, agent.ApprovalApproved, given.State)
	require.Equal(t, "ann", given.By)
	require.NotNil(t, given.DecidedAt)
	require.Equal(t, agent.Running, value[agent.Status](t, b, `SELECT status FROM agent_executions WHERE run_id = $1`, run.RunID))
	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM intents WHERE run_id = $1 AND kind = 'approval' AND delivered_at IS NULL`, run.RunID))

	next := command{run: run, id: "a", effect: agent.External, schedule: 2}
	begun := b.beginAs(t, next.ask(asked))
	require.Equal(t, agent.MayExecute, begun.Verdict)
	require.Equal(t, 1, begun.DispatchNo)
	b.commits(t, next, 1, `{"v":1}`)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.PolicyDecided, agent.ApprovalRequested, agent.ApprovalResolved, agent.CommandEmitted,
		agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, b.types(t, run, from))
	events := b.events(t, run)[from-1:]
	requested, emitted := data[agent.ApprovalRequestedData](t, events[2]), data[agent.CommandEmittedData](t, events[4])
	require.JSONEq(t, asked, string(requested.Arguments.JSON))
	require.Equal(t, requested.ApprovalID, emitted.ApprovalID)
	require.Equal(t, requested.ArgumentsHash, emitted.ArgumentsHash)
	require.Equal(t, agent.ApprovalResolvedData{ApprovalID: open.ApprovalID, Outcome: agent.ApprovalApproved, By: "ann", Note: "fine"},
		data[agent.ApprovalResolvedData](t, events[3]))
	require.Equal(t, agent.Inject, b.beginAs(t, next.ask(asked)).Verdict)
	b.verified(t, run)
}

// An answer holds for the arguments that it was given for. What somebody else would be called with is not executed, and fails.
func TestApprovalIsBoundToItsArguments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a", effect: agent.External}
	open := b.waits(t, a)
	other := command{run: run, id: "a", effect: agent.External, schedule: 2}
	require.Equal(t, agent.MustAwait, b.beginAs(t, other.ask(`{"n":2}`)).Verdict)
	b.decidesApproval(t, open.ApprovalID, yes)
	require.Equal(t, agent.Mismatch, b.beginAs(t, other.ask(`{"n":2}`)).Verdict)
	require.Zero(t, b.row(t, a).Dispatches)
	// The workflow settles what its activity could not begin.
	row, err := b.Settle(t.Context(), agent.SettleCall{Call: other.call(), Reason: &agent.Error{Code: agent.CodeMismatch, Message: "other arguments"}})
	require.NoError(t, err)
	require.Equal(t, agent.CommandFailed, row.State)
	require.Equal(t, agent.InjectFailure, b.beginAs(t, command{run: run, id: "a", effect: agent.External, schedule: 3}.ask(asked)).Verdict)
	b.finish(t, run, agent.FailedStatus)

	// A resume asks about the arguments that there are now.
	_, err = b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: run.RunID, By: "ann"})
	require.NoError(t, err)
	b.exec(t, `UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, run.RunID)
	again := command{run: run, id: "a", effect: agent.External, epoch: 2}.ask(`{"n":2}`)
	again.Node = nil // it has begun
	begun := b.beginAs(t, again)
	require.Equal(t, agent.MustAwait, begun.Verdict)
	require.NotEqual(t, open.ApprovalID, begun.Awaits.ApprovalID)
	b.verified(t, run)
}

// Edited arguments take the place of those that were asked for, in every later try too; nobody is asked again.
func TestApprovalWithEditedArguments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for _, effect := range []agent.EffectClass{agent.Idempotent, agent.External} {
		c := command{run: run, id: "c-" + string(effect), effect: effect}
		open := b.waits(t, c)
		const edited, shown = `{"n":3,"to":"x"}`, `{"n":3,"to":"[redacted]"}`
		answer := agent.ApprovalAnswer{Approve: true, Arguments: json.RawMessage(`{ "to": "x", "n": 3 }`), Shown: json.RawMessage(shown), By: "ann"}
		given := b.decidesApproval(t, open.ApprovalID, answer)
		require.True(t, given.Edited)
		require.Equal(t, shown, string(given.Arguments))
		require.Equal(t, agent.ArgumentsHash(json.RawMessage(edited)), given.ArgumentsHash)
		require.NotEqual(t, open.ArgumentsHash, given.ArgumentsHash)
		events := b.events(t, run)
		resolved := data[agent.ApprovalResolvedData](t, events[len(events)-1])
		require.JSONEq(t, shown, string(resolved.Arguments.JSON))
		require.Equal(t, given.ArgumentsHash, resolved.ArgumentsHash)

		last := b.last(t, run)
		begun := b.beginAs(t, c.ask(asked))
		require.Equal(t, agent.UseArguments, begun.Verdict)
		require.Equal(t, edited, string(begun.Row.Approval.Edited))
		require.Equal(t, last, b.last(t, run), "nothing is written")
		require.Equal(t, agent.MayExecute, b.beginAs(t, c.ask(edited)).Verdict)
		require.Equal(t, edited, string(b.row(t, c).Input))

		// The worker is lost in the middle of the approved effect.
		b.expire(t, c)
		next := command{run: run, id: c.id, effect: effect, attempt: 2}
		require.Equal(t, agent.UseArguments, b.beginAs(t, next.ask(asked)).Verdict)
		begun = b.beginAs(t, next.ask(edited))
		if effect == agent.External {
			require.Equal(t, agent.MustDoubt, begun.Verdict, "approved once is not approved twice")
			continue
		}
		require.Equal(t, agent.MayExecuteAgain, begun.Verdict)
		b.commits(t, next, 2, `1`)
		require.Equal(t, agent.UseArguments, b.beginAs(t, next.ask(asked)).Verdict)
		require.Equal(t, agent.Inject, b.beginAs(t, next.ask(edited)).Verdict)
	}
	require.Equal(t, 2, value[int](t, b, `SELECT count(*)::int FROM approvals`))
	b.verified(t, run)
}

// Between the answer and the dispatch the worker is lost: nothing but the row says that the call may be made, and that is enough.
func TestApprovalOutlivesTheWorkerThatAsked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	c := command{run: run, id: "a", effect: agent.External}
	begin := c.ask(asked)
	first := b.beginAs(t, begin)
	// The reply was lost: the same try asks again.
	again := b.beginAs(t, begin)
	require.Equal(t, first.Awaits.ApprovalID, again.Awaits.ApprovalID)
	row, err := b.Settle(t.Context(), agent.SettleCall{Call: c.call(), Reason: &agent.Error{Code: agent.CodeTimeout, Message: "lost"}})
	require.NoError(t, err)
	require.Equal(t, agent.CommandWaiting, row.State, "what waits is not lost")
	b.decidesApproval(t, first.Awaits.ApprovalID, yes)
	other := open(t, b.url, 0) // another process
	begun, err := other.Begin(t.Context(), command{run: run, id: "a", effect: agent.External, schedule: 2}.ask(asked))
	require.NoError(t, err)
	require.Equal(t, agent.MayExecute, begun.Verdict)
	require.Equal(t, agent.Refuse, b.beginAs(t, begin).Verdict, "the older schedule may not any more")
	b.verified(t, run)
}

// A denial fails the call with the reason, which the conversation tells the model. An expiry is nobody's word.
func TestApprovalDeniedAndExpired(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for _, c := range []struct {
		id      string
		end     func(id string)
		outcome agent.ApprovalState
		code    agent.Code
		told    string
	}{
		{"main#1.0", func(id string) { b.decidesApproval(t, id, agent.ApprovalAnswer{By: "ann", Note: "not to him"}) }, agent.ApprovalDenied, agent.CodeDenied,
			"APPROVAL_DENIED: denied by ann: not to him"},
		{"main#1.1", func(id string) { b.late(t, id) }, agent.ApprovalExpired, agent.CodeExpired,
			"APPROVAL_EXPIRED: nobody answered in time whether the call may be made"},
	} {
		a := command{run: run, id: c.id, effect: agent.External, inner: true}
		waiting := b.waits(t, a)
		c.end(waiting.ApprovalID)
		begun := b.beginAs(t, a.ask(asked))
		require.Equal(t, agent.InjectFailure, begun.Verdict)
		require.Equal(t, c.code, begun.Row.Error.Code)
		is, err := b.Approval(t.Context(), owner, waiting.ApprovalID)
		require.NoError(t, err)
		require.Equal(t, c.outcome, is.State)
		require.Equal(t, c.told, value[string](t, b, `SELECT content FROM messages WHERE command_id = $1`, c.id))
		require.Zero(t, b.row(t, a).Dispatches)
		last := b.last(t, run)
		require.Equal(t, agent.InjectFailure, b.beginAs(t, a.ask(asked)).Verdict)
		require.Equal(t, last, b.last(t, run), "said once")
	}
	_, err := b.DecideApproval(t.Context(), owner, value[string](t, b, `SELECT approval_id::text FROM approvals WHERE state = 'expired'`), yes)
	requireConflict(t, err, agent.ConflictApprovalExpired)
	b.verified(t, run)
}

// The first answer counts; the same again changes nothing, whatever else is another answer.
func TestApprovalIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	edit := func(n string) agent.ApprovalAnswer {
		return agent.ApprovalAnswer{Approve: true, Arguments: json.RawMessage(`{"n":` + n + `}`), By: "ann"}
	}
	no := agent.ApprovalAnswer{By: "bob", Note: "no"}
	for id, c := range map[string]struct {
		first       agent.ApprovalAnswer
		same, other []agent.ApprovalAnswer
	}{
		"approved": {yes, []agent.ApprovalAnswer{yes, {Approve: true, By: "bob"}, edit(` 1.0 `)}, []agent.ApprovalAnswer{no, edit("2")}},
		"edited":   {edit("2"), []agent.ApprovalAnswer{edit("2"), edit(" 2")}, []agent.ApprovalAnswer{yes, no, edit("3"), edit("1.0")}},
		"denied":   {no, []agent.ApprovalAnswer{no, {By: "cyd"}}, []agent.ApprovalAnswer{yes, edit("2")}},
	} {
		waiting := b.waits(t, command{run: run, id: id, effect: agent.External})
		first := b.decidesApproval(t, waiting.ApprovalID, c.first)
		last := b.last(t, run)
		for _, same := range c.same {
			require.Equal(t, first, b.decidesApproval(t, waiting.ApprovalID, same), id)
		}
		for _, other := range c.other {
			_, err := b.DecideApproval(t.Context(), owner, waiting.ApprovalID, other)
			requireConflict(t, err, agent.ConflictApprovalDecided)
		}
		require.Equal(t, last, b.last(t, run), "nothing more is written")
	}
	require.Equal(t, 3, value[int](t, b, `SELECT count(*)::int FROM intents WHERE kind = 'approval'`))
	missing := newID()
	_, err := b.DecideApproval(t.Context(), owner, missing, yes)
	require.ErrorAs(t, err, new(*agent.NotFoundError))
	stranger := value[string](t, b, `SELECT approval_id::text FROM approvals WHERE state = 'denied'`)
	_, err = b.DecideApproval(t.Context(), "team-b", stranger, no)
	require.ErrorAs(t, err, new(*agent.NotFoundError), "another owner's")
	b.verified(t, run)
	b.finish(t, run, agent.Cancelled)
	_, err = b.DecideApproval(t.Context(), owner, stranger, no)
	require.NoError(t, err, "the same answer, when the run has ended too")
	_, err = b.DecideApproval(t.Context(), owner, stranger, yes)
	requireConflict(t, err, agent.ConflictApprovalDecided)
}

// Everybody answers at once, on two connections, while a worker asks: one answer wins, and all are told the truth.
func TestApprovalAnswersThatRace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	c := command{run: run, id: "a", effect: agent.External}
	waiting := b.waits(t, c)
	release := b.hold(t, run.ConversationID)
	answers := []agent.ApprovalAnswer{yes, {By: "bob"}, {Approve: true, By: "cyd", Arguments: json.RawMessage(`{"n":2}`)}, {By: "dee"}}
	results := make([]error, len(answers))
	var group sync.WaitGroup
	for i, answer := range answers {
		group.Go(func() { _, results[i] = b.DecideApproval(t.Context(), owner, waiting.ApprovalID, answer) })
	}
	begun := agent.Begun{}
	var beginErr error
	group.Go(func() { begun, beginErr = b.Begin(t.Context(), c.ask(asked)) })
	b.awaitBlocked(t, len(answers)+1)
	release()
	group.Wait()
	require.NoError(t, beginErr)
	require.Contains(t, []agent.Verdict{agent.MustAwait, agent.MayExecute, agent.UseArguments, agent.InjectFailure}, begun.Verdict)
	is, err := b.Approval(t.Context(), owner, waiting.ApprovalID)
	require.NoError(t, err)
	for i, answer := range answers {
		won := (is.State == agent.ApprovalApproved) == answer.Approve && is.Edited == (answer.Arguments != nil)
		if won {
			require.NoError(t, results[i])
			continue
		}
		requireConflict(t, results[i], agent.ConflictApprovalDecided)
	}
	resolved := 0
	for _, e := range b.events(t, run) {
		if e.Type == agent.ApprovalResolved {
			resolved++
		}
	}
	require.Equal(t, 1, resolved)
	b.verified(t, run)
}

// An answer that comes at the moment of the expiry: whoever is first in the ledger decides, and the other is told so.
func TestApprovalAnswerAtTheMomentOfExpiry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	// Too late, and nobody had noticed: the answer itself finds out.
	late := command{run: run, id: "late", effect: agent.External}
	waiting := b.waits(t, late)
	b.late(t, waiting.ApprovalID)
	_, err := b.DecideApproval(t.Context(), owner, waiting.ApprovalID, agent.ApprovalAnswer{Approve: true, Arguments: json.RawMessage(`{"n":2}`), By: "ann"})
	requireConflict(t, err, agent.ConflictApprovalExpired)
	is, err := b.Approval(t.Context(), owner, waiting.ApprovalID)
	require.NoError(t, err)
	require.Equal(t, agent.ApprovalExpired, is.State)
	require.False(t, is.Edited)
	require.Empty(t, is.By)
	require.Equal(t, agent.CodeExpired, b.beginAs(t, late.ask(asked)).Row.Error.Code)

	// At once: the worker finds the time over while somebody answers, who had asked for the ledger before or after that.
	for i := range 8 {
		c := command{run: run, id: "c" + newID()[:8], effect: agent.External}
		waiting := b.waits(t, c)
		if i%2 == 0 {
			b.late(t, waiting.ApprovalID)
		}
		release := b.hold(t, run.ConversationID)
		var group sync.WaitGroup
		var answered, failed error
		group.Go(func() { _, answered = b.DecideApproval(t.Context(), owner, waiting.ApprovalID, yes) })
		group.Go(func() { _, failed = b.Begin(t.Context(), c.ask(asked)) })
		b.awaitBlocked(t, 2)
		if i%2 == 1 {
			b.late(t, waiting.ApprovalID)
		}
		release()
		group.Wait()
		require.NoError(t, failed)
		is, err := b.Approval(t.Context(), owner, waiting.ApprovalID)
		require.NoError(t, err)
		verdict := b.beginAs(t, c.ask(asked)).Verdict
		if is.State == agent.ApprovalApproved {
			require.Equal(t, 1, i%2, "the time was over before")
			require.NoError(t, answered)
			require.Contains(t, []agent.Verdict{agent.MayExecute, agent.MayProceed}, verdict)
			continue
		}
		require.Equal(t, agent.ApprovalExpired, is.State)
		requireConflict(t, answered, agent.ConflictApprovalExpired)
		require.Equal(t, agent.InjectFailure, verdict)
	}
	b.verified(t, run)
}

// A run that ends takes its questions back, and its commands end as never started. Nobody can answer then.
func TestApprovalIsWithdrawnWhenItsRunEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, status := range []agent.Status{agent.FailedStatus, agent.Cancelled} {
		run := b.accepted(t, twoStep(t))
		a := command{run: run, id: "a", effect: agent.External}
		waiting := b.waits(t, a)
		from := b.last(t, run) + 1
		if status == agent.Cancelled {
			_, err := b.RequestCancel(t.Context(), owner, run.RunID, "ann", "enough")
			require.NoError(t, err)
			_, err = b.DecideApproval(t.Context(), owner, waiting.ApprovalID, yes)
			requireConflict(t, err, agent.ConflictRunEnded)
			_, err = b.Begin(t.Context(), a.ask(asked))
			requireCode(t, err, agent.CodeCancelled)
			stopped, err := b.StoppedCommands(t.Context(), run.RunID)
			require.NoError(t, err)
			require.Len(t, stopped, 1)
			require.Equal(t, agent.NeverStarted, stopped[0].Outcome)
		}
		b.finish(t, run, status)
		end := map[agent.Status]agent.EventType{agent.FailedStatus: agent.RunFailed, agent.Cancelled: agent.RunCancelled}[status]
		require.Equal(t, []agent.EventType{agent.ApprovalResolved, agent.CommandAbortType, end}, b.types(t, run, from))
		events := b.events(t, run)
		require.True(t, data[agent.CommandAbortedData](t, events[len(events)-2]).NeverStarted)
		_, err := b.DecideApproval(t.Context(), owner, waiting.ApprovalID, yes)
		requireConflict(t, err, agent.ConflictRunEnded)
		b.verified(t, run)

		// The next epoch asks anew; the old answer counts for nothing.
		_, err = b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: run.RunID, By: "ann"})
		require.NoError(t, err)
		b.exec(t, `UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, run.RunID)
		again := command{run: run, id: "a", effect: agent.External, epoch: 2, inner: true}
		next := b.waits(t, again)
		require.NotEqual(t, waiting.ApprovalID, next.ApprovalID)
		b.decidesApproval(t, next.ApprovalID, yes)
		require.Equal(t, agent.MayExecute, b.beginAs(t, again.ask(asked)).Verdict)
		b.commits(t, again, 1, `1`)
		b.verified(t, run)
	}
}

// A resume asks anew about what ended the run by a denial or an expiry. What was approved, and failed afterwards, is approved.
func TestApprovalsAfterAResume(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, end := range map[string]func(c command, id string){
		"denied":  func(_ command, id string) { b.decidesApproval(t, id, agent.ApprovalAnswer{By: "ann"}) },
		"expired": func(_ command, id string) { b.late(t, id) },
		"approved": func(c command, id string) {
			b.decidesApproval(t, id, yes)
			require.Equal(t, agent.MayExecute, b.beginAs(t, c.ask(asked)).Verdict)
			_, err := b.Conclude(t.Context(), c.conclude(1, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "no such order")))
			require.NoError(t, err)
		},
	} {
		run := b.accepted(t, twoStep(t))
		a := command{run: run, id: "a", effect: agent.External}
		waiting := b.waits(t, a)
		end(a, waiting.ApprovalID)
		require.Equal(t, agent.InjectFailure, b.beginAs(t, a.ask(asked)).Verdict)
		b.finish(t, run, agent.FailedStatus)
		_, err := b.Resume(t.Context(), agent.Resume{Owner: owner, RunID: run.RunID, By: "ann"})
		require.NoError(t, err)
		b.exec(t, `UPDATE agent_executions SET status = 'running' WHERE run_id = $1`, run.RunID)
		again := command{run: run, id: "a", effect: agent.External, epoch: 2, inner: true}
		if name == "approved" {
			require.Equal(t, agent.MayExecute, b.beginAs(t, again.ask(asked)).Verdict)
			b.commits(t, again, 2, `1`)
		} else {
			next := b.waits(t, again)
			require.NotEqual(t, waiting.ApprovalID, next.ApprovalID, name)
			b.decidesApproval(t, next.ApprovalID, yes)
			require.Equal(t, agent.MayExecute, b.beginAs(t, again.ask(asked)).Verdict)
		}
		b.verified(t, run)
	}
}

// A question stands, whatever a policy in code says at the next try; one that forbids the call takes it back.
func TestApprovalWhenThePolicyChangesItsMind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	a := command{run: run, id: "a", effect: agent.External}
	waiting := b.waits(t, a)
	careless := a.ask(asked)
	careless.Refusal = nil
	require.Equal(t, agent.MustAwait, b.beginAs(t, careless).Verdict)
	b.decidesApproval(t, waiting.ApprovalID, yes)
	require.Equal(t, agent.MayExecute, b.beginAs(t, careless).Verdict)
	b.commits(t, a, 1, `1`)

	c := command{run: run, id: "c", effect: agent.External}
	waiting = b.waits(t, c)
	from := b.last(t, run) + 1
	strict := c.ask(asked)
	strict.Refusal = &agent.Refusal{Decision: policy.Forbid, Reason: "closed"}
	begun := b.beginAs(t, strict)
	require.Equal(t, agent.InjectFailure, begun.Verdict)
	require.Equal(t, agent.CodeRefused, begun.Row.Error.Code)
	require.Equal(t, []agent.EventType{agent.ApprovalResolved, agent.PolicyDecided, agent.CommandFailedType}, b.types(t, run, from))
	_, err := b.DecideApproval(t.Context(), owner, waiting.ApprovalID, yes)
	requireConflict(t, err, agent.ConflictApprovalDecided) // the run has not ended
	b.verified(t, run)
}

// Only the calls of tools can wait for somebody: a model's call, and a request within a tool, are refused.
func TestApprovalIsForToolsOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for _, kind := range []agent.CommandKind{agent.ModelCommand, agent.PlanCommand, agent.HTTPCommand} {
		begin := command{run: run, id: "c-" + string(kind), kind: kind}.begin()
		begin.Refusal = &agent.Refusal{Decision: policy.Ask}
		begun := b.beginAs(t, begin)
		require.Equal(t, agent.InjectFailure, begun.Verdict, kind)
		require.Equal(t, agent.CodeRefused, begun.Row.Error.Code)
		require.Equal(t, "the policy says ask", begun.Row.Error.Message)
	}
	require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM approvals`))
}

func TestApprovalsAreListed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, other := b.accepted(t, twoStep(t)), b.accepted(t, twoStep(t))
	var ids []string
	for _, c := range []command{{run: run, id: "a"}, {run: run, id: "b"}, {run: other, id: "a"}, {run: run, id: "c"}} {
		c.effect = agent.External
		ids = append([]string{b.waits(t, c).ApprovalID}, ids...)
	}
	for i, id := range ids { // between conversations the time is not exact to the millisecond
		b.exec(t, `UPDATE approvals SET requested_at = now() - $2 * interval '1 second' WHERE approval_id = $1`, id, i+1)
	}
	b.decidesApproval(t, ids[2], yes)
	list := func(f agent.ApprovalFilter) (found []string, more bool) {
		t.Helper()
		if f.Owner == "" {
			f.Owner = owner
		}
		if f.Limit == 0 {
			f.Limit = 10
		}
		page, more, err := b.Approvals(t.Context(), f)
		require.NoError(t, err)
		for _, a := range page {
			found = append(found, a.ApprovalID)
		}
		return found, more
	}
	all, more := list(agent.ApprovalFilter{})
	require.Equal(t, ids, all, "newest first")
	require.False(t, more)
	openOnes, _ := list(agent.ApprovalFilter{State: agent.ApprovalOpen})
	require.Equal(t, []string{ids[0], ids[1], ids[3]}, openOnes)
	ofRun, _ := list(agent.ApprovalFilter{RunID: other.RunID})
	require.Equal(t, []string{ids[1]}, ofRun)
	first, more := list(agent.ApprovalFilter{Limit: 3})
	require.Equal(t, ids[:3], first)
	require.True(t, more)
	rest, more := list(agent.ApprovalFilter{Limit: 3, Before: ids[2]})
	require.Equal(t, ids[3:], rest)
	require.False(t, more)
	none, _ := list(agent.ApprovalFilter{Owner: "team-b"})
	require.Empty(t, none)
	none, _ = list(agent.ApprovalFilter{Owner: "team-b", Before: ids[0]})
	require.Empty(t, none)
	everybodys, _ := list(agent.ApprovalFilter{Owner: agent.AnyOwner})
	require.Equal(t, ids, everybodys)
	_, _, err := b.Approvals(t.Context(), agent.ApprovalFilter{Owner: owner, RunID: "nonsense", Limit: 1})
	require.ErrorAs(t, err, new(*agent.NotFoundError))
	_, err = b.Approval(t.Context(), "team-b", ids[0])
	require.True(t, errors.As(err, new(*agent.NotFoundError)))
}

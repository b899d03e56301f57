package ledger_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func fact(no int, typ agent.EventType, nodeID string, payload any) agent.Fact {
	raw, _ := json.Marshal(payload)
	return agent.Fact{No: no, Type: typ, NodeID: nodeID, Data: raw}
}

// Facts go before the events of the call that carries them; what two calls carry is written once and in order.
func TestFactsAreWrittenOnceAndInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	from := b.last(t, run) + 1
	facts := []agent.Fact{fact(1, agent.PolicyDecided, "a", map[string]string{"n": "1"}), fact(2, agent.NodeSkipped, "x", agent.NodeSkippedData{Index: 7}),
		fact(3, agent.Progress, "", nil), {No: 4, Type: agent.Progress}}
	b.begins(t, command{run: run, id: "a", facts: facts[:2]})
	b.begins(t, command{run: run, id: "b", index: 1, facts: facts[:3]})
	reply, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: facts}})
	require.NoError(t, err)
	require.Equal(t, b.last(t, run), reply.Sequence)
	again, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: facts}})
	require.NoError(t, err)
	require.Equal(t, reply, again)
	require.Equal(t, []agent.EventType{agent.PolicyDecided, agent.NodeSkipped, agent.NodeStarted, agent.CommandEmitted, agent.Progress,
		agent.NodeStarted, agent.CommandEmitted, agent.Progress}, b.types(t, run, from))
	state, err := b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.True(t, state.Skipped.Has(7))
	require.Equal(t, "x", b.events(t, run)[from].NodeID)

	// The next execution counts from 1 again.
	b.exec(t, `UPDATE agent_executions SET epoch = 2 WHERE run_id = $1`, run.RunID)
	_, err = b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 2, Facts: facts[:1]}})
	require.NoError(t, err)
	require.Equal(t, reply.Sequence+1, b.last(t, run))
}

func TestFactsOfParallelCallers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	from := b.last(t, run) + 1
	var facts []agent.Fact
	for no := range 30 {
		facts = append(facts, fact(no+1, agent.Progress, "", map[string]int{"no": no + 1}))
	}
	var group sync.WaitGroup
	for i := range facts {
		group.Go(func() {
			scope := agent.Scope{RunID: run.RunID, Epoch: 1, Facts: facts[:i+1]}
			var err error
			if i%2 == 0 {
				_, err = b.Record(t.Context(), agent.RecordCall{Scope: scope})
			} else {
				c := command{run: run, id: newID(), inner: true, facts: scope.Facts}
				_, err = b.Begin(t.Context(), c.begin())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	no := 0
	for _, e := range b.events(t, run) {
		if e.Sequence >= from && e.Type == agent.Progress {
			no++
			require.Equal(t, map[string]int{"no": no}, data[map[string]int](t, e))
		}
	}
	require.Equal(t, len(facts), no)
}

// What a call cannot do takes its facts along: they are still unacknowledged and come with the next one.
func TestFactsOfARefusedCallAreNotWritten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	_, err := b.RequestCancel(t.Context(), owner, run.RunID, "", "")
	require.NoError(t, err)
	last := b.last(t, run)
	facts := []agent.Fact{fact(1, agent.Progress, "", nil)}
	_, err = b.Begin(t.Context(), command{run: run, id: "a", facts: facts}.begin())
	requireCode(t, err, agent.CodeCancelled)
	require.Equal(t, last, b.last(t, run))
	_, err = b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: facts}, Status: agent.Cancelled})
	require.NoError(t, err)
	require.Equal(t, []agent.EventType{agent.Progress, agent.RunCancelled}, b.types(t, run, last+1))
}

// A message of the conversation stands under the number of the event that brought it.
func TestMessagesComeWithTheirEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, agent.ReactPlan())
	turn := command{run: run, id: "main#1", kind: agent.ModelCommand, inner: true}
	commit := turn.commit(b.begins(t, turn), `{"text":"let me see"}`)
	commit.Event.Turn, commit.Checkpoint = 1, agent.LLMComplete
	commit.Message = &agent.Message{Role: agent.AssistantMessage, Content: "let me\x00 see", ToolCalls: json.RawMessage(`[{"id":"\u0000"}]`), CommandID: "main#1"}
	_, err := b.Commit(t.Context(), commit)
	require.NoError(t, err)
	tool := command{run: run, id: "main#1.0", inner: true}
	conclude := tool.conclude(b.begins(t, tool), agent.CommandFailed, &agent.Error{Code: agent.CodeToolFailed, Message: "no"})
	conclude.Message = &agent.Message{Role: agent.ToolMessage, ToolCallID: "call\x00", ToolName: "put\xff", CommandID: "main#1.0"}
	_, err = b.Conclude(t.Context(), conclude)
	require.NoError(t, err)

	messages, more, err := b.Messages(t.Context(), run.ConversationID, 2, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, messages, 2)
	require.Equal(t, "let me\uFFFD see", messages[0].Content)
	require.JSONEq(t, `[{"id":"\u0000"}]`, string(messages[0].ToolCalls))
	require.Equal(t, "TOOL_FAILED: no", messages[1].Content)
	require.Equal(t, "call\uFFFD", messages[1].ToolCallID)
	byNumber := map[int64]agent.Event{}
	for _, e := range b.events(t, run) {
		byNumber[e.Sequence] = e
	}
	require.Equal(t, agent.CommandCommitted, byNumber[messages[0].Sequence].Type)
	require.Equal(t, agent.CommandFailedType, byNumber[messages[1].Sequence].Type)

	// What a later run continues are the users' messages and the answers.
	history, err := b.History(t.Context(), run.ConversationID, b.last(t, run)+1)
	require.NoError(t, err)
	require.Len(t, history, 1)
	require.Equal(t, agent.UserMessage, history[0].Role)
}

// R3-14: checkpoints inside a node, and the planner's.
func TestCheckpointTypes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, nil)
	planner := command{run: run, id: agent.PlanNodeID, kind: agent.PlanCommand, inner: true}
	begin := planner.begin()
	begin.Plan = &agent.PlanStartedData{Source: "planner"}
	from := b.last(t, run) + 1
	_, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	commit := planner.commit(1, `{"nodes":[]}`)
	plan := twoStep(t)
	commit.Plan = &agent.PlanGeneratedData{Source: "planner", TaskGraph: plan, Hash: "h"}
	_, err = b.Commit(t.Context(), commit)
	require.NoError(t, err)
	require.Equal(t, []agent.EventType{agent.PlanStarted, agent.CommandEmitted, agent.CommandCommitted, agent.PlanGenerated, agent.CheckpointSaved},
		b.types(t, run, from))
	read, err := b.RunPlan(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, plan, read)

	tool := command{run: run, id: "a", inner: true}
	begin = tool.begin()
	begin.Checkpoint = agent.ToolStart
	from = b.last(t, run) + 1
	_, err = b.Begin(t.Context(), begin)
	require.NoError(t, err)
	commit = tool.commit(1, `1`)
	commit.Checkpoint = agent.ToolComplete
	_, err = b.Commit(t.Context(), commit)
	require.NoError(t, err)
	require.Equal(t, []agent.EventType{agent.CommandEmitted, agent.CheckpointSaved, agent.CommandCommitted, agent.CheckpointSaved}, b.types(t, run, from))

	checkpoints, err := b.Checkpoints(t.Context(), run.RunID)
	require.NoError(t, err)
	types := make([]agent.CheckpointType, len(checkpoints))
	for i, c := range checkpoints {
		types[i] = c.Type
	}
	require.Equal(t, []agent.CheckpointType{agent.LLMComplete, agent.ToolStart, agent.ToolComplete}, types)
	require.Equal(t, []string{"a"}, checkpoints[1].State.Open)
	require.Empty(t, checkpoints[2].State.Open)
	require.Equal(t, int64(6), checkpoints[2].State.PlanSequence, "the plan is part of every later state")
}

// A command that never began is fenced: the schedule that was given up can do nothing later, a newer one may.
func TestSettleFencesWhatNeverBegan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	last := b.last(t, run)
	settle := func(schedule int) agent.CommandRow {
		row, err := b.Settle(t.Context(), agent.SettleCall{Call: command{run: run, id: "a", schedule: schedule}.call()})
		require.NoError(t, err)
		require.Equal(t, agent.Fenced, row.State)
		return row
	}
	settle(3)
	require.Equal(t, 3, settle(3).Owner.Schedule)
	require.Equal(t, 5, settle(5).Owner.Schedule)
	require.Equal(t, 5, settle(4).Owner.Schedule, "a fence is never lowered")
	require.Equal(t, last, b.last(t, run), "a fence is no event")
	commands, err := b.Commands(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Empty(t, commands, "nor a command")
	_, err = b.Command(t.Context(), run.RunID, "a")
	var missing *agent.NotFoundError
	require.ErrorAs(t, err, &missing)

	for _, old := range []command{{run: run, id: "a", schedule: 3}, {run: run, id: "a", schedule: 5, attempt: 9}} {
		require.Equal(t, agent.Refuse, b.begin(t, old).Verdict)
	}
	next := command{run: run, id: "a", schedule: 6}
	require.Equal(t, 1, b.begins(t, next))
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted}, b.types(t, run, last+1))
	events := b.events(t, run)
	require.Equal(t, events[len(events)-1].CreatedAt, b.row(t, next).EmittedAt, "not when the fence was put up")

	// A repetition of the earlier settling decides nothing over the newer schedule's head.
	row, err := b.Settle(t.Context(), agent.SettleCall{Call: command{run: run, id: "a", schedule: 5}.call(), Reason: agent.Failed(agent.CodeTimeout, "x")})
	require.NoError(t, err)
	require.Equal(t, agent.Dispatched, row.State)
	b.commits(t, next, 1, `1`)
}

// A settling that waited while its command began must see the row that it found missing before.
func TestSettleRacesWithBegin(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	c := command{run: run, id: "a", effect: agent.External}
	release := b.hold(t, run.ConversationID)
	var (
		group   sync.WaitGroup
		begun   agent.Begun
		settled agent.CommandRow
		refused error
	)
	group.Go(func() { begun, refused = b.Begin(t.Context(), c.begin()) })
	b.awaitBlocked(t, 1)
	group.Go(func() {
		var err error
		if settled, err = b.Settle(t.Context(), agent.SettleCall{Call: c.call()}); err != nil {
			t.Error(err)
		}
	})
	b.awaitBlocked(t, 2)
	release()
	group.Wait()
	require.NoError(t, refused)
	if begun.Verdict == agent.MayExecute {
		require.Equal(t, agent.CommandInDoubt, settled.State, "it began: nobody may begin it again")
	} else {
		require.Equal(t, agent.Refuse, begun.Verdict)
		require.Equal(t, agent.Fenced, settled.State)
	}
}

func TestSettleDecidesWhatIsOpen(t *testing.T) {
	t.Parallel()
	cancelled := &agent.Error{Code: agent.CodeCancelled, Message: "enough"}
	timeout := &agent.Error{Code: agent.CodeTimeout, Message: "too long"}
	for name, tc := range map[string]struct {
		effect agent.EffectClass
		before agent.CommandState
		reason *agent.Error
		want   agent.CommandState
		event  agent.EventType
	}{
		"dispatched, idempotent":        {agent.Idempotent, agent.Dispatched, timeout, agent.CommandFailed, agent.CommandFailedType},
		"dispatched, no reason":         {agent.Idempotent, agent.Dispatched, nil, agent.CommandFailed, agent.CommandFailedType},
		"dispatched, cancelled":         {agent.Idempotent, agent.Dispatched, cancelled, agent.CommandAborted, agent.CommandAbortType},
		"dispatched, external":          {agent.External, agent.Dispatched, timeout, agent.CommandInDoubt, agent.CommandDoubtType},
		"dispatched, external, cancel":  {agent.External, agent.Dispatched, cancelled, agent.CommandInDoubt, agent.CommandDoubtType},
		"released":                      {agent.Idempotent, agent.Released, timeout, agent.CommandFailed, agent.CommandFailedType},
		"released, external":            {agent.External, agent.Released, timeout, agent.CommandFailed, agent.CommandFailedType},
		"released, external, cancelled": {agent.External, agent.Released, cancelled, agent.CommandAborted, agent.CommandAbortType},
		"committed stands":              {agent.Idempotent, agent.Committed, cancelled, agent.Committed, ""},
		"failed stands":                 {agent.Idempotent, agent.CommandFailed, cancelled, agent.CommandFailed, ""},
		"in doubt stands":               {agent.External, agent.CommandInDoubt, cancelled, agent.CommandInDoubt, ""},
		"aborted stands":                {agent.Idempotent, agent.CommandAborted, timeout, agent.CommandAborted, ""},
		"dispatched, settled under a newer schedule of its own": {agent.Idempotent, agent.Dispatched, timeout, agent.CommandFailed, agent.CommandFailedType},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, twoStep(t))
			c := command{run: run, id: "a", effect: tc.effect}
			no := b.begins(t, c)
			var err error
			switch tc.before {
			case agent.Committed:
				b.commits(t, c, no, `{"v":1}`)
			case agent.Dispatched, agent.Fenced:
			case agent.Released, agent.CommandFailed, agent.CommandAborted, agent.CommandInDoubt:
				_, err = b.Conclude(t.Context(), c.conclude(no, tc.before, &agent.Error{Code: agent.CodeToolFailed, Message: "x"}))
			}
			require.NoError(t, err)
			from := b.last(t, run) + 1
			call := c.call()
			if strings.Contains(name, "newer schedule") {
				call.Schedule = 2
			}
			for range 2 {
				row, err := b.Settle(t.Context(), agent.SettleCall{Call: call, Reason: tc.reason})
				require.NoError(t, err)
				require.Equal(t, tc.want, row.State)
				require.Equal(t, tc.want, b.row(t, c).State)
				if tc.want == agent.Committed {
					require.Equal(t, `{"v":1}`, string(row.Result))
				}
			}
			if tc.event == "" {
				require.Less(t, b.last(t, run), from)
				return
			}
			require.Equal(t, []agent.EventType{tc.event}, b.types(t, run, from))
			if tc.want == agent.CommandInDoubt {
				b.commits(t, c, no, `"late"`) // still the owner's to resolve
				return
			}
			decided, err := b.Commit(t.Context(), c.commit(no, `"late"`))
			require.NoError(t, err)
			require.False(t, decided.Mine, "a settled command stays settled")
			require.Equal(t, tc.want, decided.Row.State)
		})
	}
}

// R4-4, R4-24: the end settles every open command, in the transaction of the terminal event, and is told again unchanged.
func TestFinishSettlesAndIsIdempotent(t *testing.T) {
	t.Parallel()
	for _, status := range []agent.Status{agent.FailedStatus, agent.Cancelled, agent.Completed} {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, twoStep(t))
			b.runs(t, command{run: run, id: "b", index: 1, kind: agent.ModelCommand}, `{"text":"the an\u0000swer"}`)
			b.begins(t, command{run: run, id: "c-external", effect: agent.External, inner: true})
			b.begins(t, command{run: run, id: "d-idempotent", inner: true})
			released := command{run: run, id: "e-released", effect: agent.External, inner: true}
			_, err := b.Conclude(t.Context(), released.conclude(b.begins(t, released), agent.Released, agent.Transient(agent.CodeToolFailed, "x")))
			require.NoError(t, err)
			_, err = b.Settle(t.Context(), agent.SettleCall{Call: command{run: run, id: "f-fenced"}.call()})
			require.NoError(t, err)
			require.NoError(t, b.AppendOutput(t.Context(), run.RunID, "d-idempotent", 1, []agent.OutputChunk{{Chunk: 1, Channel: "text", Text: "x"}}))

			from := b.last(t, run) + 1
			call := agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: []agent.Fact{fact(1, agent.NodeFailed, "c", agent.NodeFailedData{Index: 2})}},
				Status: status, By: "me", Summary: "in short", Error: &agent.Error{Code: agent.CodeNodeFailed, Message: "be\x00cause", NodeID: "c"}}
			reply, err := b.Finish(t.Context(), call)
			require.NoError(t, err)
			again, err := b.Finish(t.Context(), call)
			require.NoError(t, err)
			require.Equal(t, reply, again)

			ends := map[agent.Status][]agent.EventType{agent.FailedStatus: {agent.RunFailed}, agent.Cancelled: {agent.RunCancelled},
				agent.Completed: {agent.MessageAdded, agent.RunCompleted}}
			want := append([]agent.EventType{agent.NodeFailed, agent.CommandDoubtType, agent.CommandAbortType, agent.CommandAbortType}, ends[status]...)
			require.Equal(t, want, b.types(t, run, from))
			events := b.events(t, run)
			end := events[len(events)-1]
			require.Equal(t, end.Sequence, reply.Sequence)
			for id, state := range map[string]agent.CommandState{"b": agent.Committed, "c-external": agent.CommandInDoubt,
				"d-idempotent": agent.CommandAborted, "e-released": agent.CommandAborted} {
				require.Equal(t, state, b.row(t, command{run: run, id: id}).State, id)
			}
			require.Zero(t, value[int](t, b, `SELECT count(*)::int FROM model_output`))

			read, err := b.Run(t.Context(), owner, run.RunID)
			require.NoError(t, err)
			require.Equal(t, status, read.Status)
			require.Equal(t, end.CreatedAt, *read.FinishedAt)
			require.NotNil(t, read.StartedAt)
			switch status {
			case agent.Completed:
				require.Equal(t, "the an\uFFFDswer", *read.FinalOutput)
				require.Equal(t, agent.RunCompletedData{FinalOutput: "the an\uFFFDswer", Summary: "in short"}, data[agent.RunCompletedData](t, end))
				messages, _, err := b.Messages(t.Context(), run.ConversationID, from, 10)
				require.NoError(t, err)
				require.Len(t, messages, 1)
				require.Equal(t, agent.AssistantMessage, messages[0].Role)
				require.Equal(t, end.Sequence-1, messages[0].Sequence)
				require.Nil(t, read.Error)
			case agent.FailedStatus:
				require.Equal(t, &agent.Error{Code: agent.CodeNodeFailed, Message: "be\uFFFDcause", NodeID: "c"}, read.Error)
				require.Equal(t, "c", end.NodeID)
			default:
				require.Equal(t, agent.RunCancelledData{Reason: "be\uFFFDcause", By: "me"}, data[agent.RunCancelledData](t, end))
			}
		})
	}
}

func TestFinishRefusesAnEndThatIsNone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.begins(t, command{run: run, id: "a"})
	last := b.last(t, run)
	scope := agent.Scope{RunID: run.RunID, Epoch: 1}
	for name, call := range map[string]agent.FinishCall{
		"a status that goes on":   {Scope: scope, Status: agent.Running},
		"an answer not committed": {Scope: scope, Status: agent.Completed},
	} {
		_, err := b.Finish(t.Context(), call)
		require.Error(t, err, name)
	}
	require.Equal(t, last, b.last(t, run))
	require.Equal(t, agent.Dispatched, b.row(t, command{run: run, id: "a"}).State, "nothing was settled")
	var missing *agent.NotFoundError
	_, err := b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: newID(), Epoch: 1}, Status: agent.Cancelled})
	require.ErrorAs(t, err, &missing)
}

// everyWrite lists everything a worker can ask of the ledger, as calls of an epoch.
func everyWrite(t testing.TB, b *bench, run agent.Run, epoch int) map[string]error {
	t.Helper()
	c := command{run: run, id: "a", epoch: epoch}
	fresh := command{run: run, id: "z", epoch: epoch, facts: []agent.Fact{fact(1, agent.Progress, "", nil)}}
	errs := map[string]error{}
	_, errs["begin"] = b.Begin(t.Context(), c.begin())
	_, errs["begin with facts"] = b.Begin(t.Context(), fresh.begin())
	_, errs["commit"] = b.Commit(t.Context(), c.commit(1, `1`))
	_, errs["release"] = b.Conclude(t.Context(), c.conclude(1, agent.Released, agent.Transient(agent.CodeToolFailed, "x")))
	_, errs["fail"] = b.Conclude(t.Context(), c.conclude(1, agent.CommandFailed, agent.Failed(agent.CodeToolFailed, "x")))
	_, errs["settle"] = b.Settle(t.Context(), agent.SettleCall{Call: c.call()})
	_, errs["settle what never began"] = b.Settle(t.Context(), agent.SettleCall{Call: command{run: run, id: "y", epoch: epoch}.call()})
	_, errs["record"] = b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: epoch, Facts: fresh.facts}})
	return errs
}

// An execution that has been replaced can write nothing, whatever it asks for.
func TestStaleEpochIsRefusedEverywhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.begins(t, command{run: run, id: "a"})
	b.exec(t, `UPDATE agent_executions SET epoch = 2 WHERE run_id = $1`, run.RunID)
	last := b.last(t, run)
	lease := value[string](t, b, `SELECT lease_until::text FROM commands WHERE run_id = $1`, run.RunID)
	for _, epoch := range []int{1, 3} {
		errs := everyWrite(t, b, run, epoch)
		_, errs["finish"] = b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: epoch}, Status: agent.FailedStatus})
		_, errs["record a status"] = b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: epoch}, Status: agent.Waiting})
		for name, err := range errs {
			t.Log(name)
			requireCode(t, err, agent.CodeStaleEpoch)
		}
	}
	status, owned, err := b.Renew(t.Context(), run.RunID, "a", 1, 1)
	require.NoError(t, err)
	require.False(t, owned)
	require.Equal(t, agent.Running, status)
	require.Equal(t, lease, value[string](t, b, `SELECT lease_until::text FROM commands WHERE run_id = $1`, run.RunID), "nor does it hold up the new one")
	require.Equal(t, last, b.last(t, run))
	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM commands`))
}

// R4-4: nothing of the run is appended after its terminal event.
func TestNothingIsWrittenAfterTheTerminalEvent(t *testing.T) {
	t.Parallel()
	for _, status := range []agent.Status{agent.FailedStatus, agent.Cancelled} {
		b := setup(t)
		run := b.accepted(t, twoStep(t))
		b.begins(t, command{run: run, id: "a"})
		end := b.finish(t, run, status)
		for name, err := range everyWrite(t, b, run, 1) {
			t.Log(name)
			requireCode(t, err, agent.CodeStaleEpoch)
		}
		_, err := b.RequestCancel(t.Context(), owner, run.RunID, "", "")
		var conflict *agent.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, agent.ConflictRunEnded, conflict.Reason)
		// A workflow that has no more facts may still ask.
		reply, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Waiting})
		require.NoError(t, err)
		require.Equal(t, end.Sequence, reply.Sequence)
		require.Equal(t, end.Sequence, b.last(t, run))
		require.Equal(t, string(status), value[string](t, b, `SELECT status FROM agent_executions`))
	}
}

func TestRecordSetsWhereTheRunStands(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	record := func(status agent.Status) {
		_, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: status})
		require.NoError(t, err)
	}
	record(agent.InDoubt)
	read, err := b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, agent.Running, read.Status, "the last doubt was resolved while this was on its way")
	doubtful := command{run: run, id: "a", effect: agent.External}
	_, err = b.Conclude(t.Context(), doubtful.conclude(b.begins(t, doubtful), agent.CommandInDoubt, agent.Unknown(agent.CodeTimeout, "x")))
	require.NoError(t, err)
	for _, status := range []agent.Status{agent.InDoubt, agent.Running} {
		record(status)
		read, err := b.Run(t.Context(), owner, run.RunID)
		require.NoError(t, err)
		require.Equal(t, status, read.Status)
	}
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "", "")
	require.NoError(t, err)
	record(agent.Running)
	read, err = b.Run(t.Context(), owner, run.RunID)
	require.NoError(t, err)
	require.Equal(t, agent.Cancelling, read.Status, "a run that is being cancelled stays so until it has ended")
}

func TestRenewProlongsALease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	c := command{run: run, id: "a"}
	b.begins(t, c)
	b.expire(t, c)
	status, owned, err := b.Renew(t.Context(), run.RunID, "a", 1, 1)
	require.NoError(t, err)
	require.True(t, owned)
	require.Equal(t, agent.Running, status)
	require.Equal(t, agent.MustWait, b.begin(t, command{run: run, id: "a", attempt: 2}).Verdict)

	_, owned, err = b.Renew(t.Context(), run.RunID, "a", 1, 2)
	require.NoError(t, err)
	require.False(t, owned, "another dispatch")
	_, owned, err = b.Renew(t.Context(), run.RunID, "none", 1, 1)
	require.NoError(t, err)
	require.False(t, owned)
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "", "")
	require.NoError(t, err)
	status, owned, err = b.Renew(t.Context(), run.RunID, "a", 1, 1)
	require.NoError(t, err)
	require.True(t, owned)
	require.Equal(t, agent.Cancelling, status)
	b.exec(t, `UPDATE commands SET state = 'in_doubt' WHERE run_id = $1`, run.RunID)
	_, owned, err = b.Renew(t.Context(), run.RunID, "a", 1, 1)
	require.NoError(t, err)
	require.True(t, owned, "its result would resolve the doubt")
	b.exec(t, `UPDATE commands SET state = 'dispatched' WHERE run_id = $1`, run.RunID)
	b.commits(t, c, 1, `1`)
	_, owned, err = b.Renew(t.Context(), run.RunID, "a", 1, 1)
	require.NoError(t, err)
	require.False(t, owned)
	_, _, err = b.Renew(t.Context(), newID(), "a", 1, 1)
	require.Error(t, err)
}

// A dispatch that asks again, since its reply was lost or it stood still, holds the command for a whole lease more.
func TestAskingAgainProlongsALease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	c := command{run: run, id: "a"}
	b.begins(t, c)
	b.expire(t, c)
	require.Equal(t, agent.MayProceed, b.begin(t, c).Verdict)
	require.Equal(t, agent.MustWait, b.begin(t, command{run: run, id: "a", attempt: 2}).Verdict)
}

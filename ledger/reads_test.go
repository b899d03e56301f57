package ledger_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// child accepts a run that another one has started.
func (b *bench) child(t testing.TB, parent agent.Run) agent.Run {
	t.Helper()
	a := acceptance(nil)
	a.NewConversation, a.Run.ConversationID = false, parent.ConversationID
	a.Run.ParentRunID, a.Run.RootRunID = parent.RunID, parent.RootRunID
	run, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	return run
}

// R3-7, R3-10: pages of a log go on where they ended; a run's log includes its child runs'.
func TestEventsByScopeAndPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one := b.accepted(t, twoStep(t))
	two := b.acceptedIn(t, one.ConversationID, nil)
	inner := b.child(t, one)
	b.runs(t, command{run: one, id: "a"}, `1`)
	elsewhere := b.accepted(t, nil)

	numbers := func(scope agent.LogScope, after int64, limit int) []int64 {
		events, err := b.Events(t.Context(), scope, after, limit)
		require.NoError(t, err)
		got := []int64{}
		for _, e := range events {
			got = append(got, e.Sequence)
		}
		return got
	}
	all := agent.LogScope{ConversationID: one.ConversationID}
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, numbers(all, 0, 100))
	require.Equal(t, []int64{1, 2, 3}, numbers(all, 0, 3))
	require.Equal(t, []int64{4, 5, 6}, numbers(all, 3, 3))
	require.Equal(t, []int64{13}, numbers(all, 12, 3))
	require.Empty(t, numbers(all, 13, 3))
	require.Empty(t, numbers(all, 99, 3))
	scope := func(run agent.Run) agent.LogScope {
		return agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}
	}
	require.Equal(t, []int64{5, 6}, numbers(scope(two), 0, 100))
	require.Equal(t, []int64{7, 8}, numbers(scope(inner), 0, 100))
	require.Equal(t, []int64{1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13}, numbers(scope(one), 0, 100))
	require.Equal(t, []int64{7, 8}, numbers(scope(one), 4, 2))
	require.Equal(t, []int64{1, 2}, numbers(scope(elsewhere), 0, 100), "a conversation has numbers of its own")
}

func TestExtent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one := b.accepted(t, nil)
	two := b.acceptedIn(t, one.ConversationID, nil)
	extent := func(runID string) agent.Extent {
		x, err := b.Extent(t.Context(), agent.LogScope{ConversationID: one.ConversationID, RunID: runID})
		require.NoError(t, err)
		return x
	}
	require.Equal(t, agent.Extent{Oldest: 1, Last: 4, LastInScope: 4, Open: true}, extent(""))
	require.Equal(t, agent.Extent{Oldest: 1, Last: 4, LastInScope: 2, Open: true}, extent(one.RunID))
	require.Equal(t, agent.Extent{Oldest: 1, Last: 4, LastInScope: 4, Open: true}, extent(two.RunID))
	inner := b.child(t, one)
	require.Equal(t, agent.Extent{Oldest: 1, Last: 6, LastInScope: 6, Open: true}, extent(one.RunID))
	b.finish(t, inner, agent.Cancelled)
	b.finish(t, one, agent.Cancelled)
	require.Equal(t, agent.Extent{Oldest: 1, Last: 8, LastInScope: 8, Open: false}, extent(one.RunID))
	require.Equal(t, agent.Extent{Oldest: 1, Last: 8, LastInScope: 4, Open: true}, extent(two.RunID))
	require.Equal(t, agent.Extent{Oldest: 1, Last: 8, LastInScope: 8, Open: true}, extent(""))
	b.finish(t, two, agent.Cancelled)
	require.Equal(t, agent.Extent{Oldest: 1, Last: 9, LastInScope: 9, Open: false}, extent(""))

	var missing *agent.NotFoundError
	_, err := b.Extent(t.Context(), agent.LogScope{ConversationID: newID()})
	require.ErrorAs(t, err, &missing)
	_, err = b.Extent(t.Context(), agent.LogScope{ConversationID: one.ConversationID, RunID: newID()})
	require.ErrorAs(t, err, &missing)
	_, err = b.Extent(t.Context(), agent.LogScope{ConversationID: newID(), RunID: one.RunID})
	require.ErrorAs(t, err, &missing, "a run of another conversation")
}

// R3-9: whether a conversation is at work, how far its log goes, and which message is being answered.
func TestExecutionStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	status := func(id string) agent.ExecutionStatus {
		s, err := b.ExecutionStatus(t.Context(), id)
		require.NoError(t, err)
		return s
	}
	one := b.accepted(t, nil)
	require.Equal(t, agent.ExecutionStatus{IsRunning: true, LastSequence: 2, CurrentMessageID: &one.MessageID}, status(one.ConversationID))
	two := b.acceptedIn(t, one.ConversationID, nil)
	require.Equal(t, agent.ExecutionStatus{IsRunning: true, LastSequence: 4, CurrentMessageID: &two.MessageID}, status(one.ConversationID), "the newest at work")
	b.finish(t, two, agent.Cancelled)
	require.Equal(t, agent.ExecutionStatus{IsRunning: true, LastSequence: 5, CurrentMessageID: &one.MessageID}, status(one.ConversationID))
	b.finish(t, one, agent.Cancelled)
	require.Equal(t, agent.ExecutionStatus{LastSequence: 6, CurrentMessageID: &two.MessageID}, status(one.ConversationID), "at rest: the newest of all")

	empty := newID()
	b.exec(t, `INSERT INTO conversations (id, owner) VALUES ($1, 'x')`, empty)
	require.Equal(t, agent.ExecutionStatus{}, status(empty))
	_, err := b.ExecutionStatus(t.Context(), newID())
	var missing *agent.NotFoundError
	require.ErrorAs(t, err, &missing)
}

// R3-8: has_more is exact, at every size of page and at the same instant of creation.
func TestRunsAndConversationsByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var runs, conversations []string // newest first
	for i := range 6 {
		a := acceptance(nil)
		if i%2 == 1 {
			a.Run.Definition.Agent = "other"
		}
		run, _, err := b.Accept(t.Context(), a)
		require.NoError(t, err)
		runs, conversations = append(runs, run.RunID), append(conversations, run.ConversationID)
	}
	foreign := acceptance(nil)
	foreign.Owner = "team-b"
	_, _, err := b.Accept(t.Context(), foreign)
	require.NoError(t, err)
	// Two that were made at the same instant are told apart by their ids.
	b.exec(t, `UPDATE agent_executions SET created_at = '2026-01-01' WHERE run_id = ANY ($1)`, runs[:3])
	b.exec(t, `UPDATE conversations SET created_at = '2026-01-01' WHERE id = ANY ($1)`, conversations[:3])
	slices.Reverse(runs)
	slices.Reverse(conversations)
	slices.Sort(runs[3:])
	slices.Reverse(runs[3:])
	slices.Sort(conversations[3:])
	slices.Reverse(conversations[3:])

	for limit := 1; limit <= 7; limit++ {
		var listed, named []string
		var before, beforeConversation string
		for more := true; more; {
			page, hasMore, err := b.Runs(t.Context(), agent.RunFilter{Owner: owner, Before: before, Limit: limit})
			require.NoError(t, err)
			for _, r := range page {
				listed = append(listed, r.RunID)
				before = r.RunID
			}
			require.LessOrEqual(t, len(page), limit)
			require.Equal(t, len(listed) < len(runs), hasMore)
			more = hasMore
		}
		for more := true; more; {
			page, hasMore, err := b.Conversations(t.Context(), owner, beforeConversation, limit)
			require.NoError(t, err)
			for _, c := range page {
				named = append(named, c.ConversationID)
				beforeConversation = c.ConversationID
			}
			require.Equal(t, len(named) < len(conversations), hasMore)
			more = hasMore
		}
		require.Equal(t, runs, listed)
		require.Equal(t, conversations, named)
	}
}

func TestRunsByFilter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one := b.accepted(t, nil)
	two := b.acceptedIn(t, one.ConversationID, nil)
	b.finish(t, one, agent.FailedStatus)
	for name, tc := range map[string]struct {
		filter agent.RunFilter
		want   []string
	}{
		"all":                   {agent.RunFilter{}, []string{two.RunID, one.RunID}},
		"of a conversation":     {agent.RunFilter{ConversationID: one.ConversationID}, []string{two.RunID, one.RunID}},
		"of another":            {agent.RunFilter{ConversationID: newID()}, nil},
		"by status":             {agent.RunFilter{Status: agent.FailedStatus}, []string{one.RunID}},
		"by agent":              {agent.RunFilter{Agent: "default"}, []string{two.RunID, one.RunID}},
		"by an agent not there": {agent.RunFilter{Agent: "other"}, nil},
		"after one not there":   {agent.RunFilter{Before: newID()}, nil},
	} {
		tc.filter.Owner, tc.filter.Limit = owner, 10
		runs, more, err := b.Runs(t.Context(), tc.filter)
		require.NoError(t, err, name)
		require.False(t, more, name)
		var ids []string
		for _, r := range runs {
			ids = append(ids, r.RunID)
		}
		require.Equal(t, tc.want, ids, name)
	}
	var missing *agent.NotFoundError
	for _, filter := range []agent.RunFilter{{ConversationID: "x"}, {Before: "x"}} {
		_, _, err := b.Runs(t.Context(), filter)
		require.ErrorAs(t, err, &missing)
	}
	_, _, err := b.Conversations(t.Context(), owner, "x", 10)
	require.ErrorAs(t, err, &missing)
}

// R3-25: messages are stored while the run is at work; pages and histories are the same at every reading.
func TestMessagesByPageAndHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one := b.accepted(t, twoStep(t))
	b.runs(t, command{run: one, id: "b", kind: agent.ModelCommand}, `{"text":"first answer"}`)
	_, err := b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: one.RunID, Epoch: 1}, Status: agent.Completed})
	require.NoError(t, err)
	two := b.acceptedIn(t, one.ConversationID, twoStep(t))
	three := b.acceptedIn(t, one.ConversationID, nil)

	var contents []string
	var after int64
	for more := true; more; {
		page, hasMore, err := b.Messages(t.Context(), one.ConversationID, after, 1)
		require.NoError(t, err)
		require.Len(t, page, 1)
		contents, after = append(contents, string(page[0].Role)+": "+page[0].Content), page[0].Sequence
		more = hasMore
	}
	said := "user: what the user said"
	require.Equal(t, []string{said, "assistant: first answer", said, said}, contents)

	history := func(run agent.Run) (roles []agent.MessageRole) {
		messages, err := b.History(t.Context(), run.ConversationID, run.StartSequence)
		require.NoError(t, err)
		for _, m := range messages {
			roles = append(roles, m.Role)
		}
		return roles
	}
	require.Empty(t, history(one))
	require.Equal(t, []agent.MessageRole{agent.UserMessage, agent.AssistantMessage}, history(two))
	require.Equal(t, []agent.MessageRole{agent.UserMessage, agent.AssistantMessage, agent.UserMessage}, history(three))
	b.runs(t, command{run: two, id: "b", kind: agent.ModelCommand}, `{"text":"second answer"}`)
	_, err = b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: two.RunID, Epoch: 1}, Status: agent.Completed})
	require.NoError(t, err)
	require.Len(t, history(three), 3, "what came later is no history of a run that had begun")
}

func TestCommandsAndResults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "z"}, `{"v":1}`)
	failed := command{run: run, id: "a", inner: true}
	_, err := b.Conclude(t.Context(), failed.conclude(b.begins(t, failed), agent.CommandFailed, &agent.Error{Code: agent.CodeToolFailed, Message: "no"}))
	require.NoError(t, err)
	model := command{run: run, id: "m", kind: agent.ModelCommand, inner: true}
	commit := model.commit(b.begins(t, model), `{"text":"x"}`)
	commit.Event.Usage = json.RawMessage(`{"input_tokens": 1, "odd": "\u0000", "huge": 1e200000}`)
	_, err = b.Commit(t.Context(), commit)
	require.NoError(t, err)
	b.begins(t, command{run: run, id: "open", inner: true})

	commands, err := b.Commands(t.Context(), run.RunID)
	require.NoError(t, err)
	ids := make([]string, len(commands))
	for i, c := range commands {
		ids[i] = c.CommandID
		require.Nil(t, c.Result, "a list carries no results")
		require.Equal(t, time.UTC, c.EmittedAt.Location())
	}
	require.Equal(t, []string{"z", "a", "m", "open"}, ids, "in the order they were emitted")
	require.Equal(t, agent.CodeToolFailed, commands[1].Error.Code)
	require.Equal(t, "m", commands[2].Model)
	require.JSONEq(t, `{"input_tokens": 1, "odd": "\ufffd", "huge": "1e200000"}`, string(commands[2].Usage))
	require.Nil(t, commands[3].DecidedAt)

	results, err := b.Results(t.Context(), run.RunID, []string{"z", "a", "m", "open"})
	require.NoError(t, err)
	require.Equal(t, map[string]agent.CommandResult{
		"z": {Kind: agent.ToolCommand, State: agent.Committed, Result: json.RawMessage(`{"v":1}`)},
		"a": {Kind: agent.ToolCommand, State: agent.CommandFailed, Error: &agent.Error{Code: agent.CodeToolFailed, Message: "no"}},
		"m": {Kind: agent.ModelCommand, State: agent.Committed, Result: json.RawMessage(`{"text":"x"}`)},
	}, results)
	none, err := b.Results(t.Context(), run.RunID, nil)
	require.NoError(t, err)
	require.Empty(t, none)
	_, err = b.Command(t.Context(), run.RunID, "none")
	var missing *agent.NotFoundError
	require.ErrorAs(t, err, &missing)

	// R3-24: the documents' names for the plan and the tool calls.
	require.Equal(t, 3, value[int](t, b, `SELECT count(*)::int FROM tool_execution_records WHERE run_id = $1`, run.RunID))
	require.Equal(t, "put", value[string](t, b, `SELECT tool_name FROM tool_execution_records WHERE command_id = 'z'`))
	require.Equal(t, "a", value[string](t, b, `SELECT plan -> 'nodes' -> 0 ->> 'id' FROM work_plans WHERE run_id = $1`, run.RunID))
}

func TestNodeResults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.runs(t, command{run: run, id: "a"}, `{"v":1}`)
	second := command{run: run, id: "b~2", index: 1, kind: agent.ModelCommand}
	b.runs(t, second, `{"text":"x"}`)
	b.begins(t, command{run: run, id: "c"})
	_, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: []agent.Fact{
		fact(1, agent.NodeFailed, "f", agent.NodeFailedData{Index: 3, Handled: true, Error: &agent.Error{Code: agent.CodeToolFailed, Message: "no"}}),
		fact(2, agent.NodeSkipped, "s", agent.NodeSkippedData{Index: 4}),
	}}})
	require.NoError(t, err)
	results, err := b.NodeResults(t.Context(), run.RunID, []string{"a", "b", "c", "f", "s"})
	require.NoError(t, err)
	require.Equal(t, map[string]agent.CommandResult{
		"a": {Kind: agent.ToolCommand, State: agent.Committed, Result: json.RawMessage(`{"v":1}`)},
		"b": {Kind: agent.ModelCommand, State: agent.Committed, Result: json.RawMessage(`{"text":"x"}`)},
		"f": {State: agent.CommandFailed, Error: &agent.Error{Code: agent.CodeToolFailed, Message: "no"}},
	}, results)
}

// R0-2, R0-8, R0-22, D9: the ledger's reader joins the bytes to the events; a takeover needs nothing else.
func TestReplayContext(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	large := `{"v":"` + fmt.Sprintf("%0*d", 50<<10, 1) + `", "n": 1.500}`
	b.runs(t, command{run: run, id: "a"}, large)
	b.runs(t, command{run: run, id: "b", index: 1, kind: agent.ModelCommand, inner: true}, `{"text":"x"}`)
	rc, err := b.ReplayContext(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, []string{rc.TaskGraph.Nodes[0].ID, rc.TaskGraph.Nodes[1].ID})
	require.Equal(t, []string{"a"}, rc.CompletedNodeIDs)
	require.Equal(t, []string{"a", "b"}, rc.CompletedCommandIDs)
	require.Equal(t, large, string(rc.CommandResults["a"]))
	require.Equal(t, large, string(rc.PayloadResults["a"]))
	require.Equal(t, "a", rc.CursorNode)
	require.Equal(t, 1, rc.StartIndex())
	state, err := b.State(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, state, rc.State)
	in, err := b.StartInput(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, state, in.State)
	require.Equal(t, rc.TaskGraph.Shape(&run.Definition), in.Plan)
}

// R0-20: a record from before command_committed was written degrades to node_finished.
func TestReplayContextOfAnOldRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	_, err := b.Record(t.Context(), agent.RecordCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: []agent.Fact{
		fact(1, agent.NodeStarted, "a", agent.NodeStartedData{Kind: agent.ToolNode}),
		fact(2, agent.NodeFinished, "a", agent.NodeFinishedData{ResultCommand: "a", Output: agent.ShowValue(json.RawMessage(`{"v":1}`))}),
	}}})
	require.NoError(t, err)
	rc, err := b.ReplayContext(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, rc.CompletedNodeIDs)
	require.Empty(t, rc.CompletedCommandIDs)
	require.JSONEq(t, `{"v":1}`, string(rc.PayloadResults["a"]))
	require.Equal(t, 1, rc.StartIndex())
}

func TestWorkerRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	plan := twoStep(t)
	run := b.accepted(t, plan)
	read, got, err := b.WorkerRun(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, plan, got)
	require.Equal(t, run.Definition, read.Definition)
	bare := b.accepted(t, nil)
	_, got, err = b.WorkerRun(t.Context(), bare.RunID)
	require.NoError(t, err)
	require.Nil(t, got)
	in, err := b.StartInput(t.Context(), bare.RunID)
	require.NoError(t, err)
	require.Nil(t, in.Plan)
	var missing *agent.NotFoundError
	_, _, err = b.WorkerRun(t.Context(), newID())
	require.ErrorAs(t, err, &missing)
	_, err = b.RunPlan(t.Context(), newID())
	require.ErrorAs(t, err, &missing)
	_, err = b.StartInput(t.Context(), newID())
	require.ErrorAs(t, err, &missing)
}

func TestToolCatalog(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tools := func() []string {
		listed, err := b.Tools(t.Context())
		require.NoError(t, err)
		names := []string{}
		for _, tool := range listed {
			names = append(names, tool.Name)
		}
		return names
	}
	require.Empty(t, tools())
	refs := definition().Tools
	refs[0].Timeout = agent.Duration(90 * time.Second)
	refs[0].Description = "a\x00b"
	require.NoError(t, b.PublishTools(t.Context(), "one", refs))
	require.Equal(t, []string{"add", "mail", "put"}, tools())
	listed, err := b.Tools(t.Context())
	require.NoError(t, err)
	require.Equal(t, agent.ToolRef{Name: "add", Description: "a\uFFFDb", InputSchema: json.RawMessage(`{"type":"object"}`), Effect: agent.Deterministic,
		Timeout: agent.Duration(90 * time.Second)}, listed[0])

	require.NoError(t, b.PublishTools(t.Context(), "two", refs[2:]))
	require.NoError(t, b.PublishTools(t.Context(), "one", refs[1:2]))
	require.Equal(t, []string{"mail", "put"}, tools(), "what a queue no longer can is gone")
	require.NoError(t, b.PublishTools(t.Context(), "one", nil))
	require.NoError(t, b.PublishTools(t.Context(), "two", nil))
	require.Empty(t, tools())
}

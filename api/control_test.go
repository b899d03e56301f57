package api

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// R3-16: both paths restart a run that ended badly and say from where.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/v1/agent/runs/{run}/resume", "/api/v1/agent/conversations/{conversation}/resume"} {
		b := newBench(t)
		run := b.ledger.seed(t, "local", "")
		b.ledger.checkpoints[run.RunID] = make([]agent.Checkpoint, 2)
		path = strings.NewReplacer("{run}", run.RunID, "{conversation}", run.ConversationID).Replace(path)
		requireProblem(t, b.do("POST", path, ""), 409, "run-open", "")
		b.ledger.end(run.RunID, agent.FailedStatus)

		require.Equal(t, 400, b.do("POST", path, `{"from_step": 1}`).Code)
		requireProblem(t, b.do("POST", path, `{"reason": "`+strings.Repeat("x", 1001)+`"}`), 422, "invalid-request", "/reason")
		w := b.do("POST", path, `{"reason": "mended"}`)
		require.Equal(t, 202, w.Code, "%s", w.Body)
		require.Equal(t, "/api/v1/agent/runs/"+run.RunID, w.Header().Get("Location"))
		require.Equal(t, map[string]any{"status": "resuming", "from_step": 2.0, "run_id": run.RunID, "conversation_id": run.ConversationID, "epoch": 2.0,
			"events_url": "/api/v1/agent/runs/" + run.RunID + "/events"}, document[map[string]any](t, w))
		requireProblem(t, b.do("POST", path, ""), 409, "run-open", "")
		b.ledger.end(run.RunID, agent.Cancelled)
		require.Equal(t, 202, b.do("POST", path, "").Code, "no body is an empty one")
	}
}

func TestResumeRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	completed := b.ledger.seed(t, "local", "")
	b.ledger.checkpoints[completed.RunID] = make([]agent.Checkpoint, 1)
	b.ledger.end(completed.RunID, agent.Completed)
	fresh := b.ledger.seed(t, "local", "")
	b.ledger.end(fresh.RunID, agent.FailedStatus)
	other := b.ledger.seed(t, "local", "")
	b.ledger.end(other.RunID, agent.FailedStatus)
	stranger := b.ledger.seed(t, "somebody", "")
	b.ledger.checkpoints[stranger.RunID] = make([]agent.Checkpoint, 1)
	b.ledger.end(stranger.RunID, agent.FailedStatus)
	const nobody = "01990000-0000-7000-8000-000000000000"
	for path, want := range map[string]int{
		"runs/" + completed.RunID:                   409,
		"conversations/" + completed.ConversationID: 409,
		"conversations/" + fresh.ConversationID:     404, // it has no checkpoint
		"runs/" + other.RunID:                       202, // and needs none
		"runs/" + stranger.RunID:                    404,
		"conversations/" + stranger.ConversationID:  404,
		"runs/" + nobody:                            404,
		"conversations/" + nobody:                   404,
		"runs/x":                                    404,
	} {
		require.Equal(t, want, b.do("POST", "/api/v1/agent/"+path+"/resume", "").Code, path)
	}
}

// R3-16: the conversation path is about its newest run.
func TestResumeOfAConversation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first := b.ledger.seed(t, "local", "")
	b.ledger.end(first.RunID, agent.FailedStatus)
	second := b.ledger.seed(t, "local", first.ConversationID)
	b.ledger.end(second.RunID, agent.FailedStatus)
	b.ledger.checkpoints[first.RunID] = make([]agent.Checkpoint, 1)
	path := "/api/v1/agent/conversations/" + first.ConversationID + "/resume"
	w := b.do("POST", path, "")
	requireProblem(t, w, 404, "not-found", "")
	require.Contains(t, document[problem](t, w).Detail, second.RunID)
	b.ledger.checkpoints[second.RunID] = make([]agent.Checkpoint, 1)
	require.Equal(t, second.RunID, document[resumed](t, b.do("POST", path, "")).RunID)
	b.ledger.seed(t, "local", first.ConversationID)
	requireProblem(t, b.do("POST", path, ""), 409, "run-open", "") // it is at work; that it has no checkpoint so far is no matter
}

// A stream that has ended with its run goes on when the run is resumed: a client that connects again is not told to stop.
func TestAStreamGoesOnAfterAResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		run := b.ledger.seed(t, "local", "")
		b.ledger.end(run.RunID, agent.FailedStatus)
		path := "/api/v1/agent/runs/" + run.RunID + "/events"
		events := func() []string { return names(b.frames(b.do("GET", path, "", "Accept: text/event-stream"))) }
		require.Equal(t, []string{"run_started", "message_added", "run_failed"}, events())
		require.Equal(t, 204, b.do("GET", path, "", "Accept: text/event-stream", "Last-Event-ID: 3").Code)
		require.Equal(t, 202, b.do("POST", "/api/v1/agent/runs/"+run.RunID+"/resume", `{"reason": "mended"}`).Code)
		object := document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID, ""))
		require.Equal(t, agent.Queued, object.Status)
		require.Equal(t, 2, object.Epoch)
		require.Nil(t, object.FinishedAt)
		require.Nil(t, object.Error)
		require.Nil(t, object.Metrics.LatencyMS)

		again := make(chan []string)
		go func() {
			again <- names(b.frames(b.do("GET", path, "", "Accept: text/event-stream", "Last-Event-ID: 3")))
		}()
		synctest.Wait() // it follows
		b.ledger.end(run.RunID, agent.Completed)
		require.Equal(t, []string{"run_reopened", "run_completed"}, <-again)
		require.Equal(t, []string{"run_started", "message_added", "run_failed", "run_reopened", "run_completed"}, events())
		require.Equal(t, 204, b.do("GET", path, "", "Accept: text/event-stream", "Last-Event-ID: 5").Code)
	})
}

// The steps of a resumed run: those that are tried again are at work, without the error that they had.
func TestStepsOfAResumedRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := history(b)
	failed := document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID, "")).Steps[1]
	require.Equal(t, "failed", failed.Status)
	require.NotNil(t, failed.Error)
	b.ledger.end(run.RunID, agent.FailedStatus)
	b.ledger.write(run.RunID, agent.Event{Type: agent.RunReopened}, agent.RunReopenedData{Epoch: 2, Status: agent.FailedStatus, Step: 1, Nodes: []int{1}, NodeIDs: []string{"get"}})
	b.ledger.write(run.RunID, agent.Event{Type: agent.CommandReopened, NodeID: "get", CommandID: "get"}, agent.CommandReopenedData{Reason: "the run was resumed"})
	again := document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID, "")).Steps[1]
	require.Equal(t, failed.StartedAt, again.StartedAt)
	require.Nil(t, again.FinishedAt)
	require.Nil(t, again.Error)
	b.ledger.write(run.RunID, agent.Event{Type: agent.NodeFinished, NodeID: "get"}, agent.NodeFinishedData{Index: 1, ResultCommand: "get"})
	done := document[runObject](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID, "")).Steps[1]
	require.Equal(t, "completed", done.Status)
	require.NotNil(t, done.FinishedAt)
}

// The trace of a resumed run: a node that is tried again is at work, and did not start once more.
func TestTraceOfAResumedRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	b.ledger.write(run.RunID, agent.Event{Type: agent.NodeStarted, NodeID: "a"}, agent.NodeStartedData{Kind: agent.ToolNode, Tool: "mail"})
	b.ledger.write(run.RunID, agent.Event{Type: agent.NodeFailed, NodeID: "a"}, agent.NodeFailedData{Error: agent.Failed(agent.CodeToolFailed, "no")})
	b.ledger.end(run.RunID, agent.FailedStatus)
	b.ledger.write(run.RunID, agent.Event{Type: agent.RunReopened}, agent.RunReopenedData{Epoch: 2, Status: agent.FailedStatus, Nodes: []int{0}, NodeIDs: []string{"a", "not there"}})
	traced := document[trace](t, b.do("GET", "/api/v1/agent/runs/"+run.RunID+"/trace", ""))
	require.Equal(t, 2, traced.Runs[0].Executions)
	require.Len(t, traced.Runs[0].Nodes, 1)
	require.Equal(t, "running", traced.Runs[0].Nodes[0].State)
	require.Equal(t, 1, traced.Runs[0].Nodes[0].Starts)
	require.Nil(t, traced.Runs[0].Nodes[0].Error)
}

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/devstack"
)

// localConfig is the offline model, and tools that may call this machine.
const localConfig = `
models:
  default: {provider: scripted}
agents:
  default: {mode: plan, tools: ["*"], limits: {max_parallel: 4}}
tools:
  http_request: {allow_hosts: ["127.0.0.1:*"]}
`

const question = "What is 17 * 23, and what time is it in Tokyo?"

// TestDevFromNothing is the README's first run: one command, one request, the record, and the same record again.
func TestDevFromNothing(t *testing.T) {
	t.Parallel()
	dir := devDir(t)
	dev, c := startDev(t, dir)
	ui := strings.Fields(dev.line(t, "Temporal UI"))[2]
	res := c.send(t.Context(), t, http.MethodPost, "/api/v1/agent/run/stream", nil, object{"input": question})
	frames := readStream(t, res)
	ids := numbered(t, frames)
	require.Equal(t, "1", ids[0].ID)

	inOrder(t, names(frames), "run_started", "message_added", "plan_started", "plan_created", "step_started", "tool_invoked", "tool_completed",
		"step_completed", "chat_delta", "chat_completed", "run_completed")
	last := ids[len(ids)-1]
	require.Equal(t, "run_completed", last.Name)
	require.Contains(t, last.Data, "391")

	runID := ids[0].Event.RunID
	again := numbered(t, c.stream(t, runID, 3, "run"))
	require.Len(t, again, len(ids)-3)
	for i, f := range again {
		require.Equal(t, ids[i+3].Bytes, f.Bytes)
	}
	c.singleCommandOrder(t, runID)

	page, err := http.Get(ui)
	require.NoError(t, err)
	require.NoError(t, page.Body.Close())
	require.Equal(t, http.StatusOK, page.StatusCode)

	// A second start with the same data finds the run.
	dev.stop(t)
	_, c = startDev(t, dir)
	later := numbered(t, c.stream(t, runID, 0, "run"))
	require.Equal(t, len(ids), len(later))
	for i := range ids {
		require.Equal(t, ids[i].Bytes, later[i].Bytes)
	}
}

// devDir is a working directory for dev. What dev keeps, in the directory or outside of it, is removed at the end.
func devDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { require.NoError(t, devstack.Reset(context.Background(), filepath.Join(dir, ".runledger"))) })
	return dir
}

// startDev starts dev as the README does, but for the port, and returns it with its client when it is up.
func startDev(t testing.TB, dir string) (*process, *client) {
	t.Helper()
	dev := start(t, dir, nil, "dev", "--listen", "127.0.0.1:0")
	return dev, &client{url: strings.Fields(dev.line(t, "  API "))[1]}
}

// inOrder checks that names holds want as a subsequence.
func inOrder(t testing.TB, names []string, want ...string) {
	t.Helper()
	i := 0
	for _, n := range names {
		if i < len(want) && n == want[i] {
			i++
		}
	}
	require.Equal(t, len(want), i, "missing %v in %v", want[i:], names)
}

// singleCommandOrder checks the order of the record for every node of one command.
func (c *client) singleCommandOrder(t testing.TB, runID string) {
	t.Helper()
	at := map[string]map[agent.EventType]int64{}
	for _, f := range c.finished(t, runID) {
		e := f.Event
		if e.NodeID == "" || e.NodeID == agent.PlanNodeID {
			continue
		}
		if at[e.NodeID] == nil {
			at[e.NodeID] = map[agent.EventType]int64{}
		}
		at[e.NodeID][e.Type] = e.Sequence
	}
	require.NotEmpty(t, at)
	for node, seq := range at {
		order := []int64{seq[agent.NodeStarted], seq[agent.CommandEmitted], seq[agent.CommandCommitted], seq[agent.NodeFinished], seq[agent.CheckpointSaved]}
		require.True(t, order[0] > 0 && slices.IsSorted(order), "node %s: %v", node, order)
	}
}

// TestWorkerKilled kills the worker in the middle of a run of five nodes, and starts another.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	worker := s.startWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.post(t, object{"input": "five", "plan": object{"nodes": []any{
		fx.get("n1", "/do/1"), fx.get("n2", "/do/2", "n1"), fx.get("n3", "/hold/3", "n2"), fx.get("n4", "/do/4", "n3"), fx.get("n5", "/do/5", "n4"),
	}}})
	require.Equal(t, run.RunID+"/n3", fx.held(t))
	worker.kill(t)
	fx.abandoned(t)
	fx.letGo()
	s.startWorker(t)
	frames := c.finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
	require.Equal(t, 1, count(frames, agent.PlanGenerated))
	require.Equal(t, 6, count(frames, agent.NodeFinished)) // five, and the answer
	for _, node := range []string{"n1", "n2", "n3", "n4", "n5"} {
		require.Equal(t, 1, fx.count(run.RunID+"/"+node), node)
	}
}

// TestAPIRestarted kills the API while a client follows a run.
func TestAPIRestarted(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	s.startWorker(t)
	port := freePort(t)
	api, c := s.startAPI(t, port)
	run := c.post(t, object{"input": "two", "plan": object{"nodes": []any{fx.get("n1", "/do/1"), fx.get("n2", "/hold/2", "n1")}}})

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	followed := make(chan []frame, 1)
	seen := make(chan struct{}, 1024)
	go func() { followed <- c.follow(ctx, run.RunID, seen) }()
	<-seen // the client has the beginning
	fx.held(t)
	api.kill(t)
	fx.letGo()
	s.startAPI(t, port)

	frames := <-followed
	whole := numbered(t, c.stream(t, run.RunID, 0, "run"))
	require.Equal(t, len(whole), len(frames))
	for i := range whole {
		require.Equal(t, whole[i].Bytes, frames[i].Bytes)
	}
}

// TestTemporalDown posts a run while Temporal is away.
func TestTemporalDown(t *testing.T) {
	t.Parallel()
	s := startServers(t, localConfig)
	s.startWorker(t)
	_, c := s.startAPI(t, 0)
	require.NoError(t, s.temporal.Stop(t.Context()))
	run := c.post(t, object{"input": question})
	require.Equal(t, agent.Queued, run.Status)
	s.startTemporal(t)
	frames := c.finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
}

// TestFiftyRuns runs fifty at once, each in a conversation of its own.
func TestFiftyRuns(t *testing.T) {
	t.Parallel()
	s := startServers(t, localConfig)
	s.startWorker(t)
	_, c := s.startAPI(t, 0)
	var runs []agent.Run
	for i := range 50 {
		runs = append(runs, c.post(t, object{"input": fmt.Sprintf("What is %d * 3, and what time is it?", i)}))
	}
	for i, run := range runs {
		frames := c.finished(t, run.RunID)
		require.Equal(t, "1", frames[0].ID)
		last := frames[len(frames)-1]
		require.Equal(t, agent.RunCompleted, last.Event.Type, last.Data)
		require.Contains(t, last.Data, fmt.Sprint(3*i))
		var status agent.ExecutionStatus
		require.Equal(t, http.StatusOK, c.call(t, http.MethodGet, "/api/v1/agent/conversations/"+run.ConversationID+"/execution-status", nil, &status))
		require.False(t, status.IsRunning)
		require.Equal(t, last.Event.Sequence, status.LastSequence)
	}
}

// TestReplayContext compares what the record says with what the API shows of it.
func TestReplayContext(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	s.startWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.post(t, object{"input": "x", "plan": object{"nodes": []any{fx.get("a", "/do/1"), fx.get("b", "/do/2", "a")}}})
	c.finished(t, run.RunID)
	var rc struct {
		TaskGraph           agent.Plan                 `json:"task_graph"`
		CompletedNodeIDs    []string                   `json:"completed_node_ids"`
		CompletedCommandIDs []string                   `json:"completed_command_ids"`
		CommandResults      map[string]json.RawMessage `json:"command_results"`
		CursorNode          string                     `json:"cursor_node"`
	}
	require.Equal(t, http.StatusOK, c.call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/replay-context", nil, &rc))
	require.Equal(t, []string{"a", "b", "answer"}, rc.CompletedNodeIDs)
	require.Equal(t, []string{"a", "b", "answer"}, rc.CompletedCommandIDs)
	require.Equal(t, "answer", rc.CursorNode)
	require.Len(t, rc.TaskGraph.Nodes, 3)
	require.Contains(t, string(rc.CommandResults["a"]), `"did":"1"`)
}

// follow reads a run's stream to its end over as many connections as it takes, as an EventSource does.
func (c *client) follow(ctx context.Context, runID string, seen chan<- struct{}) (frames []frame) {
	for ctx.Err() == nil {
		if c.followOnce(ctx, runID, &frames, seen) {
			return frames
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return frames
}

// TestDevGoesOn stops dev in the middle of a run, as Ctrl-C does, and starts it again.
func TestDevGoesOn(t *testing.T) {
	t.Parallel()
	dir, fx := devDir(t), startEffects(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "runledger.yaml"), []byte(localConfig), 0o600))
	dev, c := startDev(t, dir)
	run := c.post(t, object{"input": "two", "plan": object{"nodes": []any{fx.get("n1", "/do/1"), fx.get("n2", "/hold/2", "n1")}}})
	require.Equal(t, run.RunID+"/n2", fx.held(t))
	dev.stop(t)
	fx.abandoned(t)
	fx.letGo()
	_, c = startDev(t, dir)
	frames := c.finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
	require.Equal(t, 1, count(frames, agent.PlanGenerated))
	require.Equal(t, 1, fx.count(run.RunID+"/n1"))
	require.Equal(t, 1, fx.count(run.RunID+"/n2"))
}

package e2e_test

import (
	"bufio"
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
	"runledger/internal/stacktest"
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
	ui := strings.Fields(dev.Line(t, "Temporal UI"))[2]
	res := c.Send(t.Context(), t, http.MethodPost, "/api/v1/agent/run/stream", nil, object{"input": question})
	frames := stacktest.ReadStream(t, res)
	ids := stacktest.Numbered(t, frames)
	require.Equal(t, "1", ids[0].ID)

	inOrder(t, names(frames), "run_started", "message_added", "plan_started", "plan_created", "step_started", "tool_invoked", "tool_completed",
		"step_completed", "chat_delta", "chat_completed", "run_completed")
	last := ids[len(ids)-1]
	require.Equal(t, "run_completed", last.Name)
	require.Contains(t, last.Data, "391")

	runID := ids[0].Event.RunID
	again := stacktest.Numbered(t, c.Stream(t, runID, 3, "run"))
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
	dev.Stop(t)
	_, c = startDev(t, dir)
	later := stacktest.Numbered(t, c.Stream(t, runID, 0, "run"))
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
func startDev(t testing.TB, dir string) (*stacktest.Process, *client) {
	t.Helper()
	dev := stacktest.Start(t, dir, nil, "dev", "--listen", "127.0.0.1:0")
	return dev, &client{&stacktest.Client{URL: strings.Fields(dev.Line(t, "  API "))[1]}}
}

func names(frames []stacktest.Frame) []string {
	out := make([]string, len(frames))
	for i, f := range frames {
		out[i] = f.Name
	}
	return out
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
	for _, f := range c.Finished(t, runID) {
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
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "five", "plan": object{"nodes": []any{
		fx.get("n1", "/do/1"), fx.get("n2", "/do/2", "n1"), fx.get("n3", "/hold/3", "n2"), fx.get("n4", "/do/4", "n3"), fx.get("n5", "/do/5", "n4"),
	}}})
	require.Equal(t, run.RunID+"/n3", fx.held(t))
	worker.Kill(t)
	fx.abandoned(t)
	fx.letGo()
	s.StartWorker(t)
	frames := c.Finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
	require.Equal(t, 1, stacktest.Count(frames, agent.PlanGenerated))
	require.Equal(t, 6, stacktest.Count(frames, agent.NodeFinished)) // five, and the answer
	for _, node := range []string{"n1", "n2", "n3", "n4", "n5"} {
		require.Equal(t, 1, fx.count(run.RunID+"/"+node), node)
	}
}

// TestAPIRestarted kills the API while a client follows a run.
func TestAPIRestarted(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	s.StartWorker(t)
	port := stacktest.FreePort(t)
	api, c := s.startAPI(t, port)
	run := c.Post(t, object{"input": "two", "plan": object{"nodes": []any{fx.get("n1", "/do/1"), fx.get("n2", "/hold/2", "n1")}}})

	ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
	defer cancel()
	followed := make(chan []stacktest.Frame, 1)
	seen := make(chan struct{}, 1024)
	go func() { followed <- c.follow(ctx, run.RunID, seen) }()
	<-seen // the client has the beginning
	fx.held(t)
	api.Kill(t)
	fx.letGo()
	s.startAPI(t, port)

	frames := <-followed
	whole := stacktest.Numbered(t, c.Stream(t, run.RunID, 0, "run"))
	require.Equal(t, len(whole), len(frames))
	for i := range whole {
		require.Equal(t, whole[i].Bytes, frames[i].Bytes)
	}
}

// TestTemporalDown posts a run while Temporal is away.
func TestTemporalDown(t *testing.T) {
	t.Parallel()
	s := startServers(t, localConfig)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	require.NoError(t, s.Temporal.Stop(t.Context()))
	run := c.Post(t, object{"input": question})
	require.Equal(t, agent.Queued, run.Status)
	s.StartTemporal(t)
	frames := c.Finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
}

// TestFiftyRuns runs fifty at once, each in a conversation of its own.
func TestFiftyRuns(t *testing.T) {
	t.Parallel()
	s := startServers(t, localConfig)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	var runs []agent.Run
	for i := range 50 {
		runs = append(runs, c.Post(t, object{"input": fmt.Sprintf("What is %d * 3, and what time is it?", i)}))
	}
	for i, run := range runs {
		frames := c.Finished(t, run.RunID)
		require.Equal(t, "1", frames[0].ID)
		last := frames[len(frames)-1]
		require.Equal(t, agent.RunCompleted, last.Event.Type, last.Data)
		require.Contains(t, last.Data, fmt.Sprint(3*i))
		var status agent.ExecutionStatus
		require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/conversations/"+run.ConversationID+"/execution-status", nil, &status))
		require.False(t, status.IsRunning)
		require.Equal(t, last.Event.Sequence, status.LastSequence)
	}
}

// TestReplayContext compares what the record says with what the API shows of it.
func TestReplayContext(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "x", "plan": object{"nodes": []any{fx.get("a", "/do/1"), fx.get("b", "/do/2", "a")}}})
	c.Finished(t, run.RunID)
	var rc struct {
		TaskGraph           agent.Plan                 `json:"task_graph"`
		CompletedNodeIDs    []string                   `json:"completed_node_ids"`
		CompletedCommandIDs []string                   `json:"completed_command_ids"`
		CommandResults      map[string]json.RawMessage `json:"command_results"`
		CursorNode          string                     `json:"cursor_node"`
	}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/replay-context", nil, &rc))
	require.Equal(t, []string{"a", "b", "answer"}, rc.CompletedNodeIDs)
	require.Equal(t, []string{"a", "b", "answer"}, rc.CompletedCommandIDs)
	require.Equal(t, "answer", rc.CursorNode)
	require.Len(t, rc.TaskGraph.Nodes, 3)
	require.Contains(t, string(rc.CommandResults["a"]), `"did":"1"`)
}

// follow reads a run's stream to its end over as many connections as it takes, as an EventSource does.
func (c *client) follow(ctx context.Context, runID string, seen chan<- struct{}) (frames []stacktest.Frame) {
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

// followOnce reads one connection from where frames end and reports whether the server said that nothing more follows.
func (c *client) followOnce(ctx context.Context, runID string, frames *[]stacktest.Frame, seen chan<- struct{}) (over bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/api/v1/agent/runs/"+runID+"/events", nil)
	if err != nil {
		return true
	}
	req.Header.Set("Accept", "text/event-stream")
	if n := len(*frames); n > 0 {
		req.Header.Set("Last-Event-Id", (*frames)[n-1].ID)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return res.StatusCode == http.StatusNoContent
	}
	in := bufio.NewReader(res.Body)
	for {
		f, err := stacktest.ReadFrame(in)
		if err != nil {
			return false
		}
		if f.ID != "" {
			*frames = append(*frames, f)
			seen <- struct{}{}
		}
	}
}

// TestDevGoesOn stops dev in the middle of a run, as Ctrl-C does, and starts it again.
func TestDevGoesOn(t *testing.T) {
	t.Parallel()
	dir, fx := devDir(t), startEffects(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "runledger.yaml"), []byte(localConfig), 0o600))
	dev, c := startDev(t, dir)
	run := c.Post(t, object{"input": "two", "plan": object{"nodes": []any{fx.get("n1", "/do/1"), fx.get("n2", "/hold/2", "n1")}}})
	require.Equal(t, run.RunID+"/n2", fx.held(t))
	dev.Stop(t)
	fx.abandoned(t)
	fx.letGo()
	_, c = startDev(t, dir)
	frames := c.Finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
	require.Equal(t, 1, stacktest.Count(frames, agent.PlanGenerated))
	require.Equal(t, 1, fx.count(run.RunID+"/n1"))
	require.Equal(t, 1, fx.count(run.RunID+"/n2"))
}

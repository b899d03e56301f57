package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	temporal "go.temporal.io/sdk/client"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model"
	"runledger/model/modeltest"
)

// terminate ends a run's execution as an operator does in Temporal.
func (s *servers) terminate(t testing.TB, runID string) {
	t.Helper()
	c, err := temporal.Dial(temporal.Options{HostPort: s.Temporal.Address(), Namespace: s.Temporal.Namespace()})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.TerminateWorkflow(t.Context(), runID, "", "by an operator"))
}

// after gives the frames behind the last event of a type.
func after(frames []stacktest.Frame, typ agent.EventType) []stacktest.Frame {
	for i := len(frames) - 1; i >= 0; i-- {
		if frames[i].Event.Type == typ {
			return frames[i+1:]
		}
	}
	return nil
}

func nodesOf(frames []stacktest.Frame) map[string]bool {
	nodes := map[string]bool{}
	for _, f := range frames {
		if f.Event.NodeID != "" {
			nodes[f.Event.NodeID] = true
		}
	}
	return nodes
}

// R0-12, R1-12, R3-16: a run whose tool server refuses it fails; when that is mended it is resumed under both paths, goes on after
// the nodes that have finished, and a client that had seen it fail connects again.
func TestResumeOfAFailedRun(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "three", "plan": object{"nodes": []any{
		fx.get("a", "/do/a"), fx.send("b", "/broken/b", "a"), fx.get("c", "/do/c", "b")}}})
	failed := c.Finished(t, run.RunID)
	last := failed[len(failed)-1].Event
	require.Equal(t, agent.RunFailed, last.Type)
	require.Equal(t, "b", last.NodeID)
	resume := func(path string) (answer struct {
		Status   string `json:"status"`
		FromStep int    `json:"from_step"`
		Epoch    int    `json:"epoch"`
	}) {
		status := c.Call(t, http.MethodPost, "/api/v1/agent/"+path+"/resume", object{"reason": "try again"}, &answer)
		require.Equal(t, http.StatusAccepted, status)
		return answer
	}
	first := resume("conversations/" + run.ConversationID)
	require.Equal(t, "resuming", first.Status)
	require.Equal(t, 1, first.FromStep)
	require.Equal(t, 2, first.Epoch)
	again := c.ComesTo(t, run.RunID, agent.RunReopened)
	failed = stacktest.Numbered(t, c.Stream(t, run.RunID, again.Sequence, "ledger"))
	require.Equal(t, agent.RunFailed, failed[len(failed)-1].Event.Type, "it is broken still")

	fx.mended.Store(true)
	require.Equal(t, 3, resume("runs/"+run.RunID).Epoch)
	rest := stacktest.Numbered(t, c.Stream(t, run.RunID, failed[len(failed)-1].Event.Sequence, "run"))
	require.Equal(t, "run_reopened", rest[0].Name, "a client that saw it end goes on there")
	require.Contains(t, rest[0].Data, `"from_step":1`)
	require.Equal(t, "run_completed", rest[len(rest)-1].Name)
	require.NotContains(t, nodesOf(rest), "a", "a node that has finished is silent")
	c.Finished(t, run.RunID)
	require.Equal(t, []int{1, 1, 1}, []int{fx.count(run.RunID + "/a"), fx.count(run.RunID + "/b"), fx.count(run.RunID + "/c")})
	require.Equal(t, http.StatusConflict, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+run.RunID+"/resume", nil, nil))

	var object struct {
		Status     agent.Status `json:"status"`
		Epoch      int          `json:"epoch"`
		FinishedAt *string      `json:"finished_at"`
		Steps      []struct {
			Status string `json:"status"`
		} `json:"steps"`
	}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID, nil, &object))
	require.Equal(t, agent.Completed, object.Status)
	require.Equal(t, 3, object.Epoch)
	require.NotNil(t, object.FinishedAt)
	for _, step := range object.Steps {
		require.Equal(t, "completed", step.Status)
	}
	s.RequireSound(t, c.Client, run.RunID, 3)
}

// A run whose execution was terminated in Temporal while a tool was at work is recovered and finishes: what is committed is not done
// again, what was at work and could be repeated is.
func TestRecoverATerminatedRun(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "three", "plan": object{"nodes": []any{
		fx.send("a", "/do/a"), fx.get("b", "/hold/b", "a"), fx.get("c", "/do/c", "b")}}})
	require.Equal(t, run.RunID+"/b", fx.held(t))
	s.terminate(t, run.RunID)
	lines, code := s.Runledger(t, "recover", "--dry-run")
	require.Zero(t, code)
	require.Equal(t, []string{run.RunID + "  would be resumed in epoch 2: its execution is over without a word in the ledger",
		"1 runs: 1 would be resumed, 0 would be cancelled, 0 left"}, lines)
	lines, code = s.Runledger(t, "recover")
	require.Zero(t, code)
	require.Equal(t, []string{run.RunID + "  resumed in epoch 2 from step 1: its execution is over without a word in the ledger",
		"1 runs: 1 resumed, 0 cancelled, 0 left"}, lines)
	fx.abandoned(t) // the worker stops what belongs to an execution that was replaced
	fx.letGo()
	require.Equal(t, agent.RunCompleted, c.ComesTo(t, run.RunID, stacktest.Ends...).Type)
	frames := c.Finished(t, run.RunID)
	require.NotContains(t, nodesOf(after(frames, agent.RunReopened)), "a")
	require.Equal(t, []int{1, 1, 1}, []int{fx.count(run.RunID + "/a"), fx.count(run.RunID + "/b"), fx.count(run.RunID + "/c")})
	s.RequireSound(t, c.Client, run.RunID, 2)
}

// turns is a model that asks for a path of a server, or a whole URL, in each of its turns, and answers when it has been through all
// of them. They stand in the user's message.
type turns struct{ fx *effects }

func (m turns) Generate(_ context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	req = model.WithoutMarks(req)
	var paths []string
	turn := 0
	for _, message := range req.Messages {
		switch message.Role {
		case model.User:
			paths = strings.Fields(message.Text)
		case model.Assistant:
			turn++
		default:
		}
	}
	if turn == len(paths) {
		reply := model.Reply{Finish: model.FinishStop, Text: fmt.Sprintf("went through %d turns", turn)}
		if emit != nil {
			emit(model.Delta{Channel: model.Text, Text: reply.Text})
		}
		return reply, nil
	}
	url := paths[turn]
	if strings.HasPrefix(url, "/") {
		url = m.fx.URL + url
	}
	arguments, err := json.Marshal(object{"method": "GET", "url": url})
	return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: fmt.Sprint("call", turn), Name: "http_request", Arguments: string(arguments)}}}, err
}

// reactConfig is an agent whose model is at a server.
func reactConfig(vendor *modeltest.Server) string {
	return fmt.Sprintf(`
models:
  default: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: react, tools: [http_request], limits: {max_parallel: 4}}
tools:
  http_request: {allow_hosts: ["127.0.0.1:*"]}
`, vendor.URL)
}

// R2-12: a loop that was cancelled in its third turn goes on there. No earlier model call is made again, and no tool call.
func TestResumeOfACancelledLoop(t *testing.T) {
	t.Parallel()
	fx := startEffects(t)
	vendor := modeltest.NewServer(t, turns{fx})
	s := startServers(t, reactConfig(vendor))
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "/do/1 /do/2 /hold/3 /do/4"})
	require.Equal(t, run.RunID+"/main#3.0", fx.held(t))
	require.Equal(t, http.StatusAccepted, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+run.RunID+"/cancel", object{"wait": 0}, nil))
	require.Equal(t, agent.RunCancelled, c.ComesTo(t, run.RunID, stacktest.Ends...).Type)
	fx.abandoned(t)
	fx.letGo()
	asked := len(vendor.Calls())
	require.Equal(t, 3, asked)
	require.Equal(t, http.StatusAccepted, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+run.RunID+"/resume", nil, nil))
	reopened := c.ComesTo(t, run.RunID, agent.RunReopened)
	rest := stacktest.Numbered(t, c.Stream(t, run.RunID, reopened.Sequence, "ledger"))
	completed := rest[len(rest)-1].Event
	require.Equal(t, agent.RunCompleted, completed.Type, "%s", completed.Data)
	require.Contains(t, string(completed.Data), "went through 4 turns")
	keys := []string{}
	for _, call := range vendor.Calls()[asked:] {
		keys = append(keys, call.Key)
	}
	require.Equal(t, []string{run.RunID + "/main#4", run.RunID + "/main#5"}, keys)
	for turn := 1; turn <= 4; turn++ {
		require.Equal(t, 1, fx.count(fmt.Sprintf("%s/main#%d.0", run.RunID, turn)), turn)
	}
	s.RequireSound(t, c.Client, run.RunID, 2)
}

// A worker that stood still while its run was resumed, and finished by another worker, writes nothing when it goes on.
func TestAFrozenWorkerOfAnEarlierEpoch(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	frozen := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "three", "plan": object{"nodes": []any{
		fx.send("a", "/do/a"), fx.get("b", "/hold/b", "a"), fx.get("c", "/do/c", "b")}}})
	require.Equal(t, run.RunID+"/b", fx.held(t))
	frozen.Freeze(t)
	s.terminate(t, run.RunID)
	lines, code := s.Runledger(t, "recover")
	require.Zero(t, code)
	require.Contains(t, lines[0], "resumed in epoch 2")
	s.StartWorker(t)
	require.Equal(t, run.RunID+"/b", fx.held(t), "the other worker does what was at work once more, under the same key")
	fx.letGo()
	require.Equal(t, agent.RunCompleted, c.ComesTo(t, run.RunID, stacktest.Ends...).Type)
	before := c.Finished(t, run.RunID)
	var commands, now json.RawMessage
	path := "/api/v1/agent/runs/" + run.RunID + "/commands"
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, path, nil, &commands))

	frozen.Thaw(t)
	// It has tried to commit, or to renew its lease before that.
	frozen.Line(t, "is in epoch 2, this execution is of epoch 1", "type: SUPERSEDED")
	after := c.Finished(t, run.RunID)
	require.Equal(t, before, after)
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, path, nil, &now))
	require.JSONEq(t, string(commands), string(now))
	require.Equal(t, 1, fx.count(run.RunID+"/a"))
	s.RequireSound(t, c.Client, run.RunID, 2)
}

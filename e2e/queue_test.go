package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model"
	"runledger/model/modeltest"
	"runledger/model/scripted"
)

// parrot answers every message with "answer to" it. Asked for something slow, it calls a tool that is held before it does.
type parrot struct{ slow string }

func (p parrot) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	said := ""
	for _, m := range req.Messages {
		if m.Role == model.User {
			said = m.Text
		}
	}
	step := scripted.Text("answer to " + said)
	if strings.Contains(said, "slow") && req.Messages[len(req.Messages)-1].Role == model.User {
		step = scripted.Calls(scripted.Call("http_request", object{"method": "GET", "url": p.slow}))
	}
	return scripted.Replies(step).Generate(ctx, req, emit)
}

// chatServers are servers with a chat agent, whose slow tool is held at effects.
func chatServers(t testing.TB) (*servers, *effects, *modeltest.Server) {
	t.Helper()
	fx := startEffects(t)
	vendor := modeltest.NewServer(t, parrot{slow: fx.URL + "/hold/it"})
	return startServers(t, fmt.Sprintf(`
models:
  default: {provider: openai, model: test, base_url: %q}
agents:
  default: {mode: react, tools: [http_request]}
tools:
  http_request: {allow_hosts: ["127.0.0.1:*"]}
`, vendor.URL)), fx, vendor
}

// chat sends a message. The answer's stream is read to its end beside the test.
func (c *client) chat(t testing.TB, ctx context.Context, body object) (runID string, answer <-chan []stacktest.Frame) {
	t.Helper()
	res := c.Send(ctx, t, http.MethodPost, "/api/v1/agent/chat", nil, body)
	require.Equal(t, http.StatusOK, res.StatusCode)
	read := make(chan []stacktest.Frame, 1)
	go func() { read <- stacktest.ReadStream(t, res) }()
	return path.Base(path.Dir(res.Header.Get("Content-Location"))), read
}

type queuedRun struct {
	agent.Run
	QueuedBehind []agent.RunAhead `json:"queued_behind"`
}

func (c *client) run(t testing.TB, runID string) (run queuedRun) {
	t.Helper()
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+runID, nil, &run))
	return run
}

// TestChatMessagesWaitForTheirTurn sends three messages while the first is being answered, and kills the worker meanwhile. All are
// answered in order, each with the answers before it in its prompt.
func TestChatMessagesWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	s, fx, vendor := chatServers(t)
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
	defer cancel()
	messages := []string{"slow one", "two", "three", "four"}
	ids, answers := make([]string, len(messages)), make([]<-chan []stacktest.Frame, len(messages))
	ids[0], answers[0] = c.chat(t, ctx, object{"message": messages[0]})
	fx.held(t)
	conversation := c.run(t, ids[0]).ConversationID
	for i, message := range messages[1:] {
		ids[i+1], answers[i+1] = c.chat(t, ctx, object{"message": message, "conversation_id": conversation})
	}
	require.Equal(t, []agent.RunAhead{{RunID: ids[0], Status: agent.Running}, {RunID: ids[1], Status: agent.Queued}, {RunID: ids[2], Status: agent.Queued}},
		c.run(t, ids[3]).QueuedBehind)
	c.Verifies(t, ids[3])
	worker.Kill(t)
	fx.abandoned(t)
	fx.letGo()
	s.StartWorker(t)

	var last int64
	for i, answer := range answers {
		frames := stacktest.Numbered(t, stacktest.Receive(t, answer, "no answer to "+messages[i]))
		require.Equal(t, "run_completed", frames[len(frames)-1].Name)
		require.Contains(t, frames[len(frames)-1].Data, "answer to "+messages[i])
		require.Equal(t, last+1, frames[0].Event.Sequence, "one after the other")
		last = frames[len(frames)-1].Event.Sequence
		c.Finished(t, ids[i])
		c.Verifies(t, ids[i])
	}
	prompts := map[string][]string{} // of each run's last turn, what was said before and in it
	for _, call := range vendor.Calls() {
		var said []string
		for _, m := range call.Request.Messages {
			if m.Text != "" && m.Role != model.System && m.Role != model.ToolRole {
				said = append(said, m.Text)
			}
		}
		prompts[path.Dir(call.Key)] = said
	}
	var before []string
	for i, message := range messages {
		before = append(before, message)
		require.Equal(t, before, prompts[ids[i]])
		before = append(before, "answer to "+message)
	}
	var status agent.ExecutionStatus
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/conversations/"+conversation+"/execution-status", nil, &status))
	require.False(t, status.IsRunning)
}

// TestChatMessageInterrupts sends a message that does not wait for the slow answer, before one that does.
func TestChatMessageInterrupts(t *testing.T) {
	t.Parallel()
	s, fx, _ := chatServers(t)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
	defer cancel()
	slow, stopped := c.chat(t, ctx, object{"message": "slow one"})
	fx.held(t)
	conversation := c.run(t, slow).ConversationID
	for strategy, want := range map[string]int{"reject": http.StatusConflict} {
		var p struct {
			RunID string `json:"run_id"`
		}
		require.Equal(t, want, c.Call(t, http.MethodPost, "/api/v1/agent/chat", object{"message": "x", "conversation_id": conversation, "strategy": strategy}, &p))
		require.Equal(t, slow, p.RunID)
	}
	_, waits := c.chat(t, ctx, object{"message": "patient", "conversation_id": conversation})
	first, urgent := c.chat(t, ctx, object{"message": "urgent", "conversation_id": conversation, "strategy": "interrupt"})

	frames := stacktest.Receive(t, stopped, "the slow answer is not stopped")
	require.Equal(t, "run_cancelled", frames[len(frames)-1].Name)
	require.Contains(t, frames[len(frames)-1].Data, "interrupted by run "+first)
	end := frames[len(frames)-1].Event.Sequence
	for _, answer := range []<-chan []stacktest.Frame{urgent, waits} {
		frames := stacktest.Numbered(t, stacktest.Receive(t, answer, "no answer"))
		require.Equal(t, "run_completed", frames[len(frames)-1].Name)
		require.Equal(t, end+1, frames[0].Event.Sequence)
		end = frames[len(frames)-1].Event.Sequence
	}
	c.Finished(t, slow)
}

// TestQueueWhileTemporalIsAway accepts runs, takes one back and interrupts one while nothing can be started.
func TestQueueWhileTemporalIsAway(t *testing.T) {
	t.Parallel()
	s, _, _ := chatServers(t)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	require.NoError(t, s.Temporal.Stop(t.Context()))
	at := c.Post(t, object{"input": "one"})
	send := func(input, strategy string) agent.Run {
		return c.Post(t, object{"input": input, "strategy": strategy, "conversation_id": at.ConversationID})
	}
	two, never := send("two", "enqueue"), send("never mind", "enqueue")
	var gone agent.Run
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+never.RunID+"/cancel", nil, &gone))
	require.Equal(t, agent.Cancelled, gone.Status)
	urgent := send("urgent", "interrupt")
	s.StartTemporal(t)
	var end int64
	for i, run := range []agent.Run{at, urgent, two} {
		frames := c.Stream(t, run.RunID, 0, "ledger") // with gaps: the one that was taken back has ended meanwhile
		require.Greater(t, frames[0].Event.Sequence, end)
		last := frames[len(frames)-1].Event
		end = last.Sequence
		want := agent.RunCompleted
		if i == 0 {
			want = agent.RunCancelled
		}
		require.Equal(t, want, last.Type)
	}
}

package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model"
)

// sent is the answer to a signal.
type sent struct {
	InputID  string `json:"input_id"`
	Sequence int64  `json:"sequence_number"`
	Created  bool   `json:"created"`
}

func (c *client) signal(t testing.TB, run agent.Run, name, id string, value any) (s sent) {
	t.Helper()
	require.Equal(t, http.StatusAccepted, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+run.RunID+"/signal", object{"name": name, "id": id, "value": value}, &s))
	return s
}

// waitsFor reads what a run waits for until it is that.
func (c *client) waitsFor(t testing.TB, run agent.Run, signals ...string) {
	t.Helper()
	deadline, pause := time.Now().Add(stacktest.Patience), time.NewTicker(50*time.Millisecond)
	defer pause.Stop()
	for {
		var now struct {
			Status   agent.Status
			WaitsFor []agent.OpenWait `json:"waits_for"`
		}
		require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID, nil, &now))
		var names []string
		for _, w := range now.WaitsFor {
			names = append(names, w.Signal)
		}
		if now.Status == agent.Waiting && strings.Join(names, " ") == strings.Join(signals, " ") {
			return
		}
		require.True(t, time.Now().Before(deadline), "the run is %s and waits for %v", now.Status, names)
		<-pause.C
	}
}

// TestSignalsOutliveProcesses sends inputs before anybody waits for them, more than once, while the worker is dead and while Temporal
// is away. Every wait takes one, in their order, and what depends on the waits is done once.
func TestSignalsOutliveProcesses(t *testing.T) {
	t.Parallel()
	s, fx := startServers(t, localConfig), startEffects(t)
	worker := s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	wait := func(id, signal string, after ...string) object {
		return object{"id": id, "kind": "wait", "signal": signal, "depends_on": append([]string{}, after...)}
	}
	run := c.Post(t, object{"input": "wait for them", "plan": object{"nodes": []any{
		fx.get("held", "/hold/it"), wait("early", "go", "held"), fx.get("one", "/do/one", "early"),
		wait("dead", "go", "one"), fx.get("two", "/do/two", "dead"),
		wait("away", "go", "two"), object{"id": "clock", "kind": "wait", "duration": "1s", "depends_on": []string{"away"}}, fx.get("three", "/do/three", "clock"),
	}}})
	fx.held(t)
	first := c.signal(t, run, "go", "1", object{"token": "s3cret-one"})
	require.True(t, first.Created)
	require.Equal(t, sent{InputID: "1", Sequence: first.Sequence}, c.signal(t, run, "go", "1", object{"token": "s3cret-one"}))
	require.True(t, c.signal(t, run, "nobody", "1", nil).Created)
	require.Equal(t, http.StatusConflict, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+run.RunID+"/signal", object{"name": "go", "id": "1", "value": 2}, nil))
	worker.Kill(t)
	fx.abandoned(t)
	fx.letGo()
	worker = s.StartWorker(t)
	c.waitsFor(t, run, "go")

	worker.Kill(t)
	second := c.signal(t, run, "go", "2", "s3cret-two")
	require.False(t, c.signal(t, run, "go", "2", "s3cret-two").Created)
	worker = s.StartWorker(t)
	c.waitsFor(t, run, "go")

	require.NoError(t, s.Temporal.Stop(context.Background()))
	third := c.signal(t, run, "go", "3", "s3cret-three")
	worker.Kill(t)
	require.False(t, c.signal(t, run, "go", "3", "s3cret-three").Created)
	s.StartTemporal(t)
	s.StartWorker(t)
	frames := c.Finished(t, run.RunID)
	require.Equal(t, agent.RunCompleted, frames[len(frames)-1].Event.Type)
	require.Equal(t, 4, stacktest.Count(frames, agent.InputReceived))
	require.Less(t, first.Sequence, second.Sequence)
	require.Less(t, second.Sequence, third.Sequence)
	for i, id := range []string{"early", "dead", "away"} {
		var command agent.Command
		require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/commands/"+id, nil, &command))
		require.Contains(t, string(command.Result), "s3cret-"+[]string{"one", "two", "three"}[i])
	}
	for _, what := range []string{"one", "two", "three"} {
		require.Equal(t, 1, fx.count(run.RunID+"/"+what))
	}
	for _, f := range c.Stream(t, run.RunID, 0, "run") {
		require.NotContains(t, f.Data, "s3cret", "a stream for everybody shows no input's value")
	}
	c.Verifies(t, run.RunID)
	require.Equal(t, http.StatusConflict, c.Call(t, http.MethodPost, "/api/v1/agent/runs/"+run.RunID+"/signal", object{"name": "go"}, nil))
}

// TestSteer says something to a run whose tool is slow: the next prompt has it, the answer is to it, and the stream of the message
// begins with the message.
func TestSteer(t *testing.T) {
	t.Parallel()
	s, fx, vendor := chatServers(t)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
	defer cancel()
	id, answer := c.chat(t, ctx, object{"message": "slow one"})
	fx.held(t)
	conversation := c.run(t, id).ConversationID
	into, steered := c.chat(t, ctx, object{"message": "in red", "conversation_id": conversation, "strategy": "steer"})
	require.Equal(t, id, into)
	fx.letGo()
	whole, rest := stacktest.Numbered(t, stacktest.Receive(t, answer, "no answer")), stacktest.Numbered(t, stacktest.Receive(t, steered, "no answer to what was said"))
	require.Equal(t, whole[len(whole)-len(rest):], rest)
	require.Equal(t, "message_added", rest[0].Name)
	require.Contains(t, rest[0].Data, `"in red"`)
	require.Contains(t, rest[0].Data, `"steers":true`)
	require.Contains(t, rest[len(rest)-1].Data, "answer to in red")
	calls := vendor.Calls()
	require.Len(t, calls, 2)
	last := calls[1].Request.Messages
	require.Equal(t, model.User, last[len(last)-1].Role)
	require.Equal(t, "in red", last[len(last)-1].Text)
	require.Equal(t, model.ToolRole, last[len(last)-2].Role)
	c.Finished(t, id)
	c.Verifies(t, id)
}

// TestSteerRacesTheEnd says something to runs in every moment of their lives. It is told to the run, which answers it, or begins one of
// its own: it is answered once.
func TestSteerRacesTheEnd(t *testing.T) {
	t.Parallel()
	s, _, _ := chatServers(t)
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 4*stacktest.Patience)
	defer cancel()
	told := 0
	for i := range 20 {
		id, first := c.chat(t, ctx, object{"message": fmt.Sprintf("hello %d", i)})
		conversation := c.run(t, id).ConversationID
		for at := int64(0); at < int64(i%12); { // a run has eleven events
			var status agent.ExecutionStatus
			require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/conversations/"+conversation+"/execution-status", nil, &status))
			at = status.LastSequence
		}
		more := fmt.Sprintf("more %d", i)
		into, second := c.chat(t, ctx, object{"message": more, "conversation_id": conversation, "strategy": "steer"})
		for _, answer := range []<-chan []stacktest.Frame{first, second} {
			frames := stacktest.Receive(t, answer, "no answer")
			require.Equal(t, "run_completed", frames[len(frames)-1].Name)
		}
		var list struct{ Messages []agent.Message }
		require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/conversations/"+conversation+"/messages", nil, &list))
		said := map[string]int{}
		for _, m := range list.Messages {
			said[string(m.Role)+" "+m.Content]++
		}
		require.Equal(t, 1, said["user "+more])
		require.Equal(t, 1, said["assistant answer to "+more], "%v", said)
		if into == id {
			told++
		} else {
			require.Equal(t, 1, said[fmt.Sprintf("assistant answer to hello %d", i)])
			c.Verifies(t, into)
		}
		c.Verifies(t, id)
	}
	t.Logf("%d of 20 messages were told to the run at work", told)
}

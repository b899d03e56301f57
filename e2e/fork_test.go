package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
	"runledger/model"
	"runledger/model/modeltest"
)

// orders is a model that sends an order a turn, by the words of the user's message, and answers in the words of its instructions.
type orders struct{ fx *effects }

func (m orders) Generate(_ context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	req = model.WithoutMarks(req)
	var words []string
	instructions, turn := "", 0
	for _, message := range req.Messages {
		switch message.Role {
		case model.System:
			instructions = message.Text
		case model.User:
			words, turn = strings.Fields(message.Text), 0
		case model.Assistant:
			turn++
		default:
		}
	}
	if turn == len(words) {
		reply := model.Reply{Finish: model.FinishStop, Text: fmt.Sprintf("%d orders. %s", turn, instructions)}
		emit(model.Delta{Channel: model.Text, Text: reply.Text})
		return reply, nil
	}
	return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: fmt.Sprint("call", turn), Name: "http_request",
		Arguments: fmt.Sprintf(`{"method": "POST", "url": %q}`, m.fx.URL+"/do/"+words[turn])}}}, nil
}

// R2-12: a loop that has sent three orders is forked from a checkpoint in its middle, with other instructions. The dry run says what
// the fork does, and it does that: no order is sent again, and no turn up to the checkpoint is asked for again. The same fork with
// an order named sends that one, under its own key.
func TestForkOfALoopThatSendsOrders(t *testing.T) {
	t.Parallel()
	fx := startEffects(t)
	vendor := modeltest.NewServer(t, orders{fx})
	s := startServers(t, reactConfig(vendor))
	s.StartWorker(t)
	_, c := s.startAPI(t, 0)
	run := c.Post(t, object{"input": "tea milk sugar"})
	c.Finished(t, run.RunID)
	path := "/api/v1/agent/runs/" + run.RunID
	var list struct{ Checkpoints []agent.Checkpoint }
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, path+"/checkpoints", nil, &list))
	var middle agent.Checkpoint
	for _, checkpoint := range list.Checkpoints {
		if checkpoint.Type == agent.LLMComplete && checkpoint.State.Turns[agent.MainNodeID] == 2 {
			middle = checkpoint
		}
	}
	require.NotEmpty(t, middle.CheckpointID)
	asked := len(vendor.Calls())

	body := object{"checkpoint_id": middle.CheckpointID, "instructions": "Arr!"}
	var plan agent.ForkPlan
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, path+"/fork?dry_run=true", body, &plan))
	decisions := []string{}
	for _, d := range plan.Commands {
		decisions = append(decisions, fmt.Sprintf("%s %s %s %v", d.CommandID, d.Effect, d.Decision, d.IfSame))
	}
	require.Equal(t, middle.Sequence, plan.From)
	require.Equal(t, []string{"main#1 idempotent reused false", "main#1.0 external reused false", "main#2 idempotent reused false", "main#2.0 external reused true",
		"main#3 idempotent would_run_again false", "main#3.0 external reused true", "main#4 idempotent would_run_again false"}, decisions)
	require.Len(t, vendor.Calls(), asked, "a dry run asks nobody")

	var fork struct {
		agent.Run
		ToolCalls []struct {
			CommandID  string            `json:"command_id"`
			ReusedFrom *agent.ForkedFrom `json:"reused_from"`
		} `json:"tool_calls"`
		Metrics struct {
			ModelCalls int `json:"model_calls"`
			ToolCalls  int `json:"tool_calls"`
			Reused     int `json:"reused"`
		} `json:"metrics"`
	}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, path+"/fork", body, &fork))
	require.Equal(t, "3 orders. Arr!", *fork.FinalOutput)
	require.NotEqual(t, run.ConversationID, fork.ConversationID)
	require.Equal(t, &agent.ForkedFrom{RunID: run.RunID, Sequence: middle.Sequence}, fork.ForkedFrom)
	require.Len(t, fork.ToolCalls, 3)
	for _, call := range fork.ToolCalls {
		require.Equal(t, run.RunID, call.ReusedFrom.RunID)
		require.Equal(t, 1, fx.count(run.RunID+"/"+call.CommandID))
		require.Zero(t, fx.count(fork.RunID+"/"+call.CommandID))
	}
	require.Equal(t, []int{2, 0, 5}, []int{fork.Metrics.ModelCalls, fork.Metrics.ToolCalls, fork.Metrics.Reused})
	keys := []string{}
	for _, call := range vendor.Calls()[asked:] {
		keys = append(keys, call.Key)
	}
	require.Equal(t, []string{fork.RunID + "/main#3", fork.RunID + "/main#4"}, keys)
	frames := c.Finished(t, fork.RunID)
	require.Equal(t, 1, stacktest.Count(frames, agent.RunForked))
	require.Contains(t, string(frames[2].Event.Data), run.RunID)
	s.RequireSound(t, c.Client, fork.RunID, 1)

	body["rerun"] = []string{"main#3.0"}
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodPost, path+"/fork", body, &fork))
	require.Equal(t, "3 orders. Arr!", *fork.FinalOutput)
	require.Equal(t, []int{0, 0, 1}, []int{fx.count(fork.RunID + "/main#1.0"), fx.count(fork.RunID + "/main#2.0"), fx.count(fork.RunID + "/main#3.0")})
	s.RequireSound(t, c.Client, fork.RunID, 1)
	s.RequireSound(t, c.Client, run.RunID, 1)
}

package agenttest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/agenttest"
	"runledger/model"
	"runledger/model/scripted"
	"runledger/tool"
)

// said shows a prompt, a line per message.
func said(req model.Request) (lines []string) {
	for _, m := range req.Messages {
		line := string(m.Role) + ": " + agent.Preview(m.Text, 100)
		for _, c := range m.ToolCalls {
			line += " " + c.Name + c.Arguments
		}
		if m.ToolCallID != "" {
			line += " <" + m.ToolName
		}
		lines = append(lines, line)
	}
	return lines
}

// unmarked are the requests of a script without what marks the results of tools.
func unmarked(script *scripted.Script) (requests []model.Request) {
	for _, req := range script.Requests() {
		requests = append(requests, model.WithoutMarks(req))
	}
	return requests
}

// What a run did with tools is told in later ones, calls together with their answers. A turn whose answers are not complete, since
// its run was stopped, is not.
func TestLaterRunsKnowOfToolCalls(t *testing.T) {
	t.Parallel()
	script := scripted.Replies(
		scripted.Calls(scripted.Call("double", `{"n": 2}`), scripted.Call("double", `{"n": 13}`)), scripted.Text("4, and bad luck"),
		scripted.Calls(scripted.Call("double", `{"n": 3}`)), scripted.Calls(scripted.Call("double", `{"n": 4}`), scripted.Call("stop", `{}`)),
		scripted.Text("you were at it"))
	var h *agenttest.Harness
	stop := tool.MustNew(tool.Spec{Name: "stop", Description: "stops the run", Effect: agent.Idempotent},
		func(ctx context.Context, _ struct{}, _ tool.Call) (number, error) {
			h.Cancel("me", "enough")
			<-ctx.Done()
			return number{}, context.Cause(ctx)
		})
	h = agenttest.New(t, agenttest.Config{Mode: agent.ModeReact, Model: script, Tools: []tool.Tool{double(""), stop}})
	h.Run("double 2 and 13").RequireOutput("4, and bad luck")
	h.Run("double 3 and 4").RequireStatus(agent.Cancelled)
	h.Run("what happened?").RequireOutput("you were at it")
	require.Equal(t, []string{
		"user: double 2 and 13",
		`assistant:  double{"n": 2} double{"n": 13}`,
		`tool: {"n":4} <double`,
		"tool: TOOL_FAILED: bad luck <double",
		"assistant: 4, and bad luck",
		"user: double 3 and 4",
		`assistant:  double{"n": 3}`,
		`tool: {"n":6} <double`,
		"user: what happened?",
	}, said(unmarked(script)[4]))
	last := unmarked(script)[4].Messages
	require.Equal(t, last[1].ToolCalls[0].ID, last[2].ToolCallID)
	require.Equal(t, last[1].ToolCalls[1].ID, last[3].ToolCallID)
}

// page is a tool whose results have the size that is asked for.
func page() tool.Tool {
	return tool.MustNew(tool.Spec{Name: "page", Description: "gives text", Effect: agent.Idempotent},
		func(_ context.Context, in number, _ tool.Call) (string, error) { return strings.Repeat("x", in.N), nil })
}

func TestPromptsKeepToTheirBudget(t *testing.T) {
	t.Parallel()
	var steps []scripted.Step
	for i := range 30 { // 500 tokens a turn: more turns than fit, and than are read at a time
		steps = append(steps, scripted.Calls(scripted.Call("page", number{N: 2000 + i})))
	}
	steps = append(steps, scripted.Text("all read"), scripted.Calls(scripted.Call("page", number{N: 100_000})), scripted.Calls(scripted.Call("page", number{N: 1})),
		scripted.Text("read"))
	script := scripted.Replies(steps...)
	h := agenttest.New(t, agenttest.Config{Mode: agent.ModeReact, Model: script, Tools: []tool.Tool{page()}, Instructions: "be kind",
		History: agent.History{MaxTokens: 5000}})
	h.Run("first question").RequireOutput("all read")
	h.Run("second question").RequireOutput("read")

	requests := unmarked(script)
	for i, req := range requests {
		bytes, calls := 0, 0
		for _, m := range req.Messages[1:] { // and the note
			bytes += len(m.Text)
			calls += len(m.ToolCalls)
			if m.Role == model.ToolRole {
				calls--
			}
		}
		require.LessOrEqual(t, bytes, 4*5000, "request %d", i)
		require.Zero(t, calls, "request %d: a call without its answer, or an answer without its call", i)
		require.Equal(t, 1, strings.Count(fmt.Sprint(said(req)), "system: be kind"))
	}
	// The run's own turns: the request stays, the newest turns with it, and it is said what is left out.
	late := requests[30]
	require.Equal(t, model.Message{Role: model.User, Text: "[Left out of what follows, to keep it short: the first 21 turns of work on the last request, " +
		"with their tool calls and results.]"}, late.Messages[1])
	require.Equal(t, "user: first question", said(late)[2])
	require.Len(t, late.Messages, 3+2*9)
	// The next run knows the newest of it.
	next := requests[31]
	require.Equal(t, "user: [Left out of what follows, to keep it short: the oldest 43 messages of the conversation.]", said(next)[1], "62 in all")
	require.Equal(t, model.Assistant, next.Messages[2].Role)
	require.Len(t, next.Messages, 2+19+1)
	require.Equal(t, "user: second question", said(next)[len(next.Messages)-1])
	// A result that is larger than the budget shows its beginning and its size, in the turn after it and in the one after that.
	for _, i := range []int{32, 33} {
		result := requests[i].Messages[len(requests[i].Messages)-1-2*(i-32)]
		require.LessOrEqual(t, len(result.Text), 10_000)
		require.True(t, strings.HasSuffix(result.Text, "of 100002 bytes]"), agent.Preview(result.Text[len(result.Text)-100:], 200))
	}
}

// The planner and the final answer of a plan know the conversation too.
func TestPlansKnowTheConversation(t *testing.T) {
	t.Parallel()
	script := scripted.Replies(
		scripted.JSON(agent.Plan{Nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say it"}}}), scripted.Text(strings.Repeat("long ", 1000)),
		scripted.JSON(agent.Plan{Nodes: []agent.Node{{ID: "say", Kind: agent.LLMNode, Prompt: "say it"}}}), scripted.Text("so it was"))
	h := agenttest.New(t, agenttest.Config{Model: script, History: agent.History{MaxTokens: 1000}})
	h.Run("one").RequireStatus(agent.Completed)
	h.Run("two").RequireOutput("so it was")
	for _, i := range []int{2, 3} {
		req := script.Requests()[i]
		require.Contains(t, strings.Join(said(req), "\n"), "[Left out of what follows, to keep it short: the oldest 2 messages of the conversation.]", "request %d", i)
		require.Len(t, req.Messages, 2+(3-i)) // the planner has instructions
	}
}

package activities_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// What a tool says of its progress shows while its call is at work, and is no part of the log.
func TestProgressOfATool(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.External)
	news, stop := l.Subscribe(run.ConversationID)
	defer stop()
	seen := make(chan []agent.OutputChunk, 1)
	how := try{hooks: hooks{after: func(ctx context.Context, call tool.Call) (json.RawMessage, error) {
		call.Progress("half way")
		for {
			got, err := l.News(ctx, []agent.LogCursor{{ConversationID: run.ConversationID, Output: true}}, 100)
			if err != nil {
				return nil, err
			}
			if len(got[0].Output) > 0 {
				seen <- got[0].Output
				return json.RawMessage(`{"n": 1}`), nil
			}
			select {
			case <-news:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}}}
	reply, err := l.callTool(t, how, agent.ToolCall{Call: call(run, 1), Tool: "mail"})
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Equal(t, []agent.OutputChunk{{ConversationID: run.ConversationID, RunID: run.RunID, RootRunID: run.RunID, NodeID: "a", CommandID: "a",
		Attempt: 1, Chunk: 1, Channel: agent.ProgressChannel, Text: "half way\n"}}, <-seen)
	require.NotContains(t, l.types(t, run), agent.Progress)
	got, err := l.News(t.Context(), []agent.LogCursor{{ConversationID: run.ConversationID, Output: true}}, 100)
	require.NoError(t, err)
	require.Empty(t, got[0].Output, "the result has replaced it")
}

// A call of a tool whose server cannot be reached waits for it: nothing is on record, and nothing has failed.
func TestToolOfAServerThatIsAway(t *testing.T) {
	t.Parallel()
	l := setup(t)
	var err error
	remote := l.probe.tool("shop/buy", agent.External)
	l.tools, err = tool.NewSet(remote)
	require.NoError(t, err)
	run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "shop/buy", "args": {"n": 21}}]}`)
	in := agent.ToolCall{Call: call(run, 1), Tool: "shop/buy"}

	none, err := tool.NewSet()
	require.NoError(t, err)
	before := l.types(t, run)
	_, err = attemptOn(t, l.Ledger, none.WithAway("bank", "shop"), nil, try{}, callTool, in)
	app := requireCode(t, err, agent.CodeToolFailed, true)
	require.Equal(t, 2*time.Second, app.NextRetryDelay())
	require.Equal(t, before, l.types(t, run))

	reply, err := l.callTool(t, try{}, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Equal(t, []int{1}, l.probe.of(run, "a"))

	// One that is there and does not have the tool any more is another thing.
	run = l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "shop/buy", "args": {"n": 21}}]}`)
	in.Call = call(run, 1)
	reply, err = attemptOn(t, l.Ledger, none.WithAway("bank"), nil, try{}, callTool, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeFailed, reply.Outcome)
	require.Equal(t, agent.CodeToolUnknown, reply.Error.Code)
}

// Calls have the tools of the moment, and a set that cannot be used changes nothing.
func TestUseTools(t *testing.T) {
	t.Parallel()
	l := setup(t)
	acts, err := activities.New(activities.Config{Ledger: l.Ledger, Tools: l.tools, Models: func(string) model.Client { return nil }})
	require.NoError(t, err)
	wrong := l.probe.tool("wrong", agent.External)
	wrong.spec.Approve = "1 +"
	set, err := tool.NewSet(wrong)
	require.NoError(t, err)
	require.ErrorContains(t, acts.UseTools(set), "activities: tool wrong: approve")
}

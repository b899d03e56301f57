package activities_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

// A call that has to wait for another one's slot does not begin: Temporal has it come again. It is no dispatch.
func TestCallThatHasToWaitForASlot(t *testing.T) {
	t.Parallel()
	l := setup(t)
	put := l.probe.tool("put", agent.External)
	put.spec.Limit = tool.CallLimit{MaxConcurrent: 1}
	var err error
	l.tools, err = tool.NewSet(put)
	require.NoError(t, err)
	plan := `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {"n": 1}}]}`
	first, second := l.accept(t, agent.ModePlan, plan), l.accept(t, agent.ModePlan, plan)
	in := agent.ToolCall{Call: call(second, 1), Tool: "put"}

	_, err = l.callTool(t, try{hooks: hooks{before: func(context.Context, tool.Call) (json.RawMessage, error) {
		_, err := l.callTool(t, try{}, in)
		waits := requireCode(t, err, agent.CodeCallLimit, true)
		require.ErrorContains(t, err, "the limit of put is reached")
		require.Positive(t, waits.NextRetryDelay())
		require.Less(t, waits.NextRetryDelay(), time.Second)
		require.Empty(t, l.types(t, second), "nothing is on record of it")
		return json.RawMessage(`{"n": 1}`), nil
	}}}, agent.ToolCall{Call: call(first, 1), Tool: "put"})
	require.NoError(t, err)

	reply, err := l.callTool(t, try{attempt: 2}, in)
	require.NoError(t, err, "the first has ended")
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Equal(t, []int{1}, l.probe.of(second, "a"), "it was dispatched once")
	reply, err = l.callTool(t, try{attempt: 3}, in)
	require.NoError(t, err, "what is on record needs no slot")
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
}

// A slot that was taken for a call which is then not made is there for the next.
func TestSlotOfACallThatIsNotMade(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.policy = &agent.Policy{Rules: []agent.PolicyRule{{Tools: []string{"put"}, Decision: "ask"}}}
	put := l.probe.tool("put", agent.External)
	put.spec.Limit = tool.CallLimit{MaxConcurrent: 1, Rate: tool.Rate{Calls: 1, Per: time.Hour}}
	var err error
	l.tools, err = tool.NewSet(put)
	require.NoError(t, err)
	for range 2 {
		run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {"n": 1}}]}`)
		reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
		require.NoError(t, err)
		require.Equal(t, agent.OutcomeWaiting, reply.Outcome, "for somebody's leave")
		require.Empty(t, l.probe.of(run, "a"))
	}
}

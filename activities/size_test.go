package activities_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// tooMuch is a result of one byte more than is kept.
func tooMuch() json.RawMessage {
	return json.RawMessage(`"` + strings.Repeat("r", agent.MaxResultBytes-1) + `"`)
}

// A result that is too large to keep is the definite failure of a call that may be repeated, and puts an external one in doubt: it has
// taken place. Either is said at once, and neither call is made again.
func TestResultsAreBounded(t *testing.T) {
	t.Parallel()
	for class, outcome := range map[agent.EffectClass]agent.Outcome{agent.Deterministic: agent.OutcomeFailed, agent.Idempotent: agent.OutcomeFailed,
		agent.External: agent.OutcomeInDoubt} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			l := setup(t)
			run := l.oneNode(t, class)
			in := agent.ToolCall{Call: call(run, 1), Tool: toolOf(class)}
			for attempt := range int32(2) {
				reply, err := l.callTool(t, try{attempt: attempt + 1, hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) { return tooMuch(), nil }}}, in)
				require.NoError(t, err)
				require.Equal(t, outcome, reply.Outcome)
				require.Equal(t, agent.CodeTooLarge, reply.Error.Code)
				require.Equal(t, fmt.Sprintf("command a: tool %s gave a result of 16777217 bytes; at most 16777216 can be kept", toolOf(class)), reply.Error.Message)
			}
			require.Equal(t, []int{1}, l.probe.of(run, "a"))
		})
	}
	t.Run("the largest", func(t *testing.T) {
		t.Parallel()
		l := setup(t)
		run := l.oneNode(t, agent.External)
		result := json.RawMessage(`"` + strings.Repeat("r", agent.MaxResultBytes-2) + `"`)
		reply, err := l.callTool(t, try{hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) { return result, nil }}},
			agent.ToolCall{Call: call(run, 1), Tool: "mail"})
		require.NoError(t, err)
		require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
		require.Equal(t, agent.MaxResultBytes, reply.Bytes)
		require.Equal(t, agent.MaxResultBytes, len(l.row(t, run, "a").Result))
	})
}

// A tool that can tell what became of a lost call is not asked about one whose answer came and was too large, and cannot bring
// such an answer itself.
func TestTooLargeResultsAndReconcile(t *testing.T) {
	t.Parallel()
	t.Run("came", func(t *testing.T) {
		t.Parallel()
		l, asked, run := reconciling(t, func(int) (tool.Finding, error) { return tool.Finding{Found: true, Output: json.RawMessage(`1`)}, nil })
		reply, err := l.callTool(t, try{hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) { return tooMuch(), nil }}},
			agent.ToolCall{Call: call(run, 1), Tool: "mail"})
		require.NoError(t, err)
		require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
		require.Empty(t, asked.asked)
	})
	t.Run("found", func(t *testing.T) {
		t.Parallel()
		l, asked, run := reconciling(t, func(int) (tool.Finding, error) { return tool.Finding{Found: true, Output: tooMuch()}, nil })
		l.lose(t, run)
		reply, err := l.callTool(t, try{attempt: 2}, agent.ToolCall{Call: call(run, 1), Tool: "mail"})
		require.NoError(t, err)
		require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
		require.Contains(t, reply.Error.Message, "16777217 bytes")
		require.Len(t, asked.asked, 1)
	})
}

// What a tool did in the ledger's transaction is undone when its result cannot be kept.
func TestTooLargeResultOfATxTool(t *testing.T) {
	t.Parallel()
	l, run := writingLab(t, func(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
		if _, err := withdraw(ctx, tx, call); err != nil {
			return nil, err
		}
		return tooMuch(), nil
	})
	reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "mail"})
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeFailed, reply.Outcome)
	require.Equal(t, agent.CodeTooLarge, reply.Error.Code)
	require.Equal(t, 100, l.balance(t))
}

// The record keeps 8 KiB of an error, Temporal's history 2, and what is cut says so.
func TestErrorsOnRecordAreBounded(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"an error of a tool's own making": &agent.Error{Code: agent.Code(strings.Repeat("C", 1<<20)), Message: strings.Repeat("m", 1<<20), Fault: agent.FaultDefinite},
		"any error":                       agent.Failed(agent.CodeToolFailed, "%w", fmt.Errorf("m%s", strings.Repeat("m", 1<<20))),
		"one that may be tried again":     &agent.Error{Code: agent.CodeToolFailed, Message: strings.Repeat("m", 1<<20), Fault: agent.FaultTransient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := setup(t)
			run := l.oneNode(t, agent.Idempotent)
			reply, err := l.callTool(t, try{hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) { return nil, failure }}},
				agent.ToolCall{Call: call(run, 1), Tool: "put"})
			if name == "one that may be tried again" {
				app := requireCode(t, err, agent.CodeToolFailed, true)
				require.Len(t, app.Message(), agent.MaxToldErrorBytes+len("…"))
			} else {
				require.NoError(t, err)
				require.Len(t, reply.Error.Message, agent.MaxToldErrorBytes+len("…"))
				require.Len(t, l.row(t, run, "a").Error.Message, agent.MaxErrorBytes+len("…"))
			}
			for _, e := range l.events(t, run) {
				require.Less(t, len(e.Data), 10<<10, e.Type)
			}
		})
	}
}

// A plan stands whole in its event.
func TestPlansAreBounded(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.models = (&asked{}).answers(l, planOf(`{"nodes": [{"id": "a", "kind": "llm", "prompt": "`+strings.Repeat("p", 1<<20)+`"}]}`))
	run := l.accept(t, agent.ModePlan, "")
	reply, err := l.callPlanner(t, try{}, planner(run))
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeFailed, reply.Outcome)
	require.Equal(t, agent.CodeTooLarge, reply.Error.Code)
}

func planOf(text string) func(model.Request) model.Reply {
	return func(model.Request) model.Reply { return model.Reply{Text: text, Finish: model.FinishStop} }
}

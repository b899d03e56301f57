package activities_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/tool"
	"runledger/tool/builtin"
)

// An external tool that can reconcile, whose worker was slow: its doubt is on record, and its own late word, unknown, is no
// leave to execute it again.
func TestLateUnknownOfAReconciler(t *testing.T) {
	t.Parallel()
	l, _, run := reconciling(t, func(int) (tool.Finding, error) { return tool.Finding{}, nil }) // not found, which proves nothing
	in := agent.ToolCall{Call: call(run, 1), Tool: "mail"}
	how := try{hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) {
		l.expire(t, run)
		reply, err := l.callTool(t, try{attempt: 2}, in)
		require.NoError(t, err)
		require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
		return nil, agent.Unknown(agent.CodeTimeout, "cut off")
	}}}
	_, _ = l.callTool(t, how, in)
	in.Schedule = 2 // the workflow was told "resolved" and schedules it
	_, _ = l.callTool(t, try{}, in)
	require.Equal(t, []int{1}, l.probe.of(run, "a"), "executed once, since nobody knows")
	require.Equal(t, agent.CommandInDoubt, l.row(t, run, "a").State)
}

// A tool asks for the same request again in the same execution after the first had no answer. The request is one that can be
// looked up, so that its row stays dispatched: the second is looked up, not sent.
func TestToolAsksAgainForARequestThatWasLost(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			panic(http.ErrAbortHandler) // it has arrived, and there is no answer
		}
		_, _ = w.Write([]byte("paid"))
	})
	l := withTool(t, agent.Idempotent, nil)
	request, err := builtin.HTTPRequest(builtin.HTTPConfig{AllowHosts: []string{"127.0.0.1:*"},
		Reconcile: []builtin.HTTPReconcile{{Host: "127.0.0.1:*", Method: "POST", URL: "/lookup?key={key}"}}})
	require.NoError(t, err)
	l.tools, err = tool.NewSet(request, fnTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		response, err := call.Effects.HTTP(ctx, "charge", post(server.URL))
		if err != nil { // as any tool with a retry loop
			response, err = call.Effects.HTTP(ctx, "charge", post(server.URL))
		}
		return string(response.Body()), err
	}))
	require.NoError(t, err)
	run := l.oneNode(t, agent.Idempotent)
	_, _ = l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
	posts := server.of(run, "a/charge")
	require.Equal(t, 1, posts, "sent once, since it was not looked up")
}

// The ledger does not take the word on the request, and the tool asks again.
type deafOnce struct {
	activities.Ledger
	commandID string
	done      *bool
}

func (d deafOnce) Commit(ctx context.Context, c agent.Commit) (agent.Decided, error) {
	if c.CommandID == d.commandID && !*d.done {
		*d.done = true
		return agent.Decided{}, agent.Failed(agent.CodeInternal, "no answer within commitTimeout; said at once to keep the test short")
	}
	return d.Ledger.Commit(ctx, c)
}

func TestToolAsksAgainForARequestThatCouldNotBeCommitted(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	l := withTool(t, agent.Idempotent, func(ctx context.Context, call tool.Call) (any, error) {
		response, err := call.Effects.HTTP(ctx, "charge", post(server.URL))
		if err != nil {
			response, err = call.Effects.HTTP(ctx, "charge", post(server.URL))
		}
		return string(response.Body()), err
	})
	run := l.oneNode(t, agent.Idempotent)
	done := false
	_, _ = l.callTool(t, try{ledger: func(store activities.Ledger) activities.Ledger { return deafOnce{store, "a/charge", &done} }},
		agent.ToolCall{Call: call(run, 1), Tool: "put"})
	require.True(t, done)
	require.Equal(t, 1, server.of(run, "a/charge"))
}

// Temporal gives the same (epoch, schedule, attempt) twice: after `temporal workflow reset` the new execution schedules the
// command under the same number, and its attempts count from 1. It is not the dispatch whose reply was lost.
func TestResetExecutionIsAnotherDispatch(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.External)
	in := agent.ToolCall{Call: call(run, 1), Tool: "mail"}
	_, err := l.callTool(t, try{hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) { crash(); return nil, nil }}}, in)
	require.ErrorIs(t, err, errCrashed)
	// no lease need be over
	_, err = l.callTool(t, try{attempt: 1}, in)
	require.Equal(t, []int{1}, l.probe.of(run, "a"), "an external effect whose worker is away is not executed again")
	require.Error(t, err)
}

// A tool call of a loop that SettleCommand finds by its tool has its message like any other.
func TestFoundBySettleKeepsTheMessage(t *testing.T) {
	t.Parallel()
	l, _, _ := reconciling(t, func(int) (tool.Finding, error) { return tool.Finding{Found: true, Output: json.RawMessage(`1`)}, nil })
	l.models = answering{l.probe, func(model.Request) (model.Reply, error) {
		return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: "x", Name: "mail", Arguments: `{"n": 21}`}}}, nil
	}}
	run := l.accept(t, agent.ModeReact, "")
	turn := call(run, 1)
	turn.CommandID, turn.NodeID = "main#1", agent.MainNodeID
	_, err := l.callModel(t, try{}, agent.ModelCall{Call: turn, Turn: 1})
	require.NoError(t, err)
	c := call(run, 2)
	c.CommandID, c.NodeID, c.Opens, c.Ends = "main#1.0", agent.MainNodeID, false, false
	_, err = l.callTool(t, breaks(afterEffect, crashes), agent.ToolCall{Call: c, Tool: "mail", FromCommand: "main#1"})
	require.ErrorIs(t, err, errCrashed)
	require.Equal(t, agent.OutcomeCommitted, l.settle(t, agent.SettleCall{Call: c, Reason: agent.Failed(agent.CodeInternal, "gone")}).Outcome)
	messages, _, err := l.Messages(t.Context(), run.ConversationID, 0, 100)
	require.NoError(t, err)
	require.Len(t, messages, 3, "the user's, the turn's, the tool's")
}

// An external tool that can reconcile is in doubt because of a request inside of it, of which it knows nothing: the resolution
// of the request lets it go on.
func TestReconcilerInDoubtBecauseOfItsRequest(t *testing.T) {
	t.Parallel()
	server := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	l, asked, _ := reconciling(t, func(int) (tool.Finding, error) { return tool.Finding{}, nil })
	request, err := builtin.HTTPRequest(builtin.HTTPConfig{AllowHosts: []string{"127.0.0.1:*"}})
	require.NoError(t, err)
	l.tools, err = tool.NewSet(asked, request)
	require.NoError(t, err)
	run := l.oneNode(t, agent.External)
	how := try{hooks: hooks{before: func(ctx context.Context, call tool.Call) (json.RawMessage, error) {
		_, err := call.Effects.HTTP(ctx, "charge", post(server.URL))
		return nil, err
	}}}
	in := agent.ToolCall{Call: call(run, 1), Tool: "mail"}
	reply, err := l.callTool(t, how, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
	require.Equal(t, agent.CommandInDoubt, l.row(t, run, "a/charge").State)
	_, err = l.Resolve(t.Context(), "local", run.RunID, "a/charge", agent.Resolution{Outcome: agent.OutcomeFailed, By: "ada"})
	require.NoError(t, err)
	require.Equal(t, agent.Released, l.row(t, run, "a").State, "nothing of it is in doubt but the request, which is resolved")
}

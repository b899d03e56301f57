package activities_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

const secretSchema = `{"type": "object", "properties": {"user": {"type": "string"}, "token": {"type": "string", "writeOnly": true, "maxLength": 10}},
	"required": ["token"], "additionalProperties": false}`

// setupSecret is a lab with a tool that takes a secret.
func setupSecret(t testing.TB) *lab {
	t.Helper()
	l := setup(t)
	login := l.probe.tool("login", agent.External)
	login.spec.InputSchema = json.RawMessage(secretSchema)
	var err error
	l.tools, err = tool.NewSet(login, l.probe.tool("put", agent.Idempotent))
	require.NoError(t, err)
	return l
}

// emitted is what command_emitted tells of a command's input.
func (l *lab) emitted(t testing.TB, run agent.Run, commandID string) agent.Value {
	t.Helper()
	for _, e := range l.events(t, run) {
		if e.Type == agent.CommandEmitted && e.CommandID == commandID {
			var data agent.CommandEmittedData
			require.NoError(t, json.Unmarshal(e.Data, &data))
			require.NotNil(t, data.Input)
			return *data.Input
		}
	}
	t.Fatalf("command %s was not emitted", commandID)
	return agent.Value{}
}

func TestSecretsOfAPlanStayOutOfItsCommandsEvents(t *testing.T) {
	t.Parallel()
	l := setupSecret(t)
	run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "login", "args": {"user": "ann", "token": "hunter2"}}]}`)
	called := ""
	_, err := l.callTool(t, try{hooks: hooks{before: func(_ context.Context, call tool.Call) (json.RawMessage, error) {
		called = string(call.Arguments)
		return json.RawMessage(`{"n": 1}`), nil
	}}}, agent.ToolCall{Call: call(run, 1), Tool: "login"})
	require.NoError(t, err)
	require.JSONEq(t, `{"user": "ann", "token": "hunter2"}`, called)
	require.JSONEq(t, `{"user": "ann", "token": "[redacted]"}`, string(l.emitted(t, run, "a").JSON))
	require.JSONEq(t, `{"user": "ann", "token": "hunter2"}`, string(l.row(t, run, "a").Input), "recovery needs it whole")
}

func TestPreviewOfALargeInputHoldsNoSecret(t *testing.T) {
	t.Parallel()
	l := setupSecret(t)
	run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "login", "args": {"token": "hunter2", "user": "`+strings.Repeat("x", 5000)+`"}}]}`)
	_, err := l.callTool(t, try{hooks: hooks{before: func(context.Context, tool.Call) (json.RawMessage, error) { return json.RawMessage(`{}`), nil }}},
		agent.ToolCall{Call: call(run, 1), Tool: "login"})
	require.NoError(t, err)
	require.Contains(t, l.emitted(t, run, "a").Preview, `{"token":"[redacted]","user":"xxx`)
}

// A model's secret passes through its answer, its live output, the call, and what is wrong with the call.
func TestSecretsOfAModelReachNoEvent(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]string{
		"a call":          `{"user": "ann", "token": "hunter2"}`,
		"it does not fit": `{"token": "hunter2hunter2"}`,
		"not JSON":        `{"token": "hunter2"`,
		"another field":   `{"password": "hunter2"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := setupSecret(t)
			l.models = spelling{arguments}
			run := l.accept(t, agent.ModeReact, "")
			in := call(run, 1)
			in.CommandID, in.NodeID = "main#1", agent.MainNodeID
			var shown []string
			how := try{ledger: func(store activities.Ledger) activities.Ledger { return noticing{store, &shown} }}
			_, err := l.callModel(t, how, agent.ModelCall{Call: in, Turn: 1})
			require.NoError(t, err)
			require.Equal(t, []string{"I will log in. "}, shown)
			in.CommandID, in.Schedule, in.Opens, in.Ends = "main#1.0", 2, false, false
			how = try{hooks: hooks{before: func(context.Context, tool.Call) (json.RawMessage, error) { return json.RawMessage(`{"n": 1}`), nil }}}
			_, err = l.callTool(t, how, agent.ToolCall{Call: in, Tool: "login", FromCommand: "main#1"})
			require.NoError(t, err)
			for _, e := range l.events(t, run) {
				require.NotContains(t, string(e.Data), "hunter2", "%s", e.Type)
			}
			require.Contains(t, string(l.row(t, run, "main#1.0").Input), "hunter2")
		})
	}
}

// spelling is a model that writes the arguments of its one call while it goes.
type spelling struct{ arguments string }

func (s spelling) Generate(_ context.Context, _ model.Request, emit func(model.Delta)) (model.Reply, error) {
	emit(model.Delta{Channel: model.Text, Text: "I will log in. "})
	emit(model.Delta{Channel: model.ToolArgs, Text: s.arguments})
	return model.Reply{Finish: model.FinishTools, Text: "I will log in. ", ToolCalls: []model.ToolCall{{ID: "x", Name: "login", Arguments: s.arguments}}}, nil
}

func TestSecretsOfAToolThatThisWorkerLacks(t *testing.T) {
	t.Parallel()
	l := setupSecret(t)
	run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "tool", "tool": "login", "args": {"token": "hunter2"}}]}`)
	var err error
	l.tools, err = tool.NewSet(l.probe.tool("put", agent.Idempotent))
	require.NoError(t, err)
	reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "login"})
	require.NoError(t, err)
	require.Equal(t, agent.CodeToolUnknown, reply.Error.Code)
	require.JSONEq(t, `{"token": "[redacted]"}`, string(l.emitted(t, run, "a").JSON))
}

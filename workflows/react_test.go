package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestReactTurns(t *testing.T) {
	t.Parallel()
	w := run(t, react(), script{"main#1": {asks(1)}, "main#2": {asks(2)}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"main#1", "main#1.0", "main#2", "main#2.0", "main#2.1", "main#3"}, w.commands())
	require.Equal(t, 3, w.fold().Turns[agent.MainNodeID])
	for i, c := range w.calls[:6] {
		require.Equal(t, i == 0, c.opens, c.command)
		require.Equal(t, c.name == string(agent.CallModel), c.ends, c.command)
	}
}

func TestToolCallsOfATurnRunAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ limit, asked, most int }{
		"one at a time": {1, 4, 1},
		"three of five": {3, 5, 3},
		"all":           {8, 5, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, parallel(react(), c.limit), script{"main#1": {asks(c.asked)}})
			require.NoError(t, w.err)
			require.Equal(t, c.most, w.most)
			require.Len(t, w.commands(), c.asked+2)
		})
	}
}

func TestTurnWaitsForAllItsTools(t *testing.T) {
	t.Parallel()
	w := run(t, react(), script{"main#1": {asks(3)}, "main#1.1": {{takes: 100 * time.Hour}}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"main#1", "main#1.0", "main#1.1", "main#1.2", "main#2"}, w.commands())
	types := w.types("main#2")
	require.Equal(t, []agent.EventType{agent.CommandEmitted, agent.CommandCommitted}, types)
	for _, id := range []string{"main#1.0", "main#1.1", "main#1.2"} {
		require.Less(t, w.at(agent.CommandCommitted, id), w.at(agent.CommandEmitted, "main#2"), id)
	}
}

func TestToolThatFailsIsTheModelsToAnswer(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]effect{
		"failed":               {ends: fails, code: agent.CodeToolFailed},
		"unknown tool":         {ends: fails, code: agent.CodeToolUnknown},
		"lost with its worker": {ends: lost, code: agent.CodeTimeout},
		"another input":        {ends: refused, code: agent.CodeMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, react(), script{"main#1": {asks(2)}, "main#1.0": {bad}})
			require.NoError(t, w.err)
			require.Equal(t, []string{"main#1", "main#1.0", "main#1.1", "main#2"}, w.commands())
			require.NotContains(t, w.types(agent.MainNodeID), agent.NodeFailed)
		})
	}
}

func TestReactEndings(t *testing.T) {
	t.Parallel()
	three := react()
	three.Limits.MaxSteps = 3
	for name, c := range map[string]struct {
		in     agent.RunInput
		script script
		code   agent.Code
		want   []string
	}{
		"no more turns than max_steps": {in: three, script: script{"main#1": {asks(1)}, "main#2": {asks(1)}, "main#3": {asks(1)}},
			code: agent.CodeLimit, want: []string{"main#1", "main#1.0", "main#2", "main#2.0", "main#3", "main#3.0"}},
		"the last turn may answer": {in: three, script: script{"main#1": {asks(1)}, "main#2": {asks(1)}},
			want: []string{"main#1", "main#1.0", "main#2", "main#2.0", "main#3"}},
		"the model fails": {in: react(), script: script{"main#1": {{ends: fails, code: agent.CodeModelFailed}}},
			code: agent.CodeModelFailed, want: []string{"main#1"}},
		"the model fails later": {in: react(), script: script{"main#1": {asks(1)}, "main#2": {{ends: fails, code: agent.CodeModelReply}}},
			code: agent.CodeModelReply, want: []string{"main#1", "main#1.0", "main#2"}},
		"a turn whose reply was lost": {in: react(), script: script{"main#1": {{ends: unheard, tools: asks(2).tools}}},
			want: []string{"main#1", "main#1.0", "main#1.1", "main#2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, c.script)
			require.Equal(t, c.want, w.commands())
			if c.code == "" {
				require.NoError(t, w.err)
				return
			}
			require.Equal(t, c.code, w.failure())
			require.Equal(t, agent.MainNodeID, w.finish.Error.NodeID)
			require.Contains(t, w.types(agent.MainNodeID), agent.NodeFailed)
		})
	}
}

func TestToolCallKeepsItsTimeoutAndEffect(t *testing.T) {
	t.Parallel()
	w := run(t, react(), script{"main#1": {{tools: []agent.ToolRequest{{Tool: "external", Effect: agent.External, Timeout: agent.Duration(time.Minute)}}}}})
	require.NoError(t, w.err)
	require.Equal(t, agent.External, w.rows["main#1.0"].Effect)
	require.Equal(t, agent.MainNodeID, w.rows["main#1.0"].NodeID)
}

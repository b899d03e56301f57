package workflows_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/policy"
)

// A retrieval is one command like a tool's call: idempotent, tried again as its node says, settled when its activity is lost.
func TestRetrieval(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		find   step
		script script
		status agent.Status
		want   []string
	}{
		"found":             {find("find"), nil, agent.Completed, []string{"find", "say"}},
		"its reply lost":    {find("find"), script{"find": {{ends: unheard}}}, agent.Completed, []string{"find", "say"}},
		"never begun":       {find("find"), script{"find": {{ends: refused}, {}}}, agent.Completed, []string{"find", "find", "say"}},
		"tried again":       {find("find").tries(2), script{"find": {{ends: fails, code: agent.CodeRetrieval}}}, agent.Completed, []string{"find", "find~2", "say"}},
		"failed":            {find("find"), script{"find": {{ends: fails, code: agent.CodeRetrieval}}}, agent.FailedStatus, []string{"find"}},
		"done without":      {find("find").onError(agent.OnErrorContinue), script{"find": {{ends: fails, code: agent.CodeRetrieval}}}, agent.Completed, []string{"find", "say"}},
		"lost in the midst": {find("find"), script{"find": {{ends: lost}}}, agent.FailedStatus, []string{"find"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(graph(c.find, say("say", "find"))), c.script)
			require.Equal(t, c.status, w.finish.Status)
			require.Equal(t, c.want, w.commands())
			require.Equal(t, agent.RetrievalCommand, w.rows["find"].Kind)
			record, state := w.fold(), w.snapshot().State
			require.Equal(t, record.Finished, state.Finished)
			require.Equal(t, record.Failed, state.Failed)
			require.Zero(t, state.ToolCalls, "it is no call of a tool")
		})
	}
}

// Rules may name the kind; what an audit has no record of is not searched for.
func TestRetrievalAsksThePolicy(t *testing.T) {
	t.Parallel()
	in := input(graph(find("find"), say("say", "find")))
	in.Policy = &agent.Policy{Rules: []agent.PolicyRule{{Kinds: []agent.CommandKind{agent.RetrievalCommand}, Decision: policy.Forbid, Reason: "no looking"}}}
	require.NoError(t, policy.Check(in.Policy))
	w := newWorld(t, in, nil)
	w.script = script{"find": {{ends: fails, code: agent.CodeRefused}}}
	w.run()
	require.Equal(t, agent.FailedStatus, w.finish.Status)
	require.Equal(t, agent.CodeRefused, w.finish.Error.Code)

	in = input(graph(find("find"), say("say", "find")))
	in.Policy = &agent.Policy{Replay: agent.AuditReplay}
	w = run(t, in, nil)
	require.Equal(t, agent.CodeForbidden, w.finish.Error.Code)
	require.False(t, slices.ContainsFunc(w.calls, func(c called) bool { return c.name == string(agent.Retrieve) }))
}

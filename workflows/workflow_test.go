package workflows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// starts is a workflow node.
func starts(id string, after ...string) step {
	s := work(id, after...)
	s.Kind, s.Tool, s.Timeout = agent.WorkflowNode, "Ship", agent.DefaultWorkflowTimeout
	return s
}

// A workflow node is one command, with tries and failures like any other.
func TestWorkflowNode(t *testing.T) {
	t.Parallel()
	bad := effect{ends: fails, code: agent.CodeWorkflowFailed}
	plan := func(tries int, then agent.OnError) *agent.Shape {
		return graph(work("a"), starts("ship", "a").tries(tries).onError(then), say("answer", "ship"))
	}
	for name, c := range map[string]struct {
		plan   *agent.Shape
		script script
		want   []string
		ends   agent.Status
	}{
		"it gives its result":      {plan(0, ""), nil, []string{"a", "ship", "answer"}, agent.Completed},
		"it fails":                 {plan(0, ""), script{"ship": {bad}}, []string{"a", "ship"}, agent.FailedStatus},
		"it has another try":       {plan(2, ""), script{"ship": {bad}}, []string{"a", "ship", "ship~2", "answer"}, agent.Completed},
		"the plan goes on":         {plan(0, agent.OnErrorContinue), script{"ship": {bad}}, []string{"a", "ship", "answer"}, agent.Completed},
		"its reply is never heard": {plan(0, ""), script{"ship": {{ends: unheard}}}, []string{"a", "ship", "answer"}, agent.Completed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(c.plan), c.script)
			require.Equal(t, c.ends, w.finish.Status)
			require.Equal(t, c.want, w.commands())
		})
	}
}

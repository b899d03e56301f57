package workflows

import (
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// runWorkflow executes a workflow of somebody else's.
func (e *execution) runWorkflow(ctx workflow.Context, i int) {
	n := e.plan.Nodes[i]
	for try := e.firstTry(n.ID); ; try++ {
		call := agent.WorkflowCall{Call: e.nodeCall(i, try)}
		reply := e.callWorkflow(ctx, call, n.Tool, "workflow "+n.Tool+" - node "+n.ID, e.nodeRests(i))
		if again := e.endSingle(ctx, i, try, reply); !again {
			return
		}
	}
}

package workflows

import (
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// runTool calls a tool once, with the arguments that the plan holds.
func (e *execution) runTool(ctx workflow.Context, i int) {
	n := e.plan.Nodes[i]
	for try := e.firstTry(n.ID); ; try++ {
		call := agent.ToolCall{Call: e.nodeCall(i, try), Tool: n.Tool}
		reply := e.callTool(ctx, call, agent.ToolRequest{Tool: n.Tool, Effect: n.Effect}, "tool "+n.Tool+" - node "+n.ID, e.nodeRests(i))
		if again := e.endSingle(ctx, i, try, reply); !again {
			return
		}
	}
}

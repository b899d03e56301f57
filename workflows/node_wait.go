package workflows

import (
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// runWait waits for the input that the node names, or for its time.
func (e *execution) runWait(ctx workflow.Context, i int) {
	n := e.plan.Nodes[i]
	summary := "timer - node " + n.ID
	if n.Signal != "" {
		summary = "signal " + n.Signal + " - node " + n.ID
	}
	for try := e.firstTry(n.ID); ; try++ {
		call := agent.WaitCall{Call: e.nodeCall(i, try), Signal: n.Signal, For: n.Timeout}
		reply := e.await(ctx, call, summary, e.nodeRests(i))
		if again := e.endSingle(ctx, i, try, reply); !again {
			return
		}
	}
}

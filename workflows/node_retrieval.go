package workflows

import (
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// runRetrieval searches documents once, for what the plan asks.
func (e *execution) runRetrieval(ctx workflow.Context, i int) {
	for try := e.firstTry(e.plan.Nodes[i].ID); ; try++ {
		call := e.nodeCall(i, try)
		reply := e.retrieve(ctx, agent.RetrieveCall{Call: call}, "retrieval - node "+call.NodeID, e.nodeRests(i))
		if again := e.endSingle(ctx, i, try, reply); !again {
			return
		}
	}
}

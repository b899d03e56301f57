package workflows

import (
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// runLLM asks a model once.
func (e *execution) runLLM(ctx workflow.Context, i int) {
	for try := e.firstTry(e.plan.Nodes[i].ID); ; try++ {
		call := e.nodeCall(i, try)
		reply := e.callModel(ctx, agent.ModelCall{Call: call}, "llm - node "+call.NodeID, e.nodeRests(i))
		if again := e.endSingle(ctx, i, try, reply.Reply); !again {
			return
		}
	}
}

// nodeCall is the call of a node of one command.
func (e *execution) nodeCall(i, try int) agent.Call {
	n := e.plan.Nodes[i]
	e.loops[n.ID] = &loop{LoopPosition: agent.LoopPosition{Turn: try}}
	return agent.Call{CommandID: agent.RetryCommandID(n.ID, try), NodeID: n.ID, NodeIndex: i, Opens: !e.state.Started.Has(i),
		Ends: true, Timeout: n.Timeout}
}

package workflows_test

import (
	"slices"
	"time"

	"runledger/agent"
)

// step is a node of a graph under construction; its dependencies are named.
type step struct {
	agent.ShapeNode
	after []string
}

// work is a tool node that is idempotent.
func work(id string, after ...string) step {
	return step{agent.ShapeNode{ID: id, Kind: agent.ToolNode, Tool: string(agent.Idempotent), Effect: agent.Idempotent,
		Timeout: agent.DefaultToolTimeout, OnError: agent.OnErrorFail}, after}
}

// say is an llm node.
func say(id string, after ...string) step {
	s := work(id, after...)
	s.Kind, s.Tool, s.Timeout = agent.LLMNode, "", agent.DefaultModelTimeout
	return s
}

// find is a retrieval node.
func find(id string, after ...string) step {
	s := work(id, after...)
	s.Kind, s.Tool, s.Timeout = agent.RetrievalNode, "", agent.DefaultRetrievalTimeout
	return s
}

// send is a tool node that is external.
func send(id string, after ...string) step {
	s := work(id, after...)
	s.Tool, s.Effect = string(agent.External), agent.External
	return s
}

func (s step) when() step                      { s.When = true; return s }
func (s step) tries(n int) step                { s.Tries = n; return s }
func (s step) onError(then agent.OnError) step { s.OnError = then; return s }

// graph is the shape of a compiled plan. The steps must stand in topological order.
func graph(steps ...step) *agent.Shape {
	shape := &agent.Shape{}
	for _, s := range steps {
		for _, dep := range s.after {
			i := slices.IndexFunc(shape.Nodes, func(n agent.ShapeNode) bool { return n.ID == dep })
			s.DependsOn = append(s.DependsOn, i)
		}
		shape.Nodes = append(shape.Nodes, s.ShapeNode)
	}
	return shape
}

// input starts the first execution of a run with a plan, or with none.
func input(plan *agent.Shape) agent.RunInput {
	return agent.RunInput{RunID: "run", ConversationID: "conversation", Epoch: 1, Agent: "default", Mode: agent.ModePlan, Plan: plan,
		Limits: agent.Limits{MaxSteps: 50, MaxParallel: 8}}
}

// react starts a run whose one node is a loop.
func react() agent.RunInput {
	in := input((&agent.Plan{Nodes: []agent.Node{{ID: agent.MainNodeID, Kind: agent.ReactNode, OnError: agent.OnErrorFail}}}).Shape(&agent.Definition{}))
	in.Mode = agent.ModeReact
	return in
}

// parallel bounds what is at work at once.
func parallel(in agent.RunInput, n int) agent.RunInput {
	in.Limits.MaxParallel = n
	return in
}

// limited gives a run a wall time.
func limited(in agent.RunInput, wall time.Duration) agent.RunInput {
	in.Limits.Timeout = agent.Duration(wall)
	return in
}

// asks is a model's turn that calls n idempotent tools.
func asks(n int) effect {
	return effect{tools: slices.Repeat([]agent.ToolRequest{{Tool: string(agent.Idempotent), Effect: agent.Idempotent, Timeout: agent.DefaultToolTimeout}}, n)}
}

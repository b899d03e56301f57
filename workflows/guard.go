package workflows

import (
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// A worker that is strict watches the workflow code that it runs, and refuses what would leave no record. Package worker has
// the guard; this file is what workflow code and the guard know of each other.

type (
	nodeKey  struct{}
	watchKey struct{}
)

// WithNode says in whose name code works with the context that it returns. A strict worker names run and node when it refuses
// something.
func WithNode(ctx workflow.Context, n Node) workflow.Context {
	if w := watchOf(ctx); w != nil && w.Entered != nil {
		w.Entered(n)
	}
	return workflow.WithValue(ctx, nodeKey{}, n)
}

// NodeOf is the node that ctx works for; its RunID is the workflow's id when none was said.
func NodeOf(ctx workflow.Context) Node {
	if n, ok := ctx.Value(nodeKey{}).(Node); ok {
		return n
	}
	return Node{RunID: workflow.GetInfo(ctx).WorkflowExecution.ID}
}

// Watch is what a guard knows of one execution of a workflow.
type Watch struct {
	// Cancel stops the workflow's own context.
	Cancel workflow.CancelFunc
	// Entered, if set, is told of every [WithNode], on the coroutine that calls it.
	Entered func(Node)

	refused *agent.Error
}

// WithWatch puts a workflow under a guard.
func WithWatch(ctx workflow.Context, w *Watch) workflow.Context {
	return workflow.WithValue(ctx, watchKey{}, w)
}

func watchOf(ctx workflow.Context) *Watch {
	w, _ := ctx.Value(watchKey{}).(*Watch)
	return w
}

// Refuse notes that code of a node did what leaves no record, and stops the workflow. The error is that of the first time: it
// stands, even if the code goes on as if nothing had happened.
func (w *Watch) Refuse(n Node, what string) *agent.Error {
	node := n.NodeID
	if node == "" {
		node = "(none)"
	}
	refused := agent.Failed(agent.CodeUnrecorded, "run %s, node %s: %s leaves no record; use the recorded effects", n.RunID, node, what)
	refused.NodeID = n.NodeID
	if w.refused == nil {
		w.refused = refused
		w.Cancel()
	}
	return refused
}

// Refused is the first refusal, nil when there was none.
func (w *Watch) Refused() *agent.Error { return w.refused }

// refusedEffect is the first refusal under the guard of ctx, nil when there was none, or is no guard.
func refusedEffect(ctx workflow.Context) *agent.Error {
	if w := watchOf(ctx); w != nil {
		return w.refused
	}
	return nil
}

// node is what the execution's code works for.
func (e *execution) node(id string) Node {
	return Node{RunID: e.in.RunID, Epoch: e.in.Epoch, Agent: e.in.Agent, NodeID: id, Policy: e.in.Policy, Recorded: e.in.Recorded}
}

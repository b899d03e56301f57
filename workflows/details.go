package workflows

import (
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// Snapshot is what the state query answers.
type Snapshot struct {
	RunID string         `json:"run_id"`
	Epoch int            `json:"epoch"`
	Nodes []NodeSnapshot `json:"nodes"`
	State agent.State    `json:"state"`
	// Waits are the commands that wait for somebody, or for a time, and InDoubt those of which somebody has to say what became.
	Waits   []WaitSnapshot `json:"waits"`
	InDoubt []string       `json:"in_doubt"`
	// Paused: nothing begins until the run is unpaused. AtLimit: something does not begin until the run is given more.
	Paused  bool `json:"paused,omitempty"`
	AtLimit bool `json:"at_limit,omitempty"`
}

// WaitSnapshot is a command of a Snapshot that waits.
type WaitSnapshot struct {
	CommandID string `json:"command_id"`
	// For is "approval", "signal" or "timer", and ApprovalID or Signal names it.
	For        string `json:"for"`
	ApprovalID string `json:"approval_id,omitempty"`
	Signal     string `json:"signal,omitempty"`
}

// NodeSnapshot is a node of a Snapshot.
type NodeSnapshot struct {
	ID     string         `json:"id"`
	Kind   agent.NodeKind `json:"kind"`
	Tool   string         `json:"tool,omitempty"`
	Status string         `json:"status"`
}

func (e *execution) query() (Snapshot, error) {
	s := Snapshot{RunID: e.in.RunID, Epoch: e.in.Epoch, State: e.state, Nodes: []NodeSnapshot{},
		Waits: append([]WaitSnapshot{}, e.waits...), InDoubt: append([]string{}, e.doubts...), Paused: e.paused(), AtLimit: e.atLimit()}
	if e.plan != nil {
		for i, n := range e.plan.Nodes {
			s.Nodes = append(s.Nodes, NodeSnapshot{ID: n.ID, Kind: n.Kind, Tool: n.Tool, Status: e.nodeStatus(i)})
		}
	}
	return s, nil
}

func (e *execution) nodeStatus(i int) string {
	switch {
	case e.state.Finished.Has(i):
		return "finished"
	case e.state.Failed.Has(i):
		return "failed"
	case e.state.Skipped.Has(i):
		return "skipped"
	case e.waiting.Has(i):
		return e.parkedNode(e.plan.Nodes[i].ID)
	case e.working.Has(i):
		return "running"
	}
	return "waiting"
}

// parkedNode says what a node waits for that nothing of can go on.
func (e *execution) parkedNode(id string) string {
	if slices.ContainsFunc(e.doubts, func(command string) bool { return agent.CommandNodeID(command) == id }) {
		return "in doubt"
	}
	for _, w := range e.waits {
		if agent.CommandNodeID(w.CommandID) == id {
			return "waits for " + w.For
		}
	}
	return "held"
}

// atLimit reports whether something of the run stands at a limit until it is raised.
func (e *execution) atLimit() bool { return e.parkedFor[forLimit] > 0 || e.timeUp }

// show keeps the workflow's details in the Temporal UI up to date.
func (e *execution) show(ctx workflow.Context) { workflow.SetCurrentDetails(ctx, e.details()) }

func (e *execution) details() string {
	var b strings.Builder
	b.WriteString(fmt.Sprintf("**%s** %s, epoch %d", e.in.Agent, e.in.Mode, e.in.Epoch))
	if c := e.in.Carried; c != nil {
		b.WriteString(fmt.Sprintf(", execution %d", c.Handovers+1))
	}
	b.WriteString("\n")
	if e.plan == nil {
		b.WriteString("\nplanning\n")
		return b.String()
	}
	b.WriteString("\n| node | kind | state |\n|---|---|---|\n")
	for i, n := range e.plan.Nodes {
		kind := string(n.Kind)
		if n.Tool != "" {
			kind += " " + n.Tool
		}
		b.WriteString(fmt.Sprintf("| %s | %s | %s |\n", n.ID, kind, e.nodeStatus(i)))
	}
	for _, id := range e.doubts {
		b.WriteString(fmt.Sprintf("\n`%s` is in doubt: nobody knows whether its effect took place. Answer POST .../runs/%s/commands/%s/resolve\n",
			id, e.in.RunID, id))
	}
	for _, w := range e.waits {
		switch w.For {
		case agent.ForApproval:
			b.WriteString(fmt.Sprintf("\n`%s` waits for an approval. Answer POST .../runs/%s/approvals/%s\n", w.CommandID, e.in.RunID, w.ApprovalID))
		case agent.ForSignal:
			b.WriteString(fmt.Sprintf("\n`%s` waits for the input %q. Send POST .../runs/%s/signal\n", w.CommandID, w.Signal, e.in.RunID))
		default:
			b.WriteString(fmt.Sprintf("\n`%s` waits for its time\n", w.CommandID))
		}
	}
	if e.paused() {
		b.WriteString(fmt.Sprintf("\nThe run is paused. POST .../runs/%s/unpause\n", e.in.RunID))
	}
	if e.atLimit() {
		b.WriteString("\nThe run has met a limit and goes on when it is raised.\n")
	}
	return b.String()
}

// summary says in a line what the run did.
func (e *execution) summary() string {
	if e.plan == nil {
		return ""
	}
	s := fmt.Sprintf("%d of %d nodes finished", e.state.Finished.Count(), len(e.plan.Nodes))
	if n := e.state.Failed.Count(); n > 0 {
		s += fmt.Sprintf(", %d failed", n)
	}
	if n := e.state.Skipped.Count(); n > 0 {
		s += fmt.Sprintf(", %d skipped", n)
	}
	return s
}

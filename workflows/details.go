package workflows

import (
	"fmt"
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
}

// NodeSnapshot is a node of a Snapshot.
type NodeSnapshot struct {
	ID     string         `json:"id"`
	Kind   agent.NodeKind `json:"kind"`
	Tool   string         `json:"tool,omitempty"`
	Status string         `json:"status"`
}

func (e *execution) query() (Snapshot, error) {
	s := Snapshot{RunID: e.in.RunID, Epoch: e.in.Epoch, State: e.state, Nodes: []NodeSnapshot{}}
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
		return "in doubt"
	case e.working.Has(i):
		return "running"
	}
	return "waiting"
}

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

package activities

import (
	"context"
	"encoding/json"
	"slices"

	"runledger/agent"
)

// resolve replaces the references in a node's arguments or inputs by what they point to. A reference that points to
// nothing is a fault of the node, to be put on record; err is a failure to read the record.
func (a *Activities) resolve(ctx context.Context, run *agent.Run, plan *agent.Plan, node *agent.Node, value json.RawMessage) (resolved json.RawMessage, fault, err error) {
	var ids []string
	agent.EachReference(value, func(_ string, ref agent.Reference, _ error) {
		if ref.Root == "nodes" && !slices.Contains(ids, ref.NodeID) {
			ids = append(ids, ref.NodeID)
		}
	})
	var ended map[string]agent.CommandResult
	if len(ids) > 0 {
		if ended, err = a.ledger.NodeResults(ctx, run.RunID, ids); err != nil {
			return nil, nil, err
		}
	}
	resolved, fault = agent.Resolve(value, func(ref agent.Reference) (json.RawMessage, error) {
		switch ref.Root {
		case "input":
			return json.Marshal(run.Input)
		case "metadata":
			return run.Metadata, nil
		}
		return nodeValue(node, ref, ended)
	})
	return resolved, fault, nil
}

// nodeValue is the output or the error of an ended node: nothing, whatever the reference's path, of one that was skipped by its
// condition. The appended answer sees null
// for whatever was skipped, and the error of what failed; any other node is not run then, or says with on_error that it can do
// without.
func nodeValue(node *agent.Node, ref agent.Reference, ended map[string]agent.CommandResult) (json.RawMessage, error) {
	r, ok := ended[ref.NodeID]
	failed := ok && r.State != agent.Committed
	switch {
	case ref.Part == "error" && failed:
		return json.Marshal(r.Error)
	case ref.Part == "error":
		return json.RawMessage("null"), nil
	case failed && node.ID == agent.AnswerNodeID:
		return json.Marshal(map[string]*agent.Error{"error": r.Error})
	case failed:
		return json.RawMessage("null"), nil
	case !ok:
		return nil, nil
	}
	return agent.NodeOutput(r.Kind, r.Result)
}

package activities

import (
	"context"
	"encoding/json"

	"runledger/agent"
	"runledger/predicate"
)

// Evaluate tells whether the condition of a node holds. It goes by the record alone, and by nodes that have ended, so that the answer
// is the same whenever it is asked for; nothing is written.
func (a *Activities) Evaluate(ctx context.Context, in agent.EvaluateCall) (agent.EvaluateReply, error) {
	run, plan, err := a.workedOn(ctx, in.RunID)
	if err != nil {
		return agent.EvaluateReply{}, crossing(err)
	}
	node, ok := plan.Node(in.NodeID)
	if !ok {
		return agent.EvaluateReply{}, crossing(agent.Failed(agent.CodeInternal, "run %s: its plan has no node %s", in.RunID, in.NodeID))
	}
	reply, err := EvaluatedFrom(run, node, func(names []string) (map[string]agent.CommandResult, error) {
		return a.ledger.NodeResults(ctx, in.RunID, names)
	})
	return reply, crossing(err)
}

// EvaluatedFrom evaluates the condition of a node. results gives what became of nodes by their ids, of those of them that were not
// skipped.
func EvaluatedFrom(run *agent.Run, node *agent.Node, results func(nodeIDs []string) (map[string]agent.CommandResult, error)) (agent.EvaluateReply, error) {
	names, err := predicate.Names(node.When)
	if err != nil {
		return agent.EvaluateReply{}, agent.Failed(agent.CodeInvalidPlan, "when: %w", err)
	}
	var ended map[string]agent.CommandResult
	if len(names) > 0 {
		if ended, err = results(names); err != nil {
			return agent.EvaluateReply{}, err
		}
	}
	outcomes := predicate.Outcomes{Input: run.Input, Nodes: map[string]predicate.Outcome{}, Bytes: len(run.Input) + len(run.Metadata)}
	if len(run.Metadata) > 0 {
		if err := json.Unmarshal(run.Metadata, &outcomes.Metadata); err != nil {
			return agent.EvaluateReply{}, err
		}
	}
	for _, id := range names {
		of, bytes, err := outcomeOf(id, ended)
		if err != nil {
			return agent.EvaluateReply{}, err
		}
		outcomes.Nodes[id] = of
		outcomes.Bytes += bytes
	}
	holds, err := predicate.Met(node.When, outcomes)
	if err != nil { // the record answers it, the next time too
		return agent.EvaluateReply{Error: agent.Failed(agent.CodeReference, "when: %w", err).Cut(agent.MaxToldErrorBytes)}, nil
	}
	return agent.EvaluateReply{Holds: holds}, nil
}

// outcomeOf is what a condition sees of a node: nothing of one that was skipped.
func outcomeOf(id string, ended map[string]agent.CommandResult) (of predicate.Outcome, bytes int, err error) {
	r, ok := ended[id]
	if !ok {
		return of, 0, nil
	}
	seen := &of.Output
	var value json.RawMessage
	if r.State == agent.Committed {
		value, err = agent.NodeOutput(r.Kind, r.Result)
	} else {
		seen = &of.Error
		value, err = json.Marshal(r.Error)
	}
	if err == nil {
		err = json.Unmarshal(value, seen)
	}
	return of, len(value), err
}

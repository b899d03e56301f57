package activities

import (
	"context"
	"encoding/json"

	"runledger/agent"
)

// Retriever searches documents. Implementations are safe for concurrent use.
type Retriever interface {
	// Retrieve gives the documents of the query's owner that answer it, the best first, and none of anybody else; none is no error.
	// It changes nothing, and may be asked again with the same query when its answer was lost. An error is tried again, unless it is
	// an [agent.Failed].
	Retrieve(ctx context.Context, q agent.DocumentQuery) ([]agent.FoundDocument, error)
}

// Retrieve searches documents for a retrieval node. What it finds is committed, and not searched for again.
func (a *Activities) Retrieve(ctx context.Context, in agent.RetrieveCall) (agent.Reply, error) {
	c, err := a.retrieval(ctx, in)
	if err != nil {
		return agent.Reply{}, crossing(err)
	}
	row, err := a.pass(ctx, c)
	if err != nil {
		return agent.Reply{}, err
	}
	return ReplyOf(&row), nil
}

// retrieval makes the command of a retrieval node. A query that cannot be asked goes on record as its failure.
func (a *Activities) retrieval(ctx context.Context, in agent.RetrieveCall) (command, error) {
	run, plan, err := a.workedOn(ctx, in.RunID)
	if err != nil {
		return command{}, err
	}
	node, ok := plan.Node(in.NodeID)
	if !ok {
		return command{}, agent.Failed(agent.CodeInternal, "run %s: its plan has no node %s", in.RunID, in.NodeID)
	}
	template, err := agent.RetrievalTemplate(node)
	if err != nil {
		return command{}, err
	}
	input, fault, err := a.resolve(ctx, run, plan, node, template)
	if err != nil {
		return command{}, err
	}
	var asked agent.RetrievalInput
	if fault == nil {
		if asked, fault = agent.RetrievalInputOf(input); fault == nil {
			if input, err = json.Marshal(asked); err != nil {
				return command{}, err
			}
		}
	}
	c := command{call: in.Call}
	c.begin = agent.Begin{Kind: agent.RetrievalCommand, Effect: agent.Idempotent, Input: recordable(input),
		InputHash: inputHash(string(agent.RetrievalCommand), input)}
	if in.Opens {
		c.begin.Node = &agent.NodeStartedData{Kind: agent.RetrievalNode, Index: in.NodeIndex}
	}
	c.asked.Agent = run.Definition.Agent
	c.effect = func(ctx context.Context, _ dispatch) (effectResult, error) {
		if fault != nil {
			return effectResult{}, fault
		}
		return a.documents(ctx, in.RunID, asked)
	}
	return c, nil
}

// documents asks the retriever.
func (a *Activities) documents(ctx context.Context, runID string, asked agent.RetrievalInput) (effectResult, error) {
	if a.retriever == nil {
		return effectResult{}, agent.Failed(agent.CodeRetrieval, "this worker has no retriever")
	}
	owner, err := a.ledger.RunOwner(ctx, runID)
	if err != nil {
		return effectResult{}, agent.Transient(agent.CodeRetrieval, "%w", err)
	}
	found, err := a.retriever.Retrieve(ctx, agent.DocumentQuery{Owner: owner, RunID: runID, Query: asked.Query, Limit: asked.Limit, Filter: asked.Filter})
	if err != nil {
		if _, typed := agent.AsError(err); !typed {
			err = agent.Transient(agent.CodeRetrieval, "%w", err)
		}
		return effectResult{}, err
	}
	out := agent.Retrieved{Query: asked.Query, Documents: make([]agent.FoundDocument, 0, len(found))}
	for _, d := range found[:min(len(found), asked.Limit)] {
		if len(d.Metadata) == 0 {
			d.Metadata = json.RawMessage("{}")
		}
		out.Documents = append(out.Documents, d)
	}
	result, err := json.Marshal(out)
	if err != nil { // a retriever of the user's own may give metadata that is not JSON
		return effectResult{}, agent.Failed(agent.CodeRetrieval, "what was found cannot be recorded: %w", err)
	}
	return effectResult{result: result, event: agent.CommandCommittedData{Kind: agent.RetrievalCommand, Output: agent.ShowValue(result)}}, nil
}

package activities

import (
	"encoding/json"
	"fmt"

	"runledger/agent"
	"runledger/model"
)

// previewBytes bounds what Temporal's history keeps of a result.
const previewBytes = 120

// ReplyOf tells the workflow what the record says of a command.
func ReplyOf(row *agent.CommandRow) agent.Reply {
	reply := agent.Reply{Sequence: row.Sequence, DispatchNo: row.DispatchNo, Error: row.Error.Cut(agent.MaxToldErrorBytes), Witness: row.Witness}
	switch row.State {
	case agent.Committed:
		reply.Outcome, reply.Error = agent.OutcomeCommitted, nil
		reply.Hash, reply.Bytes = row.ResultHash, len(row.Result)
		reply.Tokens = row.Tokens
		if row.Kind != agent.PlanCommand && row.Kind != agent.WaitCommand { // a plan is told in shape; what somebody has sent is not Temporal's
			if output, err := agent.NodeOutput(row.Kind, row.Result); err == nil {
				reply.Preview = agent.Preview(string(output), previewBytes)
			}
		}
	case agent.CommandFailed:
		reply.Outcome = agent.OutcomeFailed
	case agent.CommandAborted:
		reply.Outcome = agent.OutcomeAborted
	case agent.CommandInDoubt:
		reply.Outcome = agent.OutcomeInDoubt
	case agent.CommandWaiting:
		reply.Outcome, reply.Awaits = agent.OutcomeWaiting, row.Awaits
	case agent.Dispatched, agent.Released, agent.Fenced:
		reply.Outcome = agent.OutcomeUnknown
	}
	return reply
}

// ModelReplyOf is ReplyOf for a model's command, with the tools that its answer asks for. Like [PlannerReplyOf], it is also what
// an audit answers with, from the record alone.
func ModelReplyOf(d *agent.Definition, row *agent.CommandRow) (reply agent.ModelReply, err error) {
	if reply.Reply = ReplyOf(row); reply.Outcome == agent.OutcomeCommitted {
		reply.Tools, err = toolRequestsOf(d, row.Result)
		reply.GoesOn, reply.Said = row.GoesOn, row.Said
	}
	return reply, err
}

// PlannerReplyOf is ReplyOf for the planner's command, with the shape of its plan.
func PlannerReplyOf(d *agent.Definition, row *agent.CommandRow) (agent.PlannerReply, error) {
	reply := agent.PlannerReply{Reply: ReplyOf(row)}
	if reply.Outcome != agent.OutcomeCommitted {
		return reply, nil
	}
	var plan agent.Plan
	if err := json.Unmarshal(row.Result, &plan); err != nil {
		return reply, fmt.Errorf("recorded plan: %w", err)
	}
	reply.Plan = plan.Shape(d)
	return reply, nil
}

// toolRequestsOf tells the workflow which tools a model's answer asks for.
func toolRequestsOf(d *agent.Definition, result json.RawMessage) ([]agent.ToolRequest, error) {
	var reply model.Reply
	if err := json.Unmarshal(result, &reply); err != nil {
		return nil, fmt.Errorf("recorded answer of a model: %w", err)
	}
	requests := make([]agent.ToolRequest, 0, len(reply.ToolCalls))
	for _, c := range reply.ToolCalls {
		// A tool that the agent does not have is called all the same, and fails: the model has to read that it does not exist.
		request := agent.ToolRequest{Tool: agent.ShownName(c.Name), Effect: agent.External, Timeout: agent.DefaultToolTimeout, Digest: agent.CallDigest(c.Name, json.RawMessage(c.Arguments))}
		if t, ok := d.Tool(c.Name); ok {
			request.Tool, request.Effect = t.Name, t.Effect
			if t.Timeout > 0 {
				request.Timeout = t.Timeout
			}
			request.Fast = d.Fast("", t)
		}
		requests = append(requests, request)
	}
	return requests, nil
}

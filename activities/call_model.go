package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.temporal.io/sdk/temporal"

	"runledger/agent"
	"runledger/model"
)

// CallModel asks a model once: for an llm node, or for a turn of a react loop.
//
// Two tries of a turn may make their prompts before either has begun, one with a message that the other does not know of. Once one
// has begun it is on record what the turn was shown, and the other makes its prompt from that.
func (a *Activities) CallModel(ctx context.Context, in agent.ModelCall) (agent.ModelReply, error) {
	reply, err := a.callModel(ctx, in)
	var mismatch *temporal.ApplicationError
	if in.Turn > 0 && errors.As(err, &mismatch) && mismatch.Type() == string(agent.CodeMismatch) {
		return a.callModel(ctx, in)
	}
	return reply, err
}

func (a *Activities) callModel(ctx context.Context, in agent.ModelCall) (agent.ModelReply, error) {
	run, plan, err := a.workedOn(ctx, in.RunID)
	if err != nil {
		return agent.ModelReply{}, crossing(err)
	}
	c := command{call: in.Call}
	var request model.Request
	var fault error
	kind := agent.LLMNode
	if in.Turn > 0 {
		kind = agent.ReactNode
		c.checkpoint = agent.LLMComplete
		c.turn = in.Turn
		request, c.begin.Heard, err = a.turnRequest(ctx, run, in)
	} else {
		request, fault, err = a.nodeRequest(ctx, run, plan, in.NodeID)
	}
	if err != nil {
		return agent.ModelReply{}, crossing(err)
	}
	if in.Opens {
		c.begin.Node = &agent.NodeStartedData{Kind: kind, Index: in.NodeIndex}
	}
	if c, err = a.modelCommand(c, run, agent.ModelCommand, request, fault); err != nil {
		return agent.ModelReply{}, crossing(err)
	}
	ask := c.effect
	c.effect = func(ctx context.Context, d dispatch) (effectResult, error) {
		r, err := ask(ctx, d)
		r.event.Turn = in.Turn
		return r, err
	}
	row, err := a.pass(ctx, c)
	if err != nil {
		return agent.ModelReply{}, err
	}
	return ModelReplyOf(&run.Definition, &row)
}

// modelCommand completes a command whose effect is to ask a model and whose result is its reply. fault is a failure that is
// known before the call.
func (a *Activities) modelCommand(c command, run *agent.Run, kind agent.CommandKind, request model.Request, fault error) (command, error) {
	asked, err := json.Marshal(request)
	if err != nil {
		return command{}, err
	}
	ref := run.Definition.Model
	c.begin.Kind, c.begin.Effect, c.begin.Model = kind, agent.Idempotent, &ref
	c.begin.InputHash = inputHash(string(kind), ref.Name, json.RawMessage(asked))
	c.asked.Agent = run.Definition.Agent
	c.effect = func(ctx context.Context, d dispatch) (effectResult, error) {
		if fault != nil {
			return effectResult{}, fault
		}
		client, err := a.client(ref)
		if err != nil {
			return effectResult{}, err
		}
		request.Key = d.key
		var emit func(model.Delta)
		if kind == agent.ModelCommand { // the planner's output is not shown while it arrives
			live := a.showOutput(ctx, c.call.RunID, c.call.CommandID, d.no)
			defer live.close()
			emit = live.add
			if a.holdSecrets(run.Definition.Tools) {
				emit = func(d model.Delta) {
					if d.Channel != model.ToolArgs { // they are whole, and can be redacted, only when the call is made
						live.add(d)
					}
				}
			}
		}
		reply, err := client.Generate(ctx, present(request, run), emit)
		if err != nil {
			return effectResult{}, err
		}
		return modelResult(c.call, reply)
	}
	return c, nil
}

// maxModelName bounds what an event shows of a vendor's name of a model.
const maxModelName = 200

func modelResult(call agent.Call, reply model.Reply) (effectResult, error) {
	if n := len(reply.ToolCalls); n > agent.MaxTurnCalls {
		return effectResult{}, agent.Failed(agent.CodeTooLarge, "command %s: the model asks for %d tool calls at once; at most %d are possible",
			call.CommandID, n, agent.MaxTurnCalls)
	}
	result, err := json.Marshal(reply)
	if err != nil {
		return effectResult{}, err
	}
	usage, err := json.Marshal(reply.Usage)
	if err != nil {
		return effectResult{}, err
	}
	text, err := json.Marshal(reply.Text)
	if err != nil {
		return effectResult{}, err
	}
	r := effectResult{result: result, goesOn: len(reply.ToolCalls) > 0, event: agent.CommandCommittedData{Kind: agent.ModelCommand,
		Output: agent.ShowValue(text), Finish: string(reply.Finish), Usage: usage, Model: agent.Preview(reply.Model, maxModelName)}}
	for _, t := range reply.ToolCalls {
		r.event.Tools = append(r.event.Tools, agent.ShownName(t.Name))
	}
	if len(reply.ToolCalls) > 0 {
		calls, err := json.Marshal(reply.ToolCalls)
		if err != nil {
			return effectResult{}, err
		}
		r.message = &agent.Message{Role: agent.AssistantMessage, Content: reply.Text, ToolCalls: calls, CommandID: call.CommandID}
	}
	return r, nil
}

// nodeRequest is what an llm node asks: its prompt and inputs, with the user's words, and the conversation so far when it
// gives the final answer.
func (a *Activities) nodeRequest(ctx context.Context, run *agent.Run, plan *agent.Plan, nodeID string) (request model.Request, fault, err error) {
	node, ok := plan.Node(nodeID)
	if !ok {
		return request, nil, agent.Failed(agent.CodeInternal, "run %s: its plan has no node %s", run.RunID, nodeID)
	}
	request = model.Request{Model: run.Definition.Model.Model}
	var b strings.Builder
	b.WriteString(node.Prompt)
	if run.Input != "" {
		fmt.Fprintf(&b, "\n\nThe user's request:\n%s", userText(run))
	}
	if node.ExpectedOutput != "" {
		fmt.Fprintf(&b, "\n\nExpected output:\n%s", node.ExpectedOutput)
	}
	data := 0 // of the prompt's end
	if len(node.Inputs) > 0 {
		inputs := make(map[string]json.RawMessage, len(node.Inputs))
		for _, name := range slices.Sorted(maps.Keys(node.Inputs)) {
			value, fault, err := a.resolve(ctx, run, plan, node, node.Inputs[name])
			if fault != nil || err != nil {
				return request, fault, err
			}
			inputs[name] = value
		}
		shown, err := json.Marshal(inputs)
		if err != nil {
			return request, nil, err
		}
		fmt.Fprintf(&b, "\n\nInputs:\n%s", shown)
		data = len(shown)
	}
	asked := model.Message{Role: model.User, Text: b.String(), Untrusted: data}
	var history []model.Message
	var cut leftOut
	if nodeID == plan.Nodes[len(plan.Nodes)-1].ID {
		if history, cut.messages, err = a.history(ctx, run, newWindow(budgetOf(run), asked)); err != nil {
			return request, nil, err
		}
	}
	request.Messages = prompt(run.Definition.Instructions, cut, history, asked)
	return request, nil, nil
}

package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"runledger/agent"
	"runledger/model"
)

// CallModel asks a model once: for an llm node, or for a turn of a react loop.
func (a *Activities) CallModel(ctx context.Context, in agent.ModelCall) (agent.ModelReply, error) {
	run, plan, err := a.ledger.WorkerRun(ctx, in.RunID)
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
		request, c.begin.Heard, err = a.turnRequest(ctx, &run, in)
	} else {
		request, fault, err = a.nodeRequest(ctx, &run, plan, in.NodeID)
	}
	if err != nil {
		return agent.ModelReply{}, crossing(err)
	}
	if in.Opens {
		c.begin.Node = &agent.NodeStartedData{Kind: kind, Index: in.NodeIndex}
	}
	if c, err = a.modelCommand(c, &run, agent.ModelCommand, request, fault); err != nil {
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
		reply, err := client.Generate(ctx, request, emit)
		if err != nil {
			return effectResult{}, err
		}
		return modelResult(c.call, reply)
	}
	return c, nil
}

func modelResult(call agent.Call, reply model.Reply) (effectResult, error) {
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
		Output: agent.ShowValue(text), Finish: string(reply.Finish), Usage: usage, Model: reply.Model}}
	for _, t := range reply.ToolCalls {
		r.event.Tools = append(r.event.Tools, t.Name)
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
	request = model.Request{Model: run.Definition.Model.Model, Messages: opening(run)}
	if nodeID == plan.Nodes[len(plan.Nodes)-1].ID {
		history, err := a.history(ctx, run)
		if err != nil {
			return request, nil, err
		}
		request.Messages = append(request.Messages, history...)
	}
	var b strings.Builder
	b.WriteString(node.Prompt)
	if run.Input != "" {
		fmt.Fprintf(&b, "\n\nThe user's request:\n%s", userText(run))
	}
	if node.ExpectedOutput != "" {
		fmt.Fprintf(&b, "\n\nExpected output:\n%s", node.ExpectedOutput)
	}
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
	}
	request.Messages = append(request.Messages, model.Message{Role: model.User, Text: b.String()})
	return request, nil, nil
}

// turnRequest is what a turn of a react loop asks: the conversation up to the run, the user's words, and every earlier turn
// with what its tools gave. It is made from the record alone, so that every attempt sends the same.
//
// heard is the number of the newest message in it that was said while the run was at work.
func (a *Activities) turnRequest(ctx context.Context, run *agent.Run, in agent.ModelCall) (request model.Request, heard int64, err error) {
	request = model.Request{Model: run.Definition.Model.Model, Messages: opening(run)}
	for _, t := range run.Definition.Tools {
		request.Tools = append(request.Tools, model.Tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema})
	}
	history, err := a.history(ctx, run)
	if err != nil {
		return request, 0, err
	}
	request.Messages = append(request.Messages, history...)
	request.Messages = append(request.Messages, model.Message{Role: model.User, Text: userText(run)})
	said, err := a.steered(ctx, in)
	if err != nil {
		return request, 0, err
	}
	turns, err := a.turns(ctx, in, said)
	request.Messages = append(request.Messages, turns...)
	return request, said.upTo(in.Turn), err
}

// steering is what was said to a run while it was at work, and which turn of its loop was shown it first.
type steering struct {
	messages []agent.Message
	heard    []int64 // by turn, from 1, up to the one that is asked for
}

// steered finds what the turns of a loop were told. A turn that has begun is shown what it was shown then.
func (a *Activities) steered(ctx context.Context, in agent.ModelCall) (s steering, err error) {
	if in.Heard == 0 {
		return s, nil
	}
	messages, heard, err := a.ledger.Steered(ctx, in.RunID)
	if err != nil {
		return s, err
	}
	s.messages, s.heard = messages, make([]int64, in.Turn+1)
	for turn := 1; turn <= in.Turn; turn++ {
		number, begun := heard[agent.TurnCommandID(in.NodeID, turn)]
		if !begun {
			number = in.Heard
		}
		s.heard[turn] = max(number, s.heard[turn-1])
	}
	return s, nil
}

func (s steering) upTo(turn int) int64 {
	if turn >= len(s.heard) {
		return 0
	}
	return s.heard[turn]
}

// before are the messages that a turn was the first to be shown.
func (s steering) before(turn int) (messages []model.Message) {
	for _, m := range s.messages {
		if m.Sequence > s.upTo(turn-1) && m.Sequence <= s.upTo(turn) {
			messages = append(messages, model.Message{Role: model.User, Text: m.Content})
		}
	}
	return messages
}

// turns are the messages of a loop's turns before the one that is asked for.
func (a *Activities) turns(ctx context.Context, in agent.ModelCall, said steering) ([]model.Message, error) {
	var ids []string
	for turn := 1; turn < in.Turn; turn++ {
		ids = append(ids, agent.TurnCommandID(in.NodeID, turn))
	}
	if len(ids) == 0 {
		return said.before(1), nil
	}
	answers, err := a.ledger.Results(ctx, in.RunID, ids)
	if err != nil {
		return nil, err
	}
	replies := make([]model.Reply, len(ids))
	var toolIDs []string
	for i, id := range ids {
		if err := json.Unmarshal(answers[id].Result, &replies[i]); err != nil {
			return nil, agent.Failed(agent.CodeInternal, "run %s: command %s has no answer on record", in.RunID, id)
		}
		for k := range replies[i].ToolCalls {
			toolIDs = append(toolIDs, agent.TurnToolCommandID(in.NodeID, i+1, k))
		}
	}
	results, err := a.ledger.Results(ctx, in.RunID, toolIDs)
	if err != nil {
		return nil, err
	}
	var messages []model.Message
	for i, reply := range replies {
		messages = append(messages, said.before(i+1)...)
		messages = append(messages, model.Message{Role: model.Assistant, Text: reply.Text, ToolCalls: reply.ToolCalls})
		for k, asked := range reply.ToolCalls {
			id := agent.TurnToolCommandID(in.NodeID, i+1, k)
			r, ok := results[id]
			if !ok {
				return nil, agent.Failed(agent.CodeInternal, "run %s: command %s has no outcome on record", in.RunID, id)
			}
			text := string(r.Result)
			if r.State != agent.Committed {
				text = "The call failed. " + r.Error.Error()
			}
			messages = append(messages, model.Message{Role: model.ToolRole, Text: text, ToolCallID: asked.ID, ToolName: asked.Name})
		}
	}
	return append(messages, said.before(in.Turn)...), nil
}

// opening is the system message, if the agent has instructions.
func opening(run *agent.Run) []model.Message {
	if run.Definition.Instructions == "" {
		return nil
	}
	return []model.Message{{Role: model.System, Text: run.Definition.Instructions}}
}

// history is the conversation before the run.
func (a *Activities) history(ctx context.Context, run *agent.Run) ([]model.Message, error) {
	earlier, err := a.ledger.History(ctx, run.ConversationID, run.StartSequence)
	if err != nil {
		return nil, err
	}
	messages := make([]model.Message, len(earlier))
	for i, m := range earlier {
		messages[i] = model.Message{Role: model.Role(m.Role), Text: m.Content}
	}
	return messages, nil
}

// userText is what the user said, with the texts that were sent along.
func userText(run *agent.Run) string {
	var b strings.Builder
	b.WriteString(run.Input)
	for _, at := range run.Attachments {
		if at.Text != "" {
			fmt.Fprintf(&b, "\n\nAttachment %s (%s):\n%s", at.Name, at.MediaType, at.Text)
		}
	}
	return b.String()
}

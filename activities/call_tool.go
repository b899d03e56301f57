package activities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"runledger/agent"
	"runledger/model"
	"runledger/policy"
	"runledger/predicate"
	"runledger/tool"
)

// awayRetry is when a call is tried again whose tool is one of a server that this worker has not reached yet.
const awayRetry = 2 * time.Second

// CallTool executes a tool once: with the arguments of a plan's node, with those that a model asked for, or with those that
// somebody has approved in their place.
func (a *Activities) CallTool(ctx context.Context, in agent.ToolCall) (agent.Reply, error) {
	run, plan, err := a.workedOn(ctx, in.RunID)
	if err != nil {
		return agent.Reply{}, crossing(err)
	}
	return a.callTool(ctx, run, plan, in)
}

func (a *Activities) callTool(ctx context.Context, run *agent.Run, plan *agent.Plan, in agent.ToolCall) (agent.Reply, error) {
	c, err := a.toolCommand(ctx, run, plan, in, nil)
	if err != nil {
		return agent.Reply{}, crossing(err)
	}
	row, err := a.pass(ctx, c)
	if err != nil {
		return agent.Reply{}, err
	}
	return ReplyOf(&row), nil
}

// toolCommand makes the command of a tool call. approved, when not nil, are the arguments that somebody has put in the place of
// those that were asked for.
func (a *Activities) toolCommand(ctx context.Context, run *agent.Run, plan *agent.Plan, in agent.ToolCall, approved json.RawMessage) (_ command, err error) {
	c := command{call: in.Call}
	c.begin = agent.Begin{Kind: agent.ToolCommand, Tool: in.Tool, Effect: agent.External}
	if ref, ok := run.Definition.Tool(in.Tool); ok {
		c.begin.Effect = ref.Effect
	}
	if in.Opens {
		c.begin.Node = &agent.NodeStartedData{Kind: agent.ToolNode, Tool: in.Tool, Index: in.NodeIndex}
	}
	var args json.RawMessage
	var fault error // a definite failure that is known before the call; it goes on record like one of the tool
	if in.FromCommand != "" {
		var asked model.ToolCall
		if asked, err = a.askedFor(ctx, in); err != nil {
			return command{}, err
		}
		args = json.RawMessage(asked.Arguments)
		c.begin.Checkpoint, c.checkpoint = agent.ToolStart, agent.ToolComplete
		c.failureMessage = &agent.Message{Role: agent.ToolMessage, ToolCallID: asked.ID, ToolName: asked.Name, CommandID: in.CommandID}
	} else {
		node, ok := plan.Node(in.NodeID)
		if !ok {
			return command{}, agent.Failed(agent.CodeInternal, "run %s: its plan has no node %s", in.RunID, in.NodeID)
		}
		args, fault, err = a.resolve(ctx, run, plan, node, node.Args)
		if err != nil {
			return command{}, err
		}
	}
	if approved != nil {
		args, fault = approved, nil
	}
	tools := a.tools.Load() // the same from here to the end of the call
	if tools.IsAway(in.Tool) {
		// Not a failure of the command, which has not begun: whether it needs an approval shows only with the tool.
		return command{}, retryLater(agent.CodeToolFailed, awayRetry, "command %s: the server of tool %q cannot be reached", in.CommandID, in.Tool)
	}
	if fault == nil {
		fault = checkTool(tools, &run.Definition, in.Tool, args)
	}
	called, _ := tools.Lookup(in.Tool)
	if fault == nil {
		c.begin.Effect, c.limit = tool.ClassOf(called, args), limitOf(called)
	}
	c.begin.Input, c.begin.InputHash = recordable(args), inputHash(string(agent.ToolCommand), in.Tool, args)
	if ref, ok := run.Definition.Tool(in.Tool); ok {
		c.begin.Shown = recordable(a.public(ref, args))
	}
	c.begin.ArgumentsHash = agent.ArgumentsHash(c.begin.Input)
	c.with = func(ctx context.Context, args json.RawMessage) (command, error) {
		return a.toolCommand(ctx, run, plan, in, args)
	}
	c.asked.Agent, c.approvalTimeout = run.Definition.Agent, run.Definition.ApprovalTimeout
	switch ref, known := run.Definition.Tool(in.Tool); {
	case fault != nil: // a call that cannot be made needs nobody's leave
		c.call.Refusal = nil
	case in.Refusal == nil || in.Refusal.Decision == policy.Ask || known && ref.Effect != c.begin.Effect:
		c.call.Refusal = a.decide(run, c, args)
	}
	toolCall := func(d dispatch, effects tool.Effects, progress func(string)) tool.Call {
		return tool.Call{Key: d.key, RunID: in.RunID, CommandID: in.CommandID, Attempt: d.no, Arguments: args, Progress: progress, Effects: effects}
	}
	finish := func(output json.RawMessage, err error) (effectResult, error) {
		if err != nil {
			return effectResult{}, err
		}
		if !json.Valid(output) {
			return effectResult{}, notJSON(c.begin.Effect, in.Tool)
		}
		return toolResult(in.Tool, output, c.failureMessage), nil
	}
	c.effect = func(ctx context.Context, d dispatch) (_ effectResult, err error) {
		if fault != nil {
			return effectResult{}, fault
		}
		effects := a.toolEffects(ctx, in.Call, d, &run.Definition)
		defer func() {
			if doubt := effects.close(); doubt != nil {
				err = doubt
			}
		}()
		live := a.showProgress(ctx, in.RunID, in.CommandID, d.no)
		defer live.close()
		return finish(called.Call(ctx, toolCall(d, effects, live.report)))
	}
	if fault != nil {
		return c, nil
	}
	switch t := called.(type) {
	case tool.TxTool:
		c.tx = func(ctx context.Context, tx agent.Tx, d dispatch) (effectResult, error) {
			return finish(t.CallTx(ctx, tx, toolCall(d, noEffects{"in the transaction of its commit"}, func(string) {})))
		}
	case tool.Reconciler:
		if c.begin.Effect == agent.External {
			c.reconcile = a.toolFinding(t, in, args, c.failureMessage)
		}
	}
	return c, nil
}

// decide asks the rules of the run and the tool about a call, now that its arguments and its class are known; the workflow
// has asked without them. The answer is nil for a call that may simply be made.
func (a *Activities) decide(run *agent.Run, c command, args json.RawMessage) *agent.Refusal {
	asked := policy.Command{RunID: run.RunID, Agent: run.Definition.Agent, NodeID: c.call.NodeID, CommandID: c.call.CommandID,
		Kind: agent.ToolCommand, Tool: c.begin.Tool, Effect: c.begin.Effect}
	if ref, ok := run.Definition.Tool(c.begin.Tool); ok {
		asked.Approve = ref.Approve
	}
	var call *predicate.Call
	asked.Holds = func(p string) (bool, error) {
		if call == nil {
			made := predicate.Of(run, c.begin.Tool, c.begin.Effect, args)
			call = &made
		}
		return predicate.Holds(p, *call)
	}
	refusal := policy.Decide(run.Definition.Policy, asked).Refusal()
	if refusal != nil && refusal.Decision == policy.Ask && refusal.Expires == 0 {
		refusal.Expires = run.Definition.ApprovalTimeout
	}
	return refusal
}

// toolResult is what a tool's output means for the record. message is what the conversation keeps of the call, without its
// content; nil for nothing.
func toolResult(name string, output json.RawMessage, message *agent.Message) effectResult {
	result := effectResult{result: output, event: agent.CommandCommittedData{Kind: agent.ToolCommand, Tool: name, Output: agent.ShowValue(output)}}
	if message != nil {
		m := *message
		m.Content = string(output)
		result.message = &m
	}
	return result
}

// notJSON is the failure of a tool that has done its work and cannot say what it gave.
func notJSON(effect agent.EffectClass, name string) error {
	if effect == agent.External { // it may have taken place, and must not be tried again as if it had not
		return agent.Unknown(agent.CodeToolFailed, "tool %s gave an output that is not JSON", name)
	}
	return agent.Failed(agent.CodeToolFailed, "tool %s gave an output that is not JSON", name)
}

// askedFor finds the tool call that a model's recorded answer asks for.
func (a *Activities) askedFor(ctx context.Context, in agent.ToolCall) (model.ToolCall, error) {
	results, err := a.ledger.Results(ctx, in.RunID, []string{in.FromCommand})
	if err != nil {
		return model.ToolCall{}, err
	}
	var reply model.Reply
	if err := json.Unmarshal(results[in.FromCommand].Result, &reply); err != nil || in.FromIndex >= len(reply.ToolCalls) {
		return model.ToolCall{}, agent.Failed(agent.CodeInternal, "run %s: command %s has no tool call %d on record", in.RunID, in.FromCommand, in.FromIndex)
	}
	return reply.ToolCalls[in.FromIndex], nil
}

func (a *Activities) lookup(name string) tool.Tool {
	t, _ := a.tools.Load().Lookup(name)
	return t
}

// public is what events may show of a call's arguments.
func (a *Activities) public(ref agent.ToolRef, args json.RawMessage) json.RawMessage {
	v, err := a.validator(ref)
	if err != nil {
		return json.RawMessage(tool.Redacted)
	}
	return v.Public(args)
}

// holdSecrets reports whether the arguments of any of the tools hold a secret.
func (a *Activities) holdSecrets(tools []agent.ToolRef) bool {
	return slices.ContainsFunc(tools, func(ref agent.ToolRef) bool {
		v, err := a.validator(ref)
		return err != nil || v.HoldsSecrets()
	})
}

// validator is the check of a tool's arguments: this worker's, or, where it does not have the tool, that of the record.
func (a *Activities) validator(ref agent.ToolRef) (*tool.Validator, error) {
	if v := a.tools.Load().Validator(ref.Name); v != nil {
		return v, nil
	}
	return tool.CompileSchema(tool.SpecOf(ref))
}

// checkTool tells why a call cannot be made at all, nil when it can.
func checkTool(tools *tool.Set, d *agent.Definition, name string, args json.RawMessage) error {
	if _, ok := d.Tool(name); !ok {
		return agent.Failed(agent.CodeToolUnknown, "agent %s has no tool %q", d.Agent, name)
	}
	if _, ok := tools.Lookup(name); !ok {
		return agent.Failed(agent.CodeToolUnknown, "this worker has no tool %q", name)
	}
	if err := tools.Validate(name, args); err != nil {
		var wrong *tool.ArgumentError
		if errors.As(err, &wrong) {
			return agent.Failed(agent.CodeInvalidArguments, "arguments of %s: %w", name, err)
		}
		return err
	}
	return nil
}

// recordable is input as the record keeps it: a JSON value, even where a model wrote something else.
func recordable(input json.RawMessage) json.RawMessage {
	if json.Valid(input) {
		return input
	}
	text, err := json.Marshal(string(input))
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}

// inputHash names what a command works on. Equal inputs have equal hashes; no part of it depends on the attempt.
func inputHash(parts ...any) string {
	h := sha256.New()
	for _, p := range parts {
		var b []byte
		switch p := p.(type) {
		case string:
			b = []byte(p)
		case json.RawMessage:
			b = p
		}
		_, _ = fmt.Fprintf(h, "%d:", len(b)) // lengths keep ("ab","c") and ("a","bc") apart
		_, _ = h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

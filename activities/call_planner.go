package activities

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// maxPlanBytes bounds a plan, which stands whole in its event. One that a caller brings is bounded like every request.
const maxPlanBytes = 1 << 20

// planSchema is the answer that planners are asked for.
const planSchema = `{
  "type": "object",
  "properties": {
    "nodes": {
      "type": "array",
      "items": {
        "type": "object",
        "properties": {
          "id": {"type": "string", "description": "1 to 64 of A-Z a-z 0-9 _ -"},
          "kind": {"type": "string", "enum": ["tool", "llm"]},
          "tool": {"type": "string", "description": "for kind tool: the tool's name"},
          "args": {"type": "object", "description": "for kind tool: its arguments"},
          "prompt": {"type": "string", "description": "for kind llm: what to write"},
          "inputs": {"type": "object", "description": "for kind llm: named inputs"},
          "depends_on": {"type": "array", "items": {"type": "string"}},
          "expected_output": {"type": "string"}
        },
        "required": ["id", "kind"]
      }
    },
    "constraints": {"type": "array", "items": {"type": "string"}}
  },
  "required": ["nodes"]
}`

const plannerPrompt = `You plan how to answer the user's request. You do not execute anything and you do not answer.

Write a task graph as JSON: {"nodes": [...]}. A node is either
- a tool call: {"id": "...", "kind": "tool", "tool": "NAME", "args": {...}}
- a piece of writing: {"id": "...", "kind": "llm", "prompt": "...", "inputs": {"name": {"$from": "/nodes/ID/output"}}}

Anywhere in args or inputs, {"$from": "/nodes/ID/output/field"} stands for the output of another node; a reference makes that
node a dependency. Nodes that do not depend on each other run at the same time, so leave out dependencies that are not needed.
End with exactly one llm node that writes the answer to the user from the results. The ids plan, answer and main are reserved.
Use only these tools:
%s`

// CallPlanner asks a model for the task graph of a run. It executes nothing of it. The result on record is the compiled plan.
func (a *Activities) CallPlanner(ctx context.Context, in agent.PlannerCall) (agent.PlannerReply, error) {
	run, _, err := a.workedOn(ctx, in.RunID)
	if err != nil {
		return agent.PlannerReply{}, crossing(err)
	}
	request, err := a.plannerRequest(ctx, run)
	if err != nil {
		return agent.PlannerReply{}, crossing(err)
	}
	ref := run.Definition.Model
	c := command{call: in.Call}
	c.begin.Plan = &agent.PlanStartedData{Source: "planner", Model: &ref}
	if c, err = a.modelCommand(c, run, agent.PlanCommand, request, nil); err != nil {
		return agent.PlannerReply{}, crossing(err)
	}
	ask, promptHash := c.effect, c.begin.InputHash
	c.effect = func(ctx context.Context, d dispatch) (effectResult, error) {
		r, err := ask(ctx, d)
		if err != nil {
			return r, err
		}
		return planResult(r, &run.Definition, promptHash)
	}
	row, err := a.pass(ctx, c)
	if err != nil {
		return agent.PlannerReply{}, err
	}
	return PlannerReplyOf(&run.Definition, &row)
}

func (a *Activities) plannerRequest(ctx context.Context, run *agent.Run) (model.Request, error) {
	request := model.Request{Model: run.Definition.Model.Model, Schema: json.RawMessage(planSchema), SchemaName: "plan"}
	for _, t := range run.Definition.Tools {
		request.Tools = append(request.Tools, model.Tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema})
	}
	tools, err := json.Marshal(request.Tools)
	if err != nil {
		return request, err
	}
	instructions := fmt.Sprintf(plannerPrompt, tools)
	if run.Definition.Instructions != "" {
		instructions += "\n\nThe agent's instructions, for the answer:\n" + run.Definition.Instructions
	}
	asked := model.Message{Role: model.User, Text: userText(run)}
	history, cut, err := a.history(ctx, run, newWindow(budgetOf(run), asked))
	if err != nil {
		return request, err
	}
	request.Messages = prompt(instructions, leftOut{messages: cut}, history, asked)
	return request, nil
}

// planResult turns the planner's answer into the compiled plan, the result on record. A plan that breaks the rules is a
// definite failure that says why.
func planResult(r effectResult, d *agent.Definition, promptHash string) (effectResult, error) {
	var reply model.Reply
	if err := json.Unmarshal(r.result, &reply); err != nil {
		return effectResult{}, err
	}
	switch reply.Finish {
	case model.FinishFiltered:
		return effectResult{}, agent.Failed(agent.CodeModelFailed, "the planner refused: %s", agent.Preview(reply.Text, 200))
	case model.FinishLength:
		return effectResult{}, agent.Failed(agent.CodeModelReply, "the planner's answer was cut at its longest")
	case model.FinishStop, model.FinishTools:
	}
	var plan agent.Plan
	if err := json.Unmarshal(jsonIn(reply.Text), &plan); err != nil {
		return effectResult{}, agent.Failed(agent.CodeInvalidPlan, "the planner's answer is not a plan: %w", err)
	}
	if most := d.Limits.MaxSteps; most > 0 && len(plan.Nodes) > most {
		return effectResult{}, agent.Failed(agent.CodeInvalidPlan, "%w", &agent.PlanError{Faults: []agent.PlanFault{
			{Pointer: "/nodes", Message: fmt.Sprintf("%d nodes; this run may have %d", len(plan.Nodes), most)}}})
	}
	if i := slices.IndexFunc(plan.Nodes, func(n agent.Node) bool { return n.Kind == agent.WaitNode }); i >= 0 {
		return effectResult{}, agent.Failed(agent.CodeInvalidPlan, "%w", &agent.PlanError{Faults: []agent.PlanFault{
			{Pointer: fmt.Sprintf("/nodes/%d/kind", i), Message: "a planner cannot let a run wait; only a caller's plan does"}}})
	}
	check, err := tool.CheckPlans(d.Tools)
	if err != nil {
		return effectResult{}, agent.Failed(agent.CodeInternal, "check plans: %w", err)
	}
	compiled, err := agent.Compile(&plan, check)
	if err != nil {
		return effectResult{}, agent.Failed(agent.CodeInvalidPlan, "%w", err)
	}
	result, err := json.Marshal(compiled)
	if err != nil {
		return effectResult{}, err
	}
	if len(result) > maxPlanBytes {
		return effectResult{}, agent.Failed(agent.CodeTooLarge, "the planner's plan has %d bytes; at most %d are possible", len(result), maxPlanBytes)
	}
	ref := d.Model
	r.plan = &agent.PlanGeneratedData{Source: "planner", TaskGraph: compiled, Hash: inputHash(json.RawMessage(result)), Model: &ref, PromptHash: promptHash}
	r.result, r.message, r.goesOn = result, nil, false
	r.event.Kind, r.event.Output, r.event.Tools = agent.PlanCommand, agent.Value{Bytes: len(result)}, nil
	return r, nil
}

// jsonIn finds the JSON object in an answer that may be fenced or introduced by a sentence.
func jsonIn(text string) []byte {
	b := []byte(strings.TrimSpace(text))
	from, to := bytes.IndexByte(b, '{'), bytes.LastIndexByte(b, '}')
	if from < 0 || to < from {
		return b
	}
	return b[from : to+1]
}

// toolRequests and shape rebuild, from the record, what the workflow is told of a committed command.
func (a *Activities) toolRequests(ctx context.Context, runID string, result json.RawMessage) ([]agent.ToolRequest, error) {
	run, _, err := a.workedOn(ctx, runID)
	if err != nil {
		return nil, err
	}
	return toolRequestsOf(&run.Definition, result)
}

func (a *Activities) shape(ctx context.Context, runID string) (*agent.Shape, error) {
	run, plan, err := a.workedOn(ctx, runID)
	if err != nil || plan == nil {
		return nil, err
	}
	return plan.Shape(&run.Definition), nil
}

package workflows

import (
	"encoding/json"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/policy"
)

// Node names the node of a run that workflow code works for.
type Node struct {
	RunID string
	Epoch int
	// Agent is what a policy may look at.
	Agent  string
	NodeID string
	// Policy and Recorded are those of the run's input: what a replay may not execute, and what it has on record.
	Policy   *agent.Policy
	Recorded []string
}

// Effects gives workflow code time, identity, chance and the network as the record of a run has them: each call is a command
// <node>/<effect> of its own. What it gave is in Temporal's history and in the ledger, so that a replay gives it again, and
// so does a new execution of the run, after a resume or without the old history.
//
// Now, UUID and Random are numbered per kind in the order of the calls, from 1, which workflow code repeats at every replay.
// A node has one Effects: a second one would begin at 1 again and give the same values.
//
// Every error is an *agent.Error that names run and command: REPLAY_FORBIDDEN when this is a replay and the record holds no
// such effect, STALE_EPOCH when another execution has taken the run over, CANCELLED when ctx is cancelled.
type Effects struct {
	node     Node
	given    map[agent.CommandKind]int
	schedule int
}

// NewEffects gives a node its effects. Workflows that a user embeds and that belong to a run use it; its worker must have the
// activities of package worker.
func NewEffects(n Node) *Effects {
	return &Effects{node: n, given: map[agent.CommandKind]int{}}
}

// Now is the time, by the clock of the run's database.
func (e *Effects) Now(ctx workflow.Context) (at time.Time, err error) {
	err = e.value(ctx, agent.NowCommand, &at)
	return at, err
}

// UUID is a random UUID (version 4).
func (e *Effects) UUID(ctx workflow.Context) (id string, err error) {
	err = e.value(ctx, agent.UUIDCommand, &id)
	return id, err
}

// Random is a number in [0, 1), with 53 random bits. It seeds a generator where many are needed.
func (e *Effects) Random(ctx workflow.Context) (x float64, err error) {
	err = e.value(ctx, agent.RandomCommand, &x)
	return x, err
}

func (e *Effects) value(ctx workflow.Context, kind agent.CommandKind, into any) error {
	e.given[kind]++ // before anything waits: coroutines that ask at once get their numbers in the order of their asking
	id := agent.EffectCommandID(e.node.NodeID, agent.ValueEffectID(kind, e.given[kind]))
	// A live run's rules are about what can do harm. For a replay this is no deterministic command: a time is another one
	// whenever it is asked for.
	if e.replays() {
		if refusal := e.permit(id, kind, agent.Idempotent); refusal != nil {
			return e.failed(id, forbidden(refusal))
		}
	}
	in := agent.EffectCall{Scope: e.scope(), NodeID: e.node.NodeID, CommandID: id, Kind: kind}
	reply, err := do(ctx, agent.RecordEffect, in, housekeeping(string(kind)+" - node "+e.node.NodeID))
	if err != nil {
		return e.failed(id, asAgentError(err))
	}
	//workflowcheck:ignore the value is a text or a number, which decodes the same every time
	if err := json.Unmarshal(reply.Value, into); err != nil {
		return e.failed(id, agent.Failed(agent.CodeInternal, "its recorded value: %w", err))
	}
	return nil
}

// HTTP makes one request through the commit gate, by the configuration of the worker's http_request tool. effectID names it
// within the node: [A-Za-z0-9_-]{1,64}, other than now-1, uuid-1 and the like. The request carries the command's idempotency
// key. It and the response are kept in Temporal's history, which is why a response of more than 384 KiB is an error and why a
// request must not hold a secret.
//
// A status of 400 or more is an error, and given again like a response where it is definite. COMMAND_IN_DOUBT: nobody knows
// whether the request took place; once somebody has resolved it, the same call tells. Any other request under the same
// effectID is COMMAND_MISMATCH.
func (e *Effects) HTTP(ctx workflow.Context, effectID string, req agent.HTTPRequest) (agent.HTTPResponse, error) {
	id := agent.EffectCommandID(e.node.NodeID, effectID)
	if err := agent.CheckEffectID(effectID); err != nil {
		return agent.HTTPResponse{}, e.failed(id, asOwnError(err))
	}
	if err := checkSize(req); err != nil {
		return agent.HTTPResponse{}, e.failed(id, err)
	}
	in := agent.HTTPCall{Request: req, Call: agent.Call{CommandID: id, NodeID: e.node.NodeID, Timeout: req.Timeout}}
	if in.Timeout <= 0 {
		in.Timeout = agent.DefaultToolTimeout
	}
	class := req.Effect
	if class == "" {
		class = agent.External // by its method it may be less; only the worker's configuration knows
	}
	if in.Refusal = e.permit(id, agent.HTTPCommand, class); in.Refusal != nil && e.replays() {
		return agent.HTTPResponse{}, e.failed(id, forbidden(in.Refusal))
	}
	opts := effectOptions(in.Call, "http "+effectID+" - node "+e.node.NodeID)
	for fences := 0; ; fences++ {
		e.schedule++
		in.Schedule, in.Scope = e.schedule, e.scope()
		reply, err := do(ctx, agent.CallHTTP, in, opts)
		if err == nil {
			if reply.Outcome == agent.OutcomeCommitted && reply.Response != nil {
				return *reply.Response, nil
			}
			return agent.HTTPResponse{}, e.failed(id, outcomeError(reply.Reply))
		}
		reason := asAgentError(err)
		switch reason.Code {
		case agent.CodeStaleEpoch, agent.CodeMismatch, agent.CodeLimit, agent.CodeTooLarge:
			return agent.HTTPResponse{}, e.failed(id, reason)
		}
		settled, err := e.settle(ctx, in.Call, reason)
		switch {
		case err != nil:
			return agent.HTTPResponse{}, e.failed(id, asAgentError(err))
		case ctx.Err() == nil && settled.Outcome == agent.OutcomeCommitted, // the activity is asked again for what is on record
			ctx.Err() == nil && settled.Outcome == agent.OutcomeUnknown && fences < maxFences:
		case settled.Outcome == agent.OutcomeUnknown:
			return agent.HTTPResponse{}, e.failed(id, reason)
		default:
			return agent.HTTPResponse{}, e.failed(id, outcomeError(settled.Reply))
		}
	}
}

// maxRequestBytes is what Temporal takes of an activity's input, with room for the rest of the call. It would fail the workflow
// task again and again.
const maxRequestBytes = 2<<20 - 64<<10

func checkSize(req agent.HTTPRequest) *agent.Error {
	//workflowcheck:ignore the request is a plain struct with a map of strings, which marshals the same every time
	doc, err := json.Marshal(req)
	if err == nil && len(doc) > maxRequestBytes {
		return agent.Failed(agent.CodeTooLarge, "the request has %d bytes; at most %d go through Temporal: make it in a tool", len(doc), maxRequestBytes)
	}
	return nil
}

// settle asks what became of a request whose activity ended in an error.
func (e *Effects) settle(ctx workflow.Context, call agent.Call, reason *agent.Error) (agent.SettleReply, error) {
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	return do(ctx, agent.SettleCommand, agent.SettleCall{Call: call, Reason: reason}, settling(call.CommandID))
}

func (e *Effects) replays() bool {
	return e.node.Policy != nil && e.node.Policy.Replay != agent.LiveRun
}

// permit asks the policy about an effect. It gives what is against it, nil for nothing.
func (e *Effects) permit(id string, kind agent.CommandKind, class agent.EffectClass) *agent.Refusal {
	return policy.Decide(e.node.Policy, policy.Command{RunID: e.node.RunID, Agent: e.node.Agent, NodeID: e.node.NodeID, CommandID: id,
		Kind: kind, Effect: class, Recorded: slices.Contains(e.node.Recorded, id)}).Refusal()
}

func forbidden(r *agent.Refusal) *agent.Error {
	return agent.Failed(agent.CodeForbidden, "%s", r.Reason)
}

// outcomeError is the outcome of a command that has no result.
func outcomeError(reply agent.Reply) *agent.Error {
	reason := &agent.Error{Code: agent.CodeInternal, Message: "it ended without an outcome"}
	switch {
	case reply.Outcome == agent.OutcomeInDoubt:
		reason.Code, reason.Message = agent.CodeInDoubt, "nobody knows whether it took place"
		if reply.Error != nil {
			reason.Message = reply.Error.Message
		}
	case reply.Error != nil:
		*reason = *reply.Error
	}
	return reason
}

func asOwnError(err error) *agent.Error {
	if e, ok := agent.AsError(err); ok {
		return e
	}
	return agent.Failed(agent.CodeInternal, "%w", err)
}

// failed names an effect in its error.
func (e *Effects) failed(id string, cause *agent.Error) *agent.Error {
	named := *cause
	named.NodeID, named.CommandID = e.node.NodeID, id
	named.Message = "run " + e.node.RunID + ", node " + e.node.NodeID + ", effect " + id + ": " + cause.Message
	return &named
}

func (e *Effects) scope() agent.Scope {
	return agent.Scope{RunID: e.node.RunID, Epoch: e.node.Epoch}
}

package tool

import (
	"context"
	"encoding/json"
	"time"

	"runledger/agent"
)

// DefaultTimeout bounds a call of a tool that names no timeout.
const DefaultTimeout = time.Duration(agent.DefaultToolTimeout)

// Spec describes a tool to models, to plans and to the commit gate.
type Spec struct {
	// Name is what plans and models call it: [A-Za-z0-9_-]{1,64}, for an MCP tool "server/tool".
	Name string `json:"name"`
	// Description tells a model when and how to use it.
	Description string `json:"description"`
	// InputSchema is a JSON Schema object for the arguments.
	InputSchema json.RawMessage `json:"input_schema"`
	// Effect is what repeating a call would mean; External when a tool does not say.
	Effect agent.EffectClass `json:"effect_class"`
	// Timeout bounds one call; 0 means [DefaultTimeout].
	Timeout time.Duration `json:"timeout,omitempty"`
	// Approve is a predicate on calls, see package predicate: those that it holds for need somebody's approval, unless a rule of
	// the agent says otherwise. "true" holds for all, "" for none.
	Approve string `json:"approve,omitempty"`
	// Lane is that of calls which take no longer than a moment: [agent.FastLane] lets them share a segment with others. "" is the
	// agent's.
	Lane agent.Lane `json:"lane,omitempty"`
	// Limit bounds the tool's calls over all workers on a database. It is the worker's, and no part of a run's record.
	Limit CallLimit `json:"-"`
}

// The limit of a tool's calls, and a rate.
type (
	CallLimit = agent.CallLimit
	Rate      = agent.Rate
)

// Ref is the spec as a run's record keeps it.
func (s Spec) Ref() agent.ToolRef {
	return agent.ToolRef{
		Name: s.Name, Description: s.Description, InputSchema: s.InputSchema, Effect: s.Effect, Timeout: agent.Duration(s.Timeout),
		Approve: s.Approve, Lane: s.Lane,
	}
}

// SpecOf is the inverse of [Spec.Ref].
func SpecOf(ref agent.ToolRef) Spec {
	return Spec{
		Name: ref.Name, Description: ref.Description, InputSchema: ref.InputSchema, Effect: ref.Effect, Timeout: time.Duration(ref.Timeout),
		Approve: ref.Approve, Lane: ref.Lane,
	}
}

// Call is one invocation of a tool.
type Call struct {
	// Key is the idempotency key, run_id/command_id. It is the same on every attempt of the command.
	Key       string
	RunID     string
	CommandID string
	// Attempt counts the executions of this command's effect, from 1.
	Attempt int
	// Arguments is a JSON object that has been checked against the schema.
	Arguments json.RawMessage
	// Progress reports how far the call has come; it may be called from any goroutine until Call returns. Never nil.
	Progress func(message string)
	// Effects are recorded time, identity, chance and HTTP requests. A worker always gives them; a test that calls a tool which
	// uses them brings [MemoryEffects].
	Effects Effects
}

// Tool is something an agent can call. Its methods may be called concurrently.
type Tool interface {
	// Spec describes the tool. It is the same every time.
	Spec() Spec
	// Call executes the tool and returns its output, a JSON value.
	//
	// An error says by its [agent.Fault] what is known about the effect: agent.Failed for a refusal that the model should
	// read, agent.Transient when nothing took place and a later try can help, agent.Unknown when it may have taken place.
	// Any other error counts as unknown. The context ends when the run is cancelled or at the command's deadline.
	Call(ctx context.Context, call Call) (json.RawMessage, error)
}

// EffectOf is an optional power of a tool whose effect class depends on the arguments, as a GET and a POST differ.
// Its Spec carries the gravest class.
type EffectOf interface {
	EffectOf(arguments json.RawMessage) agent.EffectClass
}

// ClassOf is the effect class of a call of t with these arguments. A class that is missing or unknown counts as external,
// so that a mistake in a tool can stop a run but never repeat an effect.
func ClassOf(t Tool, arguments json.RawMessage) agent.EffectClass {
	class := t.Spec().Effect
	if e, ok := t.(EffectOf); ok {
		class = e.EffectOf(arguments)
	}
	if _, ok := t.(TxTool); ok {
		return agent.Idempotent // what a lost call has done is undone with its transaction
	}
	if !class.Valid() {
		return agent.External
	}
	return class
}

// Reconciler is an optional power of an external tool that can find out, by the idempotency key, what became of a call
// whose answer was lost.
type Reconciler interface {
	// Reconcile looks the call up; it never causes the effect. An error means that nothing was learned; with
	// [ErrNotReconcilable] in its chain, that nothing ever will be.
	Reconcile(ctx context.Context, call Call) (Finding, error)
}

// Finding is what a [Reconciler] found.
type Finding struct {
	// Found means that the effect took place; Output is then what Call would have returned.
	Found  bool
	Output json.RawMessage
	// Conclusive, when nothing was found, is the tool's word that the lost call did not take place and no longer can once
	// its deadline is over. Only then may the call be dispatched again.
	Conclusive bool
}

// TxTool is an optional power of a tool whose whole effect is in the ledger's own Postgres. It takes part in the commit
// of its command and so happens exactly once.
type TxTool interface {
	Tool
	// CallTx does what Call does, inside the transaction that commits the result. It must not end the transaction, nor
	// touch the ledger's tables, nor wait for anything but the database: the command's row is locked meanwhile.
	CallTx(ctx context.Context, tx Tx, call Call) (json.RawMessage, error)
}

// Tx is the part of a Postgres transaction that a [TxTool] may use.
type Tx = agent.Tx

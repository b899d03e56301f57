// Package policy decides what may happen to a command before it happens: execute, inject, forbid or ask. It is pure, so
// that workflow code may ask it; rules are data in the run's record. It imports agent only.
package policy

import "runledger/agent"

// Decision is what a policy says of a command.
type Decision string

const (
	// Execute: nothing is recorded and this is the frontier of a live run.
	Execute Decision = "execute"
	// Inject: the record holds the outcome; it is used and nothing is executed.
	Inject Decision = "inject"
	// Forbid: the command must not be executed, and there is no record to use.
	Forbid Decision = "forbid"
	// Ask: somebody has to approve first.
	Ask Decision = "ask"
)

// Replay says why a run is being executed.
type Replay string

const (
	// Live runs execute at their frontier, after a resume too.
	Live Replay = ""
	// Audit replays rebuild a run from its record alone and execute nothing that has an effect.
	Audit Replay = "audit"
)

// Rules are a run's policy as its record keeps it. A nil *Rules injects what is committed and executes everything else.
type Rules struct {
	Replay Replay `json:"replay,omitempty"`
}

// Command is what a decision is about.
type Command struct {
	NodeID    string
	CommandID string
	Kind      agent.CommandKind
	Tool      string
	Effect    agent.EffectClass
	// Recorded: the record holds the command's outcome.
	Recorded bool
}

// Decide applies rules to a command.
func Decide(r *Rules, c Command) Decision {
	if c.Recorded {
		return Inject
	}
	// Anything but a live run, a kind of replay that this worker does not know too, executes no effect.
	if r != nil && r.Replay != Live && c.Effect != agent.Deterministic {
		return Forbid
	}
	return Execute
}

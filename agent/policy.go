package agent

// Decision is what a policy says of a command before anything happens. Package policy has the values and takes the decision.
type Decision string

// Replay says why a run is being executed.
type Replay string

const (
	// LiveRun executes at its frontier, after a resume too.
	LiveRun Replay = ""
	// AuditReplay rebuilds a run from its record alone and executes nothing that has an effect.
	AuditReplay Replay = "audit"
)

// Policy is a run's sandbox policy as its record keeps it: data, so that workflow code decides by it the same way at every
// replay. A nil *Policy, like an empty one, injects what is on record and executes everything else.
type Policy struct {
	Replay Replay `json:"replay,omitempty"`
	// Rules are tried in order; the first that matches a command decides. A command that none matches is executed.
	Rules []PolicyRule `json:"rules,omitempty" yaml:"rules"`
}

// PolicyRule decides commands. Every list that is not empty must match.
type PolicyRule struct {
	// Tools are names or patterns as MatchTool has them. Only tool commands match a rule with tools.
	Tools   []string      `json:"tools,omitempty" yaml:"tools"`
	Effects []EffectClass `json:"effects,omitempty" yaml:"effects"`
	Kinds   []CommandKind `json:"kinds,omitempty" yaml:"kinds"`
	// When is a predicate on the call, see package predicate; "" holds for every one. Whether it holds is found out in the
	// activity, since the workflow knows no arguments.
	When string `json:"when,omitempty" yaml:"when"`
	// Decision is "execute", "forbid" or "ask".
	Decision Decision `json:"decision" yaml:"decision"`
	// Reason is told to whoever is refused: to the model, and in the record.
	Reason string `json:"reason,omitempty" yaml:"reason"`
	// Expires is how long an approval is waited for, for "ask"; 0 is the agent's.
	Expires Duration `json:"expires,omitempty" yaml:"expires"`
}

// Refusal is a policy's word against a command, on its way to the gate that puts it on record.
type Refusal struct {
	Decision Decision `json:"decision"`
	Reason   string   `json:"reason,omitempty"`
	// Expires is how long an approval is waited for; 0 is the agent's.
	Expires Duration `json:"expires,omitempty"`
}

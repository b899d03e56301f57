// Package policy decides what may happen to a command before it happens: execute, inject, forbid or ask. Decide is pure, so
// that workflow code may ask it: its rules are data in the run's record. Rules that need code are a Func; the worker asks it
// in the activity, never the workflow. The package imports agent only.
package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"runledger/agent"
)

const (
	// Execute: nothing is recorded and this is the frontier of a live run.
	Execute agent.Decision = "execute"
	// Inject: the record holds the outcome; it is used and nothing is executed.
	Inject agent.Decision = "inject"
	// Forbid: the command must not be executed, and there is no record to use.
	Forbid agent.Decision = "forbid"
	// Ask: somebody has to approve first.
	Ask agent.Decision = "ask"
	// Undecided: a rule goes by the arguments, which are not known here. Whoever knows them decides.
	Undecided agent.Decision = "undecided"
)

// Command is what a decision is about.
type Command struct {
	RunID     string
	Agent     string
	NodeID    string
	CommandID string
	Kind      agent.CommandKind
	Tool      string
	Effect    agent.EffectClass
	// Recorded: the record holds the command's outcome.
	Recorded bool
	// Arguments are what a tool is to be called with. Only a Func sees them: content never reaches the workflow.
	Arguments json.RawMessage
	// Approve is the tool's own predicate on calls that need an approval, "" for none.
	Approve string
	// Holds tells whether a predicate holds for the call. It is nil where the arguments are not known, as in workflow code.
	Holds func(predicate string) (bool, error)
}

// Answer is what a policy says of a command.
type Answer struct {
	Decision agent.Decision
	// Reason says why, where the command is not simply executed or injected.
	Reason string
	// Expires is how long an approval is waited for, for Ask; 0 is the agent's.
	Expires agent.Duration
}

// Refusal is what keeps a live run from executing the command by itself, nil for nothing.
func (a Answer) Refusal() *agent.Refusal {
	switch a.Decision {
	case Execute, Inject, Undecided:
		return nil
	}
	return &agent.Refusal{Decision: a.Decision, Reason: a.Reason, Expires: a.Expires}
}

// Func is a policy in Go code. It is asked in the activity, before a command that no rule forbids is executed for the first
// time or again, and never for one whose outcome is on record. It may look at the arguments, and at the world: its answer is
// recorded where it is not Execute. Ask wants an approval; anything else but Execute refuses the command, and so does an error.
type Func func(ctx context.Context, c Command) (decision agent.Decision, reason string, err error)

// Decide applies a run's policy to a command.
//
// A predicate that cannot be evaluated counts as one that holds where the rule forbids or asks, and as one that does not where
// it allows.
func Decide(p *agent.Policy, c Command) Answer {
	if c.Recorded {
		return Answer{Decision: Inject}
	}
	if p == nil {
		p = &agent.Policy{}
	}
	// Anything but a live run, a kind of replay that this worker does not know too, executes no effect.
	if p.Replay != agent.LiveRun {
		if c.Effect == agent.Deterministic {
			return Answer{Decision: Execute}
		}
		return Answer{Decision: Forbid, Reason: fmt.Sprintf("this is a replay (%s), and the record holds no outcome", p.Replay)}
	}
	for _, r := range p.Rules {
		if !matches(r, c) {
			continue
		}
		a := Answer{Decision: Forbid, Reason: r.Reason, Expires: r.Expires}
		switch r.Decision {
		case Execute:
			a.Decision = Execute
		case Ask:
			if c.Kind == agent.ToolCommand { // else nobody could be shown what the answer is about
				a.Decision = Ask
			}
		default: // Forbid, and whatever a newer version's record may say
		}
		if holds, why := c.holds(r.When); holds == unknown {
			return Answer{Decision: Undecided}
		} else if holds == no || holds == broken && a.Decision == Execute {
			continue
		} else if holds == broken {
			a.Reason = why
		}
		return a
	}
	if c.Approve == "" {
		return Answer{Decision: Execute}
	}
	switch holds, why := c.holds(c.Approve); holds {
	case unknown:
		return Answer{Decision: Undecided}
	case no:
		return Answer{Decision: Execute}
	case broken:
		return Answer{Decision: Ask, Reason: why}
	default:
		return Answer{Decision: Ask, Reason: "the tool asks for an approval"}
	}
}

// truth is what came of a predicate.
type truth int

const (
	no truth = iota
	yes
	// unknown: nobody here knows the arguments.
	unknown
	// broken: it cannot be evaluated.
	broken
)

func (c Command) holds(predicate string) (t truth, why string) {
	switch {
	case predicate == "" || predicate == Always:
		return yes, ""
	case c.Holds == nil:
		return unknown, ""
	}
	holds, err := c.Holds(predicate)
	switch {
	case err != nil:
		return broken, err.Error()
	case holds:
		return yes, ""
	}
	return no, ""
}

// Always is the predicate that holds for every call.
const Always = "true"

func matches(r agent.PolicyRule, c Command) bool {
	if len(r.Kinds) > 0 && !slices.Contains(r.Kinds, c.Kind) {
		return false
	}
	if len(r.Effects) > 0 && !slices.Contains(r.Effects, effectOf(c)) {
		return false
	}
	if r.When != "" && c.Kind != agent.ToolCommand {
		return false
	}
	if len(r.Tools) == 0 {
		return true
	}
	return c.Kind == agent.ToolCommand && slices.ContainsFunc(r.Tools, func(pattern string) bool { return agent.MatchTool(pattern, c.Tool) })
}

// effectOf takes a class that is missing or unknown for the gravest.
func effectOf(c Command) agent.EffectClass {
	if c.Effect.Valid() {
		return c.Effect
	}
	return agent.External
}

// maxRules bounds the rules of an agent, in bytes of JSON.
const maxRules = 64 << 10

// Check says what is wrong with a policy that somebody wrote.
func Check(p *agent.Policy) error {
	if p == nil {
		return nil
	}
	if doc, err := json.Marshal(p); err == nil && len(doc) > maxRules {
		return fmt.Errorf("the rules have %d bytes; at most %d are possible: they are part of every run's input", len(doc), maxRules)
	}
	for i, r := range p.Rules {
		switch r.Decision {
		case Execute, Forbid, Ask:
		default:
			return fmt.Errorf("rule %d: decision %q: want execute, forbid or ask", i+1, r.Decision)
		}
		ofTools := len(r.Tools) > 0 || slices.Equal(r.Kinds, []agent.CommandKind{agent.ToolCommand})
		switch {
		case r.When != "" && !ofTools:
			return fmt.Errorf("rule %d: when goes by the arguments of a tool: the rule needs tools, or kinds: [tool]", i+1)
		case r.Decision == Ask && !ofTools:
			return fmt.Errorf("rule %d: decision ask: only the calls of tools can be approved: the rule needs tools, or kinds: [tool]", i+1)
		case r.Expires < 0:
			return fmt.Errorf("rule %d: expires: must not be negative", i+1)
		case r.Expires > 0 && r.Decision != Ask:
			return fmt.Errorf("rule %d: expires: only a rule that asks can have it", i+1)
		}
		for _, e := range r.Effects {
			if !e.Valid() {
				return fmt.Errorf("rule %d: %q is not an effect class", i+1, e)
			}
		}
		for _, k := range r.Kinds {
			switch k {
			case agent.PlanCommand, agent.ModelCommand, agent.ToolCommand, agent.HTTPCommand, agent.RetrievalCommand, agent.WorkflowCommand:
			default:
				return fmt.Errorf("rule %d: %q is not a kind of command: want plan, llm, tool, http, retrieval or workflow", i+1, k)
			}
		}
	}
	return nil
}

package tool

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"runledger/agent"
	"runledger/predicate"
)

// Set is a set of tools, each under its own name. It does not change and may be used concurrently.
type Set struct {
	names      []string // in order
	tools      map[string]Tool
	validators map[string]*Validator
	away       []string
}

// NewSet makes a set. It fails on a name that is not one or is there twice, on a spec without a description or with an
// unknown effect class, and on an input schema that [CompileSchema] refuses.
func NewSet(tools ...Tool) (*Set, error) {
	s := &Set{tools: make(map[string]Tool, len(tools)), validators: make(map[string]*Validator, len(tools))}
	for _, t := range tools {
		spec := t.Spec()
		if err := checkSpec(spec); err != nil {
			return nil, err
		}
		if _, twice := s.tools[spec.Name]; twice {
			return nil, fmt.Errorf("two tools have the name %s", spec.Name)
		}
		validator, err := CompileSchema(spec)
		if err != nil {
			return nil, err
		}
		s.names = append(s.names, spec.Name)
		s.tools[spec.Name], s.validators[spec.Name] = t, validator
	}
	slices.Sort(s.names)
	return s, nil
}

// Lookup finds a tool by its name.
func (s *Set) Lookup(name string) (Tool, bool) {
	t, ok := s.tools[name]
	return t, ok
}

// WithAway is the set with the names of servers that cannot be reached just now, so that which tools they have is not known.
func (s *Set) WithAway(servers ...string) *Set {
	with := *s
	with.away = slices.Clone(servers)
	return &with
}

// IsAway reports whether a tool that is not in the set is one of a server that cannot be reached just now.
func (s *Set) IsAway(name string) bool {
	server, _, remote := strings.Cut(name, "/")
	return remote && s.tools[name] == nil && slices.Contains(s.away, server)
}

// Len is the number of tools.
func (s *Set) Len() int { return len(s.names) }

// Names lists the names, in order.
func (s *Set) Names() []string { return slices.Clone(s.names) }

// Tools lists the tools, in the order of their names.
func (s *Set) Tools() []Tool {
	tools := make([]Tool, len(s.names))
	for i, name := range s.names {
		tools[i] = s.tools[name]
	}
	return tools
}

// Specs lists the specs, in the order of their names.
func (s *Set) Specs() []Spec {
	specs := make([]Spec, len(s.names))
	for i, name := range s.names {
		specs[i] = s.tools[name].Spec()
	}
	return specs
}

// Refs lists the tools as a run's record keeps them, in the order of their names.
func (s *Set) Refs() []agent.ToolRef {
	refs := make([]agent.ToolRef, len(s.names))
	for i, name := range s.names {
		refs[i] = s.tools[name].Spec().Ref()
		if _, ok := s.tools[name].(TxTool); ok {
			refs[i].Effect = agent.Idempotent
		}
	}
	return refs
}

// PatternError names the patterns of a selection that match no tool, so that a caller who knows that an MCP server is away
// can leave its patterns out and select again.
type PatternError struct {
	Patterns []string
}

func (e *PatternError) Error() string {
	quoted := make([]string, len(e.Patterns))
	for i, p := range e.Patterns {
		quoted[i] = fmt.Sprintf("%q", p)
	}
	return "no tool matches " + strings.Join(quoted, ", ")
}

// Select makes the set of the tools that match any of the patterns, as [agent.MatchTool] has it: a name, "server/*" or "*".
// A pattern that matches nothing is a *PatternError, but for "*", which is content with what there is.
func (s *Set) Select(patterns ...string) (*Set, error) {
	var missing []string
	chosen := map[string]bool{}
	for _, pattern := range patterns {
		matched := pattern == "*"
		for _, name := range s.names {
			if agent.MatchTool(pattern, name) {
				matched, chosen[name] = true, true
			}
		}
		if !matched {
			missing = append(missing, pattern)
		}
	}
	if len(missing) > 0 {
		return nil, &PatternError{Patterns: missing}
	}
	sub := &Set{tools: map[string]Tool{}, validators: map[string]*Validator{}, away: s.away}
	for _, name := range s.names {
		if chosen[name] {
			sub.names = append(sub.names, name)
			sub.tools[name], sub.validators[name] = s.tools[name], s.validators[name]
		}
	}
	return sub, nil
}

// Validator is the check of a tool's arguments, nil for a tool that is not in the set.
func (s *Set) Validator(name string) *Validator { return s.validators[name] }

// Validate checks the arguments of a call that is about to be made, as [Validator.Validate] does. A tool that is not in
// the set is an *agent.Error of code TOOL_UNKNOWN.
func (s *Set) Validate(name string, args json.RawMessage) error {
	v, ok := s.validators[name]
	if !ok {
		return agent.Failed(agent.CodeToolUnknown, "there is no tool %q", name)
	}
	return v.Validate(args)
}

// ValidatePlan checks the arguments of a plan, as [Validator.ValidatePlan] does.
func (s *Set) ValidatePlan(name string, args json.RawMessage) error {
	v, ok := s.validators[name]
	if !ok {
		return agent.Failed(agent.CodeToolUnknown, "there is no tool %q", name)
	}
	return v.ValidatePlan(args)
}

// CheckPlans is the check that [agent.Compile] asks for, over the tools of an agent as its record keeps them. The error
// names the tool whose schema cannot be used.
func CheckPlans(tools []agent.ToolRef) (agent.PlanChecks, error) {
	validators := make(map[string]*Validator, len(tools))
	for _, t := range tools {
		v, err := CompileSchema(SpecOf(t))
		if err != nil {
			return agent.PlanChecks{}, err
		}
		validators[t.Name] = v
	}
	return agent.PlanChecks{When: predicate.Names, Arguments: func(name string, args json.RawMessage) ([]agent.PlanFault, bool) {
		v, known := validators[name]
		if !known {
			return nil, false
		}
		return v.PlanFaults(args), true
	}}, nil
}

package agent

import (
	"fmt"
	"slices"
	"strings"
)

// Blueprint is an agent as the configuration describes it, before its tools are looked up.
type Blueprint struct {
	Name         string
	Mode         Mode
	Model        ModelRef
	Instructions string
	// Tools are names or patterns: "calculator", "everything/*", "*".
	Tools  []string
	Limits Limits
	// History with zero MaxTokens is the default.
	History History
	Policy  *Policy
	// RequirePlan and ApprovalTimeout are those of the definition.
	RequirePlan     bool
	ApprovalTimeout Duration
	// Lane is that of the definition.
	Lane Lane
	// Workflows are those of the definition.
	Workflows []string
}

// Resolve makes the definition that becomes part of a run's record. The error names the pattern that matches no tool of
// the catalogue.
func (b Blueprint) Resolve(catalog []ToolRef) (Definition, error) {
	d := Definition{
		Agent: b.Name, Mode: b.Mode, Model: b.Model, Instructions: b.Instructions, Tools: []ToolRef{},
		Limits: b.Limits.Or(DefaultLimits()), History: &History{MaxTokens: DefaultHistoryTokens}, Policy: b.Policy,
		RequirePlan: b.RequirePlan, ApprovalTimeout: b.ApprovalTimeout, Lane: b.Lane, Workflows: b.Workflows,
	}
	if b.History.MaxTokens > 0 {
		d.History.MaxTokens = b.History.MaxTokens
	}
	sorted := slices.SortedFunc(slices.Values(catalog), func(a, b ToolRef) int { return strings.Compare(a.Name, b.Name) })
	for _, pattern := range b.Tools {
		matched := false
		for _, t := range sorted {
			if !MatchTool(pattern, t.Name) {
				continue
			}
			matched = true
			if _, have := d.Tool(t.Name); !have {
				d.Tools = append(d.Tools, t)
			}
		}
		if !matched && pattern != "*" {
			return Definition{}, fmt.Errorf("agent %s: tools: %q matches no tool that a worker has published", b.Name, pattern)
		}
	}
	return d, nil
}

// MayStart reports whether plans of the agent may start a workflow: one of its patterns is the name with its task queue, "queue/name",
// "queue/*", or "*".
func (d *Definition) MayStart(taskQueue, name string) bool {
	return slices.ContainsFunc(d.Workflows, func(pattern string) bool { return MatchTool(pattern, taskQueue+"/"+name) })
}

// MatchTool reports whether a tool name fits a pattern: the name itself, "prefix/*" for the tools of a server, or "*".
func MatchTool(pattern, name string) bool {
	if pattern == "*" {
		return true
	}
	if server, all := strings.CutSuffix(pattern, "/*"); all {
		return strings.HasPrefix(name, server+"/")
	}
	return pattern == name
}

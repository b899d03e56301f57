package predicate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm"

	"runledger/agent"
)

// Call is what a predicate may look at.
type Call struct {
	// Args are the tool's arguments; those that are not there are nil.
	Args map[string]any `expr:"args"`
	Tool string         `expr:"tool"`
	// Effect is "deterministic", "idempotent" or "external".
	Effect string `expr:"effect"`
	Agent  string `expr:"agent"`
	// Input is what the user said, Metadata what came with it.
	Input    string         `expr:"input"`
	Metadata map[string]any `expr:"metadata"`

	bytes int // of all that
}

// Of makes the Call of a run's tool call. Arguments that are no JSON object are none.
func Of(run *agent.Run, tool string, effect agent.EffectClass, arguments json.RawMessage) Call {
	c := Call{Tool: tool, Effect: string(effect), Agent: run.Definition.Agent, Input: run.Input,
		bytes: len(arguments) + len(run.Input) + len(run.Metadata)}
	_ = json.Unmarshal(arguments, &c.Args)
	_ = json.Unmarshal(run.Metadata, &c.Metadata)
	return c
}

// Bounds of what a predicate may cost.
const (
	// maxNodes bounds its length.
	maxNodes = 300
	// maxWork bounds what its loops look at, in bytes, all together: a step whose condition looks at the element alone counts for
	// elementWork, any other for all that there is.
	maxWork     = 32 << 20
	elementWork = 256
)

// functions are those that a predicate may call. What they cost, and what they give, is in proportion to what they are given.
func functions() []string {
	return []string{"all", "none", "any", "one", "filter", "find", "count", "sum", "len", "abs", "ceil", "floor", "round", "int", "float",
		"trim", "upper", "lower", "hasPrefix", "hasSuffix", "indexOf", "min", "max", "first", "last", "keys", "values"}
}

// environment is a Call as the language sees it.
type environment struct {
	Call
	// Step counts a step of a loop.
	Step func(everything bool) (bool, error) `expr:"__step"`
}

// Holds evaluates a predicate. The error says why it cannot be: it is malformed, the call lacks what it compares, or it would cost
// too much.
func Holds(predicate string, c Call) (bool, error) {
	program, err := compile(predicate)
	if err != nil {
		return false, err
	}
	return run(predicate, program, c.bytes, func(step func(bool) (bool, error)) any { return environment{c, step} })
}

// Check says what is wrong with a predicate that somebody wrote.
func Check(predicate string) error {
	_, err := compile(predicate)
	return err
}

// CheckPolicy says which rule of an agent has a predicate that is wrong, and why.
func CheckPolicy(p *agent.Policy) error {
	if p == nil {
		return nil
	}
	for i, r := range p.Rules {
		if r.When == "" {
			continue
		}
		if err := Check(r.When); err != nil {
			return fmt.Errorf("rule %d: when: %w", i+1, err)
		}
	}
	return nil
}

func compile(predicate string) (*vm.Program, error) {
	program, bound, err := compileIn(predicate, environment{})
	if err == nil {
		err = bound.fault
	}
	if err != nil {
		return nil, wrong(predicate, err)
	}
	return program, nil
}

// compileIn compiles a predicate over an environment. Its loops count their steps.
func compileIn(predicate string, environment any) (*vm.Program, *bounds, error) {
	bound := &bounds{}
	options := []expr.Option{expr.Env(environment), expr.AsBool(), expr.MaxNodes(maxNodes), expr.Patch(bound), expr.DisableAllBuiltins()}
	for _, name := range functions() {
		options = append(options, expr.EnableBuiltin(name))
	}
	program, err := expr.Compile(predicate, options...)
	return program, bound, err
}

// wrong names the predicate that an error is about. The library draws where in it, over more lines.
func wrong(predicate string, err error) error {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("predicate %q: %s", predicate, line)
}

// bounds walks through a predicate, lets its loops count their steps, and finds what has no bound.
type bounds struct{ fault error }

func (b *bounds) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.PredicateNode:
		names := &named{}
		ast.Walk(&n.Node, names)
		step := &ast.CallNode{Callee: &ast.IdentifierNode{Value: stepName}, Arguments: []ast.Node{&ast.BoolNode{Value: names.any}}}
		n.Node = &ast.ConditionalNode{Cond: step, Exp1: n.Node, Exp2: &ast.NilNode{}}
	case *ast.BinaryNode:
		if _, written := n.Right.(*ast.StringNode); n.Operator == "matches" && !written {
			b.fault = errors.New("matches: the regular expression has to be written out, in quotes")
		}
	}
}

// stepName is what a predicate calls the count of steps by.
const stepName = "__step"

// named finds out whether the condition of a loop looks at more than the element: at anything that has a name.
type named struct{ any bool }

func (n *named) Visit(node *ast.Node) {
	if id, ok := (*node).(*ast.IdentifierNode); ok && id.Value != stepName {
		n.any = true
	}
}

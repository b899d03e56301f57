package predicate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm"
)

// Outcomes is what the condition of a plan's node may look at.
type Outcomes struct {
	// Input is what the user said, Metadata what came with it.
	Input    string `expr:"input"`
	Metadata any    `expr:"metadata"`
	// Nodes are those that the condition names, by id. What was skipped, or has no error, is nil.
	Nodes map[string]Outcome `expr:"nodes"`

	// Bytes is the size of all that.
	Bytes int `expr:"-"`
}

// Outcome is what became of a node.
type Outcome struct {
	Output any `expr:"output"`
	Error  any `expr:"error"`
}

// conditionEnvironment are Outcomes as the language sees them.
type conditionEnvironment struct {
	Outcomes
	Step func(everything bool) (bool, error) `expr:"__step"`
}

// Names says which nodes the condition of a plan's node names. The error says what is wrong with it.
func Names(condition string) ([]string, error) {
	program, err := compileCondition(condition)
	if err != nil {
		return nil, err
	}
	var named nodesNamed
	tree := program.Node()
	ast.Walk(&tree, &named)
	if named.alone > 0 {
		return nil, wrong(condition, errors.New(`nodes: name the node, as in nodes.fetch or nodes["fetch-1"]`))
	}
	return named.ids, nil
}

// Met evaluates the condition of a plan's node. The error says why it cannot be: what it compares is not there, or it would cost too
// much.
func Met(condition string, o Outcomes) (bool, error) {
	program, err := compileCondition(condition)
	if err != nil {
		return false, err
	}
	return run(condition, program, o.Bytes, func(step func(bool) (bool, error)) any { return conditionEnvironment{o, step} })
}

// nodesNamed collects the nodes that a condition names, and counts where it names none of them: what a node depends on has to be known
// before it is evaluated.
type nodesNamed struct {
	ids   []string
	alone int
}

func (n *nodesNamed) Visit(node *ast.Node) {
	switch m := (*node).(type) {
	case *ast.IdentifierNode:
		if m.Value == "nodes" {
			n.alone++
		}
	case *ast.MemberNode: // after what it is a member of
		of, isName := m.Node.(*ast.IdentifierNode)
		id, written := m.Property.(*ast.StringNode)
		if !isName || of.Value != "nodes" || !written {
			return
		}
		n.alone--
		if !slices.Contains(n.ids, id.Value) {
			n.ids = append(n.ids, id.Value)
		}
	}
}

func compileCondition(condition string) (*vm.Program, error) {
	program, bound, err := compileIn(condition, conditionEnvironment{})
	if err == nil {
		err = bound.fault
	}
	if err != nil {
		return nil, wrong(condition, err)
	}
	return program, nil
}

// run evaluates a program, whose loops may look at so many bytes.
func run(text string, program *vm.Program, bytes int, environment func(step func(bool) (bool, error)) any) (bool, error) {
	left := maxWork
	result, err := expr.Run(program, environment(func(everything bool) (bool, error) {
		if left -= elementWork; everything {
			left -= bytes
		}
		if left < 0 {
			return false, errors.New("there is too much for the loops of the predicate")
		}
		return true, nil
	}))
	if err != nil {
		return false, wrong(text, err)
	}
	holds, ok := result.(bool)
	if !ok {
		return false, fmt.Errorf("predicate %q gives %T; want true or false", text, result)
	}
	return holds, nil
}

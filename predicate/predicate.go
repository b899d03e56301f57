package predicate

import (
	"encoding/json"
	"fmt"

	"github.com/expr-lang/expr"

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
}

// Of makes the Call of a run's tool call. Arguments that are no JSON object are none.
func Of(run *agent.Run, tool string, effect agent.EffectClass, arguments json.RawMessage) Call {
	c := Call{Tool: tool, Effect: string(effect), Agent: run.Definition.Agent, Input: run.Input}
	_ = json.Unmarshal(arguments, &c.Args)
	_ = json.Unmarshal(run.Metadata, &c.Metadata)
	return c
}

// Holds evaluates a predicate. The error says why it cannot be: it is malformed, or the call lacks what it compares.
func Holds(predicate string, c Call) (bool, error) {
	program, err := expr.Compile(predicate, options()...)
	if err != nil {
		return false, fmt.Errorf("predicate %q: %w", predicate, err)
	}
	result, err := expr.Run(program, c)
	if err != nil {
		return false, fmt.Errorf("predicate %q: %w", predicate, err)
	}
	holds, ok := result.(bool)
	if !ok {
		return false, fmt.Errorf("predicate %q gives %T; want true or false", predicate, result)
	}
	return holds, nil
}

// Check says what is wrong with a predicate that somebody wrote.
func Check(predicate string) error {
	if _, err := expr.Compile(predicate, options()...); err != nil {
		return fmt.Errorf("predicate %q: %w", predicate, err)
	}
	return nil
}

func options() []expr.Option {
	return []expr.Option{expr.Env(Call{}), expr.AsBool(), expr.DisableBuiltin("now")}
}

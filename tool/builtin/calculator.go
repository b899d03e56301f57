package builtin

import (
	"context"
	"encoding/json"

	"runledger/agent"
	"runledger/tool"
)

type calculatorIn struct {
	Expression string `json:"expression" jsonschema:"the expression, for example (2.5 + 3)^2 / 4, or round(100 / 3, 2)"`
}

// calculatorOut gives the result twice: as exact digits for whoever reads it, and as a number for a plan that passes it on.
type calculatorOut struct {
	// Result is the result in decimal digits, with no exponent: all of them, or 34 significant ones when Exact is false.
	Result string `json:"result"`
	// Value is Result as a JSON number. It is left out when the number is too large for a double.
	Value json.Number `json:"value,omitempty"`
	// Exact is false when Result is rounded, as that of 1/3 and of sqrt(2) is.
	Exact bool `json:"exact"`
}

// Calculator evaluates arithmetic: + - * / % ^, parentheses, decimals, and the functions sqrt, abs, round, floor, ceil,
// min and max. It computes with exact fractions, so 0.1 + 0.2 is 0.3, within limits that a few milliseconds suffice for.
// An expression that it cannot read, a division by zero and a number beyond the limits are definite failures.
func Calculator() tool.Tool {
	return tool.MustNew(tool.Spec{
		Name: "calculator",
		Description: "Evaluates an arithmetic expression exactly. Operators: + - * / % ^ (power, integer exponents) and parentheses; " +
			"functions: sqrt(x), abs(x), round(x), round(x, digits), floor(x), ceil(x), min(x, ...), max(x, ...). " +
			`Returns {"result": "12.5", "value": 12.5, "exact": true}.`,
		Effect: agent.Deterministic,
	}, func(_ context.Context, in calculatorIn, _ tool.Call) (calculatorOut, error) {
		n, err := evaluate(in.Expression)
		if err != nil {
			return calculatorOut{}, agent.Failed(agent.CodeToolFailed, "%w", err)
		}
		return n.output(), nil
	})
}

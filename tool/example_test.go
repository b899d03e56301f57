package tool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"runledger/agent"
	"runledger/tool"
)

type refundIn struct {
	Order string `json:"order" jsonschema:"the number of the order"`
	Cents int    `json:"cents,omitempty" jsonschema:"how much to pay back; all of it when left out"`
}

type refundOut struct {
	Receipt string `json:"receipt"`
}

// A tool is a Go function with a typed input and output. It passes the idempotency key on, and says by its error what is
// known about the effect.
func ExampleNew() {
	refund, err := tool.New(tool.Spec{
		Name:        "refund",
		Description: "Pays an order back.",
		Effect:      agent.External,
	}, func(_ context.Context, in refundIn, call tool.Call) (refundOut, error) {
		if in.Order == "0" {
			return refundOut{}, agent.Failed(agent.CodeToolFailed, "there is no order %s", in.Order)
		}
		return refundOut{Receipt: in.Order + " paid back under " + call.Key}, nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, arguments := range []string{`{"order": "17"}`, `{"order": "0"}`, `{"order": 17}`} {
		out, err := refund.Call(context.Background(), tool.Call{Key: "run-1/pay", Arguments: json.RawMessage(arguments)})
		fmt.Println(string(out), err)
	}
	// Output:
	// {"receipt":"17 paid back under run-1/pay"} <nil>
	//  TOOL_FAILED: there is no order 0
	//  /order: want string, have 17
}

// The arguments of a plan hold references to results that are not there yet. They fit wherever some value would.
func ExampleCompileSchema() {
	validator, err := tool.CompileSchema(tool.Spec{Name: "refund", InputSchema: json.RawMessage(`{
		"type": "object", "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}}, "required": ["order"]}`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	planned := json.RawMessage(`{"order": {"$from": "/nodes/find/output/order"}, "cents": "all"}`)
	var wrong *tool.ArgumentError
	if errors.As(validator.ValidatePlan(planned), &wrong) {
		fmt.Println(wrong.Pointer, "-", wrong.Message)
	}
	// Output:
	// /cents - want integer, have "all"
}

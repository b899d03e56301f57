package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"runledger/agent"
	"runledger/tool"
)

// refundTool pays an order back. It is external: it is never executed twice by itself. It is also a [tool.Reconciler]: when a worker
// is lost in the middle of a payment, the next one asks the provider by the idempotency key instead of a person.
type refundTool struct {
	tool.Tool
	provider *provider
}

func (p *provider) refund() (tool.Tool, error) {
	schema, err := tool.Schema[refundIn](func(s *jsonschema.Schema) {
		s.Properties["card_token"].WriteOnly = true // "[redacted]" in everything that is shown
	})
	if err != nil {
		return nil, err
	}
	pay, err := tool.New(tool.Spec{
		Name:        "refund",
		Description: "Pays an order back.",
		InputSchema: schema,
		Effect:      agent.External,
		Timeout:     30 * time.Second,
		Approve:     "args.cents > 10000", // somebody has to say yes to more than 100
		// The provider takes five at a time and twenty a second, from all of our workers together.
		Limit: tool.CallLimit{MaxConcurrent: 5, Rate: tool.Rate{Calls: 20, Per: time.Second}},
	}, func(_ context.Context, in refundIn, call tool.Call) (receipt, error) {
		return p.pay(call.Key, in), nil
	})
	if err != nil {
		return nil, err
	}
	return refundTool{Tool: pay, provider: p}, nil
}

// Reconcile finds out what became of a payment whose answer was lost.
func (t refundTool) Reconcile(_ context.Context, call tool.Call) (tool.Finding, error) {
	r, found := t.provider.find(call.Key)
	if !found {
		return tool.Finding{Conclusive: true}, nil // the provider's word: nothing was paid under this key
	}
	output, err := json.Marshal(r)
	return tool.Finding{Found: true, Output: output}, err
}

package agenttest_test

import (
	"context"
	"testing"

	"runledger/agent"
	"runledger/agenttest"
	"runledger/model/scripted"
	"runledger/tool"
)

type refundIn struct {
	Order string `json:"order"`
}

// bank is what the tool under test talks to. It knows the idempotency keys that it has seen.
type bank struct{ paid map[string]int }

func (b *bank) refund() tool.Tool {
	return tool.MustNew(tool.Spec{Name: "refund", Description: "Pays an order back.", Effect: agent.Idempotent},
		func(_ context.Context, in refundIn, call tool.Call) (map[string]string, error) {
			b.paid[call.Key]++
			return map[string]string{"receipt": "R-" + in.Order}, nil
		})
}

// TestRefundAgent is the README's example: the agent calls the tool once, although the worker that called it is lost.
func TestRefundAgent(t *testing.T) {
	b := &bank{paid: map[string]int{}}
	h := agenttest.New(t, agenttest.Config{
		Mode:  agent.ModeReact,
		Tools: []tool.Tool{b.refund()},
		Model: scripted.Replies(
			scripted.Calls(scripted.Call("refund", refundIn{Order: "17"})),
			scripted.Text("Order 17 is paid back."),
		),
	})
	h.Crash("main#1.0", agent.AfterCommit) // the tool call of the first turn is on record, and nobody has heard of it

	res := h.Run("Please pay order 17 back.")

	res.RequireOutput("Order 17 is paid back.")
	res.RequireCalledOnce("refund", refundIn{Order: "17"})
	res.RequireCommitted("main#1.0", 1)
	res.RequireReplays()
}

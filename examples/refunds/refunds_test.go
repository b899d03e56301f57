package main

import (
	"log/slog"
	"testing"

	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/agenttest"
	"runledger/model/scripted"
	"runledger/tool"
	"runledger/workflows"
)

// harness is the support agent with a model that plays a script. It needs no servers.
func harness(t *testing.T, cents int) (*agenttest.Harness, *provider) {
	t.Helper()
	p := &provider{paid: map[string]receipt{}}
	refund, err := p.refund()
	if err != nil {
		t.Fatal(err)
	}
	return agenttest.New(t, agenttest.Config{
		Mode:         agent.ModeReact,
		Instructions: support().Instructions,
		Tools:        []tool.Tool{shop{"17": {Order: "17", Cents: cents, Status: "delivered"}}.lookup(), refund},
		Model: scripted.Replies(
			scripted.Calls(scripted.Call("order_lookup", orderIn{Order: "17"})),
			scripted.Calls(scripted.Call("refund", refundIn{Order: "17", Cents: cents})),
			scripted.Text("Order 17 is paid back."),
		),
	}), p
}

// The worker is lost at each point of the payment: the customer is paid once, and nobody has to look.
func TestRefundIsPaidOnceWhateverHappens(t *testing.T) {
	t.Parallel()
	for _, at := range []agent.Boundary{agent.BeforeBegin, agent.AfterBegin, agent.AfterEffect, agent.AfterCommit} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			h, p := harness(t, 4200)
			h.Crash("main#2.0", at) // the tool call of the second turn
			res := h.Run("Please pay order 17 back.")
			res.RequireOutput("Order 17 is paid back.")
			res.RequireReplays()
			if n := p.refunds(); n != 1 {
				t.Fatalf("%d payments", n)
			}
		})
	}
}

// More than 100 needs somebody's yes; without it nothing is paid.
func TestLargeRefundIsAskedAbout(t *testing.T) {
	t.Parallel()
	h, p := harness(t, 99900)
	h.Answer("main#2.0", agent.ApprovalAnswer{By: "ada", Note: "ask the customer for a photo first"})
	h.Run("Please pay order 17 back.")
	if n := p.refunds(); n != 0 {
		t.Fatalf("%d payments", n)
	}
}

// testdata/refund.json is the Temporal history of a run of this program:
//
//	temporal workflow show --workflow-id RUN_ID --output json > testdata/refund.json
//
// A new version of the worker must be able to go on with runs like it.
func TestRecordedRunReplays(t *testing.T) {
	t.Parallel()
	replayer := sdkworker.NewWorkflowReplayer()
	replayer.RegisterWorkflowWithOptions(workflows.AgentExecution, workflow.RegisterOptions{Name: agent.WorkflowName})
	quiet := log.NewStructuredLogger(slog.New(slog.DiscardHandler))
	if err := replayer.ReplayWorkflowHistoryFromJSONFile(quiet, "testdata/refund.json"); err != nil {
		t.Fatal(err)
	}
}

// Package agenttest tests agents and tools without servers.
//
// A [Harness] runs the workflow and the activities that a worker runs, in Temporal's test environment, with a ledger in memory
// that keeps to the rules of the real one. Its clock jumps over every wait, so that leases, retries and time limits cost nothing.
// The model is a scripted one (package model/scripted), the tools are the user's own:
//
//	h := agenttest.New(t, agenttest.Config{
//		Tools: []tool.Tool{refund},
//		Mode:  agent.ModeReact,
//		Model: scripted.Replies(
//			scripted.Calls(scripted.Call("refund", map[string]any{"order": "17"})),
//			scripted.Text("It is paid back.")),
//	})
//	h.Crash("main#1.0", agent.AfterCommit)
//	res := h.Run("Pay order 17 back.")
//	res.RequireOutput("It is paid back.")
//	res.RequireCalledOnce("refund", map[string]any{"order": "17"})
//
// A plan may wait for somebody; the test says what comes, and when (see the example of [Harness.SignalAfter]). [Harness.Say] speaks
// to a react run that is at work.
//
// [Harness.Crash] loses the worker at a point on a command's way through the commit gate; [Harness.Resolve] answers for a
// command in doubt; [Harness.Cancel] stops the run. A call that needs an approval waits until [Harness.Answer] has said what somebody
// answers, or expires:
//
//	h.Answer("main#1.0", agent.ApprovalAnswer{Approve: true, By: "ada", Arguments: json.RawMessage(`{"order": "18"}`)})
//
// [Result.RequireReplays] audits the run: its record alone gives it again. [ReplayHistory] holds a history that a real server recorded
// to the workflow.
//
// What differs from a real server: an activity is tried ten times and no more, a retry comes after the backoff of the retry
// policy whatever the gate asked for, a cancellation ends an activity for its workflow at once, and the order of commands that
// run at the same time is not that of another run (set Limits.MaxParallel to 1 where it matters).
//
// For test files only.
package agenttest

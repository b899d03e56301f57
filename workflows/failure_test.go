package workflows_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestNodeIsTriedAgain(t *testing.T) {
	t.Parallel()
	bad := effect{ends: fails, code: agent.CodeToolFailed}
	for name, c := range map[string]struct {
		tries  int
		script script
		want   []string
		ends   agent.Status
	}{
		"no second try unless asked for": {0, script{"a": {bad}}, []string{"a"}, agent.FailedStatus},
		"the second try":                 {2, script{"a": {bad}}, []string{"a", "a~2", "b"}, agent.Completed},
		"the third try":                  {3, script{"a": {bad}, "a~2": {bad}}, []string{"a", "a~2", "a~3", "b"}, agent.Completed},
		"no more than asked for":         {3, script{"a": {bad}, "a~2": {bad}, "a~3": {bad}}, []string{"a", "a~2", "a~3"}, agent.FailedStatus},
		"the last node of the plan":      {1, script{"b": {bad}}, []string{"a", "b", "b~2"}, agent.Completed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(graph(work("a").tries(c.tries), say("b", "a").tries(2))), c.script)
			require.Equal(t, c.want, w.commands())
			require.Equal(t, c.ends, w.finish.Status)
			if c.ends == agent.Completed {
			} else {
				require.Equal(t, agent.CodeToolFailed, w.failure())
				require.Equal(t, "a", w.finish.Error.NodeID)
			}
		})
	}
}

func TestOnErrorSaysWhatAFailureMeans(t *testing.T) {
	t.Parallel()
	plan := func(then agent.OnError, last string) *agent.Shape {
		return graph(work("a").onError(then), work("b", "a"), work("c"), say(last, "b", "c"))
	}
	bad := script{"a": {{ends: fails, code: agent.CodeToolFailed}}}
	node := []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished}
	for name, c := range map[string]struct {
		plan    *agent.Shape
		ends    agent.Status
		code    agent.Code
		message string
		b       []agent.EventType
		summary string
	}{
		"fail ends the run": {plan: plan(agent.OnErrorFail, "answer"), ends: agent.FailedStatus, code: agent.CodeToolFailed,
			message: "failed by the script", b: []agent.EventType{}, summary: "1 of 4 nodes finished, 1 failed"},
		"nothing said is fail": {plan: plan("", "answer"), ends: agent.FailedStatus, code: agent.CodeToolFailed,
			message: "failed by the script", b: []agent.EventType{}, summary: "1 of 4 nodes finished, 1 failed"},
		"continue goes on": {plan: plan(agent.OnErrorContinue, "answer"), ends: agent.Completed, b: node, summary: "3 of 4 nodes finished, 1 failed"},
		"skip_dependents goes on without them": {plan: plan(agent.OnErrorSkip, "answer"), ends: agent.Completed,
			b: []agent.EventType{agent.NodeSkipped}, summary: "2 of 4 nodes finished, 1 failed, 1 skipped"},
		"a final node that is skipped": {plan: plan(agent.OnErrorSkip, "last"), ends: agent.FailedStatus, code: agent.CodeNodeFailed,
			message: "the final node was skipped", b: []agent.EventType{agent.NodeSkipped}, summary: "1 of 4 nodes finished, 1 failed, 2 skipped"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(c.plan), bad)
			require.Equal(t, c.ends, w.finish.Status)
			require.Equal(t, c.b, w.types("b"))
			require.Equal(t, c.summary, w.finish.Summary)
			require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandFailedType, agent.NodeFailed}, w.types("a")[:4])
			if c.code != "" {
				require.Equal(t, c.code, w.failure())
				require.ErrorContains(t, w.err, c.message)
			}
		})
	}
}

func TestFailureIsOnRecordBeforeItsDependentsBegin(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a").onError(agent.OnErrorContinue), say("b", "a"))), script{"a": {{ends: fails, code: agent.CodeToolFailed}}})
	require.NoError(t, w.err)
	require.Equal(t, []string{"CallTool", "Record", "CallModel", "Finish"}, w.activities())
	require.Less(t, w.at(agent.NodeFailed, "a"), w.at(agent.NodeStarted, "b"))
	var failed agent.NodeFailedData
	require.NoError(t, json.Unmarshal(w.events[w.at(agent.NodeFailed, "a")-1].Data, &failed))
	require.Equal(t, agent.NodeFailedData{Index: 0, Handled: true,
		Error: &agent.Error{Code: agent.CodeToolFailed, Message: "failed by the script", NodeID: "a", CommandID: "a"}}, failed)
}

func TestSkippedNodesSayWhy(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a").onError(agent.OnErrorSkip), work("b", "a"), work("c", "b"), work("d"), work("e", "d", "c"), say("answer", "e"))),
		script{"a": {{ends: fails}}})
	require.NoError(t, w.err)
	for node, want := range map[string]string{"b": "node a failed", "c": "node b was skipped", "e": "node c was skipped"} {
		var skipped agent.NodeSkippedData
		require.NoError(t, json.Unmarshal(w.events[w.at(agent.NodeSkipped, node)-1].Data, &skipped))
		require.Equal(t, want, skipped.Reason, node)
	}
	require.Equal(t, []string{"a", "d", "answer"}, w.commands())
}

func TestFailureStartsNothingNewAndWaitsForWhatIsAtWork(t *testing.T) {
	t.Parallel()
	w := run(t, parallel(input(graph(work("a"), work("b"), work("c"), say("d", "a", "b", "c"))), 2),
		script{"a": {{ends: fails}}, "b": {{takes: 100 * time.Hour}}})
	require.Equal(t, agent.CodeInternal, w.failure())
	require.Equal(t, []string{"a", "b"}, w.commands())
	require.Contains(t, w.types("b"), agent.NodeFinished)
	require.Less(t, w.at(agent.NodeFinished, "b"), w.at(agent.RunFailed, "a"))
}

func TestFailureOfAnotherNodeEndsTheTries(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a"), work("b").tries(5), say("c", "a", "b"))), script{
		"a": {{ends: fails, code: agent.CodeToolFailed, takes: time.Hour}}, "b": {{ends: fails, takes: 2 * time.Hour}},
	})
	require.Equal(t, agent.CodeToolFailed, w.failure())
	require.Equal(t, []string{"a", "b"}, w.commands())
}

func TestFirstFailureIsTheRuns(t *testing.T) {
	t.Parallel()
	w := run(t, input(graph(work("a"), work("b"), say("c", "a", "b"))), script{
		"a": {{ends: fails, code: agent.CodeToolFailed, takes: 2 * time.Hour}},
		"b": {{ends: fails, code: agent.CodeInvalidArguments, takes: time.Hour}},
	})
	require.Equal(t, agent.CodeInvalidArguments, w.failure())
	require.Equal(t, "b", w.finish.Error.NodeID)
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandFailedType, agent.NodeFailed}, w.types("a"))
}

func TestActivityErrors(t *testing.T) {
	t.Parallel()
	idempotent, external := work("a"), send("a")
	for name, c := range map[string]struct {
		node    step
		effects []effect
		ends    agent.Status
		code    agent.Code
		called  int // how often the tool's activity is scheduled
		settled int
		reason  agent.Code // that SettleCommand is told
	}{
		"committed, the reply lost": {node: idempotent, effects: []effect{{ends: unheard}}, ends: agent.Completed, called: 1, settled: 1, reason: agent.CodeInternal},
		"external, committed, the reply lost": {node: external, effects: []effect{{ends: unheard}}, ends: agent.Completed, called: 1, settled: 1,
			reason: agent.CodeInternal},
		"never began": {node: idempotent, effects: []effect{{ends: refused}, {}}, ends: agent.Completed, called: 2, settled: 1, reason: agent.CodeInternal},
		"external, never began": {node: external, effects: []effect{{ends: refused, code: agent.CodeSuperseded}, {}}, ends: agent.Completed, called: 2, settled: 1,
			reason: agent.CodeSuperseded},
		"never begins": {node: idempotent, effects: []effect{{ends: refused, code: agent.CodeToolUnknown}}, ends: agent.FailedStatus,
			code: agent.CodeToolUnknown, called: 4, settled: 4, reason: agent.CodeToolUnknown},
		"began and was lost": {node: idempotent, effects: []effect{{ends: lost, code: agent.CodeToolFailed}}, ends: agent.FailedStatus,
			code: agent.CodeToolFailed, called: 1, settled: 1, reason: agent.CodeToolFailed},
		"the worker was lost": {node: idempotent, effects: []effect{{ends: lost, code: agent.CodeTimeout}}, ends: agent.FailedStatus,
			code: agent.CodeTimeout, called: 1, settled: 1, reason: agent.CodeTimeout},
		"another input": {node: idempotent, effects: []effect{{ends: refused, code: agent.CodeMismatch}}, ends: agent.FailedStatus,
			code: agent.CodeMismatch, called: 1, settled: 1, reason: agent.CodeMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, input(graph(c.node, say("b", "a"))), script{"a": c.effects})
			require.Equal(t, c.ends, w.finish.Status)
			require.Equal(t, c.called, count(w, agent.CallTool))
			require.Equal(t, c.settled, count(w, agent.SettleCommand))
			if c.code != "" {
				require.Equal(t, c.code, w.failure())
				require.Equal(t, "a", w.finish.Error.NodeID)
			}
			scheduled := 0
			for _, call := range w.calls {
				switch {
				case call.name == string(agent.SettleCommand):
					require.Equal(t, c.reason, call.reason)
					require.Equal(t, scheduled, call.schedule, "what is settled is the schedule that was given up")
				case call.command == "a":
					require.Greater(t, call.schedule, scheduled, "a newer schedule passes the fence of an older one")
					scheduled = call.schedule
				}
			}
		})
	}
}

func TestCommandThatCannotBeSettledFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(work("a"), say("b", "a"))), script{"a": {{ends: lost, code: agent.CodeTimeout}}})
	w.refuseSettle = true
	w.run()
	require.Equal(t, agent.CodeInternal, w.failure())
	require.Equal(t, agent.FailedStatus, w.finish.Status, "the run has an end of its own")
}

func TestStaleEpochEndsWithoutAWord(t *testing.T) {
	t.Parallel()
	replaced := effect{ends: refused, code: agent.CodeStaleEpoch}
	for name, c := range map[string]struct {
		in     agent.RunInput
		script script
	}{
		"the planner":            {input(nil), script{"plan": {replaced}}},
		"a node":                 {input(graph(work("a"), say("b", "a"))), script{"a": {replaced}}},
		"a node beside others":   {input(graph(work("a"), work("c"), say("b", "a", "c"))), script{"a": {replaced}, "c": {{takes: 10 * time.Hour}}}},
		"a node beside a failed": {input(graph(work("a"), work("c"), say("b", "a", "c"))), script{"a": {replaced}, "c": {{ends: fails, takes: time.Second}}}},
		"a turn":                 {react(), script{"main#1": {asks(2)}, "main#1.1": {replaced}}},
		"a command to settle": {input(graph(work("a"), say("b", "a"))), script{"a": {{ends: refused, begun: func(w *world) {
			w.status = agent.Completed // by somebody else
		}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, c.in, c.script)
			require.Equal(t, agent.CodeStaleEpoch, w.failure())
			require.Nil(t, w.finish)
			require.Zero(t, count(w, agent.Finish))
		})
	}
}

func TestFinishThatIsRefusedFailsTheWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, input(graph(say("a"))), nil)
	w.finishing = func(w *world) { w.status = agent.Completed } // by another execution, in between
	w.run()
	require.Equal(t, agent.CodeStaleEpoch, w.failure())
	require.NotContains(t, eventTypes(w), agent.RunCompleted)
}

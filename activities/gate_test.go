package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// says is a hook that ends a call as it is told, after its effect has taken place.
func says(output string, err error) hook {
	return func(context.Context, tool.Call) (json.RawMessage, error) { return json.RawMessage(output), err }
}

func TestHowAnEffectEnds(t *testing.T) {
	t.Parallel()
	l := setup(t)
	ending := func(e agent.EventType) []agent.EventType {
		return []agent.EventType{agent.NodeStarted, agent.CommandEmitted, e}
	}
	all := []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External}
	repeatable := all[:2]
	for _, c := range []struct {
		name    string
		classes []agent.EffectClass
		after   hook
		ends    agent.Outcome
		code    agent.Code
		message string
		retried bool // Temporal is asked to come back
		record  []agent.EventType
	}{
		{"a definite failure", all, says("", agent.Failed(agent.CodeToolFailed, "no such city")), agent.OutcomeFailed, agent.CodeToolFailed, "no such city", false,
			ending(agent.CommandFailedType)},
		{"arguments that only the tool can judge", all, says("", &tool.ArgumentError{Pointer: "/n", Message: "odd"}), agent.OutcomeFailed,
			agent.CodeInvalidArguments, "/n: odd", false, ending(agent.CommandFailedType)},
		{"a transient failure", all, says("", agent.Transient(agent.CodeToolFailed, "busy")), "", agent.CodeToolFailed, "busy", true,
			ending(agent.AttemptDiscarded)},
		{"an unknown failure", repeatable, says("", agent.Unknown(agent.CodeToolFailed, "cut off")), "", agent.CodeToolFailed, "cut off", true,
			ending(agent.AttemptDiscarded)},
		{"an unknown failure of an external effect", all[2:], says("", agent.Unknown(agent.CodeToolFailed, "cut off")), agent.OutcomeInDoubt,
			agent.CodeToolFailed, "cut off", false, ending(agent.CommandDoubtType)},
		{"any other error", all[1:2], says("", errors.New("broken pipe")), "", agent.CodeToolFailed, "broken pipe", true, ending(agent.AttemptDiscarded)},
		{"any other error of a pure function", all[:1], says("", errors.New("divide by zero")), agent.OutcomeFailed, agent.CodeToolFailed, "divide by zero", false,
			ending(agent.CommandFailedType)},
		{"any other error of an external effect", all[2:], says("", errors.New("broken pipe")), agent.OutcomeInDoubt, agent.CodeToolFailed, "broken pipe", false,
			ending(agent.CommandDoubtType)},
		{"output that is not JSON", repeatable, says("{", nil), agent.OutcomeFailed, agent.CodeToolFailed, "not JSON", false, ending(agent.CommandFailedType)},
		{"no output", repeatable, says("", nil), agent.OutcomeFailed, agent.CodeToolFailed, "not JSON", false, ending(agent.CommandFailedType)},
		{"output of an external effect that is not JSON", all[2:], says("{", nil), agent.OutcomeInDoubt, agent.CodeToolFailed, "not JSON", false,
			ending(agent.CommandDoubtType)},
		{"a panic", all[1:2], panics, "", agent.CodeToolFailed, "panic: oh", true, ending(agent.AttemptDiscarded)},
		{"a panic of a pure function", all[:1], panics, agent.OutcomeFailed, agent.CodeToolFailed, "panic: oh", false, ending(agent.CommandFailedType)},
		{"a panic of an external effect", all[2:], panics, agent.OutcomeInDoubt, agent.CodeToolFailed, "panic: oh", false, ending(agent.CommandDoubtType)},
	} {
		for _, class := range c.classes {
			t.Run(c.name+"/"+string(class), func(t *testing.T) {
				t.Parallel()
				run := l.oneNode(t, class)
				in := agent.ToolCall{Call: call(run, 1), Tool: toolOf(class)}
				reply, err := l.callTool(t, try{hooks: hooks{after: c.after}}, in)
				require.Equal(t, c.record, l.types(t, run))
				require.Len(t, l.probe.of(run, "a"), 1)
				if c.retried {
					app := requireCode(t, err, c.code, true)
					require.ErrorContains(t, err, c.message)
					require.Equal(t, 250*time.Millisecond, app.NextRetryDelay())
					reply, err = l.callTool(t, try{attempt: 2}, in)
					require.NoError(t, err)
					require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
					return
				}
				require.NoError(t, err)
				require.Equal(t, c.ends, reply.Outcome)
				require.Equal(t, c.code, reply.Error.Code)
				require.Contains(t, reply.Error.Message, c.message)
				require.Equal(t, "a", reply.Error.CommandID)
				again, err := l.callTool(t, try{attempt: 2}, in)
				require.NoError(t, err)
				require.Equal(t, reply, again, "the outcome stands, and nothing is executed")
				require.Len(t, l.probe.of(run, "a"), 1)
			})
		}
	}
}

func panics(context.Context, tool.Call) (json.RawMessage, error) { panic("oh") }

func TestEffectIsExecutedFiveTimesAtMost(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for _, class := range []agent.EffectClass{agent.Idempotent, agent.External} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			run := l.oneNode(t, class)
			in := agent.ToolCall{Call: call(run, 1), Tool: toolOf(class)}
			how := try{hooks: hooks{after: says("", agent.Transient(agent.CodeToolFailed, "busy"))}}
			var reply agent.Reply
			for n := range int32(agent.MaxDispatches) {
				how.attempt = n + 1
				var err error
				reply, err = l.callTool(t, how, in)
				if n+1 < agent.MaxDispatches {
					app := requireCode(t, err, agent.CodeToolFailed, true)
					require.Equal(t, 250*time.Millisecond<<n, app.NextRetryDelay(), "pauses double")
					continue
				}
				require.NoError(t, err)
			}
			require.Equal(t, agent.OutcomeFailed, reply.Outcome)
			require.Equal(t, agent.CodeTooManyTries, reply.Error.Code)
			require.Contains(t, reply.Error.Message, "busy")
			require.Equal(t, []int{1, 2, 3, 4, 5}, l.probe.of(run, "a"), "each dispatch has its number")
		})
	}
}

func TestCrashesCountAsExecutions(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.Idempotent)
	in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
	for n := range int32(agent.MaxDispatches) {
		how := breaks(afterEffect, crashes)
		how.attempt = n + 1
		_, err := l.callTool(t, how, in)
		require.ErrorIs(t, err, errCrashed)
		l.expire(t, run)
	}
	reply, err := l.callTool(t, try{attempt: 6}, in)
	require.NoError(t, err)
	require.Equal(t, agent.CodeTooManyTries, reply.Error.Code)
	require.Len(t, l.probe.of(run, "a"), agent.MaxDispatches)
}

func TestPauseThatIsAskedForIsKept(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for name, c := range map[string]struct{ asked, want time.Duration }{
		"longer than ours": {time.Minute, time.Minute}, "shorter than ours": {time.Millisecond, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := l.oneNode(t, agent.Idempotent)
			busy := agent.Transient(agent.CodeToolFailed, "busy")
			busy.RetryAfter = c.asked
			_, err := l.callTool(t, try{hooks: hooks{after: says("", busy)}}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
			require.Equal(t, c.want, requireCode(t, err, agent.CodeToolFailed, true).NextRetryDelay())
			var discarded agent.AttemptDiscardedData
			events := l.events(t, run)
			require.NoError(t, json.Unmarshal(events[len(events)-1].Data, &discarded))
			require.Equal(t, c.want.Milliseconds(), discarded.RetryAfterMS)
			require.Contains(t, discarded.Reason, "busy")
		})
	}
}

func TestLostDispatchIsWaitedFor(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for _, class := range []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			run := l.oneNode(t, class)
			in := agent.ToolCall{Call: call(run, 1), Tool: toolOf(class)}
			_, err := l.callTool(t, breaks(beforeEffect, crashes), in)
			require.ErrorIs(t, err, errCrashed)
			_, err = l.callTool(t, try{attempt: 2}, in)
			app := requireCode(t, err, agent.CodeLeased, true)
			require.Greater(t, app.NextRetryDelay(), 5*time.Second)
			require.LessOrEqual(t, app.NextRetryDelay(), agent.Lease)
			require.Empty(t, l.probe.of(run, "a"))
		})
	}
}

func TestDispatchThatIsNotTheNewestIsRefused(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.Idempotent)
	newer := agent.ToolCall{Call: call(run, 2), Tool: "put"}
	_, err := l.callTool(t, breaks(beforeEffect, crashes), newer)
	require.ErrorIs(t, err, errCrashed)
	_, err = l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
	requireCode(t, err, agent.CodeSuperseded, false)
	require.Empty(t, l.probe.of(run, "a"))
}

// overtaken is a ledger in which a newer dispatch takes the command over before this one has ended.
type overtaken struct {
	activities.Ledger
	by func()
}

func (o overtaken) Commit(ctx context.Context, c agent.Commit) (agent.Decided, error) {
	o.by()
	return o.Ledger.Commit(ctx, c)
}

func (o overtaken) Conclude(ctx context.Context, c agent.Conclude) (agent.Decided, error) {
	o.by()
	return o.Ledger.Conclude(ctx, c)
}

func TestDispatchThatWasOvertakenWritesNothing(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for name, c := range map[string]struct {
		mine   hook // how the old dispatch ends
		second func(t *testing.T, in agent.ToolCall)
		code   agent.Code
		ends   agent.Outcome
	}{
		"by one that is at work": {mine: nil, second: func(t *testing.T, in agent.ToolCall) {
			_, err := l.callTool(t, breaks(beforeEffect, crashes), in)
			require.ErrorIs(t, err, errCrashed)
		}, code: agent.CodeSuperseded},
		"by one that has committed": {second: func(t *testing.T, in agent.ToolCall) {
			_, err := l.callTool(t, try{}, in)
			require.NoError(t, err)
		}, ends: agent.OutcomeCommitted},
		"by one that has failed": {second: func(t *testing.T, in agent.ToolCall) {
			_, err := l.callTool(t, try{hooks: hooks{after: says("", agent.Failed(agent.CodeToolFailed, "no"))}}, in)
			require.NoError(t, err)
		}, ends: agent.OutcomeFailed},
		"and has failed itself": {mine: says("", agent.Failed(agent.CodeToolFailed, "mine")), second: func(t *testing.T, in agent.ToolCall) {
			_, err := l.callTool(t, try{}, in)
			require.NoError(t, err)
		}, ends: agent.OutcomeCommitted},
		"and is to be tried again": {mine: says("", agent.Transient(agent.CodeToolFailed, "mine")), second: func(t *testing.T, in agent.ToolCall) {
			_, err := l.callTool(t, breaks(beforeEffect, crashes), in)
			require.ErrorIs(t, err, errCrashed)
		}, code: agent.CodeSuperseded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := l.oneNode(t, agent.Idempotent)
			before := 0
			how := try{hooks: hooks{after: c.mine}, ledger: func(store activities.Ledger) activities.Ledger {
				return overtaken{store, func() {
					l.expire(t, run)
					c.second(t, agent.ToolCall{Call: call(run, 2), Tool: "put"})
					before = len(l.events(t, run))
				}}
			}}
			reply, err := l.callTool(t, how, agent.ToolCall{Call: call(run, 1), Tool: "put"})
			if c.code != "" {
				requireCode(t, err, c.code, false)
			} else {
				require.NoError(t, err)
				require.Equal(t, c.ends, reply.Outcome)
			}
			require.Len(t, l.events(t, run), before)
			require.LessOrEqual(t, countTypes(l.types(t, run), agent.CommandCommitted), 1)
		})
	}
}

func TestLateResultSettlesADoubt(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.External)
	in := agent.ToolCall{Call: call(run, 1), Tool: "mail"}
	how := try{ledger: func(store activities.Ledger) activities.Ledger {
		return overtaken{store, func() {
			l.expire(t, run)
			reply, err := l.callTool(t, try{attempt: 2}, in)
			require.NoError(t, err)
			require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
		}}
	}}
	reply, err := l.callTool(t, how, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Nil(t, reply.Error, "the doubt is over")
	require.Equal(t, []int{1}, l.probe.of(run, "a"))
	require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandDoubtType, agent.CommandResolved, agent.CommandCommitted,
		agent.NodeFinished, agent.CheckpointSaved}, l.types(t, run))
}

func TestCommandWithAnotherInputIsRefused(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.Idempotent)
	in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
	_, err := l.callTool(t, try{}, in)
	require.NoError(t, err)
	l.exec(t, `UPDATE commands SET input_hash = 'another' WHERE run_id = $1`, run.RunID)
	_, err = l.callTool(t, try{attempt: 2}, in)
	requireCode(t, err, agent.CodeMismatch, false)
	require.ErrorContains(t, err, "hash another")
	require.Len(t, l.probe.of(run, "a"), 1)
}

func TestReplacedExecutionIsRefused(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for name, sql := range map[string]string{
		"a newer epoch": `UPDATE agent_executions SET epoch = 2 WHERE run_id = $1`,
		"an ended run":  `UPDATE agent_executions SET status = 'failed' WHERE run_id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := l.oneNode(t, agent.Idempotent)
			in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
			before := len(l.events(t, run))
			replace := func(context.Context, tool.Call) (json.RawMessage, error) {
				l.exec(t, sql, run.RunID)
				return json.RawMessage(`1`), nil
			}
			_, err := l.callTool(t, try{hooks: hooks{after: replace}}, in)
			requireCode(t, err, agent.CodeStaleEpoch, false) // at the commit
			require.Len(t, l.events(t, run), before+2)
			_, err = l.callTool(t, try{attempt: 2}, in)
			requireCode(t, err, agent.CodeStaleEpoch, false) // at the begin
			require.Len(t, l.events(t, run), before+2, "an execution that was replaced writes nothing")
			require.Len(t, l.probe.of(run, "a"), 1)
			for what, err := range l.housekeeping(t, run) {
				requireCode(t, err, agent.CodeStaleEpoch, false)
				require.Len(t, l.events(t, run), before+2, what)
			}
		})
	}
	t.Run("no such run", func(t *testing.T) {
		t.Parallel()
		run := l.oneNode(t, agent.Idempotent)
		run.RunID = run.ConversationID
		_, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
		requireCode(t, err, agent.CodeStaleEpoch, false)
	})
}

// housekeeping is what the activities without an effect say.
func (l *lab) housekeeping(t testing.TB, run agent.Run) map[string]error {
	t.Helper()
	scope := call(run, 1).Scope
	said := map[string]error{}
	_, said["settle"] = attempt(t, l, try{}, func(a *activities.Activities) func(context.Context, agent.SettleCall) (agent.SettleReply, error) {
		return a.SettleCommand
	},
		agent.SettleCall{Call: call(run, 1)})
	fact := agent.Fact{No: 1, Type: agent.NodeSkipped, NodeID: "a", Data: json.RawMessage(`{"node_index": 0, "reason": "x"}`)}
	scope.Facts = []agent.Fact{fact}
	_, said["record"] = attempt(t, l, try{}, func(a *activities.Activities) func(context.Context, agent.RecordCall) (agent.RecordReply, error) {
		return a.Record
	},
		agent.RecordCall{Scope: scope})
	if run, _, err := l.WorkerRun(t.Context(), run.RunID); err == nil && run.Epoch > 1 {
		_, said["finish"] = attempt(t, l, try{}, func(a *activities.Activities) func(context.Context, agent.FinishCall) (agent.FinishReply, error) {
			return a.Finish
		},
			agent.FinishCall{Scope: scope, Status: agent.Cancelled, Error: &agent.Error{Code: agent.CodeCancelled}})
	}
	return said
}

func TestFaultsThatAreKnownBeforeTheCallGoOnRecord(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for name, c := range map[string]struct {
		plan    string
		tool    string
		code    agent.Code
		message string
	}{
		"a reference to nothing": {plan: `{"nodes": [{"id": "a", "kind": "tool", "tool": "mail", "args": {"n": {"$from": "/metadata/none"}}}]}`, tool: "mail",
			code: agent.CodeReference, message: "reference /metadata/none: nothing at /none"},
		"arguments that do not fit": {plan: `{"nodes": [{"id": "a", "kind": "tool", "tool": "mail", "args": {"n": {"$from": "/metadata/k"}}}]}`, tool: "mail",
			code: agent.CodeInvalidArguments, message: "/n"},
		"a tool that the agent does not have":  {plan: plain, tool: "other", code: agent.CodeToolUnknown, message: `no tool "other"`},
		"a tool that the worker does not have": {plan: plain, tool: "gone", code: agent.CodeToolUnknown, message: `this worker has no tool "gone"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := l.accept(t, agent.ModePlan, c.plan)
			if c.tool == "gone" {
				l.exec(t, `UPDATE agent_executions SET definition = replace(definition::text, '"name":"mail"', '"name":"gone"')::json WHERE run_id = $1`, run.RunID)
			}
			reply, err := l.callTool(t, try{}, agent.ToolCall{Call: call(run, 1), Tool: c.tool})
			require.NoError(t, err)
			require.Equal(t, agent.OutcomeFailed, reply.Outcome, "nothing has happened, so an external tool has failed too")
			require.Equal(t, c.code, reply.Error.Code)
			require.Contains(t, reply.Error.Message, c.message)
			require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandFailedType}, l.types(t, run))
			require.Empty(t, l.probe.of(run, "a"))
		})
	}
}

const plain = `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {"n": 1}}]}`

func TestWorkerWithoutTheModelFailsTheCommand(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "llm", "prompt": "say"}]}`)
	reply, err := l.callModel(t, try{}, agent.ModelCall{Call: call(run, 1)})
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeFailed, reply.Outcome)
	require.Equal(t, agent.CodeModelFailed, reply.Error.Code)
	require.Contains(t, reply.Error.Message, `no model "default"`)
}

func TestFactsGoBeforeTheCommandThatCarriesThem(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.Idempotent)
	in := agent.ToolCall{Call: call(run, 1), Tool: "put"}
	in.Facts = []agent.Fact{{No: 1, Type: agent.NodeSkipped, NodeID: "x", Data: json.RawMessage(`{"node_index": 1, "reason": "r"}`)}}
	_, err := l.callTool(t, breaks(beforeCommit, crashes), in)
	require.ErrorIs(t, err, errCrashed)
	l.expire(t, run)
	in.Facts = append(in.Facts, agent.Fact{No: 2, Type: agent.NodeSkipped, NodeID: "y", Data: json.RawMessage(`{"node_index": 2, "reason": "r"}`)})
	_, err = l.callTool(t, try{attempt: 2}, in)
	require.NoError(t, err)
	require.Equal(t, []agent.EventType{agent.NodeSkipped, agent.NodeStarted, agent.CommandEmitted, agent.NodeSkipped, agent.AttemptDiscarded,
		agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, l.types(t, run))
}

func TestSettleCommand(t *testing.T) {
	t.Parallel()
	l := setup(t)
	lost := &agent.Error{Code: agent.CodeTimeout, Message: "heartbeat timeout"}
	for name, c := range map[string]struct {
		class  agent.EffectClass
		before func(t *testing.T, in agent.ToolCall)
		reason *agent.Error
		ends   agent.Outcome
		code   agent.Code
	}{
		"nothing on record": {class: agent.External, reason: lost, ends: agent.OutcomeUnknown},
		"committed": {class: agent.Idempotent, before: func(t *testing.T, in agent.ToolCall) {
			_, err := l.callTool(t, try{}, in)
			require.NoError(t, err)
		}, reason: lost, ends: agent.OutcomeCommitted},
		"failed": {class: agent.Idempotent, before: func(t *testing.T, in agent.ToolCall) {
			_, err := l.callTool(t, try{hooks: hooks{after: says("", agent.Failed(agent.CodeToolFailed, "no"))}}, in)
			require.NoError(t, err)
		}, reason: lost, ends: agent.OutcomeFailed, code: agent.CodeToolFailed},
		"lost at work": {class: agent.Idempotent, before: func(t *testing.T, in agent.ToolCall) {
			_, _ = l.callTool(t, breaks(afterEffect, crashes), in)
		}, reason: lost, ends: agent.OutcomeFailed, code: agent.CodeTimeout},
		"lost at work, external": {class: agent.External, before: func(t *testing.T, in agent.ToolCall) {
			_, _ = l.callTool(t, breaks(afterEffect, crashes), in)
		}, reason: lost, ends: agent.OutcomeInDoubt, code: agent.CodeInDoubt},
		"lost at work, cancelled": {class: agent.Idempotent, before: func(t *testing.T, in agent.ToolCall) {
			_, _ = l.callTool(t, breaks(afterEffect, crashes), in)
		}, reason: &agent.Error{Code: agent.CodeCancelled, Message: "enough"}, ends: agent.OutcomeAborted, code: agent.CodeCancelled},
		"to be tried again": {class: agent.Idempotent, before: func(t *testing.T, in agent.ToolCall) {
			_, err := l.callTool(t, try{hooks: hooks{after: says("", agent.Transient(agent.CodeToolFailed, "busy"))}}, in)
			require.Error(t, err)
		}, reason: lost, ends: agent.OutcomeFailed, code: agent.CodeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := l.oneNode(t, c.class)
			in := agent.ToolCall{Call: call(run, 1), Tool: toolOf(c.class)}
			if c.before != nil {
				c.before(t, in)
			}
			executed := len(l.probe.of(run, "a"))
			settled := l.settle(t, agent.SettleCall{Call: in.Call, Reason: c.reason})
			require.Equal(t, c.ends, settled.Outcome)
			if c.code != "" {
				require.Equal(t, c.code, settled.Error.Code)
			}
			// Whatever was decided: the schedule that was given up can do nothing any more.
			late, err := l.callTool(t, try{attempt: 9}, in)
			if c.ends == agent.OutcomeUnknown {
				requireCode(t, err, agent.CodeSuperseded, false)
				newer := in
				newer.Schedule = 2
				late, err = l.callTool(t, try{}, newer)
				require.NoError(t, err)
				require.Equal(t, agent.OutcomeCommitted, late.Outcome, "a newer schedule passes the fence")
				executed++
			} else {
				require.NoError(t, err)
				require.Equal(t, c.ends, late.Outcome)
			}
			require.Len(t, l.probe.of(run, "a"), executed)
		})
	}
}

func TestSettleTellsTheToolsOfATurn(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.models = answering{l.probe, func(model.Request) (model.Reply, error) {
		return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: "x", Name: "mail", Arguments: `{}`}, {ID: "y", Name: "dream", Arguments: `{}`}}}, nil
	}}
	run := l.accept(t, agent.ModeReact, "")
	in := agent.ModelCall{Call: call(run, 1), Turn: 1}
	in.CommandID, in.NodeID = "main#1", agent.MainNodeID
	reply, err := l.callModel(t, try{}, in)
	require.NoError(t, err)
	require.NotEqual(t, reply.Tools[0].Digest, reply.Tools[1].Digest)
	require.Equal(t, []agent.ToolRequest{
		{Tool: "mail", Effect: agent.External, Timeout: agent.DefaultToolTimeout, Digest: reply.Tools[0].Digest},
		{Tool: "dream", Effect: agent.External, Timeout: agent.DefaultToolTimeout, Digest: reply.Tools[1].Digest}, // it is called, and the model reads that it does not exist
	}, reply.Tools)
	settled := l.settle(t, agent.SettleCall{Call: in.Call})
	require.Equal(t, reply.Tools, settled.Tools)
	require.Equal(t, reply.Reply, settled.Reply)
}

func TestReplyIsSmallHoweverLargeTheResult(t *testing.T) {
	t.Parallel()
	l := setup(t)
	run := l.oneNode(t, agent.Idempotent)
	large := fmt.Sprintf("%q", strings.Repeat("é", 100_000))
	reply, err := l.callTool(t, try{hooks: hooks{after: says(large, nil)}}, agent.ToolCall{Call: call(run, 1), Tool: "put"})
	require.NoError(t, err)
	require.Equal(t, len(large), reply.Bytes)
	require.Len(t, reply.Hash, 64)
	require.LessOrEqual(t, len(reply.Preview), 130)
	raw, err := json.Marshal(reply)
	require.NoError(t, err)
	require.Less(t, len(raw), 500)
	require.Equal(t, large, string(l.row(t, run, "a").Result), "byte for byte")
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	set, err := tool.NewSet()
	require.NoError(t, err)
	models := func(string) model.Client { return nil }
	for want, cfg := range map[string]activities.Config{
		"no ledger": {Models: models, Tools: set},
		"no models": {Ledger: breakingLedger{}, Tools: set},
		"no tools":  {Ledger: breakingLedger{}, Models: models},
	} {
		_, err := activities.New(cfg)
		require.ErrorContains(t, err, want)
	}
}

type breakingLedger struct{ activities.Ledger }

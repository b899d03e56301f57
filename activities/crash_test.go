package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// point is a place on the way of a command through the gate.
type point string

const (
	beforeBegin  point = "before begin"
	afterBegin   point = "after begin"
	beforeEffect point = "before the effect"
	afterEffect  point = "after the effect"
	beforeCommit point = "before commit"
	afterCommit  point = "after commit"
	afterReply   point = "after the reply"
)

// breaking is a ledger whose calls break once, before or after they have done their work.
type breaking struct {
	activities.Ledger
	at   point
	fail func() error
	done bool
}

// errLost is what the driver says when its connection is gone.
var errLost = errors.New("connection lost")

func (b *breaking) broken(at point) error {
	if b.done || b.at != at {
		return nil
	}
	b.done = true
	return b.fail()
}

func (b *breaking) Begin(ctx context.Context, in agent.Begin) (agent.Begun, error) {
	if err := b.broken(beforeBegin); err != nil {
		return agent.Begun{}, err
	}
	begun, err := b.Ledger.Begin(ctx, in)
	if lost := b.broken(afterBegin); lost != nil {
		return agent.Begun{}, lost
	}
	return begun, err
}

// Commit and Conclude are the two ways in which a dispatch ends.
func (b *breaking) Commit(ctx context.Context, in agent.Commit) (agent.Decided, error) {
	return b.decide(func() (agent.Decided, error) { return b.Ledger.Commit(ctx, in) })
}

func (b *breaking) Conclude(ctx context.Context, in agent.Conclude) (agent.Decided, error) {
	return b.decide(func() (agent.Decided, error) { return b.Ledger.Conclude(ctx, in) })
}

func (b *breaking) decide(write func() (agent.Decided, error)) (agent.Decided, error) {
	if err := b.broken(beforeCommit); err != nil {
		return agent.Decided{}, err
	}
	decided, err := write()
	if lost := b.broken(afterCommit); lost != nil {
		return agent.Decided{}, lost
	}
	return decided, err
}

// breaks is a try that breaks at a point: with a crash of the worker, or with a connection to the ledger that is lost.
func breaks(at point, fail func() error) try {
	stop := func(context.Context, tool.Call) (json.RawMessage, error) { crash(); return nil, nil }
	how := try{ledger: func(l activities.Ledger) activities.Ledger { return &breaking{Ledger: l, at: at, fail: fail} }}
	switch at {
	case beforeEffect:
		how.hooks.before = stop
	case afterEffect:
		how.hooks.after = stop
	default:
	}
	return how
}

func crashes() error { crash(); return nil }

func loses() error { return errLost }

// effectsOf counts what the record has of each event type.
func countTypes(types []agent.EventType, want agent.EventType) int {
	n := 0
	for _, typ := range types {
		if typ == want {
			n++
		}
	}
	return n
}

func TestWorkerCrashesAtEveryStep(t *testing.T) {
	t.Parallel()
	l := setup(t)
	plain := []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}
	again := []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.AttemptDiscarded, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}
	doubt := []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandDoubtType}
	for at, want := range map[point]struct {
		// effects are the attempts in which the effect took place, with a repeatable effect and with an external one.
		repeatable, external []int
		record, recordOfExt  []agent.EventType
	}{
		beforeBegin:  {[]int{1}, []int{1}, plain, plain},
		afterBegin:   {[]int{2}, nil, again, doubt},
		beforeEffect: {[]int{2}, nil, again, doubt},
		afterEffect:  {[]int{1, 2}, []int{1}, again, doubt},
		beforeCommit: {[]int{1, 2}, []int{1}, again, doubt},
		afterCommit:  {[]int{1}, []int{1}, plain, plain},
		afterReply:   {[]int{1}, []int{1}, plain, plain},
	} {
		for _, class := range []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External} {
			t.Run(string(at)+"/"+string(class), func(t *testing.T) {
				t.Parallel()
				run := l.oneNode(t, class)
				in := agent.ToolCall{Call: call(run, 1), Tool: toolOf(class)}
				_, err := l.callTool(t, breaks(at, crashes), in)
				if at == afterReply {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, errCrashed)
				}
				l.expire(t, run)
				reply, err := l.callTool(t, try{attempt: 2}, in)
				require.NoError(t, err)
				effects, record := want.repeatable, want.record
				if class == agent.External {
					effects, record = want.external, want.recordOfExt
				}
				require.Equal(t, effects, l.probe.of(run, "a"))
				require.Equal(t, record, l.types(t, run))
				if countTypes(record, agent.CommandDoubtType) > 0 {
					require.Equal(t, agent.OutcomeInDoubt, reply.Outcome)
					require.Equal(t, agent.CodeInDoubt, reply.Error.Code)
					return
				}
				require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
				require.JSONEq(t, `{"n": 42}`, string(l.row(t, run, "a").Result))
				third, err := l.callTool(t, try{attempt: 3}, in)
				require.NoError(t, err)
				require.Equal(t, reply, third, "the record answers the same every time")
				require.Equal(t, effects, l.probe.of(run, "a"))
			})
		}
	}
}

func TestConnectionToTheLedgerIsLostAtEveryStep(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for _, at := range []point{beforeBegin, afterBegin, beforeCommit, afterCommit} {
		for _, class := range []agent.EffectClass{agent.Deterministic, agent.Idempotent, agent.External} {
			t.Run(string(at)+"/"+string(class), func(t *testing.T) {
				t.Parallel()
				run := l.oneNode(t, class)
				reply, err := l.callTool(t, breaks(at, loses), agent.ToolCall{Call: call(run, 1), Tool: toolOf(class)})
				require.NoError(t, err)
				require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
				require.Equal(t, []int{1}, l.probe.of(run, "a"), "a lost connection repeats no effect")
				require.Equal(t, []agent.EventType{agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved},
					l.types(t, run))
			})
		}
	}
}

func TestFailureIsLostAtEveryStep(t *testing.T) {
	t.Parallel()
	l := setup(t)
	refuse := func(context.Context, tool.Call) (json.RawMessage, error) {
		return nil, agent.Failed(agent.CodeToolFailed, "no")
	}
	for _, c := range []struct {
		at      point
		how     func() error
		class   agent.EffectClass
		effects int
		ends    agent.Outcome
	}{
		{beforeCommit, crashes, agent.Idempotent, 2, agent.OutcomeFailed},
		{beforeCommit, crashes, agent.External, 1, agent.OutcomeInDoubt},
		{afterCommit, crashes, agent.Idempotent, 1, agent.OutcomeFailed},
		{afterCommit, crashes, agent.External, 1, agent.OutcomeFailed},
		{beforeCommit, loses, agent.External, 1, agent.OutcomeFailed},
		{afterCommit, loses, agent.External, 1, agent.OutcomeFailed},
	} {
		t.Run(string(c.at)+"/"+string(c.class), func(t *testing.T) {
			t.Parallel()
			run := l.oneNode(t, c.class)
			in := agent.ToolCall{Call: call(run, 1), Tool: toolOf(c.class)}
			how := breaks(c.at, c.how)
			how.hooks.after = refuse
			if _, err := l.callTool(t, how, in); err != nil {
				require.ErrorIs(t, err, errCrashed)
				l.expire(t, run)
			}
			reply, err := l.callTool(t, try{attempt: 2, hooks: hooks{after: refuse}}, in)
			require.NoError(t, err)
			require.Equal(t, c.ends, reply.Outcome)
			require.Len(t, l.probe.of(run, "a"), c.effects)
			require.LessOrEqual(t, countTypes(l.types(t, run), agent.CommandFailedType), 1)
			require.Zero(t, countTypes(l.types(t, run), agent.CommandCommitted))
		})
	}
}

func TestModelCrashesAtEveryStep(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.models = answering{l.probe, func(model.Request) (model.Reply, error) {
		return model.Reply{Text: "hello", Finish: model.FinishStop, Usage: model.Usage{InputTokens: 3, OutputTokens: 1}}, nil
	}}
	for at, effects := range map[point]int{beforeBegin: 1, afterBegin: 1, beforeEffect: 1, afterEffect: 2, beforeCommit: 2, afterCommit: 1, afterReply: 1} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "llm", "prompt": "say hello"}]}`)
			in := agent.ModelCall{Call: call(run, 1)}
			if _, err := l.callModel(t, breaks(at, crashes), in); at != afterReply {
				require.ErrorIs(t, err, errCrashed)
			}
			l.expire(t, run)
			reply, err := l.callModel(t, try{attempt: 2}, in)
			require.NoError(t, err)
			require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
			require.Equal(t, `"hello"`, reply.Preview)
			require.Len(t, l.probe.of(run, "a"), effects)
			types := l.types(t, run)
			require.Equal(t, 1, countTypes(types, agent.CommandCommitted))
			require.Equal(t, []agent.EventType{agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, types[len(types)-3:])
		})
	}
}

func TestTurnCrashesAtEveryStep(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.models = answering{l.probe, func(req model.Request) (model.Reply, error) {
		if req.Messages[len(req.Messages)-1].Role == model.ToolRole {
			return model.Reply{Text: "it is 42", Finish: model.FinishStop}, nil
		}
		return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: "x", Name: "put", Arguments: `{"n": 21}`}}}, nil
	}}
	for at, effects := range map[point]int{beforeBegin: 1, afterBegin: 1, beforeEffect: 1, afterEffect: 2, beforeCommit: 2, afterCommit: 1, afterReply: 1} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			run := l.accept(t, agent.ModeReact, "")
			in := func(id string, schedule int, ends bool) agent.Call {
				c := call(run, schedule)
				c.CommandID, c.NodeID, c.Opens, c.Ends = id, agent.MainNodeID, schedule == 1, ends
				return c
			}
			broken := func(do func(try) error) {
				t.Helper()
				if err := do(breaks(at, crashes)); at != afterReply {
					require.ErrorIs(t, err, errCrashed)
				}
				l.expire(t, run)
				require.NoError(t, do(try{attempt: 2}))
			}
			var turn agent.ModelReply
			broken(func(how try) (err error) {
				turn, err = l.callModel(t, how, agent.ModelCall{Call: in("main#1", 1, true), Turn: 1})
				return err
			})
			require.Len(t, turn.Tools[0].Digest, 16)
			turn.Tools[0].Digest = ""
			require.Equal(t, []agent.ToolRequest{{Tool: "put", Effect: agent.Idempotent, Timeout: agent.DefaultToolTimeout}}, turn.Tools)
			require.NotContains(t, l.types(t, run), agent.NodeFinished, "a turn that asks for tools does not end its node, however often it is read")
			broken(func(how try) error {
				_, err := l.callTool(t, how, agent.ToolCall{Call: in("main#1.0", 2, false), Tool: "put", FromCommand: "main#1"})
				return err
			})
			broken(func(how try) (err error) {
				turn, err = l.callModel(t, how, agent.ModelCall{Call: in("main#2", 3, true), Turn: 2})
				return err
			})
			require.Empty(t, turn.Tools)
			require.Equal(t, `"it is 42"`, turn.Preview)
			for _, id := range []string{"main#1", "main#1.0", "main#2"} {
				require.Len(t, l.probe.of(run, id), effects, id)
			}
			record := []agent.EventType{}
			for _, typ := range l.types(t, run) {
				if typ != agent.AttemptDiscarded {
					record = append(record, typ)
				}
			}
			require.Equal(t, []agent.EventType{
				agent.NodeStarted, agent.CommandEmitted, agent.CommandCommitted, agent.CheckpointSaved,
				agent.CommandEmitted, agent.CheckpointSaved, agent.CommandCommitted, agent.CheckpointSaved,
				agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved,
			}, record)
			messages, _, err := l.Messages(t.Context(), run.ConversationID, 0, 100)
			require.NoError(t, err)
			require.Len(t, messages, 3) // the user's, the turn's, the tool's; the answer comes with the run's end
		})
	}
}

func TestPlannerCrashesAtEveryStep(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.models = answering{l.probe, func(model.Request) (model.Reply, error) {
		return model.Reply{Finish: model.FinishStop, Text: `{"nodes": [{"id": "a", "kind": "tool", "tool": "put", "args": {"n": 1}}]}`}, nil
	}}
	for at, effects := range map[point]int{beforeBegin: 1, afterBegin: 1, beforeEffect: 1, afterEffect: 2, beforeCommit: 2, afterCommit: 1, afterReply: 1} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			run := l.accept(t, agent.ModePlan, "")
			in := agent.PlannerCall{Call: call(run, 1)}
			in.CommandID, in.NodeID, in.Opens, in.Ends = agent.PlanNodeID, agent.PlanNodeID, false, false
			if _, err := l.callPlanner(t, breaks(at, crashes), in); at != afterReply {
				require.ErrorIs(t, err, errCrashed)
			}
			l.expire(t, run)
			reply, err := l.callPlanner(t, try{attempt: 2}, in)
			require.NoError(t, err)
			require.Len(t, reply.Plan.Nodes, 2)
			require.Equal(t, agent.Idempotent, reply.Plan.Nodes[0].Effect)
			require.Len(t, l.probe.of(run, agent.PlanNodeID), effects)
			var types []agent.EventType
			for _, e := range l.events(t, run) {
				types = append(types, e.Type)
			}
			for _, typ := range []agent.EventType{agent.PlanStarted, agent.PlanGenerated, agent.CommandEmitted, agent.CommandCommitted} {
				require.Equal(t, 1, countTypes(types, typ), typ)
			}
			require.Equal(t, []agent.EventType{agent.CommandCommitted, agent.PlanGenerated, agent.CheckpointSaved}, types[len(types)-3:])
			settled := l.settle(t, agent.SettleCall{Call: in.Call, Reason: &agent.Error{Code: agent.CodeInternal}})
			require.Equal(t, reply.Plan, settled.Plan, "settling tells what the activity would have told")
		})
	}
}

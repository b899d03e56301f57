package activities_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// says sends a message to a react run at work.
func (l *lab) says(t testing.TB, run agent.Run, text string) int64 {
	t.Helper()
	a := agent.Acceptance{Owner: "local", Strategy: agent.Steer, Plan: agent.ReactPlan(), PlanSource: "react", Run: agent.Run{RunID: uuid.NewString(),
		ConversationID: run.ConversationID, MessageID: uuid.NewString(), RequestID: "request", Epoch: 1, Input: text, Definition: run.Definition}}
	a.Run.RootRunID = a.Run.RunID
	into, created, err := l.Accept(context.Background(), a)
	require.NoError(t, err)
	require.False(t, created)
	return into.Steered
}

func modelTurn(run agent.Run, n, schedule, epoch int, heard int64) agent.ModelCall {
	c := call(run, schedule)
	c.CommandID, c.NodeID, c.Epoch, c.Opens = agent.TurnCommandID(agent.MainNodeID, n), agent.MainNodeID, epoch, n == 1 && epoch == 1
	return agent.ModelCall{Call: c, Turn: n, Heard: heard}
}

// toldLab is a lab whose model notes what it is told: the texts of each prompt after the instructions.
func toldLab(t testing.TB, answer func(model.Request) (model.Reply, error)) (*lab, *[]string) {
	t.Helper()
	l := setup(t)
	var told []string
	l.models = answering{probe: l.probe, answer: func(req model.Request) (model.Reply, error) {
		var texts []string
		for _, m := range req.Messages[1:] {
			texts = append(texts, m.Text)
		}
		told = append(told, strings.Join(texts, "|"))
		return answer(req)
	}}
	return l, &told
}

func answersIt(model.Request) (model.Reply, error) {
	return model.Reply{Text: "a house", Finish: model.FinishStop}, nil
}

// TestTurnIsToldWhatIsOnRecordWhenItBegins: whether its execution has heard of it or not, and every try of it the same, however much is
// said meanwhile; what came too late is told to the next turn.
func TestTurnIsToldWhatIsOnRecordWhenItBegins(t *testing.T) {
	t.Parallel()
	tries := 0
	l, told := toldLab(t, func(req model.Request) (model.Reply, error) {
		if tries++; tries == 1 {
			return model.Reply{}, agent.Transient(agent.CodeModelUnavailable, "busy")
		}
		return answersIt(req)
	})
	run := l.accept(t, agent.ModeReact, "")
	l.says(t, run, "in red")
	_, err := l.callModel(t, try{}, modelTurn(run, 1, 1, 1, 0))
	requireCode(t, err, agent.CodeModelUnavailable, true)
	last := l.says(t, run, "no, blue")
	reply, err := l.callModel(t, try{attempt: 2}, modelTurn(run, 1, 1, 1, 0))
	require.NoError(t, err)
	require.True(t, reply.GoesOn)
	require.Equal(t, last, reply.Said)
	again, err := l.callModel(t, try{attempt: 3}, modelTurn(run, 1, 1, 1, last))
	require.NoError(t, err)
	require.True(t, again.GoesOn)
	require.Equal(t, last, again.Said)
	settled := l.settle(t, agent.SettleCall{Call: modelTurn(run, 1, 1, 1, 0).Call})
	require.True(t, settled.GoesOn)
	require.Equal(t, last, settled.Said)
	reply, err = l.callModel(t, try{}, modelTurn(run, 2, 2, 1, 0))
	require.NoError(t, err)
	require.False(t, reply.GoesOn)
	require.Equal(t, []string{"do it|in red", "do it|in red", "do it|in red|a house|no, blue"}, *told)
}

// TestTurnOfAResumedRunIsToldTheSame: a turn that had begun is asked as it was then, one that had not with all that was said.
func TestTurnOfAResumedRunIsToldTheSame(t *testing.T) {
	t.Parallel()
	l, told := toldLab(t, answersIt)
	run := l.accept(t, agent.ModeReact, "")
	first := l.says(t, run, "in red")
	_, err := l.callModel(t, try{hooks: hooks{before: func(context.Context, tool.Call) (json.RawMessage, error) { crash(); return nil, nil }}}, modelTurn(run, 1, 1, 1, first))
	require.ErrorIs(t, err, errCrashed)
	last := l.says(t, run, "no, blue")
	_, err = l.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Cancelled})
	require.NoError(t, err)
	_, err = l.Resume(t.Context(), agent.Resume{Owner: "local", RunID: run.RunID})
	require.NoError(t, err)
	reply, err := l.callModel(t, try{}, modelTurn(run, 1, 1, 2, last))
	require.NoError(t, err)
	require.True(t, reply.GoesOn)
	_, err = l.callModel(t, try{}, modelTurn(run, 2, 2, 2, last))
	require.NoError(t, err)
	require.Equal(t, []string{"do it|in red", "do it|in red|a house|no, blue"}, *told)
}

// lateBegin does something right before a command asks to begin, when its prompt has been made.
type lateBegin struct {
	activities.Ledger
	do func()
}

func (b *lateBegin) Begin(ctx context.Context, begin agent.Begin) (agent.Begun, error) {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.Ledger.Begin(ctx, begin)
}

// TestTwoTriesOfATurnAgree: one has made its prompt and stands still, while the other begins with a message more. It takes what the
// other has begun with.
func TestTwoTriesOfATurnAgree(t *testing.T) {
	t.Parallel()
	l, told := toldLab(t, answersIt)
	run := l.accept(t, agent.ModeReact, "")
	l.says(t, run, "in red")
	slow := try{ledger: func(store activities.Ledger) activities.Ledger {
		return &lateBegin{Ledger: store, do: func() {
			l.says(t, run, "no, blue")
			_, err := l.callModel(t, try{attempt: 2}, modelTurn(run, 1, 1, 1, 0))
			require.NoError(t, err)
		}}
	}}
	reply, err := l.callModel(t, slow, modelTurn(run, 1, 1, 1, 0))
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.False(t, reply.GoesOn)
	require.Equal(t, []string{"do it|in red|no, blue"}, *told)
}

// TestNewestMessageIsToldWhateverItCosts: what a turn is the first to be told stays, and what is old goes.
func TestNewestMessageIsToldWhateverItCosts(t *testing.T) {
	t.Parallel()
	l, told := toldLab(t, answersIt)
	run := l.accept(t, agent.ModeReact, "")
	l.exec(t, `UPDATE agent_executions SET definition = jsonb_set(definition::jsonb, '{history}', '{"max_tokens": 1000}')::json WHERE run_id = $1`, run.RunID)
	old, large := strings.Repeat("old ", 800), strings.Repeat("new ", 2000)
	l.says(t, run, old)
	_, err := l.callModel(t, try{hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) { l.says(t, run, large); return nil, nil }}}, modelTurn(run, 1, 1, 1, 0))
	require.NoError(t, err)
	_, err = l.callModel(t, try{}, modelTurn(run, 2, 2, 1, 0))
	require.NoError(t, err)
	require.Len(t, *told, 2)
	require.True(t, strings.HasSuffix((*told)[1], "|a house|"+large), "whole, and last")
	require.NotContains(t, (*told)[1], old)
	require.Contains(t, (*told)[1], "do it")
}

// TestLaterRunsAreToldInOrder: what was said to an earlier run stands where it heard it.
func TestLaterRunsAreToldInOrder(t *testing.T) {
	t.Parallel()
	n := 0
	l, told := toldLab(t, func(model.Request) (model.Reply, error) {
		n++
		return model.Reply{Text: fmt.Sprint("answer ", n), Finish: model.FinishStop}, nil
	})
	run := l.accept(t, agent.ModeReact, "")
	_, err := l.callModel(t, try{hooks: hooks{after: func(context.Context, tool.Call) (json.RawMessage, error) { l.says(t, run, "in red"); return nil, nil }}}, modelTurn(run, 1, 1, 1, 0))
	require.NoError(t, err)
	_, err = l.callModel(t, try{}, modelTurn(run, 2, 2, 1, 0))
	require.NoError(t, err)
	_, err = l.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, Status: agent.Completed})
	require.NoError(t, err)
	later := l.acceptIn(t, run.ConversationID, agent.ModeReact, "")
	_, err = l.callModel(t, try{}, modelTurn(later, 1, 1, 1, 0))
	require.NoError(t, err)
	require.Equal(t, []string{"do it", "do it|answer 1|in red", "do it|answer 1|in red|answer 2|do it"}, *told)
}

package scripted_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/model/scripted"
)

func TestScriptAnswersInOrder(t *testing.T) {
	t.Parallel()
	s := scripted.Replies(
		scripted.Text("first"),
		scripted.Calls(scripted.Call("calculator", map[string]string{"expression": "1"}), model.ToolCall{ID: "mine", Name: "clock", Arguments: "{}"}),
		scripted.Fail(agent.Transient(agent.CodeModelUnavailable, "busy")),
		scripted.JSON([]int{1}),
	)
	first, err := s.Generate(t.Context(), model.Request{Messages: ask("a"), Key: "k1"}, nil)
	require.NoError(t, err)
	require.Equal(t, "first", first.Text)
	require.Equal(t, model.FinishStop, first.Finish)

	second, err := s.Generate(t.Context(), model.Request{Messages: ask("b")}, nil)
	require.NoError(t, err)
	require.Equal(t, model.FinishTools, second.Finish)
	require.Equal(t, []model.ToolCall{{ID: "call_2_0", Name: "calculator", Arguments: `{"expression":"1"}`}, {ID: "mine", Name: "clock", Arguments: "{}"}}, second.ToolCalls)

	_, err = s.Generate(t.Context(), model.Request{}, nil)
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeModelUnavailable})
	require.Equal(t, 1, s.Left())
	fourth, err := s.Generate(t.Context(), model.Request{}, nil)
	require.NoError(t, err)
	require.Equal(t, "[1]", fourth.Text)

	_, err = s.Generate(t.Context(), model.Request{Messages: ask("one more")}, nil)
	require.EqualError(t, err, "MODEL_FAILED: the script has no reply for request 5: one more")
	require.Zero(t, s.Left())
	require.Len(t, s.Requests(), 5)
	require.Equal(t, "k1", s.Requests()[0].Key)
}

func TestScriptAnswersByMatch(t *testing.T) {
	t.Parallel()
	plans := func(r model.Request) bool { return r.SchemaName == "plan" }
	s := scripted.Replies(scripted.Text("a plan").When(plans), scripted.Text("an answer"), scripted.Text("always").Forever())
	for _, want := range []string{"an answer", "always", "always"} {
		reply, err := s.Generate(t.Context(), model.Request{}, nil)
		require.NoError(t, err)
		require.Equal(t, want, reply.Text)
	}
	require.Equal(t, 1, s.Left())
	reply, err := s.Generate(t.Context(), model.Request{SchemaName: "plan"}, nil)
	require.NoError(t, err)
	require.Equal(t, "a plan", reply.Text)
}

func TestScriptWaits(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	s := scripted.Replies(scripted.Text("late").After(gate).Forever())
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan error, 1)
	go func() {
		_, err := s.Generate(ctx, model.Request{}, nil)
		cancelled <- err
	}()
	require.Eventually(t, func() bool { return len(s.Requests()) == 1 }, 30*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-cancelled, context.Canceled)
	close(gate)
	reply, err := s.Generate(t.Context(), model.Request{}, nil)
	require.NoError(t, err)
	require.Equal(t, "late", reply.Text)
}

func TestScriptBreaksOffAfterItsText(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	s := scripted.Replies(scripted.Step{Reply: model.Reply{Text: "half of it"}, Err: broken})
	said := ""
	_, err := s.Generate(t.Context(), model.Request{}, func(d model.Delta) { said += d.Text })
	require.ErrorIs(t, err, broken)
	require.Equal(t, "half of it", said)
}

func TestScriptKeepsRequestsAsTheyWere(t *testing.T) {
	t.Parallel()
	s := scripted.Replies(scripted.Text("x").Forever())
	req := model.Request{Messages: []model.Message{{Role: model.Assistant, ToolCalls: []model.ToolCall{{ID: "1"}}}}, Tools: offered()}
	_, err := s.Generate(t.Context(), req, nil)
	require.NoError(t, err)
	req.Messages[0].ToolCalls[0].ID = "2"
	req.Tools[0].Name = "other"
	require.Equal(t, "1", s.Requests()[0].Messages[0].ToolCalls[0].ID)
	require.Equal(t, "calculator", s.Requests()[0].Tools[0].Name)
}

func TestScriptIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	steps := make([]scripted.Step, 50)
	for i := range steps {
		steps[i] = scripted.Text("x")
	}
	s := scripted.Replies(steps...)
	var wg sync.WaitGroup
	for range steps {
		wg.Go(func() {
			_, err := s.Generate(t.Context(), model.Request{}, nil)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Zero(t, s.Left())
	require.Len(t, s.Requests(), len(steps))
}

func TestJSONPanicsOnWhatHasNoForm(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { scripted.JSON(make(chan int)) })
}

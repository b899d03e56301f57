package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

// TestATryThatFailsOutOfTimeIsTheLast, until the run is given more: what Temporal tries again is an effect like any other.
func TestATryThatFailsOutOfTimeIsTheLast(t *testing.T) {
	t.Parallel()
	told := make(chan struct{})
	calls := make(chan struct{}, 8)
	flaky, err := tool.New(tool.Spec{Name: "flaky", Description: "fails at first", Effect: agent.External},
		func(_ context.Context, in number, _ tool.Call) (number, error) {
			calls <- struct{}{}
			if len(calls) == 1 {
				<-told
				return in, agent.Transient(agent.CodeToolFailed, "nobody there")
			}
			return in, nil
		})
	require.NoError(t, err)
	s := start(t, byScenario{"out of time": turnsOf("flaky", []int{1})}, flaky)
	run := s.acceptBy(t, agent.ModeReact, "scenario out of time", nil, func(a *agent.Acceptance) {
		a.Run.Definition.Limits = agent.Limits{Timeout: agent.Duration(2 * time.Second), OnLimit: agent.OnLimitPark}.Or(a.Run.Definition.Limits)
	})
	s.awaitLog(t, run, has(agent.LimitReachedType, ""))
	close(told)
	s.standsAs(t, run, agent.LimitReached)
	s.awaitQuiet(t, run)
	require.Len(t, calls, 1)
	require.Contains(t, types(s.log(t, run), "main#1.0"), agent.AttemptDiscarded)

	s.give(t, run, agent.Limits{Timeout: agent.Duration(time.Hour)})
	events := s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
	require.Len(t, calls, 2)
	require.True(t, has(agent.CommandCommitted, "main#1.0")(events))
	requireReplays(t, s.history(t, run))
	s.requireVerifies(t, run)
}

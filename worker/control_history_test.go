package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// patient is a tool that tells when it is at work, and returns when it is let.
type patient struct {
	atWork chan string
	letGo  chan struct{}
}

func (p *patient) tool(t testing.TB) tool.Tool {
	t.Helper()
	made, err := tool.New(tool.Spec{Name: "patient", Description: "waits", Effect: agent.External},
		func(ctx context.Context, in number, call tool.Call) (number, error) {
			p.atWork <- call.CommandID
			select {
			case <-p.letGo:
				return in, nil
			case <-ctx.Done():
				return number{}, agent.Unknown(agent.CodeToolFailed, "stopped: %w", ctx.Err())
			}
		})
	require.NoError(t, err)
	return made
}

// turnsOf answers with calls of one tool, turn by turn, and at last with a text. Every answer uses 100 tokens.
func turnsOf(name string, turns ...[]int) func(context.Context, model.Request) (model.Reply, error) {
	return func(_ context.Context, req model.Request) (model.Reply, error) {
		turn := 0
		for _, m := range req.Messages {
			if m.Role == model.Assistant {
				turn++
			}
		}
		reply := model.Reply{Text: "done", Finish: model.FinishStop, Usage: model.Usage{InputTokens: 60, OutputTokens: 40}}
		if turn < len(turns) {
			reply.Text, reply.Finish = "", model.FinishTools
			for k, n := range turns[turn] {
				reply.ToolCalls = append(reply.ToolCalls, model.ToolCall{ID: fmt.Sprintf("c%d.%d", turn, k), Name: name, Arguments: fmt.Sprintf(`{"n": %d}`, n)})
			}
		}
		return reply, nil
	}
}

// standsAs waits until a run has a status.
func (s *stack) standsAs(t testing.TB, run agent.Run, status agent.Status) agent.Run {
	t.Helper()
	var now agent.Run
	require.Eventually(t, func() bool {
		var err error
		now, _, err = s.ledger.WorkerRun(context.Background(), run.RunID)
		return err == nil && now.Status == status
	}, time.Minute, 5*time.Millisecond, "it does not become %s", status)
	return now
}

func (s *stack) give(t testing.TB, run agent.Run, limits agent.Limits) {
	t.Helper()
	_, err := s.ledger.ChangeLimits(t.Context(), "local", run.RunID, limits, "ada", "more")
	require.NoError(t, err)
}

func has(typ agent.EventType, command string) func([]agent.Event) bool {
	return func(events []agent.Event) bool {
		return slices.ContainsFunc(events, func(e agent.Event) bool { return e.Type == typ && e.CommandID == command })
	}
}

// TestHistoriesOfControl are those of runs that are paused or meet their limits, as in TestHistories.
func TestHistoriesOfControl(t *testing.T) {
	t.Parallel()
	slow := &patient{atWork: make(chan string, 8), letGo: make(chan struct{})}
	s := start(t, byScenario{
		"paused":     turnsOf("patient", []int{1}, []int{2}),
		"limit_park": turnsOf("double", []int{1, 2}, []int{3}),
		"limit_fail": turnsOf("double", []int{1}, []int{2}),
		"loop_guard": turnsOf("double", []int{7}, []int{7}, []int{7}),
	}, slow.tool(t))
	for _, c := range []struct {
		name   string
		limits agent.Limits
		during func(t *testing.T, run agent.Run)
		ends   agent.EventType
		error  string
		events []agent.EventType
	}{
		{name: "paused", during: func(t *testing.T, run agent.Run) {
			require.Equal(t, "main#1.0", <-slow.atWork)
			_, err := s.ledger.Pause(t.Context(), "local", run.RunID, "ada", "look")
			require.NoError(t, err)
			slow.letGo <- struct{}{}
			s.awaitLog(t, run, has(agent.CommandCommitted, "main#1.0"))
			s.standsAs(t, run, agent.Paused)
			s.awaitQuiet(t, run)
			require.Equal(t, []agent.EventType{agent.CommandEmitted, agent.CommandEmitted, agent.RunPaused}, onlyOf(s.log(t, run), agent.RunPaused, agent.CommandEmitted))
			_, err = s.ledger.Unpause(t.Context(), "local", run.RunID, "ada", "")
			require.NoError(t, err)
			require.Equal(t, "main#2.0", <-slow.atWork)
			slow.letGo <- struct{}{}
		}, ends: agent.RunCompleted, events: []agent.EventType{agent.RunPaused, agent.RunUnpaused}},
		{name: "limit_park", limits: agent.Limits{MaxToolCalls: 1, MaxTokens: 150}, during: func(t *testing.T, run agent.Run) {
			s.standsAs(t, run, agent.LimitReached)
			require.True(t, has(agent.LimitReachedType, "")(s.log(t, run)), "told before it stands")
			s.give(t, run, agent.Limits{MaxToolCalls: 9})
			s.awaitLog(t, run, has(agent.CommandEmitted, "main#2"))
			s.standsAs(t, run, agent.LimitReached)
			s.give(t, run, agent.Limits{MaxTokens: 9000})
		}, ends: agent.RunCompleted, events: []agent.EventType{agent.LimitReachedType, agent.LimitsChanged}},
		{name: "limit_fail", limits: agent.Limits{MaxTokens: 150, OnLimit: agent.OnLimitFail}, ends: agent.RunFailed, error: "max_tokens of 150",
			events: []agent.EventType{agent.LimitReachedType}},
		{name: "loop_guard", limits: agent.Limits{MaxRepeats: 2, OnLimit: agent.OnLimitFail}, ends: agent.RunFailed,
			error: "tool double was called 2 times with the same arguments", events: []agent.EventType{agent.LimitReachedType}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := s.acceptBy(t, agent.ModeReact, "scenario "+c.name, nil, func(a *agent.Acceptance) {
				a.Run.Definition.Limits = c.limits.Or(a.Run.Definition.Limits)
			})
			if c.during != nil {
				c.during(t, run)
			}
			events := s.events(t, run)
			last := events[len(events)-1]
			require.Equal(t, c.ends, last.Type, "%s", last.Data)
			require.Subset(t, eventTypes(events), c.events)
			if c.error != "" {
				var d agent.RunFailedData
				require.NoError(t, json.Unmarshal(last.Data, &d))
				require.Equal(t, agent.CodeLimit, d.Error.Code)
				require.Contains(t, d.Error.Message, c.error)
			}
			history := s.history(t, run)
			requireClosed(t, history, c.ends)
			requireReplays(t, history)
			requireAudits(t, s, run)
			s.requireVerifies(t, run)
			if *update {
				scrub(history)
				requireReplays(t, history)
				write(t, filepath.Join(historyDir, c.name+".json"), history)
			}
		})
	}
}

func (s *stack) log(t testing.TB, run agent.Run) []agent.Event {
	t.Helper()
	return s.awaitLog(t, run, func([]agent.Event) bool { return true })
}

func onlyOf(events []agent.Event, types ...agent.EventType) (found []agent.EventType) {
	for _, e := range events {
		if slices.Contains(types, e.Type) {
			found = append(found, e.Type)
		}
	}
	return found
}

// awaitQuiet waits until nothing of a run is scheduled in Temporal: no activity is pending.
func (s *stack) awaitQuiet(t testing.TB, run agent.Run) {
	t.Helper()
	require.Eventually(t, func() bool {
		d, err := s.temporal.DescribeWorkflowExecution(context.Background(), run.RunID, "")
		return err == nil && len(d.GetPendingActivities()) == 0 && d.GetPendingWorkflowTask() == nil
	}, time.Minute, 5*time.Millisecond)
}

package worker_test

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// TestHistoriesOfResumedRuns records what the execution of a later epoch does, as TestHistories does for first ones.
func TestHistoriesOfResumedRuns(t *testing.T) {
	t.Parallel()
	shop := newWorkshop()
	atWork := make(chan struct{}, 1)
	var once sync.Once
	slow, err := tool.New(tool.Spec{Name: "slow", Description: "takes for ever at first", Effect: agent.Idempotent},
		func(ctx context.Context, in number, _ tool.Call) (number, error) {
			first := false
			once.Do(func() { first = true })
			if !first {
				return in, nil
			}
			atWork <- struct{}{}
			<-ctx.Done()
			return number{}, agent.Unknown(agent.CodeToolFailed, "%w", context.Cause(ctx))
		})
	require.NoError(t, err)
	s := start(t, byScenario{
		"resumed react": func(ctx context.Context, req model.Request) (model.Reply, error) {
			return loop(model.ToolCall{ID: "a", Name: "double", Arguments: `{"n": 1}`}, model.ToolCall{ID: "c", Name: "slow", Arguments: `{"n": 5}`})(ctx, req)
		},
	}, shop.tool(t), slow)
	for _, c := range []struct {
		name  string
		mode  agent.Mode
		nodes []agent.Node
		end   func(run agent.Run)
		ends  agent.EventType // of the first execution
		step  int
		// silent are the nodes, or commands, of which the later execution writes nothing.
		silent []string
		output string
	}{
		{name: "resumed plan", mode: agent.ModePlan, nodes: []agent.Node{double("a", "1", nil), double("h", "13", func(n *agent.Node) { n.OnError = agent.OnErrorContinue }),
			fragile("b", `{"$from": "/nodes/a/output/n"}`, "h"), fragile("c", "7", "a"), double("d", `{"$from": "/nodes/b/output/n"}`, nil, "c")},
			end: func(agent.Run) {}, ends: agent.RunFailed, step: 2, silent: []string{"a", "h"}, output: "done"},
		{name: "resumed react", mode: agent.ModeReact, end: func(run agent.Run) {
			<-atWork
			s.cancel(t, run)
		}, ends: agent.RunCancelled, silent: []string{"main#1", "main#1.0", "main#1.1", "main#2"}, output: `{"n":2}The call failed. TOOL_FAILED: bad luck{"n":5}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var plan *agent.Plan
			if c.nodes != nil {
				plan = &agent.Plan{Nodes: c.nodes}
			}
			run := s.accept(t, c.mode, "scenario "+c.name, plan)
			c.end(run)
			events := s.events(t, run)
			require.Equal(t, c.ends, events[len(events)-1].Type)
			first := len(events)
			shop.mend(run)
			require.Equal(t, c.step, s.resume(t, run).Step)
			events = s.ended(t, run, 2)
			require.Equal(t, agent.RunCompleted, events[len(events)-1].Type, "%s", events[len(events)-1].Data)
			for _, silent := range c.silent {
				require.Empty(t, types(events[first:], silent), silent)
			}
			read, _, err := s.ledger.WorkerRun(t.Context(), run.RunID)
			require.NoError(t, err)
			require.Equal(t, c.output, *read.FinalOutput)
			history := s.history(t, run)
			requireClosed(t, history, agent.RunCompleted)
			s.requireResumed(t, run, 2)
			if *update {
				scrub(history)
				requireReplays(t, history)
				write(t, filepath.Join(historyDir, strings.ReplaceAll(c.name, " ", "_")+".json"), history)
			}
		})
	}
}

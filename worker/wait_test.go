package worker_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

func wait(id, signal string, longest time.Duration, more func(*agent.Node)) agent.Node {
	n := agent.Node{ID: id, Kind: agent.WaitNode, Signal: signal}
	if signal == "" {
		n.Duration = agent.Duration(longest)
	} else {
		n.Timeout = agent.Duration(longest)
	}
	if more != nil {
		more(&n)
	}
	return n
}

func (s *stack) signal(t testing.TB, run agent.Run, name, id, value string) {
	t.Helper()
	_, _, err := s.ledger.Signal(t.Context(), "local", run.RunID, agent.Input{Name: name, InputID: id, Value: json.RawMessage(value), By: "ada"})
	require.NoError(t, err)
}

// awaitStatus waits until the run says that it stands so. Nothing is appended then, so that there is no news of it.
func (s *stack) awaitStatus(t testing.TB, run agent.Run, want agent.Status) {
	t.Helper()
	require.Eventually(t, func() bool {
		now, _, err := s.ledger.WorkerRun(context.Background(), run.RunID)
		return err == nil && now.Status == want
	}, time.Minute, 20*time.Millisecond)
}

// say sends a message to a react run at work.
func (s *stack) say(t testing.TB, run agent.Run, text string) agent.Run {
	t.Helper()
	id := func() string { return uuid.Must(uuid.NewV7()).String() }
	a := agent.Acceptance{Owner: "local", Strategy: agent.Steer, Plan: agent.ReactPlan(), PlanSource: "react", Run: agent.Run{RunID: id(),
		ConversationID: run.ConversationID, MessageID: id(), RequestID: id(), Epoch: 1, Input: text, Definition: run.Definition}}
	a.Run.RootRunID = a.Run.RunID
	into, created, err := s.ledger.Accept(t.Context(), a)
	require.NoError(t, err)
	require.False(t, created)
	return into
}

// crossed is all that crossed Temporal, in plain text.
func crossed(t testing.TB, history *historypb.History) string {
	t.Helper()
	var b strings.Builder
	for _, data := range regexp.MustCompile(`"data": *"([^"]+)"`).FindAllSubmatch(encode(t, history), -1) {
		plain, err := base64.StdEncoding.DecodeString(string(data[1]))
		require.NoError(t, err)
		b.Write(plain)
	}
	return b.String()
}

// look is a tool that is at work until the test lets it go on.
func look(t testing.TB, begun chan<- struct{}, done <-chan struct{}) tool.Tool {
	t.Helper()
	l, err := tool.New(tool.Spec{Name: "look", Description: "looks", Effect: agent.Idempotent},
		func(ctx context.Context, in number, _ tool.Call) (number, error) {
			begun <- struct{}{}
			select {
			case <-done:
				return in, nil
			case <-ctx.Done():
				return in, ctx.Err()
			}
		})
	require.NoError(t, err)
	return l
}

// TestWaitHistories runs on real servers what waits for somebody, and what is said to a run at work.
func TestWaitHistories(t *testing.T) {
	t.Parallel()
	begun, done, thinking, goOn := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	var prompts [][]string
	s := start(t, byScenario{"steer": func(_ context.Context, req model.Request) (model.Reply, error) {
		var said []string
		for _, m := range req.Messages {
			said = append(said, string(m.Role)+" "+m.Text)
		}
		prompts = append(prompts, said)
		switch len(prompts) {
		case 1:
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: "x", Name: "look", Arguments: `{"n": 21}`}}}, nil
		case 2:
			close(thinking)
			<-goOn
		}
		return model.Reply{Text: "a house", Finish: model.FinishStop}, nil
	}}, look(t, begun, done))
	for _, c := range []struct {
		name   string
		mode   agent.Mode
		nodes  []agent.Node
		during func(t *testing.T, run agent.Run)
		ends   agent.EventType
		events []agent.EventType
		calls  map[string]int // of double, by command
	}{
		{name: "wait_timer", mode: agent.ModePlan, nodes: []agent.Node{wait("pause", "", time.Second, nil), double("a", "1", nil, "pause"), double("b", "2", nil)},
			ends: agent.RunCompleted, calls: map[string]int{"a": 1, "b": 1}},
		{name: "wait_signal", mode: agent.ModePlan, nodes: []agent.Node{wait("early", "first", 0, nil), wait("pause", "go", time.Hour, nil), wait("other", "go", 0, nil),
			double("a", `{"$from": "/nodes/pause/output/n"}`, nil, "early")},
			during: func(t *testing.T, run agent.Run) {
				s.signal(t, run, "first", "1", `true`)
				s.signal(t, run, "first", "1", `true`)
				s.awaitStatus(t, run, agent.Waiting)
				s.signal(t, run, "nobody", "1", `null`)
				s.signal(t, run, "go", "1", `{"n": 21, "token": "s3cret"}`)
				s.signal(t, run, "go", "1", `{"n": 21, "token": "s3cret"}`)
				// Which of the two has begun first is for them.
				s.awaitLog(t, run, func(events []agent.Event) bool {
					return slices.Contains(types(events, "pause"), agent.NodeFinished) || slices.Contains(types(events, "other"), agent.NodeFinished)
				})
				s.signal(t, run, "go", "2", `{"n": 21, "token": "s3cret"}`)
			}, ends: agent.RunCompleted, events: []agent.EventType{agent.InputReceived}, calls: map[string]int{"a": 1}},
		{name: "wait_timeout", mode: agent.ModePlan, nodes: []agent.Node{wait("pause", "go", 500*time.Millisecond, func(n *agent.Node) { n.OnError, n.Retry = agent.OnErrorContinue, &agent.Retry{MaxAttempts: 2} }),
			double("a", "1", nil, "pause"), wait("late", "go", 500*time.Millisecond, func(n *agent.Node) { n.DependsOn = []string{"a"} })},
			ends: agent.RunFailed, events: []agent.EventType{agent.NodeFailed, agent.CommandFailedType}, calls: map[string]int{"a": 1}},
		{name: "wait_cancel", mode: agent.ModePlan, nodes: []agent.Node{wait("pause", "go", 0, nil), wait("clock", "", time.Hour, nil)},
			during: func(t *testing.T, run agent.Run) {
				s.awaitStatus(t, run, agent.Waiting)
				s.cancel(t, run)
			}, ends: agent.RunCancelled, events: []agent.EventType{agent.CommandAbortType}},
		{name: "steer", mode: agent.ModeReact,
			during: func(t *testing.T, run agent.Run) {
				<-begun
				require.Equal(t, run.RunID, s.say(t, run, "in red").RunID)
				done <- struct{}{}
				<-thinking
				s.say(t, run, "no, blue")
				s.say(t, run, "with a door")
				close(goOn)
			}, ends: agent.RunCompleted, events: []agent.EventType{agent.MessageAdded}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var plan *agent.Plan
			if c.nodes != nil {
				plan = &agent.Plan{Nodes: c.nodes}
			}
			run := s.accept(t, c.mode, "scenario "+c.name, plan)
			if c.during != nil {
				c.during(t, run)
			}
			events := s.events(t, run)
			last := events[len(events)-1]
			require.Equal(t, c.ends, last.Type, "%s", last.Data)
			require.Subset(t, eventTypes(events), c.events)
			for id, want := range c.calls {
				s.counting.mu.Lock()
				require.Equal(t, want, s.counting.calls[agent.IdempotencyKey(run.RunID, id)])
				s.counting.mu.Unlock()
			}
			history := s.history(t, run)
			requireClosed(t, history, c.ends)
			requireReplays(t, history)
			requireAudits(t, s, run)
			s.requireVerifies(t, run)
			if c.name == "wait_signal" {
				require.Contains(t, crossed(t, history), "nobody")
				require.False(t, strings.Contains(crossed(t, history), "s3cret"), "what is sent to a run is not Temporal's")
			}
			if *update {
				scrub(history)
				requireReplays(t, history)
				write(t, filepath.Join(historyDir, c.name+".json"), history)
			}
		})
	}
	t.Cleanup(func() { // after the scenarios, which are parallel
		require.Len(t, prompts, 3)
		require.Equal(t, []string{"user scenario steer", "assistant ", "tool {\"n\":21}", "user in red"}, prompts[1])
		require.Equal(t, append(prompts[1][:4:4], "assistant a house", "user no, blue", "user with a door"), prompts[2])
	})
}

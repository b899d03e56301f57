package agenttest_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/agenttest"
	"runledger/model"
	"runledger/model/scripted"
	"runledger/tool"
)

// answers is a model that answers by a function of what it is asked.
type answers func(model.Request) (model.Reply, error)

func (f answers) Generate(_ context.Context, req model.Request, _ func(model.Delta)) (model.Reply, error) {
	return f(req)
}

func wait(id, signal string, more func(*agent.Node), after ...string) agent.Node {
	n := agent.Node{ID: id, Kind: agent.WaitNode, Signal: signal, DependsOn: after}
	if more != nil {
		more(&n)
	}
	return n
}

func waits(t *testing.T, nodes ...agent.Node) *agenttest.Harness {
	t.Helper()
	return agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.Idempotent)}, Plan: &agent.Plan{Nodes: nodes},
		Model: scripted.Replies(scripted.Text("done").Forever()), Limits: agent.Limits{OnLimit: agent.OnLimitPark}})
}

// TestPlanWaitsForASignal: what somebody sends is the output of the node, which others refer to.
func TestPlanWaitsForASignal(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(*agenttest.Harness){
		"early":          func(h *agenttest.Harness) { h.Signal("go", map[string]int{"n": 21}) },
		"while it waits": func(h *agenttest.Harness) { h.SignalAfter(30*time.Hour, "go", map[string]int{"n": 21}) },
		"after one for somebody": func(h *agenttest.Harness) {
			h.Signal("nobody", 1)
			h.SignalAfter(time.Hour, "go", map[string]int{"n": 21})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := waits(t, wait("pause", "go", nil), node("after", `{"n": {"$from": "/nodes/pause/output/n"}}`, nil))
			send(h)
			res := h.Run("go")
			res.RequireOutput("done")
			res.RequireCalledOnce("double", map[string]int{"n": 21})
			res.RequireReplays()
		})
	}
}

// TestWaitsTakeInputsInOrder: each wait takes one, and the one that has waited longest the oldest. Of two that begin at once either may
// be the first.
func TestWaitsTakeInputsInOrder(t *testing.T) {
	t.Parallel()
	h := waits(t, wait("first", "go", nil), wait("second", "go", nil), wait("third", "go", nil, "second"))
	for i := range 3 {
		h.SignalAfter(time.Duration(i+1)*time.Hour, "go", i)
	}
	res := h.Run("go")
	res.RequireOutput("done")
	var took []string
	for _, id := range []string{"first", "second", "third"} {
		c, ok := res.Command(id)
		require.True(t, ok)
		took = append(took, string(c.Result))
	}
	require.ElementsMatch(t, []string{"0", "1"}, took[:2])
	require.Equal(t, "2", took[2])
	res.RequireReplays()
}

func TestWaitThatIsOver(t *testing.T) {
	t.Parallel()
	short := func(onError agent.OnError, tries int) func(*agent.Node) {
		return func(n *agent.Node) {
			n.Timeout, n.OnError, n.Retry = agent.Duration(time.Hour), onError, &agent.Retry{MaxAttempts: tries}
		}
	}
	after := node("after", `{"n": 2}`, nil)
	after.DependsOn = []string{"pause"}
	for name, c := range map[string]struct {
		wait   agent.Node
		status agent.Status
		calls  int
	}{
		"fail":     {wait("pause", "go", short(agent.OnErrorFail, 1)), agent.FailedStatus, 0},
		"continue": {wait("pause", "go", short(agent.OnErrorContinue, 1)), agent.Completed, 1},
		"skip":     {wait("pause", "go", short(agent.OnErrorSkip, 1)), agent.Completed, 0},
		"again":    {wait("pause", "go", short(agent.OnErrorFail, 3)), agent.Completed, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := waits(t, c.wait, after)
			h.SignalAfter(150*time.Minute, "go", true) // in time for a third try
			res := h.Run("go")
			res.RequireStatus(c.status)
			res.RequireCalls("double", c.calls)
			first, _ := res.Command("pause")
			require.Equal(t, agent.CodeTimeout, first.Error.Code)
			if name == "again" {
				res.RequireCommitted("pause~3", 1)
			}
			res.RequireReplays()
		})
	}
}

// TestTimersLongerThanADay next to nodes at work, with room for one at a time: who waits leaves its place.
func TestTimersLongerThanADay(t *testing.T) {
	t.Parallel()
	h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.Idempotent)}, Model: scripted.Replies(scripted.Text("done").Forever()),
		Limits: agent.Limits{OnLimit: agent.OnLimitPark, MaxParallel: 1},
		Plan: &agent.Plan{Nodes: []agent.Node{{ID: "long", Kind: agent.WaitNode, Duration: agent.Duration(40 * 24 * time.Hour)},
			{ID: "longer", Kind: agent.WaitNode, Duration: agent.Duration(50 * 24 * time.Hour)}, node("work", `{"n": 1}`, nil)}}})
	res := h.Run("go")
	res.RequireOutput("done")
	at := map[string]time.Time{}
	for _, e := range res.Events {
		if e.Type == agent.CommandCommitted {
			at[e.CommandID] = e.CreatedAt
		}
	}
	began := res.Events[0].CreatedAt
	require.Less(t, at["work"].Sub(began), time.Hour)
	require.GreaterOrEqual(t, at["long"].Sub(began), 40*24*time.Hour)
	require.GreaterOrEqual(t, at["longer"].Sub(began), 50*24*time.Hour)
	res.RequireReplays()
}

// TestCancelWhileWaiting: the wait never did anything, and the run ends at once.
func TestCancelWhileWaiting(t *testing.T) {
	t.Parallel()
	var h *agenttest.Harness
	stop := tool.MustNew(tool.Spec{Name: "double", Description: "stops the run", Effect: agent.Idempotent},
		func(context.Context, struct {
			N int `json:"n"`
		}, tool.Call) (int, error) {
			h.Cancel("ada", "enough")
			return 0, nil
		})
	work := node("work", `{"n": 1}`, nil)
	work.DependsOn = []string{"soon"} // whose time comes when all others wait
	h = agenttest.New(t, agenttest.Config{Tools: []tool.Tool{stop}, Model: scripted.Replies(), Limits: agent.Limits{OnLimit: agent.OnLimitPark},
		Plan: &agent.Plan{Nodes: []agent.Node{wait("pause", "go", nil), {ID: "clock", Kind: agent.WaitNode, Duration: agent.Duration(time.Hour)},
			{ID: "soon", Kind: agent.WaitNode, Duration: agent.Duration(time.Minute)}, work}}})
	h.Signal("other", 1)
	res := h.Run("go")
	res.RequireStatus(agent.Cancelled)
	c, ok := res.Command("pause")
	require.True(t, ok)
	require.Equal(t, agent.CommandAborted, c.State)
	res.RequireReplays()
}

// TestSayReachesTheNextTurn: while a tool of the turn is at work, and right before the answer that would have ended the loop.
func TestSayReachesTheNextTurn(t *testing.T) {
	t.Parallel()
	var h *agenttest.Harness
	turn := 0
	h = agenttest.New(t, agenttest.Config{Mode: agent.ModeReact, Tools: []tool.Tool{tool.MustNew(tool.Spec{Name: "look", Description: "looks", Effect: agent.Idempotent},
		func(context.Context, struct{}, tool.Call) (string, error) {
			require.True(t, h.Say("in red"))
			return "seen", nil
		})}, Model: answers(func(req model.Request) (model.Reply, error) {
		turn++
		last := req.Messages[len(req.Messages)-1]
		switch turn {
		case 1:
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: "x", Name: "look", Arguments: "{}"}}}, nil
		case 2:
			require.Equal(t, "in red", last.Text)
			require.True(t, h.Say("no, blue"))
			return model.Reply{Text: "a red house", Finish: model.FinishStop}, nil
		}
		require.Equal(t, "no, blue", last.Text)
		require.Equal(t, "a red house", req.Messages[len(req.Messages)-2].Text)
		return model.Reply{Text: "a blue house", Finish: model.FinishStop}, nil
	})})
	res := h.Run("a house")
	res.RequireOutput("a blue house")
	require.Equal(t, 3, turn)
	var d agent.CommandCommittedData
	for _, e := range res.Events {
		if e.Type == agent.CommandCommitted && e.CommandID == "main#2" {
			require.NoError(t, json.Unmarshal(e.Data, &d))
		}
	}
	require.True(t, d.GoesOn)
	res.RequireReplays()
}

// The run waits until somebody has counted; the test says when that is.
func ExampleHarness_SignalAfter() {
	report := func(t testing.TB) *agenttest.Result {
		h := agenttest.New(t, agenttest.Config{
			Model: scripted.Replies(scripted.Text("There are 7 of them.")),
			Plan: &agent.Plan{Nodes: []agent.Node{
				{ID: "counted", Kind: agent.WaitNode, Signal: "counted"},
				{ID: "say", Kind: agent.LLMNode, Prompt: "Say how many there are.", Inputs: map[string]json.RawMessage{"n": json.RawMessage(`{"$from": "/nodes/counted/output"}`)}},
			}},
		})
		h.SignalAfter(20*time.Minute, "counted", 7)
		return h.Run("How many are there?")
	}
	_ = report // in a test: report(t).RequireOutput("There are 7 of them.")
}

package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"
	"google.golang.org/protobuf/proto"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// heavy is what the tool big is asked for: a result or an error of so many bytes.
type heavy struct {
	Result int `json:"result,omitempty"`
	Error  int `json:"error,omitempty"`
	// Arg is only there to be large.
	Arg string `json:"arg,omitempty"`
}

func big(t testing.TB, name string, effect agent.EffectClass, calls *atomic.Int32) tool.Tool {
	t.Helper()
	b, err := tool.New(tool.Spec{Name: name, Description: "gives much", Effect: effect},
		func(_ context.Context, in heavy, _ tool.Call) (string, error) {
			calls.Add(1)
			if in.Error > 0 {
				return "", &agent.Error{Code: agent.CodeToolFailed, Message: strings.Repeat("e", in.Error), Fault: agent.FaultDefinite}
			}
			return strings.Repeat("r", in.Result), nil
		})
	require.NoError(t, err)
	return b
}

// largestEvent is the size of the largest event of a history, in bytes.
func largestEvent(history *historypb.History) (most int) {
	for _, e := range history.Events {
		most = max(most, proto.Size(e))
	}
	return most
}

// Whatever a tool or a model answers, what goes through Temporal is small, and what is too large for the record is an error that
// says whose it is, at once.
func TestSizesOfResults(t *testing.T) {
	t.Parallel()
	const mb = 1_000_000
	var calls atomic.Int32
	call := func(name string, in heavy) func(context.Context, model.Request) (model.Reply, error) {
		return func(_ context.Context, req model.Request) (model.Reply, error) {
			last := req.Messages[len(req.Messages)-1]
			if last.Role == model.ToolRole {
				return model.Reply{Text: "read: " + last.Text[:min(len(last.Text), 100)] + " ... " + last.Text[max(0, len(last.Text)-100):], Finish: model.FinishStop}, nil
			}
			args, err := json.Marshal(in)
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: "x", Name: name, Arguments: string(args)}}}, err
		}
	}
	many := func(n int) func(context.Context, model.Request) (model.Reply, error) {
		return func(_ context.Context, req model.Request) (model.Reply, error) {
			if req.Messages[len(req.Messages)-1].Role == model.ToolRole {
				return model.Reply{Text: "done", Finish: model.FinishStop}, nil
			}
			reply := model.Reply{Finish: model.FinishTools}
			for i := range n {
				reply.ToolCalls = append(reply.ToolCalls, model.ToolCall{ID: fmt.Sprint(i), Name: "big", Arguments: fmt.Sprintf(`{"result": %d}`, i+1)})
			}
			return reply, nil
		}
	}
	scenarios := byScenario{
		"large result":     call("big", heavy{Result: 3 * mb}),
		"long error":       call("big", heavy{Error: 3 * mb}),
		"too large result": call("big", heavy{Result: 50 * mb}),
		"large arguments":  call("big", heavy{Result: 1, Arg: strings.Repeat("a", 3*mb)}),
		"long name":        call(strings.Repeat("\x01<ä", mb/4), heavy{}),
		"long text": func(context.Context, model.Request) (model.Reply, error) {
			return model.Reply{Text: strings.Repeat("t", 3*mb), Finish: model.FinishStop}, nil
		},
		"too long text": func(context.Context, model.Request) (model.Reply, error) {
			return model.Reply{Text: strings.Repeat("t", 20*mb), Finish: model.FinishStop}, nil
		},
		"most calls":     many(agent.MaxTurnCalls),
		"too many calls": many(5000),
		"long failure of a model": func(context.Context, model.Request) (model.Reply, error) {
			return model.Reply{}, agent.Failed(agent.CodeModelFailed, "%s", strings.Repeat("no ", mb))
		},
	}
	s := start(t, scenarios, big(t, "big", agent.Idempotent, &calls), big(t, "pay", agent.External, &calls))
	for name, c := range map[string]struct {
		ends agent.EventType
		want string // in the data of the last event
	}{
		"large result":            {agent.RunCompleted, "of 3000002 bytes]"},
		"long error":              {agent.RunCompleted, "TOOL_FAILED: eeee"},
		"too large result":        {agent.RunCompleted, "RESULT_TOO_LARGE: command main#1.0: tool big gave a result of 50000002 bytes; at mo"},
		"large arguments":         {agent.RunCompleted, `read: \"r\"`},
		"long name":               {agent.RunCompleted, "TOOL_UNKNOWN"},
		"long text":               {agent.RunCompleted, "tttt"},
		"too long text":           {agent.RunFailed, "command main#1 gave a result of 20"},
		"most calls":              {agent.RunCompleted, "done"},
		"too many calls":          {agent.RunFailed, "command main#1: the model asks for 5000 tool calls at once; at most 256 are possible"},
		"long failure of a model": {agent.RunFailed, "no no no"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := s.accept(t, agent.ModeReact, "scenario "+name+".", nil)
			events := s.events(t, run)
			last := events[len(events)-1]
			require.Equal(t, c.ends, last.Type, "%s", agent.Preview(string(last.Data), 1000))
			require.Contains(t, string(last.Data), c.want)
			history := s.history(t, run)
			requireReplays(t, history)
			require.Less(t, largestEvent(history), 64<<10)
			require.Less(t, proto.Size(history), 1<<20)
			for _, e := range events {
				if e.Type != agent.RunCompleted && e.Type != agent.MessageAdded { // they hold the answer itself
					require.Less(t, len(e.Data), 64<<10, e.Type)
				}
			}
			commands, err := s.ledger.Commands(t.Context(), run.RunID)
			require.NoError(t, err)
			for _, command := range commands {
				if command.Error != nil {
					require.LessOrEqual(t, len(command.Error.Message), agent.MaxErrorBytes+len("…"))
				}
			}
			s.requireVerifies(t, run)
		})
	}
}

// An external call whose result is too large to keep has taken place: it is in doubt, is not made again, and a person answers for it.
func TestExternalResultThatIsTooLarge(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := start(t, byScenario{}, big(t, "pay", agent.External, &calls))
	run := s.accept(t, agent.ModePlan, "pay", &agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "pay", Args: json.RawMessage(`{"result": 50000000}`)}}})
	events := s.await(t, run, func(typ agent.EventType) bool { return typ == agent.CommandDoubtType })
	require.Contains(t, string(events[len(events)-1].Data), "tool pay gave a result of 50000002 bytes")
	s.resolve(t, run, "a", agent.Resolution{Outcome: agent.OutcomeCommitted, Result: json.RawMessage(`{"paid": true}`), By: "ada"})
	events = s.events(t, run)
	require.Equal(t, agent.RunCompleted, events[len(events)-1].Type)
	require.EqualValues(t, 1, calls.Load())
	s.requireVerifies(t, run)
}

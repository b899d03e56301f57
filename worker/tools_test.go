package worker_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

// Tools that come while the worker runs are published, and runs can call them; what has gone is published no more.
func TestToolsChangeWhileTheWorkerRuns(t *testing.T) {
	t.Parallel()
	s := start(t, replies(nil))
	s.stop()
	changes := make(chan *tool.Set)
	s.config.ToolChanges = changes
	s.run(t)
	names := func() (names []string) {
		refs, err := s.ledger.Tools(t.Context())
		require.NoError(t, err)
		for _, ref := range refs {
			names = append(names, ref.Name)
		}
		return names
	}
	require.Equal(t, []string{"double"}, names())

	triple, err := tool.New(tool.Spec{Name: "shop/triple", Description: "triples a number", Effect: agent.Idempotent},
		func(_ context.Context, in number, _ tool.Call) (number, error) { return number{N: 3 * in.N}, nil })
	require.NoError(t, err)
	more, err := tool.NewSet(triple, s.counting.tool(t))
	require.NoError(t, err)
	unusable, err := tool.NewSet(badApproval{triple})
	require.NoError(t, err)
	changes <- more
	changes <- unusable // taken when the one before is published; the worker keeps what it has
	require.Equal(t, []string{"double", "shop/triple"}, names())

	before := s.tools
	s.tools = more
	run := s.accept(t, agent.ModePlan, "triple", &agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "shop/triple", Args: json.RawMessage(`{"n": 7}`)}}})
	events := s.await(t, run, func(e agent.EventType) bool { return e.Terminal() })
	require.Contains(t, types(events, "a"), agent.CommandCommitted, "%s", events[len(events)-1].Data)

	changes <- before
	changes <- before
	require.Equal(t, []string{"double"}, names())
}

// badApproval is a tool whose approve is no predicate.
type badApproval struct{ tool.Tool }

func (b badApproval) Spec() tool.Spec {
	spec := b.Tool.Spec()
	spec.Approve = "1 +"
	return spec
}

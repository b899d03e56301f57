package agenttest_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/agenttest"
	"runledger/model"
	"runledger/tool"
)

// shelf is a retriever over documents by id: those that hold the query. It notes what it is asked.
type shelf struct {
	documents map[string]string
	asked     []agent.DocumentQuery
}

func (s *shelf) Retrieve(_ context.Context, q agent.DocumentQuery) ([]agent.FoundDocument, error) {
	s.asked = append(s.asked, q)
	var found []agent.FoundDocument
	for id, text := range s.documents {
		if strings.Contains(text, q.Query) {
			found = append(found, agent.FoundDocument{ID: id, Snippet: text, Score: 1})
		}
	}
	return found, nil
}

// What a retriever of the test's own has found is cited by what refers to it, and is searched for once more only where the worker was
// lost before the commit.
func TestPlanRetrieves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost  agent.Boundary
		asked int
	}{"unbroken": {"", 1}, "lost before the commit": {agent.AfterEffect, 2}, "lost after it": {agent.AfterCommit, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &shelf{documents: map[string]string{"handbook/7": "marmots whistle", "handbook/8": "eagles do not"}}
			h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.Idempotent)}, Retriever: s,
				Model: answers(func(req model.Request) (model.Reply, error) {
					if !strings.Contains(req.Messages[len(req.Messages)-1].Text, "handbook/7") {
						return model.Reply{}, agent.Failed(agent.CodeModelFailed, "the prompt has no citation")
					}
					return model.Reply{Text: "See handbook/7.", Finish: model.FinishStop}, nil
				}),
				Plan: &agent.Plan{Nodes: []agent.Node{{ID: "find", Kind: agent.RetrievalNode, Query: json.RawMessage(`{"$from": "/input"}`), Limit: 3},
					{ID: "say", Kind: agent.LLMNode, Prompt: "Cite.", Inputs: map[string]json.RawMessage{"found": json.RawMessage(`{"$from": "/nodes/find/output/documents"}`)}}}}})
			if c.lost != "" {
				h.Crash("find", c.lost)
			}
			res := h.Run("marmots")
			res.RequireOutput("See handbook/7.")
			res.RequireReplays()
			require.Len(t, s.asked, c.asked)
			require.Equal(t, agent.DocumentQuery{Owner: "local", RunID: res.RunID, Query: "marmots", Limit: 3}, s.asked[0])
			found, ok := res.Command("find")
			require.True(t, ok)
			require.Equal(t, agent.RetrievalCommand, found.Kind)
			require.JSONEq(t, `{"query": "marmots", "documents": [{"id": "handbook/7", "snippet": "marmots whistle", "score": 1, "metadata": {}}]}`, string(found.Result))
		})
	}
}

// Without a retriever a retrieval fails, and says so.
func TestPlanWithoutARetriever(t *testing.T) {
	t.Parallel()
	h := agenttest.New(t, agenttest.Config{Tools: []tool.Tool{double(agent.Idempotent)},
		Model: answers(func(model.Request) (model.Reply, error) {
			return model.Reply{Text: "done", Finish: model.FinishStop}, nil
		}),
		Plan: &agent.Plan{Nodes: []agent.Node{{ID: "find", Kind: agent.RetrievalNode, Query: json.RawMessage(`"x"`)}}}})
	res := h.Run("x")
	res.RequireStatus(agent.FailedStatus)
	require.Equal(t, agent.CodeRetrieval, res.Error.Code)
	res.RequireReplays()
}

package agent_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestRetrievalNodes(t *testing.T) {
	t.Parallel()
	p, err := agent.Compile(planOf(t, `{"nodes": [
		{"id": "say", "kind": "llm", "prompt": "x", "inputs": {"found": {"$from": "/nodes/find/output/documents"}}},
		{"id": "find", "kind": "retrieval", "query": {"$from": "/nodes/ask/output/q"}, "limit": 3, "filter": {"year": {"$from": "/nodes/year/output"}}},
		{"id": "ask", "kind": "tool", "tool": "t", "query": null, "filter": null}, {"id": "year", "kind": "tool", "tool": "t"},
		{"id": "more", "kind": "retrieval", "query": "words", "filter": null, "timeout": "5s"}]}`), checks)
	require.NoError(t, err)
	var ids []string
	for _, n := range p.Nodes {
		ids = append(ids, n.ID)
	}
	require.Equal(t, []string{"ask", "year", "find", "say", "more", agent.AnswerNodeID}, ids)
	require.Equal(t, []string{"ask", "year"}, p.Nodes[2].DependsOn, "what it refers to")
	require.Nil(t, p.Nodes[0].Query)
	require.Nil(t, p.Nodes[0].Filter)
	require.Nil(t, p.Nodes[4].Filter)
	shape := p.Shape(&agent.Definition{})
	require.Equal(t, agent.Idempotent, shape.Nodes[2].Effect)
	require.Equal(t, agent.DefaultRetrievalTimeout, shape.Nodes[2].Timeout)
	require.Equal(t, agent.Duration(5e9), shape.Nodes[4].Timeout)
}

func TestRetrievalInput(t *testing.T) {
	t.Parallel()
	template, err := agent.RetrievalTemplate(&agent.Node{ID: "a", Query: json.RawMessage(`{"$from":"/input"}`), Filter: json.RawMessage(`{"k":1}`)})
	require.NoError(t, err)
	require.JSONEq(t, `{"query": {"$from": "/input"}, "filter": {"k": 1}}`, string(template))
	for resolved, want := range map[string]agent.RetrievalInput{
		`{"query": "x"}`: {Query: "x", Limit: agent.DefaultRetrievalLimit},
		`{"query": "", "limit": 7, "filter": {"k":1}}`: {Limit: 7, Filter: json.RawMessage(`{"k":1}`)},
	} {
		in, err := agent.RetrievalInputOf(json.RawMessage(resolved))
		require.NoError(t, err)
		require.Equal(t, want, in)
	}
	for resolved, message := range map[string]string{
		`{"query": null}`:                "query: want a text",
		`{"query": {"text": "x"}}`:       "query: want a text",
		`{"query": "x", "filter": null}`: "filter: want an object", // it does not become a search in everything
		`{"query": "x", "filter": [1]}`:  "filter: want an object",
		`{"query": "` + strings.Repeat("x", agent.MaxQueryBytes+1) + `"}`: "a query may have",
	} {
		_, err := agent.RetrievalInputOf(json.RawMessage(resolved))
		failure, ok := agent.AsError(err)
		require.True(t, ok)
		require.Equal(t, agent.CodeInvalidArguments, failure.Code)
		require.Equal(t, agent.FaultDefinite, failure.Fault)
		require.Contains(t, failure.Message, message)
	}
}

func TestDocumentIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{"a": true, "handbook/1#2%": true, strings.Repeat("x", 128): true, "": false, strings.Repeat("x", 129): false,
		"a b": false, "\n": false, "ä": false, "\x7f": false} {
		require.Equal(t, want, agent.ValidDocumentID(id), "%q", id)
	}
}

package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/activities"
	"runledger/agent"
)

// retrieverProbe is a retriever that notes what it is asked; answer, if set, answers in the place of the one behind it.
type retrieverProbe struct {
	activities.Retriever
	mu     sync.Mutex
	asked  []agent.DocumentQuery
	answer func(agent.DocumentQuery) ([]agent.FoundDocument, error)
}

func (r *retrieverProbe) Retrieve(ctx context.Context, q agent.DocumentQuery) ([]agent.FoundDocument, error) {
	r.mu.Lock()
	r.asked = append(r.asked, q)
	r.mu.Unlock()
	if r.answer != nil {
		return r.answer(q)
	}
	return r.Retriever.Retrieve(ctx, q)
}

func (l *lab) retrieve(t testing.TB, r activities.Retriever, how try, in agent.RetrieveCall) (agent.Reply, error) {
	t.Helper()
	return attemptWith(t, activities.Config{Ledger: l.Ledger, Tools: l.tools, Retriever: r}, how,
		func(a *activities.Activities) func(context.Context, agent.RetrieveCall) (agent.Reply, error) {
			return a.Retrieve
		}, in)
}

// finding is a run of one retrieval node, a, and the call of it.
func (l *lab) finding(t testing.TB, node string) (agent.Run, agent.RetrieveCall) {
	t.Helper()
	run := l.accept(t, agent.ModePlan, `{"nodes": [{"id": "a", "kind": "retrieval", `+node+`}]}`)
	return run, agent.RetrieveCall{Call: call(run, 1)}
}

func (l *lab) keeps(t testing.TB, owner, id, text, metadata string) {
	t.Helper()
	_, err := l.AddDocuments(t.Context(), owner, []agent.Document{{ID: id, Text: text, Language: agent.DefaultLanguage, Metadata: json.RawMessage(metadata)}})
	require.NoError(t, err)
}

// What is found is committed: citations in the node's output, of the run's owner alone, and never searched for again.
func TestRetrieve(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.keeps(t, "local", "one", "Whoever is to do it does it well.", `{"year": 2026}`)
	l.keeps(t, "local", "old", "To do it was usual.", `{"year": 1926}`)
	l.keeps(t, "stranger", "theirs", "Do it, do it!", `{"year": 2026}`)
	run, in := l.finding(t, `"query": {"$from": "/input"}, "limit": 2, "filter": {"year": 2026, "k": {"$from": "/metadata/k"}}`)
	r := &retrieverProbe{Retriever: l.Ledger}
	reply, err := l.retrieve(t, r, try{}, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	row := l.row(t, run, "a")
	require.Equal(t, agent.RetrievalCommand, row.Kind)
	require.Equal(t, agent.Idempotent, row.Effect)
	require.JSONEq(t, `{"query": "do it", "documents": []}`, string(row.Result), "no document has the run's k")
	require.Equal(t, []agent.DocumentQuery{{Owner: "local", RunID: run.RunID, Query: "do it", Limit: 2, Filter: json.RawMessage(`{"k":{"a/b":[1,2]},"year":2026}`)}}, r.asked)

	// In English "do it" says nothing; the words of the text do.
	run, in = l.finding(t, `"query": "usual, or done well", "filter": {"year": 2026}`)
	reply, err = l.retrieve(t, r, try{}, in)
	require.NoError(t, err)
	var out agent.Retrieved
	require.NoError(t, json.Unmarshal(l.row(t, run, "a").Result, &out))
	require.Len(t, out.Documents, 1)
	require.Equal(t, "one", out.Documents[0].ID)
	require.Contains(t, out.Documents[0].Snippet, "does it well")
	require.JSONEq(t, `{"year": 2026}`, string(out.Documents[0].Metadata))
	require.Contains(t, reply.Preview, "usual, or done well")
	require.Equal(t, []agent.EventType{agent.CommandEmitted, agent.CommandCommitted, agent.NodeFinished, agent.CheckpointSaved}, l.types(t, run)[len(l.types(t, run))-4:])

	l.keeps(t, "local", "later", "Done well too.", `{"year": 2026}`)
	again, err := l.retrieve(t, r, try{attempt: 2}, in)
	require.NoError(t, err)
	require.Equal(t, reply.Hash, again.Hash)
	require.Len(t, r.asked, 2, "it is on record")
}

// A crash before the commit lets it search again, under the same number of the gate's rules; after it, the record answers.
func TestRetrieveOverACrash(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.keeps(t, "local", "one", "marmots whistle", `{}`)
	run, in := l.finding(t, `"query": "marmot"`)
	r := &retrieverProbe{answer: func(agent.DocumentQuery) ([]agent.FoundDocument, error) { crash(); return nil, nil }}
	_, err := l.retrieve(t, r, try{}, in)
	require.ErrorIs(t, err, errCrashed)
	l.expire(t, run)
	r.answer, r.Retriever = nil, l.Ledger
	reply, err := l.retrieve(t, r, try{attempt: 2}, in)
	require.NoError(t, err)
	require.Equal(t, agent.OutcomeCommitted, reply.Outcome)
	require.Equal(t, 2, l.row(t, run, "a").Dispatches)
	require.Contains(t, l.types(t, run), agent.AttemptDiscarded)
	require.Len(t, r.asked, 2)
}

func TestRetrieveThatFails(t *testing.T) {
	t.Parallel()
	l := setup(t)
	found := func(d agent.FoundDocument) func(agent.DocumentQuery) ([]agent.FoundDocument, error) {
		return func(agent.DocumentQuery) ([]agent.FoundDocument, error) { return []agent.FoundDocument{d}, nil }
	}
	for name, c := range map[string]struct {
		node    string
		r       activities.Retriever
		code    agent.Code
		message string
	}{
		"a query that is none": {`"query": {"$from": "/metadata/k"}`, &retrieverProbe{Retriever: l.Ledger}, agent.CodeInvalidArguments, "query: want a text"},
		"a query of nothing":   {`"query": {"$from": "/metadata/x"}`, &retrieverProbe{Retriever: l.Ledger}, agent.CodeReference, "nothing at /x"},
		"no retriever":         {`"query": "x"`, nil, agent.CodeRetrieval, "no retriever"},
		"a retriever that says no": {`"query": "x"`, &retrieverProbe{answer: func(agent.DocumentQuery) ([]agent.FoundDocument, error) {
			return nil, agent.Failed(agent.CodeRetrieval, "closed")
		}}, agent.CodeRetrieval, "closed"},
		"metadata that is not JSON":    {`"query": "x"`, &retrieverProbe{answer: found(agent.FoundDocument{ID: "x", Metadata: json.RawMessage("{")})}, agent.CodeRetrieval, "cannot be recorded"},
		"a score that is not a number": {`"query": "x"`, &retrieverProbe{answer: found(agent.FoundDocument{ID: "x", Score: math.NaN()})}, agent.CodeRetrieval, "cannot be recorded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run, in := l.finding(t, c.node)
			reply, err := l.retrieve(t, c.r, try{}, in)
			require.NoError(t, err)
			require.Equal(t, agent.OutcomeFailed, reply.Outcome)
			require.Equal(t, c.code, reply.Error.Code)
			require.Contains(t, reply.Error.Message, c.message)
			require.Equal(t, agent.CommandFailed, l.row(t, run, "a").State)
		})
	}

	// What may be better next time is tried again; more than was asked for is not recorded, and no metadata are none.
	run, in := l.finding(t, `"query": "x", "limit": 1`)
	r := &retrieverProbe{answer: func(agent.DocumentQuery) ([]agent.FoundDocument, error) { return nil, errors.New("connection refused") }}
	_, err := l.retrieve(t, r, try{}, in)
	requireCode(t, err, agent.CodeRetrieval, true)
	r.answer = func(agent.DocumentQuery) ([]agent.FoundDocument, error) {
		return []agent.FoundDocument{{ID: "x", Snippet: strings.Repeat("s", 10), Score: 2}, {ID: "y"}}, nil
	}
	_, err = l.retrieve(t, r, try{attempt: 2}, in)
	require.NoError(t, err)
	require.JSONEq(t, `{"query": "x", "documents": [{"id": "x", "snippet": "ssssssssss", "score": 2, "metadata": {}}]}`, string(l.row(t, run, "a").Result))
}

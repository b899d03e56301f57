package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/auth"
	"runledger/internal/pgtest"
	"runledger/ledger"
)

const documentsPath = "/api/v1/documents"

func TestDocuments(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.do("POST", documentsPath, `{"documents":[{"id":"handbook/1#2 %"},{"text":"x"}]}`)
	requireProblem(t, w, 422, "invalid-request", "/documents/0/id")
	require.Empty(t, b.ledger.documents, "all or none")

	w = b.do("POST", documentsPath, `{"documents":[{"id":"handbook/1#2%","text":"Wie häufig?","language":"german","metadata":{"year":2026}},{"text":"no more than that"}]}`)
	require.Equal(t, 201, w.Code, "%s", w.Body)
	kept := document[struct{ Documents []documentHead }](t, w).Documents
	require.Len(t, kept, 2)
	require.Equal(t, "handbook/1#2%", kept[0].ID)
	require.Equal(t, "german", kept[0].Language)
	require.Equal(t, len("Wie häufig?"), kept[0].Bytes)
	require.JSONEq(t, `{"year":2026}`, string(kept[0].Metadata))
	require.NoError(t, uuid.Validate(kept[1].ID), "one without an id is given one")
	require.Equal(t, agent.DefaultLanguage, kept[1].Language)
	require.JSONEq(t, `{}`, string(kept[1].Metadata))

	path := documentsPath + "/" + url.PathEscape(kept[0].ID)
	got := document[agent.Document](t, b.do("GET", path, ""))
	require.Equal(t, "Wie häufig?", got.Text)
	require.JSONEq(t, `{"year":2026}`, string(got.Metadata))
	w = b.do("DELETE", path, "")
	require.Equal(t, 204, w.Code)
	require.Empty(t, w.Body.String())
	for _, method := range []string{"GET", "DELETE"} {
		requireProblem(t, b.do(method, path, ""), 404, "not-found", "")
		requireProblem(t, b.do(method, documentsPath+"/%20", ""), 404, "not-found", "")
		requireProblem(t, b.do(method, documentsPath+"/"+strings.Repeat("x", 129), ""), 404, "not-found", "")
	}
	requireProblem(t, b.do("GET", documentsPath, ""), 405, "method-not-allowed", "")
}

func TestDocumentsThatAreNotKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) { c.MaxBody = 4 << 20 })
	one := func(more string) string { return `{"documents":[{"text":"x"},{"text":"y",` + more + `}]}` }
	for body, want := range map[string]struct {
		status  int
		pointer string
	}{
		`{}`:                                           {422, "/documents"},
		`{"documents":[]}`:                             {422, "/documents"},
		`{"documents":{}}`:                             {422, "/documents"},
		`{"documents":[{}]}`:                           {422, "/documents/0/text"},
		`{"documents":[{"text":" \n"}]}`:               {422, "/documents/0/text"},
		`{"documents":[{"text":7}]}`:                   {422, "/documents/0/text"},
		`{"documents":[{"text":"\u0000"}]}`:            {422, "/documents/0/text"},
		`{"documents":[{"text":"x"}],"a":1}`:           {400, "/a"},
		one(`"lang":"x"`):                              {400, "/documents/1/lang"},
		one(`"id":"a b"`):                              {422, "/documents/1/id"},
		one(`"id":"ä"`):                                {422, "/documents/1/id"},
		one(`"id":"` + strings.Repeat("x", 129) + `"`): {422, "/documents/1/id"},
		one(`"language":"klingon"`):                    {422, "/documents/1/language"},
		one(`"metadata":[]`):                           {422, "/documents/1/metadata"},
		one(`"metadata":"x"`):                          {422, "/documents/1/metadata"},
		one(`"metadata":{"x":"` + strings.Repeat("x", 16<<10) + `"}`):               {422, "/documents/1/metadata"},
		`{"documents":[{"text":"` + strings.Repeat("x", 256<<10+1) + `"}]}`:         {422, "/documents/0/text"},
		`{"documents":[` + strings.Repeat(`{"text":"x"},`, 1000) + `{"text":"x"}]}`: {422, "/documents"},
		`{"documents":[{"id":"a","text":"x"},{"text":"x"},{"id":"a","text":"y"}]}`:  {422, "/documents/2/id"},
	} {
		kind := map[int]string{400: "invalid-body", 422: "invalid-request"}[want.status]
		requireProblem(t, b.do("POST", documentsPath, body), want.status, kind, want.pointer)
	}
	require.Empty(t, b.ledger.documents)
}

// Documents are their owner's, as the ledger keeps them: ids are free to be the same, strangers' answer 404, and who works for everybody
// has none of their own.
func TestDocumentsByOwner(t *testing.T) {
	t.Parallel()
	store, err := ledger.Open(t.Context(), pgtest.Database(t), ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	b := newBench(t, func(c *Config) { c.Ledger, c.Tokens = store, auth.NewKeyring(allTokens()) })
	a, bee, star := bearer("a", auth.User), bearer("b", auth.User), bearer(agent.AnyOwner, auth.Operator)
	for _, who := range []string{a, bee} {
		require.Equal(t, 201, b.do("POST", documentsPath, `{"documents":[{"id":"same","text":"x"}]}`, who).Code)
	}
	require.Equal(t, 201, b.do("POST", documentsPath, `{"documents":[{"id":"of-a","text":"x"}]}`, a).Code)
	requireProblem(t, b.do("POST", documentsPath, `{"documents":[{"id":"of-star","text":"x"}]}`, star), 422, "invalid-request", "/documents")
	requireProblem(t, b.do("POST", documentsPath, `{"documents":[{"text":"x"}]}`, bearer("a", auth.Viewer)), 403, "user-role-needed", "")
	require.Equal(t, 200, b.do("GET", documentsPath+"/of-a", "", bearer("a", auth.Viewer)).Code)
	for _, method := range []string{"GET", "DELETE"} {
		requireProblem(t, b.do(method, documentsPath+"/of-a", "", bee), 404, "not-found", "")
		requireProblem(t, b.do(method, documentsPath+"/same", "", star), 409, "document-ambiguous", "")
	}
	require.Equal(t, 204, b.do("DELETE", documentsPath+"/same", "", a).Code)
	require.Equal(t, 200, b.do("GET", documentsPath+"/same", "", bee).Code)
	require.Equal(t, 200, b.do("GET", documentsPath+"/same", "", star).Code)

	// A thousand in one request, if the body is not too large.
	var many []map[string]string
	for i := range agent.MaxDocumentsAtOnce {
		many = append(many, map[string]string{"id": fmt.Sprint(i), "text": "words"})
	}
	body, err := json.Marshal(map[string]any{"documents": many})
	require.NoError(t, err)
	require.Equal(t, 201, b.do("POST", documentsPath, string(body), a).Code)
}

// A plan may search, and is told what is wrong with how it does.
func TestPlansWithRetrieval(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	plan := func(node string) string {
		return `{"input":"x","wait":0,"plan":{"nodes":[{"id":"find","kind":"retrieval",` + node + `}]}}`
	}
	require.Equal(t, 202, b.do("POST", root+"/run", plan(`"query":{"$from":"/input"},"limit":3,"filter":{"year":2026}`)).Code)
	requireProblem(t, b.do("POST", root+"/run", plan(`"limit":3`)), 422, "invalid-plan", "/plan/nodes/0/query")
	requireProblem(t, b.do("POST", root+"/run", plan(`"query":["x"]`)), 422, "invalid-plan", "/plan/nodes/0/query")
	requireProblem(t, b.do("POST", root+"/run", plan(`"query":"x","limit":51`)), 422, "invalid-plan", "/plan/nodes/0/limit")
}

package ledger_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// document is one in English.
func document(id, text, metadata string) agent.Document {
	return agent.Document{ID: id, Text: text, Language: agent.DefaultLanguage, Metadata: json.RawMessage(metadata)}
}

func (b *bench) adds(t testing.TB, owner string, documents ...agent.Document) {
	t.Helper()
	kept, err := b.AddDocuments(t.Context(), owner, documents)
	require.NoError(t, err)
	require.Len(t, kept, len(documents))
	for i, d := range kept {
		require.Equal(t, documents[i].ID, d.ID)
		require.False(t, d.CreatedAt.IsZero())
	}
}

// finds searches an owner's documents and gives the ids, the best first.
func (b *bench) finds(t testing.TB, owner, query, filter string) []string {
	t.Helper()
	ids := []string{}
	for _, d := range b.retrieves(t, owner, query, filter, 10) {
		ids = append(ids, d.ID)
	}
	return ids
}

func (b *bench) retrieves(t testing.TB, owner, query, filter string, limit int) []agent.FoundDocument {
	t.Helper()
	q := agent.DocumentQuery{Owner: owner, Query: query, Limit: limit}
	if filter != "" {
		q.Filter = json.RawMessage(filter)
	}
	found, err := b.Retrieve(t.Context(), q)
	require.NoError(t, err)
	for i, d := range found {
		require.Positive(t, d.Score)
		require.True(t, i == 0 || d.Score <= found[i-1].Score, "the best first")
	}
	return found
}

// R4-25: one of a thousand documents is found by its words, with the place where they stand, within what the filter leaves.
func TestRetrieveAmongAThousand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	subjects := []string{"glaciers", "volcanoes", "orchards", "harbours", "deserts", "rivers", "meadows", "quarries", "lighthouses", "railways"}
	var documents []agent.Document
	for i := range 1000 {
		text := fmt.Sprintf("Report %d is about %s. ", i, subjects[i%10]) + strings.Repeat("It goes on for a while about nothing in particular. ", 20) +
			fmt.Sprintf("At its end, inspector number %d describes the colour of the stones there.", i)
		documents = append(documents, document(fmt.Sprintf("report/%03d", i), text, fmt.Sprintf(`{"year": %d, "tags": ["t%d", "all"], "by": {"team": %d}}`, 2000+i%20, i%7, i%3)))
	}
	documents[617].Text += " Only here a marmot was seen, whistling."
	for i := 0; i < 1000; i += 250 {
		b.adds(t, owner, documents[i:i+250]...)
	}
	require.Equal(t, 1000, value[int](t, b, `SELECT count(*)::int FROM documents WHERE owner = $1`, owner))

	found := b.retrieves(t, owner, "Where did the marmots whistle?", "", 5)
	require.Len(t, found, 1, "no other document has a word of it that counts")
	require.Equal(t, "report/617", found[0].ID)
	require.Contains(t, found[0].Snippet, "marmot was seen, whistling")
	require.Less(t, len(found[0].Snippet), 600, "the place, not the document")
	require.NotContains(t, found[0].Snippet, "<b>")
	require.JSONEq(t, `{"year": 2017, "tags": ["t1", "all"], "by": {"team": 2}}`, string(found[0].Metadata))
	require.GreaterOrEqual(t, found[0].Score, 1.0, "it has every word")

	found = b.retrieves(t, owner, "glaciers stones", "", 50)
	require.Len(t, found, 50)
	for _, d := range found { // 100 have both words, all 1,000 one of them
		require.True(t, strings.HasSuffix(d.ID, "0"), d.ID)
	}
	for _, filter := range []string{`{"year": 2017}`, `{"year": 2017, "by": {"team": 2}}`, `{"tags": ["t1"]}`} {
		found = b.retrieves(t, owner, "stones", filter, 50)
		require.NotEmpty(t, found)
		require.Contains(t, b.finds(t, owner, "stones marmot", filter), "report/617", filter)
		for _, d := range found {
			require.True(t, value[bool](t, b, `SELECT metadata @> $2::text::jsonb FROM documents WHERE owner = $3 AND id = $1`, d.ID, filter, owner), "%s: %s", d.ID, filter)
		}
	}
	require.Empty(t, b.finds(t, owner, "stones marmot", `{"year": 1999}`))
	require.Empty(t, b.finds(t, "team-b", "stones marmot", ""), "they are another's")
}

func TestRetrieveByWords(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.adds(t, owner,
		document("near", "The boiling point of water depends on the pressure.", `{}`),
		document("far", "Water is wet. "+strings.Repeat("There are seas and lakes and clouds. ", 30)+"One point remains: boiling takes a fire.", `{}`),
		document("two", "Water at the boiling stage.", `{}`),
		document("one", "Water, water, water, and water again; water.", `{}`),
		document("odd", `C:\temp\new it's "quoted" a|b & c! see https://example.com/a?b&c=d`, `{}`),
		agent.Document{ID: "de", Text: "Die Häuser der Stadt sind aus Holz.", Language: "german"},
		agent.Document{ID: "simple", Text: "the houses of the who", Language: "simple"})
	for query, want := range map[string][]string{
		"boiling point water":                 {"near", "far", "two", "one"},           // all words close together, all words, two of them, one
		"What is the boiling point of water?": {"near", "far", "two", "one", "simple"}, // where every word counts, "the" and "of" do
		"Haus":                                {"de"},
		"the who":                             {"simple"}, // in English both words say nothing
		"of the":                              {"simple"},
		`it's quoted`:                         {"odd"},
		`C:\temp\new`:                         {"odd"},
		`https://example.com/a?b&c=d`:         {"odd"},
		"' \\ | & ! ( ) <-> :*":               {},
		"":                                    {},
		"\x00 \xff":                           {},
		"zebra":                               {},
	} {
		require.Equal(t, want, b.finds(t, owner, query, ""), "%q", query)
	}
	// A long question counts by its first words.
	long := "pressure " + strings.Repeat("what about this and that, tell me ", 100)
	for i := range 200 {
		long += fmt.Sprintf("unheard%d ", i)
	}
	require.Equal(t, []string{"near"}, b.finds(t, owner, long, ""))
	require.Empty(t, b.finds(t, owner, strings.Replace(long, "pressure", "", 1)+" pressure", ""))
	// Numbers that jsonb does not take.
	b.adds(t, owner, document("number", "A number.", `{"n": 1e200000, "s": "\u0000\ud800"}`))
	require.Equal(t, []string{"number"}, b.finds(t, owner, "number", `{"n": 1e200000}`))
}

// Every language that may be named is there, and gives what is written in it.
func TestDocumentLanguages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, language := range agent.DocumentLanguages() {
		b.adds(t, owner, agent.Document{ID: language, Text: "xylographer " + language, Language: language})
	}
	for _, language := range agent.DocumentLanguages() {
		require.Equal(t, language, b.finds(t, owner, "xylographer "+language, "")[0])
	}
	_, err := b.AddDocuments(t.Context(), owner, []agent.Document{document("a", "kept with the other or not at all", `{}`), {ID: "b", Text: "x", Language: "klingon"}})
	require.ErrorContains(t, err, "klingon")
	_, err = b.Document(t.Context(), owner, "a")
	require.ErrorAs(t, err, new(*agent.NotFoundError))
}

// Whatever text is small enough to be taken can be kept and found.
func TestLargeDocuments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	fill := func(word func(i int) string) string {
		var text strings.Builder
		for i := 0; text.Len() < agent.MaxDocumentBytes-200; i++ {
			text.WriteString(word(i))
		}
		return text.String() + " narwhal"
	}
	texts := map[string]string{
		"words":   fill(func(i int) string { return fmt.Sprintf("w%x ", i) }),
		"short":   fill(func(i int) string { return string(rune(0x4e00+i%20000)) + " " }),
		"urls":    fill(func(i int) string { return fmt.Sprintf("http://h%d.example.com/a/b/c/%d ", i, i) }),
		"hyphens": fill(func(i int) string { return fmt.Sprintf("aa%d-bb%d-cc%d-dd%d ", i, i, i, i) }),
		"paths":   fill(func(i int) string { return fmt.Sprintf("/p%d/q%d-r%d_s%d.txt?x=%d ", i, i, i, i, i) }),
		"one":     strings.Repeat("x", agent.MaxDocumentBytes-100) + " narwhal",
	}
	for name, text := range texts {
		for _, language := range []string{"simple", "english"} {
			require.LessOrEqual(t, len(text), agent.MaxDocumentBytes)
			b.adds(t, owner, agent.Document{ID: name + "-" + language, Text: text, Language: language})
		}
	}
	require.Len(t, b.finds(t, owner, "narwhal", ""), min(10, 2*len(texts)))
}

func TestDocumentsAreTheirOwners(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.adds(t, owner, document("x", "first words", `{"a": 1}`), document("mine", "more", `{}`))
	b.adds(t, "team-b", document("x", "other words", `{}`))
	first, err := b.Document(t.Context(), owner, "x")
	require.NoError(t, err)
	require.Equal(t, "first words", first.Text)
	b.adds(t, owner, document("x", "second words", ``))
	second, err := b.Document(t.Context(), owner, "x")
	require.NoError(t, err)
	require.Equal(t, "second words", second.Text)
	require.JSONEq(t, `{}`, string(second.Metadata))
	require.Equal(t, first.CreatedAt, second.CreatedAt)
	require.True(t, second.UpdatedAt.After(first.UpdatedAt))
	require.Empty(t, b.finds(t, owner, "first", ""))
	require.Equal(t, []string{"x"}, b.finds(t, owner, "second", ""))

	var missing *agent.NotFoundError
	var several *agent.ConflictError
	_, err = b.Document(t.Context(), "team-b", "mine")
	require.ErrorAs(t, err, &missing)
	require.ErrorAs(t, b.DeleteDocument(t.Context(), "team-b", "mine"), &missing)
	_, err = b.Document(t.Context(), agent.AnyOwner, "x")
	require.ErrorAs(t, err, &several)
	require.ErrorAs(t, b.DeleteDocument(t.Context(), agent.AnyOwner, "x"), &several)
	_, err = b.Document(t.Context(), agent.AnyOwner, "mine")
	require.NoError(t, err)
	require.NoError(t, b.DeleteDocument(t.Context(), owner, "x"))
	require.NoError(t, b.DeleteDocument(t.Context(), agent.AnyOwner, "x"))
	require.ErrorAs(t, b.DeleteDocument(t.Context(), owner, "x"), &missing)
	require.Equal(t, 1, value[int](t, b, `SELECT count(*)::int FROM documents`))
}

// A conversation takes no documents along.
func TestDeletingAConversationLeavesDocuments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.adds(t, owner, document("x", "words", `{}`))
	run := b.accepted(t, twoStep(t))
	found, err := b.RunOwner(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, owner, found)
	b.finish(t, run, agent.Cancelled)
	require.NoError(t, b.DeleteConversation(t.Context(), owner, run.ConversationID))
	_, err = b.Document(t.Context(), owner, "x")
	require.NoError(t, err)
	_, err = b.RunOwner(t.Context(), run.RunID)
	require.ErrorAs(t, err, new(*agent.NotFoundError))
}

// Those who add the same documents at once, in whatever order, all succeed.
func TestAddingTheSameDocumentsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for w := range errs {
		wg.Go(func() {
			for range 5 {
				documents := make([]agent.Document, 20)
				for i := range documents {
					id := i
					if w%2 == 1 {
						id = len(documents) - 1 - i
					}
					documents[i] = document(fmt.Sprint(id), fmt.Sprintf("words of %d", w), `{}`)
				}
				if _, err := b.AddDocuments(t.Context(), owner, documents); err != nil {
					errs[w] = err
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 1, value[int](t, b, `SELECT count(DISTINCT text)::int FROM documents`))
}

// A search goes by the index of words where few documents have them, and by its owner where the owner has few.
func TestRetrieveGoesByAnIndex(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO documents (owner, id, language, text, metadata, words)
		SELECT CASE WHEN n % 50 = 0 THEN 'team-b' ELSE 'team-a' END, n, 'english', t, '{}', to_tsvector('english', t)
		FROM generate_series(1, 5000) n, LATERAL (SELECT 'page ' || n || ' word' || n % 500 || ' other text' AS t) t`)
	b.exec(t, `ANALYZE documents`)
	conn, err := b.db.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET enable_seqscan = off`) // as the ledger's connections have it
	require.NoError(t, err)
	for owner, index := range map[string]string{owner: "Bitmap Index Scan on documents_words", "team-b": "Cond: (owner = 'team-b'"} {
		word := "'word7' | 'zebra'"
		if owner == "team-b" {
			word = "'page' | 'text'"
		}
		rows, err := conn.Query(t.Context(), `EXPLAIN `+ledger.FindDocuments, pgx.QueryExecModeCacheDescribe, owner, "english", strings.Split(word, " | "), word, nil, 5)
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Contains(t, strings.Join(plan, "\n"), index, owner)
	}
}

package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

// AddDocuments keeps documents of an owner, all or none of them. One whose id is there already takes the place of the other. It gives
// them back as they are kept, in the order in which they came.
func (l *Ledger) AddDocuments(ctx context.Context, owner string, documents []agent.Document) ([]agent.Document, error) {
	kept := slices.Clone(documents)
	// Those who add the same documents at once, in whatever order, do not wait for each other in a circle.
	order := make([]*agent.Document, len(kept))
	for i := range kept {
		order[i] = &kept[i]
	}
	slices.SortFunc(order, func(a, b *agent.Document) int { return cmp.Compare(a.ID, b.ID) })
	var batch pgx.Batch
	for _, d := range order {
		if len(d.Metadata) == 0 {
			d.Metadata = json.RawMessage("{}")
		}
		metadata, err := jsonbSafe(d.Metadata)
		if err != nil {
			return nil, fmt.Errorf("add document %s: metadata: %w", d.ID, err)
		}
		d.Metadata, d.Text = metadata, textSafe(d.Text)
		batch.Queue(`INSERT INTO documents (owner, id, language, text, metadata, words) VALUES ($1, $2, $3, $4, $5, to_tsvector($3::text::regconfig, $4))
			ON CONFLICT (owner, id) DO UPDATE SET language = excluded.language, text = excluded.text, metadata = excluded.metadata,
				words = excluded.words, updated_at = now()
			RETURNING created_at, updated_at`, owner, d.ID, d.Language, d.Text, string(metadata)).QueryRow(func(row pgx.Row) error {
			return row.Scan(&d.CreatedAt, &d.UpdatedAt)
		})
	}
	if err := l.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("add %d documents: %w", len(documents), err)
	}
	return kept, nil
}

// Document reads a document of an owner. Errors: *agent.NotFoundError; *agent.ConflictError when agent.AnyOwner asks for an id that
// several owners have given.
func (l *Ledger) Document(ctx context.Context, owner, id string) (agent.Document, error) {
	rows, err := l.pool.Query(ctx, `SELECT id, text, language, metadata::text, created_at, updated_at FROM documents
		WHERE id = $1 AND (owner = $2 OR $2 = '*') LIMIT 2`, id, owner)
	if err != nil {
		return agent.Document{}, fmt.Errorf("read document %s: %w", id, err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (d agent.Document, err error) {
		var metadata string
		err = row.Scan(&d.ID, &d.Text, &d.Language, &metadata, &d.CreatedAt, &d.UpdatedAt)
		d.Metadata = json.RawMessage(metadata)
		return d, err
	})
	if errors.Is(err, pgx.ErrTooManyRows) {
		return agent.Document{}, &agent.ConflictError{Reason: agent.ConflictDocument, Detail: "several owners have a document " + id}
	}
	return d, notFound(err, "document", id)
}

// DeleteDocument removes a document of an owner. What runs have found in it stays on their record. Errors are those of Document.
func (l *Ledger) DeleteDocument(ctx context.Context, owner, id string) error {
	var owners, gone int
	err := l.pool.QueryRow(ctx, `WITH found AS (SELECT owner FROM documents WHERE id = $1 AND (owner = $2 OR $2 = '*')),
			gone AS (DELETE FROM documents d USING found f WHERE d.id = $1 AND d.owner = f.owner AND (SELECT count(*) FROM found) = 1 RETURNING d.id)
		SELECT (SELECT count(*) FROM found), (SELECT count(*) FROM gone)`, id, owner).Scan(&owners, &gone)
	switch {
	case err != nil:
		return fmt.Errorf("delete document %s: %w", id, err)
	case owners > 1:
		return &agent.ConflictError{Reason: agent.ConflictDocument, Detail: "several owners have a document " + id}
	case gone == 0:
		return &agent.NotFoundError{What: "document", ID: id}
	}
	return nil
}

// RunOwner is whose run it is. Error: *agent.NotFoundError.
func (l *Ledger) RunOwner(ctx context.Context, runID string) (string, error) {
	return l.ownerOf(ctx, agent.AnyOwner, runID)
}

const (
	// maxQueryWords is how many different words of a query count, the first ones.
	maxQueryWords = 32
	// snippets are up to two places of the text, without marks: what reads them is a model.
	snippets = `StartSel="", StopSel="", MaxFragments=2, MaxWords=60, MinWords=20, FragmentDelimiter=" … "`
)

// askLanguages gives the query's words in every language that the owner has documents in, as far as it has any there: as tsqueries, of
// each word and of any of them. Quotes and backslashes of a word are doubled, since it becomes part of a tsquery.
const askLanguages = `SELECT l.language, q.words, q.whole FROM unnest($3::text[]) l (language)
	CROSS JOIN LATERAL (
		SELECT array_agg(w.word) AS words, string_agg(w.word, ' | ') AS whole
		FROM (SELECT '''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || '''' AS word
			FROM unnest(to_tsvector(l.language::regconfig, $2)) ORDER BY positions[1], lexeme LIMIT $4) w) q
	WHERE q.whole IS NOT NULL AND EXISTS (SELECT FROM documents d WHERE d.owner = $1 AND d.language = l.language)`

// findDocuments searches those in one language. A document answers with any of the words; its score is the share of the words that it
// has, made up to twice that by how close together they stand (ts_rank_cd, between 0 and 1).
const findDocuments = `
	WITH best AS (
		SELECT d.id, d.text, d.metadata, (SELECT count(*) FROM unnest($3::text[]) w WHERE d.words @@ w::tsquery)::float8 / cardinality($3::text[])
				* (1 + ts_rank_cd(d.words, $4::text::tsquery, 1 | 32)) AS score
		FROM documents d WHERE d.owner = $1 AND d.language = $2 AND d.words @@ $4::text::tsquery AND ($5::text IS NULL OR d.metadata @> $5::text::jsonb)
		ORDER BY score DESC, d.id LIMIT $6
	)
	SELECT id, ts_headline($2::text::regconfig, text, $4::text::tsquery, '` + snippets + `'), score, metadata::text FROM best`

// asked is a query in a language.
type asked struct {
	Language string
	Words    []string
	Whole    string
}

// Retrieve searches the documents of the query's owner by their words, in the language of each, and within those whose metadata
// contain the filter. Words that say nothing in a language do not count there; of the others the first 32 that differ.
func (l *Ledger) Retrieve(ctx context.Context, q agent.DocumentQuery) ([]agent.FoundDocument, error) {
	var filter *string
	if len(q.Filter) > 0 {
		safe, err := jsonbSafe(q.Filter)
		if err != nil {
			return nil, fmt.Errorf("search documents: filter: %w", err)
		}
		text := string(safe)
		filter = &text
	}
	rows, err := l.pool.Query(ctx, askLanguages, q.Owner, textSafe(q.Query), agent.DocumentLanguages(), maxQueryWords)
	if err != nil {
		return nil, fmt.Errorf("search documents: %w", err)
	}
	languages, err := pgx.CollectRows(rows, pgx.RowToStructByPos[asked])
	if err != nil {
		return nil, fmt.Errorf("search documents: %w", err)
	}
	var found []agent.FoundDocument
	for _, in := range languages {
		// Described and not prepared: which index serves best depends on the words, so that it is planned for those at hand.
		rows, err := l.pool.Query(ctx, findDocuments, pgx.QueryExecModeCacheDescribe, q.Owner, in.Language, in.Words, in.Whole, filter, q.Limit)
		if err != nil {
			return nil, fmt.Errorf("search documents in %s: %w", in.Language, err)
		}
		best, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d agent.FoundDocument, err error) {
			var metadata string
			err = row.Scan(&d.ID, &d.Snippet, &d.Score, &metadata)
			d.Metadata = json.RawMessage(metadata)
			return d, err
		})
		if err != nil {
			return nil, fmt.Errorf("search documents in %s: %w", in.Language, err)
		}
		found = append(found, best...)
	}
	slices.SortFunc(found, func(a, b agent.FoundDocument) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.ID, b.ID))
	})
	return found[:min(len(found), q.Limit)], nil
}

package agent

import (
	"encoding/json"
	"slices"
	"time"
)

// Document is a text that retrieval nodes find. It belongs to an owner, not to a conversation.
type Document struct {
	// ID is unique among those of its owner: see ValidDocumentID.
	ID   string `json:"id"`
	Text string `json:"text"`
	// Language is one of DocumentLanguages. It says which words count, and which are forms of the same.
	Language string `json:"language"`
	// Metadata is a JSON object, by which searches can be narrowed and which they give back.
	Metadata  json.RawMessage `json:"metadata"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
}

// DocumentQuery asks a run's retriever for documents.
type DocumentQuery struct {
	// Owner is whose documents are searched: the owner of the run RunID.
	Owner, RunID string
	// Query is a text: words, a question.
	Query string
	// Limit is the most that are given.
	Limit int
	// Filter is a JSON object that the metadata of what is found contains, nil for any.
	Filter json.RawMessage
}

// FoundDocument is a document that answers a query.
type FoundDocument struct {
	ID string `json:"id"`
	// Snippet are the places of the text that answer the query.
	Snippet string `json:"snippet"`
	// Score orders what one query has found, the best first. It says nothing across queries.
	Score    float64         `json:"score"`
	Metadata json.RawMessage `json:"metadata"`
}

// Retrieved is the result of a retrieval command, and the output of its node.
type Retrieved struct {
	Query     string          `json:"query"`
	Documents []FoundDocument `json:"documents"`
}

// Bounds of documents and of what is asked for them.
const (
	MaxDocumentBytes         = 256 << 10
	MaxDocumentMetadataBytes = 16 << 10
	MaxDocumentIDLength      = 128
	MaxDocumentsAtOnce       = 1000 // in one request
	MaxQueryBytes            = 16 << 10
	DefaultRetrievalLimit    = 5
	MaxRetrievalLimit        = 50
)

// DefaultLanguage is that of a document that names none.
const DefaultLanguage = "english"

// DocumentLanguages are the text search configurations that Postgres comes with. simple takes words as they are written.
func DocumentLanguages() []string {
	return []string{"simple", "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hindi",
		"hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian", "portuguese", "romanian", "russian", "serbian", "spanish",
		"swedish", "tamil", "turkish", "yiddish"}
}

// ValidDocumentID reports whether id can be that of a document: printable ASCII without blanks.
func ValidDocumentID(id string) bool {
	if id == "" || len(id) > MaxDocumentIDLength {
		return false
	}
	return !slices.ContainsFunc([]byte(id), func(b byte) bool { return b <= ' ' || b > '~' })
}

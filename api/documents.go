package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"runledger/agent"
)

// documentsBody are documents to be kept.
type documentsBody struct {
	Documents []documentBody `json:"documents"`
}

type documentBody struct {
	ID       string          `json:"id"`
	Text     string          `json:"text"`
	Language string          `json:"language"`
	Metadata json.RawMessage `json:"metadata"`
}

// documentHead is a document without its text.
type documentHead struct {
	ID        string          `json:"id"`
	Language  string          `json:"language"`
	Bytes     int             `json:"bytes"`
	Metadata  json.RawMessage `json:"metadata"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
}

// check names what is wrong with a document, and fills in what was left out.
func (d *documentBody) check(at string) faults {
	var f faults
	if d.ID != "" && !agent.ValidDocumentID(d.ID) {
		f.add(at+"/id", "want 1 to %d printable ASCII characters without blanks", agent.MaxDocumentIDLength)
	}
	switch {
	case strings.TrimSpace(d.Text) == "":
		f.add(at+"/text", "a document needs a text")
	case len(d.Text) > agent.MaxDocumentBytes:
		f.add(at+"/text", "%d bytes; a document may have %d: cut it into several", len(d.Text), agent.MaxDocumentBytes)
	}
	if d.Language == "" {
		d.Language = agent.DefaultLanguage
	}
	if !slices.Contains(agent.DocumentLanguages(), d.Language) {
		f.add(at+"/language", "%q: want one of %s", agent.Preview(d.Language, 64), strings.Join(agent.DocumentLanguages(), ", "))
	}
	var object map[string]json.RawMessage
	switch {
	case len(d.Metadata) > agent.MaxDocumentMetadataBytes:
		f.add(at+"/metadata", "%d bytes; metadata may have %d", len(d.Metadata), agent.MaxDocumentMetadataBytes)
	case json.Unmarshal(d.Metadata, &object) != nil || object == nil:
		if len(d.Metadata) > 0 {
			f.add(at+"/metadata", "want an object")
		}
		d.Metadata = json.RawMessage("{}")
	}
	d.ID = orNewID(d.ID)
	return f
}

// postDocuments keeps documents, all or none of them.
func (a *API) postDocuments(w http.ResponseWriter, r *http.Request) error {
	var body documentsBody
	if _, err := a.readBody(w, r, &body); err != nil {
		return err
	}
	var f faults
	if n := len(body.Documents); n == 0 || n > agent.MaxDocumentsAtOnce {
		f.add("/documents", "%d: want 1 to %d", n, agent.MaxDocumentsAtOnce)
	}
	owner := caller(r).Owner
	if owner == agent.AnyOwner {
		f.add("/documents", "a token for every owner has no documents of its own")
	}
	documents := make([]agent.Document, len(body.Documents))
	seen := map[string]int{}
	for i := range body.Documents {
		d, at := &body.Documents[i], fmt.Sprintf("/documents/%d", i)
		f = append(f, d.check(at)...)
		if first, twice := seen[d.ID]; twice {
			f.add(at+"/id", "%q is the id of document %d already", d.ID, first)
		}
		seen[d.ID] = i
		documents[i] = agent.Document{ID: d.ID, Text: d.Text, Language: d.Language, Metadata: d.Metadata}
	}
	if len(f) > 0 {
		return faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	kept, err := a.cfg.Ledger.AddDocuments(r.Context(), owner, documents)
	if err != nil {
		return err
	}
	heads := make([]documentHead, len(kept))
	for i, d := range kept {
		heads[i] = documentHead{ID: d.ID, Language: d.Language, Bytes: len(d.Text), Metadata: d.Metadata, CreatedAt: d.CreatedAt, UpdatedAt: d.UpdatedAt}
	}
	return writeJSON(w, http.StatusCreated, struct {
		Documents []documentHead `json:"documents"`
	}{heads})
}

func (a *API) getDocument(w http.ResponseWriter, r *http.Request) error {
	id, err := documentID(r)
	if err != nil {
		return err
	}
	d, err := a.cfg.Ledger.Document(r.Context(), caller(r).Owner, id)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, d)
}

func (a *API) deleteDocument(w http.ResponseWriter, r *http.Request) error {
	id, err := documentID(r)
	if err != nil {
		return err
	}
	if err := a.cfg.Ledger.DeleteDocument(r.Context(), caller(r).Owner, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// documentID reads a document's id from the path. What cannot be one names nothing.
func documentID(r *http.Request) (string, error) {
	id := pathValue(r, "document_id")
	if !agent.ValidDocumentID(id) {
		return "", &agent.NotFoundError{What: "document", ID: agent.Preview(id, 64)}
	}
	return id, nil
}

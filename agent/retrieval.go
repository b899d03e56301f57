package agent

import (
	"encoding/json"
	"fmt"
)

// checkRetrieval holds a retrieval node to have a query, and no work of another kind, and other nodes to have no query.
func (c *compiler) checkRetrieval(i int, n *Node, at string) {
	if n.Kind != RetrievalNode {
		if !absent(n.Query) || n.Limit != 0 || !absent(n.Filter) {
			c.fault(at, "only a retrieval node has a query, a limit or a filter")
		}
		return
	}
	if n.Tool != "" || n.Prompt != "" || !absent(n.Args) || n.Inputs != nil {
		c.fault(at, "a retrieval node has a query, a limit and a filter, and nothing else to do")
	}
	switch {
	case absent(n.Query):
		c.fault(at+"/query", "a retrieval node needs a query")
	case firstByte(n.Query) != '"' && !isReference(n.Query):
		c.fault(at+"/query", `want a text, or {"$from": ...}`)
	case len(n.Query) > MaxQueryBytes:
		c.fault(at+"/query", "%d bytes; a query may have %d", len(n.Query), MaxQueryBytes)
	default:
		c.checkReferences(i, n.Query, at+"/query")
	}
	if n.Limit < 0 || n.Limit > MaxRetrievalLimit {
		c.fault(at+"/limit", "%d: want 1 to %d", n.Limit, MaxRetrievalLimit)
	}
	switch {
	case absent(n.Filter):
	case firstByte(n.Filter) != '{':
		c.fault(at+"/filter", "want an object")
	default:
		c.checkReferences(i, n.Filter, at+"/filter")
	}
}

// absent reports whether a value was left out or is null, which planners write where they must write every field.
func absent(value json.RawMessage) bool {
	return len(value) == 0 || string(value) == "null"
}

// given is a value, nil for one that is null.
func given(value json.RawMessage) json.RawMessage {
	if absent(value) {
		return nil
	}
	return value
}

// isReference reports whether a value is one reference, well-formed or not.
func isReference(value json.RawMessage) (is bool) {
	EachReference(value, func(where string, _ Reference, _ error) { is = is || where == "" })
	return is
}

// RetrievalInput is what a retrieval command is asked, with its references resolved.
type RetrievalInput struct {
	Query  string          `json:"query"`
	Limit  int             `json:"limit"`
	Filter json.RawMessage `json:"filter,omitempty"`
}

// RetrievalInputOf reads the resolved value of RetrievalTemplate. The error, a definite failure, says which of its parts cannot be used.
func RetrievalInputOf(resolved json.RawMessage) (in RetrievalInput, err error) {
	var parts struct {
		Query  json.RawMessage `json:"query"`
		Limit  int             `json:"limit"`
		Filter json.RawMessage `json:"filter"`
	}
	if err := json.Unmarshal(resolved, &parts); err != nil {
		return in, Failed(CodeInternal, "retrieval: %w", err)
	}
	in.Limit = parts.Limit
	if in.Limit == 0 {
		in.Limit = DefaultRetrievalLimit
	}
	switch {
	case firstByte(parts.Query) != '"' || json.Unmarshal(parts.Query, &in.Query) != nil:
		return in, Failed(CodeInvalidArguments, "query: want a text, and it refers to %s", Preview(string(parts.Query), 60))
	case len(in.Query) > MaxQueryBytes:
		return in, Failed(CodeInvalidArguments, "query: %d bytes; a query may have %d", len(in.Query), MaxQueryBytes)
	case parts.Filter == nil:
	case firstByte(parts.Filter) != '{': // null too: what was to be narrowed is not opened by a reference to nothing
		return in, Failed(CodeInvalidArguments, "filter: want an object, and it refers to %s", Preview(string(parts.Filter), 60))
	default:
		in.Filter = parts.Filter
	}
	return in, nil
}

// RetrievalTemplate is what a retrieval node asks, as one value whose references are to be resolved.
func RetrievalTemplate(n *Node) (json.RawMessage, error) {
	template, err := json.Marshal(struct {
		Query  json.RawMessage `json:"query"`
		Limit  int             `json:"limit,omitempty"`
		Filter json.RawMessage `json:"filter,omitempty"`
	}{n.Query, n.Limit, n.Filter})
	if err != nil {
		return nil, fmt.Errorf("retrieval node %s: %w", n.ID, err)
	}
	return template, nil
}

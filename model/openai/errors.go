package openai

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"runledger/agent"
	"runledger/model"
)

const (
	// maxErrorBody bounds what is read of a refusal, maxMessage what is kept of it.
	maxErrorBody = 64 << 10
	maxMessage   = 1000
)

// vendorError is an error as OpenAI and its imitators write it, in an answer or as an event within a stream.
type vendorError struct {
	Message string
	Type    string
	Code    string
}

// parseError reads the forms in use: {"error": {...}}, {"error": "..."}, {"message": ...}, {"detail": ...}, and a list of one.
func parseError(body []byte) (vendorError, bool) {
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] == '[' {
		var list []json.RawMessage
		if json.Unmarshal(body, &list) != nil || len(list) == 0 {
			return vendorError{}, false
		}
		body = list[0]
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return vendorError{}, false
	}
	if inner, ok := fields["error"]; ok && !isNull(inner) {
		var text string
		if json.Unmarshal(inner, &text) == nil {
			return vendorError{Message: text, Code: scalar(fields["code"])}, true
		}
		var nested map[string]json.RawMessage
		if json.Unmarshal(inner, &nested) == nil {
			return fieldsError(nested), true
		}
		return vendorError{Message: string(inner)}, true
	}
	e := fieldsError(fields)
	if e.Message == "" {
		e.Message = scalar(fields["detail"])
	}
	return e, e.Message != ""
}

func fieldsError(fields map[string]json.RawMessage) vendorError {
	e := vendorError{Message: scalar(fields["message"]), Type: scalar(fields["type"]), Code: scalar(fields["code"])}
	if e.Type == "" {
		e.Type = scalar(fields["status"]) // Google's word for it
	}
	return e
}

// scalar gives a JSON string as its text, null as nothing, and everything else as it is written.
func scalar(raw json.RawMessage) string {
	var text string
	if isNull(raw) || json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

func isNull(raw json.RawMessage) bool {
	trimmed := bytes.TrimSpace(raw)
	return len(trimmed) == 0 || bytes.Equal(trimmed, []byte("null"))
}

// vendorMessage is what a vendor said in the body of a refusal, in one line.
func vendorMessage(body []byte) string {
	if e, ok := parseError(body); ok {
		if e.Message == "" {
			return strings.TrimSpace(e.Type + " " + e.Code)
		}
		return e.Message
	}
	if trimmed := bytes.TrimSpace(body); len(trimmed) > 0 && trimmed[0] == '<' {
		return "" // a proxy's page for people; its status says as much
	}
	return string(body)
}

// inStream classifies an error that came as an event after a 200. It says by name or number what its status would have
// been; when it says nothing that is known, a later try is worth it, since the request itself had been accepted.
func (c *Client) inStream(e vendorError, header http.Header) *agent.Error {
	said := c.redact(strings.TrimSpace(e.Message))
	if said == "" {
		said = c.redact(strings.TrimSpace(e.Type + " " + e.Code))
	}
	for _, text := range []string{e.Code, e.Type} {
		if status, err := strconv.Atoi(text); err == nil && status >= 400 && status < 600 {
			return model.StatusError(status, header, said)
		}
	}
	kind := strings.ToLower(e.Type + " " + e.Code)
	for _, word := range []string{
		"invalid", "bad_request", "badrequest", "authentication", "permission", "not_found", "notfound", "insufficient_quota",
		"content_filter", "content_policy", "context_length", "unsupported", "failed_precondition", "out_of_range",
	} {
		if strings.Contains(kind, word) {
			return agent.Failed(agent.CodeModelFailed, "the model's vendor ended the answer with an error: %s", said)
		}
	}
	return agent.Transient(agent.CodeModelUnavailable, "the model's vendor ended the answer with an error: %s", said)
}

// redact takes the API key out of what goes on record and brings it to one line of bearable length. A key too short to be a
// secret, as local servers want one, is taken out as a word only, or it would riddle every message.
func (c *Client) redact(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if c.apiKey != "" {
		text = cutKey(text, c.apiKey)
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(text) <= maxMessage {
		return text
	}
	cut := maxMessage
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + " ..."
}

func cutKey(text, key string) string {
	const secret = 8
	if len(key) >= secret {
		return strings.ReplaceAll(text, key, "[redacted]")
	}
	var b strings.Builder
	for from := 0; ; {
		at := strings.Index(text[from:], key)
		if at < 0 {
			return b.String() + text[from:]
		}
		start, end := from+at, from+at+len(key)
		before, _ := utf8.DecodeLastRuneInString(text[:start])
		after, _ := utf8.DecodeRuneInString(text[end:])
		b.WriteString(text[from:start])
		if wordRune(before) || wordRune(after) {
			b.WriteString(key)
		} else {
			b.WriteString("[redacted]")
		}
		from = end
	}
}

func wordRune(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }

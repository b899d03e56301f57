package wire

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"runledger/agent"
	"runledger/model"
)

const (
	// maxErrorBody bounds what is read of a refusal, in bytes, MaxMessage what is kept of it.
	maxErrorBody = 64 << 10
	MaxMessage   = 1000
)

// Error is an error as vendors write it, in an answer or as an event within a stream.
type Error struct {
	Message string
	Type    string
	Code    string
}

// ParseError reads the forms in use: {"error": {...}}, {"error": "..."}, {"message": ...}, {"detail": ...}, and a list of one.
func ParseError(body []byte) (Error, bool) {
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] == '[' {
		var list []json.RawMessage
		if json.Unmarshal(body, &list) != nil || len(list) == 0 {
			return Error{}, false
		}
		body = list[0]
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return Error{}, false
	}
	if inner, ok := fields["error"]; ok && !IsNull(inner) {
		var text string
		if json.Unmarshal(inner, &text) == nil {
			return Error{Message: text, Code: scalar(fields["code"])}, true
		}
		var nested map[string]json.RawMessage
		if json.Unmarshal(inner, &nested) == nil {
			return fieldsError(nested), true
		}
		return Error{Message: string(inner)}, true
	}
	e := fieldsError(fields)
	if e.Message == "" {
		e.Message = scalar(fields["detail"])
	}
	return e, e.Message != ""
}

func fieldsError(fields map[string]json.RawMessage) Error {
	e := Error{Message: scalar(fields["message"]), Type: scalar(fields["type"]), Code: scalar(fields["code"])}
	if e.Type == "" {
		e.Type = scalar(fields["status"]) // Google's word for it
	}
	return e
}

// scalar gives a JSON string as its text, null as nothing, and everything else as it is written.
func scalar(raw json.RawMessage) string {
	var text string
	if IsNull(raw) || json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

// IsNull reports whether a JSON value is null or not there.
func IsNull(raw json.RawMessage) bool {
	trimmed := bytes.TrimSpace(raw)
	return len(trimmed) == 0 || bytes.Equal(trimmed, []byte("null"))
}

// retryInfo is how long Google's vendors ask to wait: not in a header, but in a detail of the error, as "retryDelay": "7s".
func retryInfo(body []byte) time.Duration {
	var refusal struct {
		Error struct {
			Details []struct {
				RetryDelay string `json:"retryDelay"`
			} `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &refusal) != nil {
		return 0
	}
	for _, d := range refusal.Error.Details {
		if delay, err := time.ParseDuration(d.RetryDelay); err == nil && delay > 0 {
			return delay
		}
	}
	return 0
}

// messageOf is what a vendor said in the body of a refusal, in one line.
func messageOf(body []byte) string {
	if e, ok := ParseError(body); ok {
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

// InStream classifies an error that came as an event after a 200. It says by name or number what its status would have
// been; when it says nothing that is known, a later try is worth it, since the request itself had been accepted.
func (e *Endpoint) InStream(told Error, header http.Header) *agent.Error {
	said := e.Redact(strings.TrimSpace(told.Message))
	if said == "" {
		said = e.Redact(strings.TrimSpace(told.Type + " " + told.Code))
	}
	for _, text := range []string{told.Code, told.Type} {
		if status, err := strconv.Atoi(text); err == nil && status >= 400 && status < 600 {
			return model.StatusError(status, header, said)
		}
	}
	kind := strings.ToLower(told.Type + " " + told.Code)
	for _, word := range []string{
		"invalid", "bad_request", "badrequest", "authentication", "permission", "not_found", "notfound", "insufficient_quota",
		"content_filter", "content_policy", "context_length", "unsupported", "failed_precondition", "out_of_range",
		"too_large", "billing",
	} {
		if strings.Contains(kind, word) {
			return agent.Failed(agent.CodeModelFailed, "the model's vendor ended the answer with an error: %s", said)
		}
	}
	return agent.Transient(agent.CodeModelUnavailable, "the model's vendor ended the answer with an error: %s", said)
}

// Redact takes the API key out of what goes on record and brings it to one line of bearable length. A key too short to be a
// secret, as local servers want one, is taken out as a word only, or it would riddle every message.
func (e *Endpoint) Redact(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if e.key != "" {
		text = cutKey(text, e.key)
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(text) <= MaxMessage {
		return text
	}
	cut := MaxMessage
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

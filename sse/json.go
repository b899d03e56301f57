package sse

import (
	"bytes"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"runledger/agent"
)

// The data of events comes out of the ledger, which holds nothing but JSON. Here it is walked and copied without being taken apart:
// that, and not the database, would be most of what a replay costs. Whatever the bytes are, what is written stays on one line and ends
// where it has to.

// member is a member of a JSON object: its name as it is written, without the quotes, and its value.
type member struct{ name, value []byte }

// members takes the members of an object apart. It reports false for what is none.
func members(into []member, data []byte) ([]member, bool) {
	at := space(data, 0)
	if at == len(data) || data[at] != '{' {
		return into, false
	}
	at = space(data, at+1)
	if at < len(data) && data[at] == '}' {
		return into, space(data, at+1) == len(data)
	}
	for at < len(data) && data[at] == '"' {
		end := stringEnd(data, at)
		if end < 0 {
			return into, false
		}
		m := member{name: data[at+1 : end-1]}
		if at = space(data, end); at == len(data) || data[at] != ':' {
			return into, false
		}
		at = space(data, at+1)
		if end = valueEnd(data, at); end <= at {
			return into, false
		}
		m.value = data[at:end]
		into = append(into, m)
		if at = space(data, end); at == len(data) {
			return into, false
		}
		if data[at] == '}' {
			return into, space(data, at+1) == len(data)
		}
		if data[at] != ',' {
			return into, false
		}
		at = space(data, at+1)
	}
	return into, false
}

// elements takes an array apart. It reports false for what is none.
func elements(into [][]byte, data []byte) ([][]byte, bool) {
	at := space(data, 0)
	if at == len(data) || data[at] != '[' {
		return into, false
	}
	if at = space(data, at+1); at < len(data) && data[at] == ']' {
		return into, space(data, at+1) == len(data)
	}
	for at < len(data) {
		end := valueEnd(data, at)
		if end <= at {
			return into, false
		}
		into = append(into, data[at:end])
		if at = space(data, end); at == len(data) {
			return into, false
		}
		if data[at] == ']' {
			return into, space(data, at+1) == len(data)
		}
		if data[at] != ',' {
			return into, false
		}
		at = space(data, at+1)
	}
	return into, false
}

// space is the place of the first byte from at on that is not white.
func space(data []byte, at int) int {
	for at < len(data) && (data[at] == ' ' || data[at] == '\n' || data[at] == '\t' || data[at] == '\r') {
		at++
	}
	return at
}

// stringEnd is the place behind the string that begins at a place, -1 when it has no end or holds what no string may.
func stringEnd(data []byte, at int) int {
	for at++; at < len(data); at++ {
		switch c := data[at]; {
		case c == '"':
			return at + 1
		case c == '\\':
			at++
		case c < ' ':
			return -1
		}
	}
	return -1
}

// valueEnd is the place behind the value that begins at a place, -1 when it has none.
func valueEnd(data []byte, at int) int {
	depth := 0
	for at < len(data) {
		switch c := data[at]; {
		case c == '"':
			if at = stringEnd(data, at); at < 0 || depth == 0 {
				return at
			}
			continue
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth < 0 {
				return at // it was a number or a word
			}
			if depth == 0 {
				return at + 1
			}
		case depth == 0 && (c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r'):
			return at
		case c < ' ' && c != '\n' && c != '\t' && c != '\r':
			return -1
		}
		at++
	}
	if depth > 0 {
		return -1
	}
	return at
}

// find gives the value of a member, nil when there is none.
func find(of []member, name string) []byte {
	for i := range of {
		if string(of[i].name) == name {
			return of[i].value
		}
	}
	return nil
}

// text is the value of a JSON string without escapes, "" for anything else.
func text(value []byte) string {
	if len(value) < 2 || value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return ""
	}
	return string(value[1 : len(value)-1])
}

// appendObject writes members as an object, in the order of their names.
func appendObject(dst []byte, of []member) []byte {
	slices.SortFunc(of, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	dst = append(dst, '{')
	for i, m := range of {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), m.name...), `":`...)
		dst = append(dst, m.value...)
	}
	return append(dst, '}')
}

// appendCompact writes an object without the white space between its parts, or an empty one for what is no object.
func appendCompact(dst, data []byte) []byte {
	at := space(data, 0)
	begin := len(dst)
	if at == len(data) || data[at] != '{' {
		return append(dst, "{}"...)
	}
	end := valueEnd(data, at)
	if end < 0 || space(data, end) != len(data) {
		return append(dst, "{}"...)
	}
	from := at
	for at < end {
		switch data[at] {
		case '"':
			if at = stringEnd(data, at); at < 0 {
				return append(dst[:begin], "{}"...)
			}
		case ' ', '\n', '\t', '\r':
			dst = append(dst, data[from:at]...)
			at = space(data, at)
			from = at
		default:
			at++
		}
	}
	return append(dst, data[from:end]...)
}

// appendText writes a member whose value is a text, and nothing when that is empty.
func appendText(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return appendQuoted(append(append(append(dst, `,"`...), name...), `":`...), value)
}

const hexDigits = "0123456789abcdef"

// appendQuoted writes a JSON string. Bytes that are no UTF-8 become the replacement character.
func appendQuoted(dst []byte, value string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(value); {
		c := value[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, value[from:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, `\n`...)
			case '\r':
				dst = append(dst, `\r`...)
			case '\t':
				dst = append(dst, `\t`...)
			default:
				dst = append(dst, `\u00`...)
				dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(value[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(append(dst, value[from:i]...), "\uFFFD"...)
			from = i + 1
		}
		i += size
	}
	return append(append(dst, value[from:]...), '"')
}

// appendEventObject writes the JSON object of an event.
func appendEventObject(dst []byte, e *agent.Event) []byte {
	dst = strconv.AppendInt(append(dst, `{"sequence_number":`...), e.Sequence, 10)
	dst = appendQuoted(append(dst, `,"event_type":`...), string(e.Type))
	dst = appendQuoted(append(dst, `,"conversation_id":`...), e.ConversationID)
	dst = appendText(dst, "run_id", e.RunID)
	dst = appendText(dst, "root_run_id", e.RootRunID)
	dst = appendText(dst, "message_id", e.MessageID)
	dst = appendText(dst, "node_id", e.NodeID)
	dst = appendText(dst, "command_id", e.CommandID)
	if e.Attempt != 0 {
		dst = strconv.AppendInt(append(dst, `,"attempt":`...), int64(e.Attempt), 10)
	}
	dst = append(dst, `,"created_at":"`...)
	dst = e.CreatedAt.UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = appendCompact(append(dst, `","data":`...), e.Data)
	return append(dst, '}')
}

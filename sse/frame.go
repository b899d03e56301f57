package sse

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"runledger/agent"
)

// Frame is one event on the wire.
type Frame struct {
	// ID is the sequence number. 0 leaves the id line out, so that the client's last id stays what it was.
	ID int64
	// Event is the name under which clients listen.
	Event string
	// Data is a JSON object without line breaks.
	Data []byte
}

// AppendFrame writes f to dst. Whatever f holds, it stays one frame with these three fields: a line break cannot end a
// field early, because it is dropped from the name and starts another data line in the data.
func AppendFrame(dst []byte, f Frame) []byte {
	if f.ID > 0 {
		dst = append(dst, "id: "...)
		dst = strconv.AppendInt(dst, f.ID, 10)
		dst = append(dst, '\n')
	}
	if name := singleLine(f.Event); name != "" {
		dst = append(dst, "event: "...)
		dst = append(dst, name...)
		dst = append(dst, '\n')
	}
	dst = appendLines(dst, "data: ", f.Data)
	return append(dst, '\n')
}

// AppendComment writes a comment. Clients ignore it; proxies see traffic.
func AppendComment(dst []byte, text string) []byte {
	dst = appendLines(dst, ": ", []byte(text))
	return append(dst, '\n')
}

// AppendRetry tells the client how long to wait before it connects again.
func AppendRetry(dst []byte, wait time.Duration) []byte {
	dst = append(dst, "retry: "...)
	dst = strconv.AppendInt(dst, max(wait.Milliseconds(), 0), 10)
	return append(dst, '\n', '\n')
}

func singleLine(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == 0 {
			return -1
		}
		return r
	}, name)
}

// appendLines writes text with prefix before each of its lines. CR LF, LF and CR all end a line, as for every reader of
// the format.
func appendLines(dst []byte, prefix string, text []byte) []byte {
	for {
		dst = append(dst, prefix...)
		at := bytes.IndexAny(text, "\r\n")
		if at < 0 {
			dst = append(dst, text...)
			return append(dst, '\n')
		}
		dst = append(dst, text[:at]...)
		dst = append(dst, '\n')
		if text[at] == '\r' && at+1 < len(text) && text[at+1] == '\n' {
			at++
		}
		text = text[at+1:]
	}
}

// EncodeEvent gives the JSON object of an event, the same bytes for a frame and for a page and at every reading.
func EncodeEvent(e agent.Event) []byte {
	e.CreatedAt = e.CreatedAt.UTC()
	if !isObject(e.Data) {
		e.Data = json.RawMessage("{}")
	}
	object, err := encode(e)
	if err != nil {
		// Only data that is no JSON or a year past 9999 can do this. The event keeps its number, so that no reader sees a gap.
		e.Data, e.CreatedAt = json.RawMessage("{}"), time.Time{}
		object, _ = encode(e)
	}
	return object
}

func isObject(data json.RawMessage) bool {
	data = bytes.TrimLeft(data, " \t\r\n")
	return len(data) > 0 && data[0] == '{'
}

// encode is json.Marshal without the escapes that HTML would need.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// appendEvent writes an event of the ledger as a profile shows it.
func appendEvent(dst []byte, p Profile, e agent.Event) []byte {
	shown := p.Show(e)
	return AppendFrame(dst, Frame{ID: e.Sequence, Event: string(shown.Type), Data: EncodeEvent(shown)})
}

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

// EncodeEvent gives the JSON object of an event, the same bytes for a frame and for a page and at every reading. Data that is no
// object is shown as an empty one.
func EncodeEvent(e agent.Event) []byte { return appendEventObject(nil, &e) }

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

// appendEvent writes an event of the ledger as a profile shows it, as AppendFrame would.
func appendEvent(dst []byte, p Profile, e agent.Event) []byte {
	shown := p.Show(e)
	dst = strconv.AppendInt(append(dst, "id: "...), e.Sequence, 10)
	dst = append(append(append(dst, "\nevent: "...), singleLine(string(shown.Type))...), "\ndata: "...)
	return append(appendEventObject(dst, &shown), "\n\n"...)
}

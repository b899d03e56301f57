package agent

import "strings"

// Bounds of what is kept and of what travels. None of them is configured: they keep a run inside of what Temporal and Postgres
// take, whatever a tool or a model answers.
const (
	// MaxResultBytes bounds the result of one command. What is larger belongs in a store of its own, with its address as result.
	MaxResultBytes = 16 << 20
	// MaxErrorBytes bounds the message of an error on record.
	MaxErrorBytes = 8 << 10
	// MaxPayloadBytes bounds what an activity tells Temporal, which takes 2 MB and keeps every one in its history.
	MaxPayloadBytes = 512 << 10
	// MaxToldErrorBytes bounds the message of an error on its way through Temporal.
	MaxToldErrorBytes = 2 << 10
	// MaxTurnCalls bounds the tool calls that a model's answer may ask for.
	MaxTurnCalls = 256
	// maxCodeBytes and maxNameBytes bound a code that a tool made up, and the name of a tool that a model made up: no tool has a
	// name as long as that.
	maxCodeBytes = 64
	maxNameBytes = 160
)

// Cut is the error with a message of at most limit bytes, cut with a mark where it was longer.
func (e *Error) Cut(limit int) *Error {
	if e == nil || len(e.Message) <= limit && len(e.Code) <= maxCodeBytes {
		return e
	}
	cut := *e
	cut.Message, cut.Code = Preview(e.Message, limit), Code(Preview(string(e.Code), maxCodeBytes))
	return &cut
}

// ShownName is a name that a model made up, as it is shown and travels: cut, with a mark, where it is longer than a tool's can be,
// and without characters that no tool's name has.
func ShownName(name string) string {
	return Preview(strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune("<>&\"\\", r) {
			return '?'
		}
		return r
	}, name), maxNameBytes)
}

package sse

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"runledger/agent"
)

type outputKey struct{ runID, commandID string }

// output follows the model output of open commands for one stream.
type output struct {
	event func(channel string) string
	// joined: what comes from here on arrived while the stream was following, so that it is shown piece by piece.
	joined bool
	seen   map[outputKey]agent.OutputCursor
	// over holds the attempts up to which chunks no longer count, of the commands whose fate was read in this round.
	over map[outputKey]int
}

func newOutput(event func(channel string) string) *output {
	return &output{event: event, seen: map[outputKey]agent.OutputCursor{}, over: map[outputKey]int{}}
}

func (o *output) cursors() []agent.OutputCursor {
	return slices.SortedFunc(maps.Values(o.seen), func(a, b agent.OutputCursor) int {
		return cmp.Or(cmp.Compare(a.RunID, b.RunID), cmp.Compare(a.CommandID, b.CommandID))
	})
}

// note takes in what an event says of a command's output: decided means that the committed text replaces it, discarded
// that the attempt does not count.
func (o *output) note(e agent.Event) {
	key := outputKey{e.RunID, e.CommandID}
	switch e.Type {
	case agent.CommandCommitted, agent.CommandFailedType, agent.CommandAbortType, agent.CommandDoubtType, agent.CommandResolved:
		delete(o.seen, key)
		o.over[key] = math.MaxInt
	case agent.AttemptDiscarded:
		if c, ok := o.seen[key]; ok && c.Attempt <= e.Attempt {
			o.seen[key] = agent.OutputCursor{RunID: e.RunID, CommandID: e.CommandID, Attempt: e.Attempt + 1}
		}
		o.over[key] = max(o.over[key], e.Attempt)
	case agent.CommandEmitted, agent.CommandReopened:
		delete(o.over, key)
	default:
	}
}

// append writes the chunks that were read before the events of this round, so that no piece of output precedes the
// event that opened its command, and none follows the event that decided it.
func (o *output) append(dst []byte, chunks []agent.OutputChunk) []byte {
	fresh := make([]agent.OutputChunk, 0, len(chunks))
	for _, c := range chunks {
		key := outputKey{c.RunID, c.CommandID}
		if c.Attempt <= o.over[key] {
			continue
		}
		seen := o.seen[key]
		if c.Attempt < seen.Attempt || (c.Attempt == seen.Attempt && c.Chunk <= seen.Chunk) {
			continue
		}
		o.seen[key] = agent.OutputCursor{RunID: c.RunID, CommandID: c.CommandID, Attempt: c.Attempt, Chunk: c.Chunk}
		fresh = append(fresh, c)
	}
	clear(o.over)
	if o.joined {
		for _, c := range fresh {
			dst = o.appendDelta(dst, c, 0)
		}
		return dst
	}
	o.joined = true
	for _, c := range o.whole(fresh) {
		dst = o.appendDelta(dst, c, c.Chunk)
	}
	return dst
}

// whole joins chunks to one for each command and channel, with the number of the last chunk in it.
func (o *output) whole(chunks []agent.OutputChunk) []agent.OutputChunk {
	type channelKey struct {
		outputKey
		channel string
	}
	var joined []agent.OutputChunk
	var texts []*strings.Builder
	place := map[channelKey]int{}
	for _, c := range chunks {
		command := outputKey{c.RunID, c.CommandID}
		if c.Attempt < o.seen[command].Attempt {
			continue
		}
		key := channelKey{command, c.Channel}
		at, ok := place[key]
		if !ok {
			at = len(joined)
			place[key] = at
			joined, texts = append(joined, c), append(texts, new(strings.Builder))
		}
		texts[at].WriteString(c.Text)
		joined[at].Chunk = c.Chunk
	}
	for i := range joined {
		joined[i].Text = texts[i].String()
	}
	return joined
}

// deltaObject is the object of a frame of model output: an event without number and time, because it is not history.
type deltaObject struct {
	Type           string    `json:"event_type"`
	ConversationID string    `json:"conversation_id"`
	RunID          string    `json:"run_id"`
	RootRunID      string    `json:"root_run_id"`
	NodeID         string    `json:"node_id"`
	CommandID      string    `json:"command_id"`
	Attempt        int       `json:"attempt"`
	Data           deltaData `json:"data"`
}

type deltaData struct {
	CommandID string `json:"command_id"`
	Attempt   int    `json:"attempt"`
	Channel   string `json:"channel"`
	Chunk     int    `json:"chunk"`
	// Through is set when text is everything up to that chunk and replaces what the client had.
	Through int    `json:"through,omitempty"`
	Text    string `json:"text"`
}

func (o *output) appendDelta(dst []byte, c agent.OutputChunk, through int) []byte {
	name := o.event(c.Channel)
	if name == "" {
		return dst
	}
	object, err := encode(deltaObject{
		Type: name, ConversationID: c.ConversationID, RunID: c.RunID, RootRunID: c.RootRunID, NodeID: c.NodeID,
		CommandID: c.CommandID, Attempt: c.Attempt,
		Data: deltaData{CommandID: c.CommandID, Attempt: c.Attempt, Channel: c.Channel, Chunk: c.Chunk, Through: through, Text: c.Text},
	})
	if err != nil {
		return dst // strings and numbers always encode
	}
	return AppendFrame(dst, Frame{Event: name, Data: object})
}

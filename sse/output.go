package sse

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"runledger/agent"
)

type outputKey struct{ runID, commandID string }

// output follows the model output of a conversation's open commands for one feed.
type output struct {
	event func(channel string) string
	// joined: what comes from here on arrived while the feed was following, so that it is shown piece by piece.
	joined bool
	open   map[outputKey]*saying
	// over holds the attempts up to which chunks no longer count, of the commands whose fate was read in this round.
	over map[outputKey]int
}

// saying is what a command has said so far.
type saying struct {
	agent.OutputCursor
	channels []channelText
}

// channelText is the text of a channel, in the last chunk that added to it.
type channelText struct {
	last agent.OutputChunk
	text []byte
}

func newOutput(event func(channel string) string) *output {
	return &output{event: event, open: map[outputKey]*saying{}, over: map[outputKey]int{}}
}

func (o *output) cursors() []agent.OutputCursor {
	have := make([]agent.OutputCursor, 0, len(o.open))
	for _, s := range o.open {
		have = append(have, s.OutputCursor)
	}
	return have
}

// note takes in what an event says of a command's output: decided means that the committed text replaces it, discarded
// that the attempt does not count.
func (o *output) note(e agent.Event) {
	key := outputKey{e.RunID, e.CommandID}
	switch e.Type {
	case agent.CommandCommitted, agent.CommandFailedType, agent.CommandAbortType, agent.CommandDoubtType, agent.CommandResolved:
		delete(o.open, key)
		o.over[key] = math.MaxInt
	case agent.AttemptDiscarded:
		if s, ok := o.open[key]; ok && s.Attempt <= e.Attempt {
			o.open[key] = &saying{OutputCursor: agent.OutputCursor{RunID: e.RunID, CommandID: e.CommandID, Attempt: e.Attempt + 1}}
		}
		o.over[key] = max(o.over[key], e.Attempt)
	case agent.CommandEmitted, agent.CommandReopened:
		delete(o.over, key)
	default:
	}
}

// take adds the chunks that were read before the events of this round to entries, so that no piece of output precedes the event
// that opened its command, and none follows the event that decided it.
func (o *output) take(entries []entry, chunks []agent.OutputChunk) []entry {
	for _, c := range chunks {
		key := outputKey{c.RunID, c.CommandID}
		if c.Attempt <= o.over[key] {
			continue
		}
		s := o.open[key]
		if s == nil || s.Attempt < c.Attempt {
			s = &saying{OutputCursor: agent.OutputCursor{RunID: c.RunID, CommandID: c.CommandID, Attempt: c.Attempt}}
			o.open[key] = s
		}
		if c.Attempt < s.Attempt || c.Chunk <= s.Chunk {
			continue
		}
		s.add(c)
		if o.joined {
			entries = o.appendDelta(entries, c, 0)
		}
	}
	clear(o.over)
	if !o.joined {
		o.joined = true
		entries = o.whole(entries)
	}
	return entries
}

func (s *saying) add(c agent.OutputChunk) {
	s.Chunk = c.Chunk
	at := slices.IndexFunc(s.channels, func(t channelText) bool { return t.last.Channel == c.Channel })
	if at < 0 {
		at = len(s.channels)
		s.channels = append(s.channels, channelText{})
	}
	t := &s.channels[at]
	t.text, t.last = append(t.text, c.Text...), c
	t.last.Text = "" // stands in text
}

// whole gives one frame for each open command and channel, with its text so far and the number of the last chunk in it.
func (o *output) whole(entries []entry) []entry {
	for _, s := range slices.SortedFunc(maps.Values(o.open), func(a, b *saying) int {
		return cmp.Or(cmp.Compare(a.RunID, b.RunID), cmp.Compare(a.CommandID, b.CommandID))
	}) {
		for _, t := range s.channels {
			c := t.last
			c.Text = string(t.text)
			entries = o.appendDelta(entries, c, c.Chunk)
		}
	}
	return entries
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

func (o *output) appendDelta(entries []entry, c agent.OutputChunk, through int) []entry {
	name := o.event(c.Channel)
	if name == "" {
		return entries
	}
	object, err := encode(deltaObject{
		Type: name, ConversationID: c.ConversationID, RunID: c.RunID, RootRunID: c.RootRunID, NodeID: c.NodeID,
		CommandID: c.CommandID, Attempt: c.Attempt,
		Data: deltaData{CommandID: c.CommandID, Attempt: c.Attempt, Channel: c.Channel, Chunk: c.Chunk, Through: through, Text: c.Text},
	})
	if err != nil {
		return entries // strings and numbers always encode
	}
	return append(entries, entry{runID: c.RunID, rootRunID: c.RootRunID, frame: AppendFrame(nil, Frame{Event: name, Data: object})})
}

package client

import (
	"encoding/json"
	"math"
	"strings"

	"runledger/agent"
)

// Output is what a model's command has said so far, on one channel.
type Output struct {
	RunID, NodeID, CommandID string
	// Attempt is the execution of the command that said it. What an earlier one said no longer counts.
	Attempt int
	// Channel is "text", "thinking" or "tool_args".
	Channel string
	// Text is all of it. Added is what is new of it, unless Replaces says that Text does not go on from what was given before.
	Text, Added string
	Replaces    bool
	State       OutputState
}

// OutputState says what a text is worth.
type OutputState string

const (
	// Arriving text may be replaced.
	Arriving OutputState = "arriving"
	// Committed text is on record, and replaces what the command said on channel "text"; its other channels are over.
	Committed OutputState = "committed"
	// Discarded output does not count: the attempt is to be shown no longer, on no channel.
	Discarded OutputState = "discarded"
)

// channelText is the channel of an answer's own words.
const channelText = "text"

// delta is a frame of model output.
type delta struct {
	RunID     string `json:"run_id"`
	NodeID    string `json:"node_id"`
	CommandID string `json:"command_id"`
	Attempt   int    `json:"attempt"`
	Data      struct {
		Channel string `json:"channel"`
		Chunk   int    `json:"chunk"`
		Through int    `json:"through"`
		Text    string `json:"text"`
	} `json:"data"`
}

// outputs puts together what models say while they say it.
type outputs struct {
	open map[outputKey]*saying
	// over holds the attempts up to which nothing counts any more, by the record. Another server process may be behind that.
	over map[outputKey]int
}

type outputKey struct{ runID, commandID string }

// saying is what one attempt of a command has said.
type saying struct {
	attempt  int
	channels map[string]*said
}

// said is the text of a channel up to a chunk. A strings.Builder gives its text without copying it.
type said struct {
	text  strings.Builder
	chunk int
}

func newOutputs() *outputs {
	return &outputs{open: map[outputKey]*saying{}, over: map[outputKey]int{}}
}

// add takes in a piece of output, and gives what that makes of the channel; nil when the piece is no news.
func (o *outputs) add(d delta) *Output {
	key := outputKey{d.RunID, d.CommandID}
	if d.CommandID == "" || d.Data.Chunk < 1 || d.Attempt <= o.over[key] {
		return nil
	}
	s := o.open[key]
	if s == nil {
		s = &saying{attempt: d.Attempt, channels: map[string]*said{}}
		o.open[key] = s
	}
	replaces := false
	switch {
	case d.Attempt < s.attempt:
		return nil
	case d.Attempt > s.attempt:
		*s, replaces = saying{attempt: d.Attempt, channels: map[string]*said{}}, true
	}
	c := s.channels[d.Data.Channel]
	if c == nil {
		c = &said{}
		s.channels[d.Data.Channel] = c
	}
	if d.Data.Chunk <= c.chunk {
		return nil
	}
	c.chunk = d.Data.Chunk
	added := d.Data.Text
	if d.Data.Through > 0 {
		rest, goesOn := strings.CutPrefix(d.Data.Text, c.text.String())
		if added = rest; !goesOn {
			added, replaces = d.Data.Text, true
			c.text.Reset()
		}
	}
	c.text.WriteString(added)
	if replaces {
		added = ""
	}
	return &Output{RunID: d.RunID, NodeID: d.NodeID, CommandID: d.CommandID, Attempt: d.Attempt, Channel: d.Data.Channel,
		Text: c.text.String(), Added: added, Replaces: replaces, State: Arriving}
}

// note takes in what an event says of a command's output, and gives what that makes of it; nil when nothing changes. cut reports that
// the event has only the beginning of a text that was shown while it arrived.
func (o *outputs) note(e agent.Event) (output *Output, cut bool) {
	key := outputKey{e.RunID, e.CommandID}
	shown := o.open[key]
	switch e.Type {
	case "chat_completed", "thought", agent.CommandCommitted:
		o.end(key, math.MaxInt)
		return committed(e, shown)
	case agent.CommandFailedType, agent.CommandAbortType, agent.CommandDoubtType, agent.CommandResolved, agent.AttemptDiscarded:
		through := e.Attempt
		if e.Type != agent.AttemptDiscarded && shown != nil {
			through = max(through, shown.attempt)
		}
		o.end(key, through)
		if shown != nil && shown.attempt <= through && len(shown.channels) > 0 {
			return &Output{RunID: e.RunID, NodeID: e.NodeID, CommandID: e.CommandID, Attempt: shown.attempt, Replaces: true, State: Discarded}, false
		}
	default:
	}
	return nil, false
}

// end takes in that nothing counts that a command has said up to an attempt.
func (o *outputs) end(key outputKey, through int) {
	if shown := o.open[key]; shown != nil && shown.attempt <= through {
		delete(o.open, key)
	}
	o.over[key] = max(o.over[key], through)
}

// committed is what a model's command has put on record. Those of other kinds say nothing.
func committed(e agent.Event, shown *saying) (output *Output, cut bool) {
	var data struct {
		Kind   agent.CommandKind `json:"kind"`
		Output agent.Value       `json:"output"`
	}
	if json.Unmarshal(e.Data, &data) != nil || data.Kind != agent.ModelCommand && e.Type == agent.CommandCommitted {
		return nil, false
	}
	output = &Output{RunID: e.RunID, NodeID: e.NodeID, CommandID: e.CommandID, Attempt: e.Attempt, Channel: channelText, State: Committed, Replaces: true}
	if data.Output.JSON != nil && json.Unmarshal(data.Output.JSON, &output.Text) == nil {
		if shown != nil && shown.channels[channelText] != nil {
			if rest, goesOn := strings.CutPrefix(output.Text, shown.channels[channelText].text.String()); goesOn {
				output.Added, output.Replaces = rest, false
			}
		}
		return output, false
	}
	if shown == nil {
		return nil, false
	}
	output.Text = beginning(data.Output.Preview)
	return output, true
}

// cutEscape is how much an escape may have lost that the end of a preview has cut, in bytes: \uABCD without its last digit.
const cutEscape = 5

// beginning gives the text whose JSON begins as in a preview.
func beginning(preview string) (text string) {
	cut := strings.TrimSuffix(preview, "…")
	for n := range min(cutEscape, len(cut)) + 1 {
		if json.Unmarshal([]byte(cut[:len(cut)-n]+`"`), &text) == nil {
			return text + "…"
		}
	}
	return preview // of something that is no string
}

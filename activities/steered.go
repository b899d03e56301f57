package activities

import (
	"context"

	"runledger/agent"
	"runledger/model"
)

// steering is what was said to a run while it was at work, and which turn of its loop was shown it first.
type steering struct {
	messages []agent.Message
	heard    []int64 // by turn, from 1, up to the one that is asked for
}

// steered finds what the turns of a loop were told. A turn that has begun is shown what it was shown then; one that has not, all that
// is on record by now, whether or not its execution has heard of it yet.
func (a *Activities) steered(ctx context.Context, in agent.ModelCall) (s steering, err error) {
	messages, heard, err := a.ledger.Steered(ctx, in.RunID)
	if err != nil || len(messages) == 0 {
		return s, err
	}
	newest := max(in.Heard, messages[len(messages)-1].Sequence)
	s.messages, s.heard = messages, make([]int64, in.Turn+1)
	for turn := 1; turn <= in.Turn; turn++ {
		number, begun := heard[agent.TurnCommandID(in.NodeID, turn)]
		if !begun {
			number = newest
		}
		s.heard[turn] = max(number, s.heard[turn-1])
	}
	return s, nil
}

// upTo is the number of the newest message that a turn was shown, 0 for none.
func (s steering) upTo(turn int) int64 {
	if turn >= len(s.heard) {
		return 0
	}
	return s.heard[turn]
}

// before are the messages that a turn was the first to be shown, oldest first.
func (s steering) before(turn int) (units []unit) {
	for _, m := range s.messages {
		if m.Sequence > s.upTo(turn-1) && m.Sequence <= s.upTo(turn) {
			units = append(units, unit{{Message: model.Message{Role: model.User, Text: m.Content}}})
		}
	}
	return units
}

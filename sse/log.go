package sse

import (
	"context"

	"runledger/agent"
)

// Log is the ledger as streams see it. All methods are safe for concurrent use.
type Log interface {
	// Watch calls news with the id of each conversation whose log may have grown or in which model output may have arrived, and
	// with "" when that may be any. A call comes after the commit that it tells of; it may be needless, and it may be lost: a
	// reader reads first and polls now and then. It never comes from inside Watch or cancel, and may come once more after cancel.
	Watch(news func(conversationID string)) (cancel func())
	// Events gives the events of the scope with numbers above after, in the order of their numbers, at most limit of
	// them. Fewer than limit means that there were no more. *agent.GoneError says that some of them are no longer kept,
	// *agent.NotFoundError that the conversation is not there any more: a stream then ends.
	Events(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error)
	// Extent says how far the scope's log goes. Extent.Open turns false in the transaction that writes the last event.
	Extent(ctx context.Context, scope agent.LogScope) (agent.Extent, error)
	// News reads what is new in several conversations, in the order in which they were asked for. Events are those above
	// the cursor's number, at most limit of each conversation; fewer than limit means that there were no more. Output, where the
	// cursor wants it, are the chunks of commands that are still open, beyond those that it holds: of a higher attempt, or of the same
	// attempt with a higher number; a command that it does not name is given from its first chunk, of its latest attempt. Chunks
	// of a command come in their order and are numbered from 1. Output of a command is gone in the transaction that decides it. It
	// is read before the events: whatever opened the command of a chunk is then among them or was before, and whatever decided it too.
	News(ctx context.Context, from []agent.LogCursor, limit int) ([]agent.LogNews, error)
}

package sse

import (
	"context"

	"runledger/agent"
)

// Log is the ledger as streams see it. All methods are safe for concurrent use.
type Log interface {
	// Subscribe asks to be woken when the conversation's log may have grown or model output may have arrived. The channel
	// holds one wake-up, so that any number of them coalesce. A wake-up comes after the commit it tells of and may be
	// lost or needless: a reader reads first and polls now and then. cancel may be called more than once.
	Subscribe(conversationID string) (wake <-chan struct{}, cancel func())
	// Events gives the events of the scope with numbers above after, in the order of their numbers, at most limit of
	// them. Fewer than limit means that there were no more.
	Events(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error)
	// Extent says how far the scope's log goes. Extent.Open turns false in the transaction that writes the last event.
	Extent(ctx context.Context, scope agent.LogScope) (agent.Extent, error)
	// Output gives the chunks of model output of the commands of the scope that are still open, beyond those that the
	// cursors hold: of a higher attempt, or of the same attempt with a higher number. A command without a cursor is given
	// from its first chunk, of its latest attempt. Chunks of a command come in their order and are numbered from 1. Output of a command is gone in
	// the transaction that decides it.
	Output(ctx context.Context, scope agent.LogScope, have []agent.OutputCursor) ([]agent.OutputChunk, error)
}

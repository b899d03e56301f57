package agent

import (
	"fmt"
	"time"
)

// Retention says how long what runs leave behind is kept, counted from the end of the run. Zero keeps it.
type Retention struct {
	// Events are the log and the checkpoints. Without them a run can be neither resumed nor forked nor audited.
	Events time.Duration
	// Payloads are what commands were called with and what they gave. Without them a run can be neither resumed nor forked nor audited.
	Payloads time.Duration
	// Output is model output that was kept while it arrived, and whose command never came to its end.
	Output time.Duration
}

// Any reports whether there is anything to remove.
func (r Retention) Any() bool { return r.Events > 0 || r.Payloads > 0 || r.Output > 0 }

// RemovedCounts says what a round of retention has removed, or would remove.
type RemovedCounts struct {
	// Runs lost Events, in Conversations, and with them Checkpoints.
	Conversations, Runs, Events, Checkpoints int64
	// PayloadRuns lost what their Commands were called with and gave, of Bytes together. Payloads counts the large results among
	// that to which nobody else refers.
	PayloadRuns, Commands, Payloads, Bytes int64
	// Output counts pieces of model output.
	Output int64
}

// Any reports whether there was anything to remove.
func (c RemovedCounts) Any() bool { return c.Runs+c.Events+c.PayloadRuns+c.Output > 0 }

// Removed says when retention has taken a part of what a run left behind; nil for what is kept.
type Removed struct {
	EventsAt   *time.Time `json:"events_at,omitempty"`
	PayloadsAt *time.Time `json:"payloads_at,omitempty"`
}

// GoneError says that what was asked for has been there, and is kept no longer.
type GoneError struct {
	// RunID is the run whose record it is, "" where it is a conversation's log.
	RunID string
	// Oldest is the oldest number that the conversation still has, or the next one when it has none; 0 where it was not looked up.
	Oldest int64
}

func (e *GoneError) Error() string {
	if e.RunID != "" {
		return "the record of run " + e.RunID + " is no longer kept"
	}
	return fmt.Sprintf("events before %d are no longer kept", e.Oldest)
}

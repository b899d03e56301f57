package agent

import "time"

// StopOutcome says what became of a command that was open when its run was asked to stop.
type StopOutcome string

const (
	// NeverStarted: no effect was at work. It had not begun, or waited between two tries, of which none counts.
	NeverStarted StopOutcome = "never_started"
	// StopAborted: an effect was at work and was stopped. It does not count.
	StopAborted StopOutcome = "aborted"
	// StopCommitted: it ended with a result all the same.
	StopCommitted StopOutcome = "committed"
	// StopInDoubt: nobody knows whether its effect took place, or how far it got.
	StopInDoubt StopOutcome = "in_doubt"
	// StopFailed: it ended with a failure of its own.
	StopFailed StopOutcome = "failed"
	// StopOpen: nothing is known of it yet.
	StopOpen StopOutcome = "open"
)

// WorkingCommand is a command whose effect is at work.
type WorkingCommand struct {
	CommandID string      `json:"command_id"`
	NodeID    string      `json:"node_id"`
	Kind      CommandKind `json:"kind"`
	Tool      string      `json:"tool,omitempty"`
	Effect    EffectClass `json:"effect_class"`
	Attempt   int         `json:"attempt"`
	// Deadline is when its time is up.
	Deadline time.Time `json:"deadline"`
}

// StoppedCommand is a command that was open when its run was asked to stop. Of one that was scheduled and had not begun, only
// its name is known.
type StoppedCommand struct {
	CommandID string      `json:"command_id"`
	NodeID    string      `json:"node_id"`
	Kind      CommandKind `json:"kind,omitempty"`
	Tool      string      `json:"tool,omitempty"`
	Effect    EffectClass `json:"effect_class,omitempty"`
	Outcome   StopOutcome `json:"outcome"`
}

// StopOutcomeOf reads the outcome off a command's state. neverStarted is what its command_aborted says, if there is one;
// ended tells that its run has ended, after which nothing is open.
func StopOutcomeOf(state CommandState, neverStarted, ended bool) StopOutcome {
	switch state {
	case Committed:
		return StopCommitted
	case CommandFailed:
		return StopFailed
	case CommandInDoubt:
		return StopInDoubt
	case Fenced, CommandWaiting:
		return NeverStarted
	case CommandAborted:
		if neverStarted {
			return NeverStarted
		}
		return StopAborted
	case Dispatched, Released:
	}
	if ended { // it was in doubt, and somebody has said since that it may be tried again
		return StopAborted
	}
	return StopOpen
}

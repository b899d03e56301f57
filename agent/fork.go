package agent

import (
	"encoding/json"
	"fmt"
	"slices"
)

// ForkEffect says what a fork does about the commands of an effect class.
type ForkEffect string

const (
	// ForkReuse takes the recorded results. It is the default.
	ForkReuse ForkEffect = "reuse"
	// ForkRerun executes the commands again, and everything that goes by what they give. It is not for external ones.
	ForkRerun ForkEffect = "rerun"
)

// Fork asks for a new run that begins with a part of another run's record.
type Fork struct {
	// Owner is whose run the source has to be; AnyOwner for everybody's. What is made belongs to the source's owner.
	Owner string
	// Source is the run, Sequence the number of its last event in the part, 0 for its end. A CheckpointID in its place means the
	// number of that checkpoint.
	Source       string
	Sequence     int64
	CheckpointID string
	// Effects are for whole classes; a class that is left out is reused. Rerun names commands that are to be executed again,
	// whatever their class, with the effects inside of them.
	Effects map[EffectClass]ForkEffect
	Rerun   []string
	// Run is the new one: its ids, and its definition, input and metadata with the changes. Changes name what is not the source's:
	// "input", "agent", "model", "instructions", "limits", "metadata".
	Run     Run
	Changes []string
	// Limits are those that the caller names; what it leaves out is as it was in force at the number.
	Limits  Limits
	By      string
	Offline bool
	// Key and RequestHash make a repeated request give the same run.
	Key         string
	RequestHash string
}

// ForkCheckpoint is the Field of a ForkError whose checkpoint is not there.
const ForkCheckpoint = "checkpoint_id"

// ForkError says which value of a Fork the source's record contradicts. Field is ForkCheckpoint, "sequence_number" or, with the
// place in the list, "rerun/2".
type ForkError struct {
	Field  string
	Detail string
}

func (e *ForkError) Error() string { return e.Field + ": " + e.Detail }

// ForkedFrom names a place in the record of another run.
type ForkedFrom struct {
	RunID    string `json:"run_id"`
	Sequence int64  `json:"sequence_number"`
}

// RunForkedData says what a run's record was begun with. The events that follow, up to Through, are those of the source.
type RunForkedData struct {
	RunID          string                     `json:"from_run_id"`
	ConversationID string                     `json:"from_conversation_id"`
	Sequence       int64                      `json:"from_sequence_number"`
	CheckpointID   string                     `json:"from_checkpoint_id,omitempty"`
	Changes        []string                   `json:"changes,omitempty"`
	Effects        map[EffectClass]ForkEffect `json:"effects,omitempty"`
	Rerun          []string                   `json:"rerun,omitempty"`
	By             string                     `json:"by,omitempty"`
	// Reused counts the commands whose outcome is the source's, Kept those that are asked about when the run makes the same call.
	Reused  int   `json:"reused"`
	Kept    int   `json:"kept,omitempty"`
	Through int64 `json:"through_sequence_number"`
}

// ForkDecision is what becomes of a command of the source.
type ForkDecision string

const (
	// ForkReused: the fork has its outcome and does not execute it.
	ForkReused ForkDecision = "reused"
	// ForkRunsAgain: the fork executes it when it comes to it.
	ForkRunsAgain ForkDecision = "would_run_again"
	// ForkInDoubt: nobody knows whether the source's effect took place. The fork asks when it comes to it.
	ForkInDoubt ForkDecision = "in_doubt"
)

// ForkedCommand is a command of the source and what a fork does about it.
type ForkedCommand struct {
	CommandID string       `json:"command_id"`
	NodeID    string       `json:"node_id"`
	Kind      CommandKind  `json:"kind"`
	Tool      string       `json:"tool,omitempty"`
	Effect    EffectClass  `json:"effect_class"`
	Decision  ForkDecision `json:"decision"`
	// IfSame: the decision is for the same call. The fork may come to another one under this id, or to none.
	IfSame bool   `json:"if_same_arguments,omitempty"`
	Reason string `json:"reason"`
}

// ForkNodeDecision is where a node of the source's plan stands when a fork begins.
type ForkNodeDecision string

const (
	// ForkNodeReused: it has ended.
	ForkNodeReused ForkNodeDecision = "reused"
	// ForkNodeGoesOn: some of its commands have an outcome.
	ForkNodeGoesOn ForkNodeDecision = "goes_on"
	// ForkNodeRuns: nothing of it is on record.
	ForkNodeRuns ForkNodeDecision = "would_run"
)

// ForkedNode is a node of the source's plan in a fork.
type ForkedNode struct {
	NodeID   string           `json:"node_id"`
	Kind     NodeKind         `json:"kind"`
	Decision ForkNodeDecision `json:"decision"`
}

// ForkPlan says what a fork would begin with.
type ForkPlan struct {
	RunID string `json:"run_id"`
	// From is the number of the source's last event in the part.
	From     int64           `json:"from_sequence_number"`
	Commands []ForkedCommand `json:"commands"`
	Nodes    []ForkedNode    `json:"nodes"`
	// Record are the source's events that the fork has too, in their order. Those of a command are what began and what decided it.
	Record []Event `json:"-"`
	// Outcomes are the events that decided the reused commands, by command.
	Outcomes map[string]Event `json:"-"`
	// Priors are the commands to ask about when the fork makes the same call.
	Priors []ForkPrior `json:"-"`
	// Limits are those in force at From, nil where they are the definition's.
	Limits *Limits `json:"-"`
}

// ForkPrior is a call with an external effect, and the run that made it.
type ForkPrior struct {
	RunID   string
	Command Command
}

// ForkSource is a run's record as a fork reads it, as of one moment.
type ForkSource struct {
	Run  Run
	Plan *Plan
	// Events are all of the run's own, Commands its rows in the order in which they were emitted, without those that never began.
	Events   []Event
	Commands []Command
	// Priors are those of the run, when it is a fork itself.
	Priors []ForkPrior
}

// WithReusedFrom marks the outcome of a command with where it comes from, unless it says so already. It gives that place.
func WithReusedFrom(e Event) (Event, ForkedFrom, error) {
	var data map[string]json.RawMessage
	if err := decode(e, &data); err != nil {
		return e, ForkedFrom{}, err
	}
	from := ForkedFrom{RunID: e.RunID, Sequence: e.Sequence}
	if said, ok := data["reused_from"]; ok {
		if err := json.Unmarshal(said, &from); err != nil {
			return e, from, fmt.Errorf("event %d %s: reused_from: %w", e.Sequence, e.Type, err)
		}
		return e, from, nil
	}
	raw, err := json.Marshal(from)
	if err != nil {
		return e, from, err
	}
	data["reused_from"] = raw
	e.Data, err = json.Marshal(data)
	return e, from, err
}

// Valid reports whether f is one of the two.
func (f ForkEffect) Valid() bool { return slices.Contains([]ForkEffect{ForkReuse, ForkRerun}, f) }

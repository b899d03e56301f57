package api

import (
	"context"

	"runledger/agent"
	"runledger/sse"
)

// Ledger is what the API needs of the record. It is the sum of what its handlers need one by one.
//
// Methods answer *agent.NotFoundError for what does not exist and for what is another owner's, and *agent.ConflictError
// for what contradicts the record, and *agent.GoneError where a record is asked for that is no longer kept. Those without an owner are asked only for what an owner's lookup has found before.
type Ledger interface {
	Acceptor
	Resolver
	Approver
	Controller
	Forker
	RunReader
	CommandReader
	ConversationReader
	Remover
	Librarian
	Catalog
	sse.Log
	// Subscribe gives a channel that is sent to after a conversation has news, at most once until somebody looks. A wake-up may be
	// needless, and may be lost.
	Subscribe(conversationID string) (news <-chan struct{}, cancel func())
}

// Acceptor takes what people ask of runs.
type Acceptor interface {
	// Accept makes a run durable, in its conversation's queue if need be, or finds the one that was accepted under the same key;
	// created tells them apart. A message to a run at work gives that run, and its Steered.
	Accept(ctx context.Context, a agent.Acceptance) (run agent.Run, created bool, err error)
	// RequestCancel asks a run to stop. A run that is being cancelled is left alone.
	RequestCancel(ctx context.Context, owner, runID, by, reason string) (agent.Run, error)
}

// Controller steers runs. It is more than four methods since each is a word of its own to a run, and the API says them all.
type Controller interface {
	// Resume begins another epoch of a run that ended badly.
	Resume(ctx context.Context, r agent.Resume) (agent.Resumed, error)
	// Pause keeps a run from beginning commands; Unpause lets it go on.
	Pause(ctx context.Context, owner, runID, by, reason string) (agent.Run, error)
	Unpause(ctx context.Context, owner, runID, by, reason string) (agent.Run, error)
	// ChangeLimits gives a run other limits; those that are zero stay.
	ChangeLimits(ctx context.Context, owner, runID string, limits agent.Limits, by, reason string) (agent.Run, error)
	// LatestRun finds the newest run of a conversation, and whether it has a checkpoint.
	LatestRun(ctx context.Context, conversationID string) (runID string, checkpoint bool, err error)
	// Signal gives a run an input for a wait node. The number is that of its event, 0 while the run is queued behind others; created
	// tells whether the input came for the first time.
	Signal(ctx context.Context, owner, runID string, in agent.Input) (sequence int64, created bool, err error)
}

// Forker begins runs with a part of another run's record.
type Forker interface {
	// PlanFork says what Fork would begin with. Errors are those of Fork: *agent.ForkError too, for a value that the source's record
	// contradicts.
	PlanFork(ctx context.Context, f agent.Fork) (*agent.ForkPlan, error)
	// Fork makes the run, or finds the one that was accepted under the same key; created tells them apart.
	Fork(ctx context.Context, f agent.Fork) (run agent.Run, created bool, err error)
}

// RunReader reads runs.
type RunReader interface {
	Run(ctx context.Context, owner, runID string) (agent.Run, error)
	// Runs lists runs, newest first. hasMore is exact.
	Runs(ctx context.Context, f agent.RunFilter) (runs []agent.Run, hasMore bool, err error)
	// QueuedBehind lists the runs that a run in the queue of its conversation waits for, in their order; none when it does not wait.
	QueuedBehind(ctx context.Context, runID string) ([]agent.RunAhead, error)
	// Waits lists the wait nodes of a run that wait, those first that have begun first.
	Waits(ctx context.Context, runID string) ([]agent.OpenWait, error)
	// RunPlan gives a run's plan, nil while there is none.
	RunPlan(ctx context.Context, runID string) (*agent.Plan, error)
	// ReplayContext folds a run's events.
	ReplayContext(ctx context.Context, runID string) (*agent.ReplayContext, error)
	// RunRecord gives all that is on record of a run, as of one moment.
	RunRecord(ctx context.Context, runID string) (*agent.RunRecord, error)
}

// Verifier holds what is on record of a run against its own rules and against a second witness. It is asked only for runs
// that an owner's lookup has found before.
type Verifier interface {
	Verify(ctx context.Context, runID string) (agent.Verification, error)
}

// CommandReader reads what a run did.
type CommandReader interface {
	Commands(ctx context.Context, runID string) ([]agent.Command, error)
	// Command gives one command with its whole result.
	Command(ctx context.Context, runID, commandID string) (agent.Command, error)
	Checkpoints(ctx context.Context, runID string) ([]agent.Checkpoint, error)
	// AtWork lists the commands whose effects are at work.
	AtWork(ctx context.Context, runID string) ([]agent.WorkingCommand, error)
	// StoppedCommands tells what became of the commands that were open when the run was asked to stop.
	StoppedCommands(ctx context.Context, runID string) ([]agent.StoppedCommand, error)
}

// ConversationReader reads conversations.
type ConversationReader interface {
	Conversation(ctx context.Context, owner, id string) (agent.Conversation, error)
	// Conversations lists them newest first, going on after the one named before. hasMore is exact.
	Conversations(ctx context.Context, owner, before string, limit int) (conversations []agent.Conversation, hasMore bool, err error)
	// Messages lists messages that came with an event after the given number. hasMore is exact.
	Messages(ctx context.Context, conversationID string, after int64, limit int) (messages []agent.Message, hasMore bool, err error)
	ExecutionStatus(ctx context.Context, conversationID string) (agent.ExecutionStatus, error)
}

// Remover removes what nobody wants to have kept.
type Remover interface {
	// DeleteConversation removes a conversation in which no run is open, with everything of it.
	DeleteConversation(ctx context.Context, owner, id string) error
}

// Librarian keeps documents for retrieval nodes to find.
type Librarian interface {
	// AddDocuments keeps documents, all or none; one takes the place of another with its id. It gives them back as they are kept.
	AddDocuments(ctx context.Context, owner string, documents []agent.Document) ([]agent.Document, error)
	Document(ctx context.Context, owner, id string) (agent.Document, error)
	DeleteDocument(ctx context.Context, owner, id string) error
}

// Catalog tells what can be worked with.
type Catalog interface {
	// Tools are those that workers have published, none while no worker has.
	Tools(ctx context.Context) ([]agent.ToolRef, error)
	// Ping fails when the ledger cannot be reached.
	Ping(ctx context.Context) error
}

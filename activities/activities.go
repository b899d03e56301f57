package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"runledger/agent"
	"runledger/model"
	"runledger/policy"
	"runledger/predicate"
	"runledger/tool"
)

// Gate is the ledger's side of the commit gate. Every method is one transaction.
type Gate interface {
	Begin(ctx context.Context, b agent.Begin) (agent.Begun, error)
	Renew(ctx context.Context, runID, commandID string, epoch, dispatchNo int) (status agent.Status, owned bool, err error)
	Commit(ctx context.Context, c agent.Commit) (agent.Decided, error)
	// CommitTx lets work give the result inside the transaction that commits it. An error of work undoes both.
	CommitTx(ctx context.Context, c agent.Commit, work func(context.Context, agent.Tx) (agent.Commit, error)) (agent.Decided, error)
	Conclude(ctx context.Context, c agent.Conclude) (agent.Decided, error)
}

// Reader gives the content that a command works on. What it gives for the same ids is the same at every reading.
type Reader interface {
	WorkerRun(ctx context.Context, runID string) (agent.Run, *agent.Plan, error)
	Results(ctx context.Context, runID string, commandIDs []string) (map[string]agent.CommandResult, error)
	// ResultHeads are Results of which no more than the first maxBytes bytes of each are read.
	ResultHeads(ctx context.Context, runID string, commandIDs []string, maxBytes int) (map[string]agent.CommandResult, error)
	NodeResults(ctx context.Context, runID string, nodeIDs []string) (map[string]agent.CommandResult, error)
	// History lists users' messages and final answers before a number, oldest first. It is for runs without a budget.
	History(ctx context.Context, conversationID string, before int64) ([]agent.Message, error)
	// Transcript lists all messages before a number, newest first, at most limit. Of a content that is longer than maxBytes only
	// the beginning is read, that many bytes or a few more.
	Transcript(ctx context.Context, conversationID string, before int64, limit, maxBytes int) ([]agent.Message, error)
	// CountMessages counts all messages before a number.
	CountMessages(ctx context.Context, conversationID string, before int64) (int, error)
	// RunOwner is whose run it is.
	RunOwner(ctx context.Context, runID string) (string, error)
	// CommandInput is what a command on record was called with.
	CommandInput(ctx context.Context, runID, commandID string) (json.RawMessage, error)
	// Steered lists what was said to a run while it was at work, in order, and up to which number each turn that has begun was
	// shown it.
	Steered(ctx context.Context, runID string) (messages []agent.Message, heard map[string]int64, err error)
}

// Stopper tells of runs whose effects have to stop.
type Stopper interface {
	// SubscribeStops gives a channel that is sent to when the run is being cancelled or has ended. News may come for nothing, and
	// may be lost: Renew says where the run stands.
	SubscribeStops(runID string) (news <-chan struct{}, cancel func())
}

// Ender writes what is not a command's.
type Ender interface {
	Record(ctx context.Context, call agent.RecordCall) (agent.RecordReply, error)
	Settle(ctx context.Context, call agent.SettleCall) (agent.CommandRow, error)
	Finish(ctx context.Context, call agent.FinishCall) (agent.FinishReply, error)
	// Await lets a wait node go on when it can. The verdict is MustAwait with the command's row, or IsPaused.
	Await(ctx context.Context, w agent.Wait) (agent.Begun, error)
}

// Limiter bounds calls over all workers.
type Limiter interface {
	// TakeSlot takes a slot for a call that is about to begin, or tells how long to wait before asking again.
	TakeSlot(ctx context.Context, s agent.Slot) (wait time.Duration, err error)
	// ReturnSlot gives back a slot that was not used.
	ReturnSlot(ctx context.Context, s agent.Slot) error
}

// Output keeps model output while it arrives.
type Output interface {
	AppendOutput(ctx context.Context, runID, commandID string, attempt int, chunks []agent.OutputChunk) error
}

// Ledger is all that activities need of the ledger.
type Ledger interface {
	Gate
	Stopper
	Reader
	Ender
	Output
	Limiter
	EffectLedger
}

// Config is what activities work with.
type Config struct {
	Ledger Ledger
	// Models finds the client of a model by its name in the configuration; nil when the worker does not have it.
	Models func(name string) model.Client
	Tools  *tool.Set
	// Retriever searches documents for retrieval nodes; without one they fail.
	Retriever Retriever
	// Workflows starts workflows; nil: this worker cannot.
	Workflows Workflows
	// Policy, if set, is asked in the activity before a command that no rule of its run refuses.
	Policy policy.Func
	Log    *slog.Logger
	// Stopping, if set, is closed when the worker begins to stop. Temporal's own word for that comes to segments only when it has waited
	// for them in vain.
	Stopping <-chan struct{}
	// At, if set, is called wherever a fault would be told apart by what has happened before it. Tests break things there.
	At func(ctx context.Context, at agent.Boundary, call agent.Call)
}

// Activities are the activities of all runs of a worker. They are safe for concurrent use.
type Activities struct {
	ledger    Ledger
	models    func(name string) model.Client
	tools     atomic.Pointer[tool.Set]
	starts    Workflows
	retriever Retriever
	policy    policy.Func
	log       *slog.Logger
	at        func(ctx context.Context, at agent.Boundary, call agent.Call)
	runs      runs
	// stopping is closed when the worker begins to stop, nil when nobody tells.
	stopping <-chan struct{}
}

// New checks the configuration, so that what is missing shows when the worker starts and not in the middle of a run.
func New(cfg Config) (*Activities, error) {
	switch {
	case cfg.Ledger == nil:
		return nil, errors.New("activities: no ledger")
	case cfg.Models == nil:
		return nil, errors.New("activities: no models")
	case cfg.Tools == nil:
		return nil, errors.New("activities: no tools")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.At == nil {
		cfg.At = func(context.Context, agent.Boundary, agent.Call) {}
	}
	a := &Activities{ledger: cfg.Ledger, models: cfg.Models, starts: cfg.Workflows, retriever: cfg.Retriever, policy: cfg.Policy, log: cfg.Log, at: cfg.At, stopping: cfg.Stopping}
	if err := a.UseTools(cfg.Tools); err != nil {
		return nil, err
	}
	return a, nil
}

// UseTools puts other tools in the place of those that commands were executed with so far. A command that has begun keeps its tool.
// It fails, and changes nothing, when a tool's approve is not a predicate.
func (a *Activities) UseTools(tools *tool.Set) error {
	for _, spec := range tools.Specs() {
		if spec.Approve == "" {
			continue
		}
		if err := predicate.Check(spec.Approve); err != nil {
			return fmt.Errorf("activities: tool %s: approve: %w", spec.Name, err)
		}
	}
	a.tools.Store(tools)
	return nil
}

func (a *Activities) client(ref agent.ModelRef) (model.Client, error) {
	if c := a.models(ref.Name); c != nil {
		return c, nil
	}
	return nil, agent.Failed(agent.CodeModelFailed, "this worker has no model %q", ref.Name)
}

// Record writes facts that no command carries.
func (a *Activities) Record(ctx context.Context, call agent.RecordCall) (agent.RecordReply, error) {
	reply, err := a.ledger.Record(ctx, call)
	return reply, crossing(err)
}

// Finish writes the end of an execution.
func (a *Activities) Finish(ctx context.Context, call agent.FinishCall) (agent.FinishReply, error) {
	reply, err := a.ledger.Finish(ctx, call)
	return reply, crossing(err)
}

// SettleCommand decides a command whose activity has ended in an error.
func (a *Activities) SettleCommand(ctx context.Context, call agent.SettleCall) (agent.SettleReply, error) {
	stopHeartbeat := heartbeat(context.WithoutCancel(ctx))
	defer stopHeartbeat()
	row, err := a.ledger.Settle(ctx, call)
	if err != nil {
		return agent.SettleReply{}, crossing(err)
	}
	if row.State == agent.CommandInDoubt && row.Kind == agent.ToolCommand {
		if row, err = a.settleDoubt(ctx, call, row); err != nil {
			return agent.SettleReply{}, crossing(err)
		}
	}
	settled := agent.SettleReply{Reply: ReplyOf(&row)}
	if settled.Outcome != agent.OutcomeCommitted {
		return settled, nil
	}
	switch row.Kind {
	case agent.ModelCommand:
		settled.Tools, err = a.toolRequests(ctx, call.RunID, row.Result)
		settled.GoesOn, settled.Said = row.GoesOn, row.Said
	case agent.PlanCommand:
		settled.Plan, err = a.shape(ctx, call.RunID)
	case agent.ToolCommand, agent.HTTPCommand, agent.NowCommand, agent.UUIDCommand, agent.RandomCommand, agent.WaitCommand, agent.WorkflowCommand, agent.RetrievalCommand:
	}
	if err != nil {
		return agent.SettleReply{}, crossing(fmt.Errorf("settle command %s: %w", call.CommandID, err))
	}
	return settled, nil
}

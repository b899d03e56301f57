package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/activities"
	"runledger/agent"
	"runledger/workflows"
)

const (
	// beat is the time between two deliveries, on the clock of the test environment. That clock jumps when no activity is at
	// work, and goes as real time does while one is: no activity takes this long.
	beat = time.Hour
	// timeLimit is that of a run which its time limit ended, long after everything that is delivered. Others have none.
	timeLimit = 2 * 365 * 24 * time.Hour
	// beyond is when a run is stopped that the record does not bring to an end.
	beyond = 2 * timeLimit
	// patience is the real time in which an audit must get on: it is computation alone.
	patience = time.Minute
)

// stage executes a run with a record in the place of the world.
type stage struct {
	record *runRecord
	env    *testsuite.TestWorkflowEnvironment
	in     agent.RunInput

	// The fields below are touched by the activities and the loop of the test environment.
	mu sync.Mutex
	// waiting are the answers to commands that are scheduled, by command; order is what is left to deliver.
	waiting map[string]func() error
	order   []string
	armed   bool
	fault   error
	finish  *agent.FinishCall
	// last is the outcome that was delivered last; early is one that made the run do what the record does not show.
	last, early string
	// outputs are, by node, the committed command that its output is from.
	outputs map[string]string
	// asleep are the wait nodes that were told to wait, by command, with the name of what wakes them. woken are those that were woken:
	// their outcome is what they are answered next.
	asleep map[string]string
	woken  map[string]bool
	sleeps map[string]func() error // of waiting ones, what tells them to wait
	names  map[string]string

	// What came of it.
	answered    map[string]bool
	forbidden   *agent.Error
	differences []string
}

func newStage(a *runRecord, late map[string]bool) *stage {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	s := &stage{record: a, env: suite.NewTestWorkflowEnvironment(), waiting: map[string]func() error{}, order: a.order(late),
		outputs: map[string]string{}, answered: map[string]bool{}, asleep: map[string]string{}, woken: map[string]bool{},
		sleeps: map[string]func() error{}, names: map[string]string{}}
	d := a.run.Definition
	s.in = agent.RunInput{RunID: a.run.RunID, ConversationID: a.run.ConversationID, Epoch: a.run.Epoch, Agent: d.Agent, Mode: d.Mode, Limits: a.run.Limits(),
		Policy: &agent.Policy{Replay: agent.AuditReplay}, Plan: a.shape, State: agent.State{Status: agent.Running, Epoch: a.run.Epoch}}
	if d.Policy != nil {
		s.in.Policy.Rules = d.Policy.Rules
	}
	s.in.Limits.Timeout = 0
	if a.timedOut() {
		s.in.Limits.Timeout = agent.Duration(timeLimit)
	}
	for id := range a.rows {
		s.in.Recorded = append(s.in.Recorded, id)
	}
	s.in.Recorded = append(s.in.Recorded, a.fenced...)
	slices.Sort(s.in.Recorded)

	s.env.SetTestTimeout(patience)
	s.env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: patience})
	s.env.RegisterWorkflowWithOptions(workflows.AgentExecution, workflow.RegisterOptions{Name: agent.WorkflowName})
	standIn(s, agent.CallPlanner, func(in agent.PlannerCall) agent.Call { return in.Call }, agent.PlanCommand, s.plannerReply)
	standIn(s, agent.CallModel, func(in agent.ModelCall) agent.Call { return in.Call }, agent.ModelCommand, s.modelReply)
	standIn(s, agent.CallTool, func(in agent.ToolCall) agent.Call { return in.Call }, agent.ToolCommand,
		func(row *agent.CommandRow) (agent.Reply, error) { return activities.ReplyOf(row), nil })
	standIn(s, agent.Retrieve, func(in agent.RetrieveCall) agent.Call { return in.Call }, agent.RetrievalCommand,
		func(row *agent.CommandRow) (agent.Reply, error) { return activities.ReplyOf(row), nil })
	standIn(s, agent.CallWorkflow, func(in agent.WorkflowCall) agent.Call { return in.Call }, agent.WorkflowCommand,
		func(row *agent.CommandRow) (agent.Reply, error) { return activities.ReplyOf(row), nil })
	s.standInForAwait()
	observe(s, agent.Evaluate, s.evaluate)
	observe(s, agent.SettleCommand, s.settle)
	observe(s, agent.Record, func(agent.RecordCall) (agent.RecordReply, error) { return agent.RecordReply{}, nil })
	observe(s, agent.Finish, func(in agent.FinishCall) (agent.FinishReply, error) {
		s.finish = &in
		return agent.FinishReply{Status: in.Status}, nil
	})
	return s
}

// play executes the run and tells how it ended.
func (s *stage) play() (ending Ending, err error) {
	defer func() {
		if p := recover(); p != nil { // how the test environment says that nothing moves any more
			err = fmt.Errorf("the run does not get on: %v", p)
		}
	}()
	s.env.RegisterDelayedCallback(s.env.CancelWorkflow, beyond)
	if len(s.record.rows) == 0 {
		s.arm() // nothing will be answered; what ends the run has to come all the same
	}
	s.env.ExecuteWorkflow(agent.WorkflowName, s.in)
	if s.fault != nil {
		return ending, s.fault
	}
	if s.finish == nil {
		return ending, fmt.Errorf("the run did not come to its end: %w", errors.Join(s.env.GetWorkflowError(), errNoFinish))
	}
	state, err := s.state()
	if err != nil {
		return ending, err
	}
	if slices.Contains(s.order, "") { // it came to an end before it was stopped
		s.early = s.last
	}
	ending = s.record.endingOf(state)
	ending.Status, ending.Error = s.finish.Status, s.finish.Error
	switch ending.Status {
	case agent.Completed:
		ending.Output, err = s.output()
	case agent.Cancelled:
		ending.Error = nil // it says who asked; the record has that in its event only
	case agent.FailedStatus:
		if s.forbidden == nil && ending.Error.Code == agent.CodeForbidden {
			s.forbid(ending.Error)
		}
	}
	return ending, err
}

// state asks the run where it stands.
func (s *stage) state() (agent.State, error) {
	var snapshot workflows.Snapshot
	value, err := s.env.QueryWorkflow(agent.StateQuery)
	if err == nil {
		err = value.Get(&snapshot)
	}
	if err != nil {
		return agent.State{}, fmt.Errorf("state of the replayed run: %w", err)
	}
	return snapshot.State, nil
}

var errNoFinish = errors.New("it has not finished")

// output is what the last node of the plan gave.
func (s *stage) output() (string, error) {
	if len(s.record.nodes) == 0 {
		return "", errors.New("the run completed, and the record has no plan")
	}
	row := s.record.rows[s.outputs[s.record.nodes[len(s.record.nodes)-1]]]
	if row == nil {
		return "", nil
	}
	return agent.AnswerText(row.Kind, row.Result)
}

// standIn takes the place of the activity of a command: it waits for the command's turn and answers from the record.
func standIn[In, Out any](s *stage, name agent.Activity[In, Out], callOf func(In) agent.Call, kind agent.CommandKind, reply func(*agent.CommandRow) (Out, error)) {
	fn := func(ctx context.Context, in In) (out Out, err error) {
		call, token := callOf(in), activity.GetInfo(ctx).TaskToken
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting[call.CommandID] = func() error {
			out, err := reply(s.take(call, kind))
			if err != nil {
				return err
			}
			return s.env.CompleteActivity(token, out, nil)
		}
		s.armLocked()
		return out, activity.ErrResultPending
	}
	s.env.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: string(name)})
}

// observe takes the place of an activity without an effect.
func observe[In, Out any](s *stage, name agent.Activity[In, Out], fn func(In) (Out, error)) {
	s.env.RegisterActivityWithOptions(func(_ context.Context, in In) (Out, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return fn(in)
	}, activity.RegisterOptions{Name: string(name)})
}

// arm has the next outcome delivered as soon as everything that is scheduled has come to wait for it.
func (s *stage) arm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armLocked()
}

func (s *stage) armLocked() {
	if !s.armed {
		s.armed = true
		s.env.RegisterDelayedCallback(s.deliver, beat)
	}
}

// deliver brings the next thing of the order that can come. Commands that the record does not answer come first: the run is
// over then.
func (s *stage) deliver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if s.skipsMore() {
		s.early, s.order = s.last, nil
		s.env.CancelWorkflow()
		return
	}
	for _, id := range sortedKeys(s.waiting) {
		if s.record.rows[id] == nil && !slices.Contains(s.record.fenced, id) {
			s.answer(id)
		}
	}
	if s.putToSleep() {
		s.armLocked() // whatever takes their places comes first
		return
	}
	for i, id := range s.order {
		if s.wake(id) {
			s.armLocked() // it may have to wait for the place of another one
			return
		}
		if id == "" {
			s.order = nil // the environment ends what waits; the workflow asks what became of it, and settle knows
			if s.record.run.Status == agent.Cancelled {
				s.env.SignalWorkflow(agent.CancelSignal, agent.Intent{ID: 1})
			}
			return // else the run's own timer comes
		}
		if s.waiting[id] != nil {
			s.order = slices.Delete(s.order, i, i+1)
			s.answer(id)
			s.armLocked()
			return
		}
	}
}

// skipsMore reports whether the run has skipped a node that it did not skip by its record.
func (s *stage) skipsMore() bool {
	state, err := s.state()
	if err != nil {
		return false // it has ended
	}
	for i := range s.record.nodes {
		if state.Skipped.Has(i) && !s.record.fold.Skipped.Has(i) {
			return s.record.heardLate(s.last)
		}
	}
	return false
}

func (s *stage) answer(id string) {
	deliver := s.waiting[id]
	delete(s.waiting, id)
	if s.record.rows[id] != nil {
		s.last = id
	}
	if err := deliver(); err != nil && s.fault == nil {
		s.fault = err
		s.env.CancelWorkflow()
	}
}

// take gives the row that answers a command: the record's, or one that forbids it.
func (s *stage) take(call agent.Call, kind agent.CommandKind) *agent.CommandRow {
	row := s.record.rows[call.CommandID]
	if row == nil {
		reason := &agent.Error{Code: agent.CodeForbidden, NodeID: call.NodeID, CommandID: call.CommandID,
			Message: fmt.Sprintf("run %s, node %s, command %s: the record holds no outcome", s.in.RunID, call.NodeID, call.CommandID)}
		if s.forbidden == nil {
			s.forbid(reason)
		}
		return &agent.CommandRow{RunID: s.in.RunID, CommandID: call.CommandID, NodeID: call.NodeID, Kind: kind, State: agent.CommandFailed, Error: reason}
	}
	if row.Kind != kind {
		s.differences = append(s.differences,
			fmt.Sprintf("command %s: the record has a command of kind %s, the replay comes to one of kind %s", call.CommandID, row.Kind, kind))
	}
	s.answered[call.CommandID] = true
	if row.State == agent.Committed {
		s.outputs[call.NodeID] = call.CommandID
	}
	return row
}

// forbid notes the first command that the record does not answer. One that never began by its record may be there because the run
// heard of the last outcome too early.
func (s *stage) forbid(reason *agent.Error) {
	s.forbidden = reason
	if !slices.Contains(s.record.emitted, reason.CommandID) {
		s.early = s.last
	}
}

func (s *stage) plannerReply(row *agent.CommandRow) (agent.PlannerReply, error) {
	return activities.PlannerReplyOf(&s.record.run.Definition, row)
}

func (s *stage) modelReply(row *agent.CommandRow) (agent.ModelReply, error) {
	return activities.ModelReplyOf(&s.record.run.Definition, row)
}

// evaluate evaluates a condition once more, by the outcomes that were told.
func (s *stage) evaluate(in agent.EvaluateCall) (agent.EvaluateReply, error) {
	node, ok := s.record.plan.Node(in.NodeID)
	if !ok {
		return agent.EvaluateReply{}, fmt.Errorf("the plan on record has no node %s", in.NodeID)
	}
	return activities.EvaluatedFrom(&s.record.run, node, func(names []string) (map[string]agent.CommandResult, error) {
		ended := map[string]agent.CommandResult{}
		latest := map[string]int64{}
		for id := range s.answered {
			row := s.record.rows[id]
			if slices.Contains(names, row.NodeID) && row.Sequence > latest[row.NodeID] {
				latest[row.NodeID] = row.Sequence
				ended[row.NodeID] = agent.CommandResult{Kind: row.Kind, State: row.State, Result: row.Result, Error: row.Error}
			}
		}
		return ended, nil
	})
}

// settle tells what became of a command that was at work when the run was stopped. One that only was scheduled has no outcome.
func (s *stage) settle(in agent.SettleCall) (agent.SettleReply, error) {
	delete(s.waiting, in.CommandID)
	s.order = nil // the run has been stopped
	row := s.record.rows[in.CommandID]
	if row == nil {
		return agent.SettleReply{Reply: agent.Reply{Outcome: agent.OutcomeUnknown}}, nil
	}
	row = s.take(in.Call, row.Kind)
	switch row.Kind {
	case agent.ModelCommand:
		reply, err := s.modelReply(row)
		return agent.SettleReply{Reply: reply.Reply, Tools: reply.Tools, GoesOn: reply.GoesOn}, err
	case agent.PlanCommand:
		reply, err := s.plannerReply(row)
		return agent.SettleReply{Reply: reply.Reply, Plan: reply.Plan}, err
	case agent.ToolCommand, agent.WaitCommand, agent.WorkflowCommand, agent.RetrievalCommand:
	}
	return agent.SettleReply{Reply: activities.ReplyOf(row)}, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

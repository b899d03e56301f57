package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/workflows"
)

// ending is how one scheduling of a command ends.
type ending int

const (
	// commits is what happens to everything that a script does not name.
	commits ending = iota
	// fails, doubts and aborts end with that outcome on record.
	fails
	doubts
	aborts
	// refused: the activity ends in an error before its begin; nothing is on record.
	refused
	// lost: the activity ends in an error after its begin; nobody knows what the effect did.
	lost
	// unheard: the result is committed, and the activity ends in an error all the same.
	unheard
	// again: it has no end before a time, and is tried again then, as often as it takes, by the activity that is at work.
	again
	// asked: it commits once somebody has granted it; until then it waits.
	asked
)

// effect is what a script says of one scheduling of a command.
type effect struct {
	ends ending
	// code is that of the failure or of the activity's error; INTERNAL when empty.
	code agent.Code
	// takes is the time it takes, an hour when zero. It passes on the test's clock only.
	takes time.Duration
	tools []agent.ToolRequest
	plan  *agent.Shape
	// said is the number of a message that a turn did not know of; it goes on then.
	said int64
	// asked: the gate asks for an approval first.
	asked *question
	// tokens are those that a model's command uses.
	tokens int
	// begun is called when the command has begun (or would have, when refused).
	begun func(*world)
}

// script says what becomes of commands: for each, one effect per scheduling, the last of them for all that follow.
type script map[string][]effect

// called is an activity that was scheduled.
type called struct {
	name     string
	command  string
	schedule int
	facts    []int
	opens    bool
	ends     bool
	reason   agent.Code   // of SettleCommand
	status   agent.Status // of Record and Finish
}

// world is all that an execution works with: activities that keep their record in memory, by the rules of the gate, and a
// clock on which everything has its place. Whatever it does happens on the loop of the test environment, so that the same
// script gives the same record every time.
type world struct {
	t      testing.TB
	env    *testsuite.TestWorkflowEnvironment
	in     agent.RunInput
	script script
	used   map[string]int

	status   agent.Status
	rows     map[string]*agent.CommandRow
	events   []agent.Event
	lastFact int
	// refuseRecord and refuseSettle: the ledger does not take what they bring.
	refuseRecord, refuseSettle bool
	// finishing is called when Finish has begun, recording when Record has.
	finishing, recording func(*world)
	intents              int64
	// pausedBy is the intent that has paused the run, 0 for none.
	pausedBy  int64
	refusedBy int64 // the one that the gate has refused a command for last
	// had is the end that the run had before Finish, nil for none.
	had *agent.FinishReply
	// calls are in the order in which the workflow scheduled them. atWork are the commands between begin and end, most is
	// the largest number of them at a time.
	calls  []called
	atWork int
	most   int

	// granted are the commands that somebody has approved.
	granted map[string]bool
	// believed are the hand-overs.
	believed []belief
	// inputs are those that no wait has taken, by name, and heard is what turns were told to have heard.
	inputs map[string]int
	heard  map[string][]int64
	until  map[string][]time.Time // of commands, what they were told of the run's time

	// unmet are the nodes whose condition does not hold, and unknown those of which it cannot be told.
	unmet, unknown []string

	// segmentEnds reports whether a segment ends before it begins a command.
	segmentEnds func(commandID string) bool

	finish *agent.FinishCall
	out    agent.RunOutput
	err    error
}

// newWorld prepares the execution of a run. Nothing happens before run.
func newWorld(t testing.TB, in agent.RunInput, s script) *world {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	w := &world{t: t, env: suite.NewTestWorkflowEnvironment(), in: in, script: s, used: map[string]int{},
		status: agent.Running, rows: map[string]*agent.CommandRow{}, granted: map[string]bool{}, inputs: map[string]int{}, heard: map[string][]int64{}, until: map[string][]time.Time{}}
	w.env.SetTestTimeout(time.Minute)
	w.env.RegisterWorkflowWithOptions(workflows.AgentExecution, workflow.RegisterOptions{Name: agent.WorkflowName})
	register(w, agent.CallPlanner, func(in agent.PlannerCall) (agent.Call, agent.Scope) { return in.Call, in.Scope }, w.callPlanner)
	register(w, agent.CallModel, func(in agent.ModelCall) (agent.Call, agent.Scope) { return in.Call, in.Scope }, w.callModel)
	register(w, agent.CallTool, func(in agent.ToolCall) (agent.Call, agent.Scope) { return in.Call, in.Scope }, w.callTool)
	register(w, agent.Retrieve, func(in agent.RetrieveCall) (agent.Call, agent.Scope) { return in.Call, in.Scope }, w.retrieve)
	register(w, agent.CallWorkflow, func(in agent.WorkflowCall) (agent.Call, agent.Scope) { return in.Call, in.Scope }, w.callWorkflow)
	register(w, agent.Await, func(in agent.WaitCall) (agent.Call, agent.Scope) { return in.Call, in.Scope }, w.await)
	register(w, agent.SettleCommand, func(in agent.SettleCall) (agent.Call, agent.Scope) { return in.Call, in.Scope }, w.settle)
	register(w, agent.Record, func(in agent.RecordCall) (agent.Call, agent.Scope) { return agent.Call{}, in.Scope }, w.record)
	register(w, agent.Finish, func(in agent.FinishCall) (agent.Call, agent.Scope) { return agent.Call{}, in.Scope }, w.end)
	register(w, agent.Evaluate, func(in agent.EvaluateCall) (agent.Call, agent.Scope) { return agent.Call{NodeID: in.NodeID}, in.Scope }, w.evaluate)
	w.registerSegment()
	w.append(agent.RunStarted, "", "", struct{}{})
	if in.Plan != nil {
		w.append(agent.PlanGenerated, agent.PlanNodeID, "", agent.PlanGeneratedData{TaskGraph: planOf(in.Plan)})
	}
	return w
}

// run executes a run to its end.
func run(t testing.TB, in agent.RunInput, s script) *world {
	t.Helper()
	return newWorld(t, in, s).run()
}

func (w *world) run() *world {
	w.t.Helper()
	w.env.ExecuteWorkflow(agent.WorkflowName, w.in)
	require.True(w.t, w.env.IsWorkflowCompleted())
	if w.err = w.env.GetWorkflowError(); w.err == nil {
		require.NoError(w.t, w.env.GetWorkflowResult(&w.out))
	}
	return w
}

// register gives an activity its place on the test's clock. Its work is done in two steps, at its beginning and at its end,
// and answered then. Activities that are scheduled at once begin a second apart, in the order of their scheduling.
func register[In, Out any](w *world, name agent.Activity[In, Out], scope func(In) (agent.Call, agent.Scope), work func(In) pending[Out]) {
	note := func(in In) {
		c, s := scope(in)
		entry := called{name: string(name), command: c.CommandID, schedule: c.Schedule, opens: c.Opens, ends: c.Ends}
		for _, f := range s.Facts {
			entry.facts = append(entry.facts, f.No)
		}
		switch in := any(in).(type) {
		case agent.SettleCall:
			entry.reason = in.Reason.Code
		case agent.RecordCall:
			entry.status = in.Status
		case agent.FinishCall:
			entry.status = in.Status
		}
		w.calls = append(w.calls, entry)
	}
	fn := func(ctx context.Context, in In) (Out, error) {
		info := activity.GetInfo(ctx)
		if info.IsLocalActivity { // the end of a run
			type result struct {
				out Out
				err error
			}
			done := make(chan result, 1)
			w.env.RegisterDelayedCallback(func() {
				note(in)
				out, err := work(in).end()
				done <- result{out, err}
			}, 0)
			r := <-done
			return r.out, r.err
		}
		id, err := strconv.Atoi(info.ActivityID)
		if err != nil {
			panic(err)
		}
		w.env.RegisterDelayedCallback(func() {
			note(in)
			p := work(in)
			complete := func() {
				out, err := p.end()
				switch {
				case errors.Is(err, errPaused):
					err = temporal.NewNonRetryableApplicationError(err.Error(), string(agent.CodePaused), nil, w.refusedBy)
				case errors.Is(err, errOutOfTime):
					err = temporal.NewNonRetryableApplicationError(err.Error(), string(agent.CodeOutOfTime), nil)
				case errors.Is(err, errHeartbeat):
					err = temporal.NewHeartbeatTimeoutError()
				case err != nil:
					err = temporal.NewNonRetryableApplicationError(err.Error(), string(codeOf(err)), nil)
				}
				require.NoError(w.t, w.env.CompleteActivity(info.TaskToken, out, err))
			}
			w.env.RegisterDelayedCallback(complete, max(p.takes, time.Second))
		}, time.Duration(id)*time.Second)
		var none Out
		return none, activity.ErrResultPending
	}
	w.env.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: string(name)})
}

// errHeartbeat is what the server says of an activity whose worker was lost.
var errHeartbeat = errors.New("heartbeat timeout")

// errPaused is what the gate says of a command that would begin while the run is paused.
var errPaused = errors.New("the run is paused")

// errOutOfTime is what the gate says of a command that would be tried again after the run's time.
var errOutOfTime = errors.New("the run's time is over")

// pending is an activity at work.
type pending[Out any] struct {
	takes time.Duration
	end   func() (Out, error)
}

func codeOf(err error) agent.Code {
	if e, ok := agent.AsError(err); ok {
		return e.Code
	}
	return agent.CodeInternal
}

func (w *world) evaluate(in agent.EvaluateCall) pending[agent.EvaluateReply] {
	reply := agent.EvaluateReply{Holds: !slices.Contains(w.unmet, in.NodeID)}
	if slices.Contains(w.unknown, in.NodeID) {
		reply = agent.EvaluateReply{Error: agent.Failed(agent.CodeReference, "when: there is no such thing")}
	}
	return pending[agent.EvaluateReply]{end: func() (agent.EvaluateReply, error) { return reply, nil }}
}

func (w *world) callPlanner(in agent.PlannerCall) pending[agent.PlannerReply] {
	p := w.command(in.Call, agent.PlanCommand, "", agent.Idempotent, 0)
	return pending[agent.PlannerReply]{p.takes, func() (agent.PlannerReply, error) {
		reply, e, err := p.end()
		return agent.PlannerReply{Reply: reply, Plan: e.plan}, err
	}}
}

func (w *world) callModel(in agent.ModelCall) pending[agent.ModelReply] {
	w.heard[in.CommandID] = append(w.heard[in.CommandID], in.Heard)
	p := w.command(in.Call, agent.ModelCommand, "", agent.Idempotent, in.Turn)
	return pending[agent.ModelReply]{p.takes, func() (agent.ModelReply, error) {
		reply, e, err := p.end()
		return agent.ModelReply{Reply: reply, Tools: e.tools, GoesOn: e.said > 0, Said: e.said}, err
	}}
}

func (w *world) callWorkflow(in agent.WorkflowCall) pending[agent.Reply] {
	p := w.command(in.Call, agent.WorkflowCommand, "", agent.Idempotent, 0)
	return pending[agent.Reply]{p.takes, func() (agent.Reply, error) {
		reply, _, err := p.end()
		return reply, err
	}}
}

func (w *world) callTool(in agent.ToolCall) pending[agent.Reply] {
	p := w.command(in.Call, agent.ToolCommand, in.Tool, w.effectOf(in), 0)
	return pending[agent.Reply]{p.takes, func() (agent.Reply, error) {
		reply, _, err := p.end()
		return reply, err
	}}
}

func (w *world) retrieve(in agent.RetrieveCall) pending[agent.Reply] {
	p := w.command(in.Call, agent.RetrievalCommand, "", agent.Idempotent, 0)
	return pending[agent.Reply]{p.takes, func() (agent.Reply, error) {
		reply, _, err := p.end()
		return reply, err
	}}
}

// effectOf is the class of a tool: its name, where that is one, else idempotent.
func (w *world) effectOf(in agent.ToolCall) agent.EffectClass {
	if class := agent.EffectClass(in.Tool); class.Valid() {
		return class
	}
	return agent.Idempotent
}

type commandEnd struct {
	takes time.Duration
	end   func() (agent.Reply, effect, error)
}

// command is the gate: begin now, the effect and the commit in the time that the script says.
func (w *world) command(c agent.Call, kind agent.CommandKind, tool string, class agent.EffectClass, turn int) commandEnd {
	e := w.next(c.CommandID)
	w.until[c.CommandID] = append(w.until[c.CommandID], c.Until)
	if e.begun != nil {
		defer e.begun(w)
	}
	refuse := func(code agent.Code, why string) commandEnd {
		return commandEnd{end: func() (agent.Reply, effect, error) { return agent.Reply{}, e, agent.Failed(code, "%s", why) }}
	}
	if err := w.check(c.Scope); err != nil {
		return commandEnd{end: func() (agent.Reply, effect, error) { return agent.Reply{}, e, err }}
	}
	if e.ends == refused {
		return refuse(e.code, "refused by the script")
	}
	w.facts(c.Scope)
	d := agent.Dispatch{Epoch: c.Epoch, Schedule: c.Schedule, Attempt: 1}
	row := w.rows[c.CommandID]
	switch verdict := agent.Admit(row, agent.Ask{Dispatch: d, InputHash: c.CommandID}, time.Time{}); verdict {
	case agent.MayExecute:
		if w.status == agent.Cancelling {
			return refuse(agent.CodeCancelled, "the run is being cancelled")
		}
		if w.pausedBy != 0 {
			w.refusedBy = w.pausedBy
			w.used[c.CommandID]-- // it has not begun
			return commandEnd{end: func() (agent.Reply, effect, error) { return agent.Reply{}, e, errPaused }}
		}
	case agent.Inject, agent.InjectFailure, agent.IsInDoubt:
		w.used[c.CommandID]-- // it was not dispatched
		if verdict == agent.Inject && c.Ends && len(e.tools) == 0 && e.said == 0 && w.at(agent.NodeFinished, c.NodeID) == 0 {
			w.append(agent.NodeFinished, c.NodeID, "", agent.NodeFinishedData{Index: c.NodeIndex, ResultCommand: c.CommandID})
		}
		return commandEnd{end: func() (agent.Reply, effect, error) { return replyOf(row), e, nil }}
	default:
		return refuse(agent.CodeSuperseded, string(verdict))
	}
	if e.ends == asked && !w.granted[c.CommandID] {
		w.used[c.CommandID]--
		if row == nil || row.State == agent.Fenced {
			row = &agent.CommandRow{CommandID: c.CommandID, NodeID: c.NodeID, Kind: kind, Tool: tool, Effect: class, State: agent.CommandWaiting, Owner: d}
			w.rows[c.CommandID] = row
			if c.Opens {
				w.append(agent.NodeStarted, c.NodeID, "", agent.NodeStartedData{Index: c.NodeIndex})
			}
			w.append(agent.ApprovalRequested, c.NodeID, c.CommandID, agent.ApprovalRequestedData{Tool: tool})
		}
		row.State, row.Owner = agent.CommandWaiting, d
		awaits := &agent.Awaited{For: agent.ForApproval, ApprovalID: c.CommandID}
		return commandEnd{end: func() (agent.Reply, effect, error) {
			return agent.Reply{Outcome: agent.OutcomeWaiting, Awaits: awaits}, e, nil
		}}
	}
	if end, waits := w.ask(c, row, kind, e); waits {
		return end
	}
	dispatchNo := 1
	opened := row != nil && row.State == agent.CommandWaiting // when somebody was asked
	if row != nil && row.DispatchNo > 0 {
		dispatchNo, opened = row.DispatchNo+1, true
	}
	row = &agent.CommandRow{CommandID: c.CommandID, NodeID: c.NodeID, Kind: kind, Tool: tool, Effect: class, State: agent.Dispatched,
		InputHash: c.CommandID, DispatchNo: dispatchNo, Owner: d}
	w.rows[c.CommandID] = row
	if c.Opens && !opened {
		w.append(agent.NodeStarted, c.NodeID, "", agent.NodeStartedData{Index: c.NodeIndex})
	}
	if c.Refusal != nil {
		w.decide(row, agent.CommandFailed, &agent.Error{Code: agent.CodeRefused, Message: c.Refusal.Reason})
		w.atWork++ // it never was
		return commandEnd{end: func() (agent.Reply, effect, error) { return replyOf(row), e, nil }}
	}
	if dispatchNo == 1 {
		w.append(agent.CommandEmitted, c.NodeID, c.CommandID, agent.CommandEmittedData{Kind: kind, Tool: tool})
	}
	w.atWork++
	w.most = max(w.most, w.atWork)
	return commandEnd{e.takes, func() (agent.Reply, effect, error) { return w.conclude(c, row, e, turn) }}
}

// next is what the script says of the next scheduling of a command.
func (w *world) next(commandID string) effect {
	e := effect{}
	if said := w.script[commandID]; len(said) > 0 {
		e = said[min(w.used[commandID], len(said)-1)]
	}
	w.used[commandID]++
	if e.code == "" {
		e.code = agent.CodeInternal
	}
	if e.takes == 0 {
		e.takes = time.Hour
	}
	return e
}

func (w *world) conclude(c agent.Call, row *agent.CommandRow, e effect, turn int) (agent.Reply, effect, error) {
	if row.State != agent.Dispatched || w.status.Terminal() { // settled meanwhile
		return replyOf(row), e, nil
	}
	gone := agent.Failed(e.code, "lost by the script")
	if e.code == agent.CodeTimeout {
		gone = agent.Failed(agent.CodeTimeout, "%w", errHeartbeat)
	}
	switch e.ends {
	case commits, asked, unheard:
		w.decide(row, agent.Committed, nil)
		row.Tokens = e.tokens
		w.append(agent.CommandCommitted, c.NodeID, c.CommandID, agent.CommandCommittedData{Kind: row.Kind, Turn: turn,
			Usage: json.RawMessage(fmt.Sprintf(`{"output_tokens": %d}`, e.tokens))})
		if row.Kind == agent.PlanCommand && e.plan != nil {
			w.append(agent.PlanGenerated, c.NodeID, "", agent.PlanGeneratedData{TaskGraph: planOf(e.plan)})
		}
		if c.Ends && len(e.tools) == 0 && e.said == 0 {
			w.append(agent.NodeFinished, c.NodeID, "", agent.NodeFinishedData{Index: c.NodeIndex, ResultCommand: c.CommandID})
		}
		if e.ends == unheard {
			return agent.Reply{}, e, gone
		}
	case again:
		w.atWork--
		row.State = agent.Released
		return agent.Reply{}, e, errOutOfTime
	case fails:
		w.decide(row, agent.CommandFailed, &agent.Error{Code: e.code, Message: "failed by the script", NodeID: c.NodeID, CommandID: c.CommandID})
	case doubts:
		w.decide(row, agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt, Message: "doubted by the script"})
	case aborts:
		w.decide(row, agent.CommandAborted, &agent.Error{Code: agent.CodeCancelled, Message: "aborted by the script"})
	case lost, refused:
		return agent.Reply{}, e, gone
	}
	return replyOf(row), e, nil
}

func (w *world) decide(row *agent.CommandRow, state agent.CommandState, reason *agent.Error) {
	if row.State == agent.Dispatched {
		w.atWork--
	}
	row.State, row.Error, row.Sequence = state, reason, int64(len(w.events)+1)
	switch state {
	case agent.CommandFailed:
		w.append(agent.CommandFailedType, row.NodeID, row.CommandID, agent.CommandFailedData{Kind: row.Kind, Error: reason})
	case agent.CommandAborted:
		w.append(agent.CommandAbortType, row.NodeID, row.CommandID, agent.CommandAbortedData{Kind: row.Kind})
	case agent.CommandInDoubt:
		w.append(agent.CommandDoubtType, row.NodeID, row.CommandID, agent.CommandInDoubtData{Kind: row.Kind})
	default:
	}
}

// settle decides a command whose activity has ended in an error, as the ledger does.
func (w *world) settle(in agent.SettleCall) pending[agent.SettleReply] {
	return pending[agent.SettleReply]{end: func() (agent.SettleReply, error) {
		if w.refuseSettle {
			return agent.SettleReply{}, agent.Failed(agent.CodeInternal, "refused")
		}
		if err := w.check(in.Scope); err != nil {
			return agent.SettleReply{}, err
		}
		w.facts(in.Scope)
		row := w.rows[in.CommandID]
		if row == nil || row.State == agent.Fenced {
			row = &agent.CommandRow{CommandID: in.CommandID, NodeID: in.NodeID, State: agent.Fenced,
				Owner: agent.Dispatch{Epoch: in.Epoch, Schedule: in.Schedule}}
			w.rows[in.CommandID] = row
		}
		if row.State == agent.Dispatched {
			state := agent.CommandFailed
			switch {
			case row.Effect == agent.External:
				state = agent.CommandInDoubt
			case in.Reason.Code == agent.CodeCancelled:
				state = agent.CommandAborted
			}
			w.decide(row, state, in.Reason)
		}
		said := w.script[in.CommandID]
		reply := agent.SettleReply{Reply: replyOf(row)}
		if row.State == agent.Committed && len(said) > 0 {
			e := said[min(w.used[in.CommandID], len(said))-1]
			reply.Tools, reply.Plan, reply.GoesOn, reply.Said = e.tools, e.plan, e.said > 0, e.said
		}
		return reply, nil
	}}
}

func (w *world) record(in agent.RecordCall) pending[agent.RecordReply] {
	if w.recording != nil {
		w.recording(w)
	}
	return pending[agent.RecordReply]{end: func() (agent.RecordReply, error) {
		if w.refuseRecord {
			return agent.RecordReply{}, agent.Failed(agent.CodeInternal, "refused")
		}
		if err := w.check(in.Scope); err != nil {
			return agent.RecordReply{}, err
		}
		w.facts(in.Scope)
		if doubts := slices.ContainsFunc(slices.Collect(maps.Values(w.rows)), func(r *agent.CommandRow) bool { return r.State == agent.CommandInDoubt }); in.Status != "" &&
			w.status != agent.Cancelling && (doubts || in.Status != agent.InDoubt) {
			w.status = in.Status
		}
		reply := agent.RecordReply{Sequence: int64(len(w.events))}
		if in.HandOver != nil {
			state := w.fold()
			reply.State = &state
			w.believed = append(w.believed, belief{w.in.State, *in.HandOver, state})
		}
		return reply, nil
	}}
}

// end is Finish.
func (w *world) end(in agent.FinishCall) pending[agent.FinishReply] {
	if w.finishing != nil {
		w.finishing(w)
	}
	return pending[agent.FinishReply]{end: func() (agent.FinishReply, error) {
		if w.had != nil {
			return *w.had, nil
		}
		require.Nil(w.t, w.finish, "a run ends once")
		if err := w.check(in.Scope); err != nil {
			return agent.FinishReply{}, err
		}
		w.finish = &in
		w.facts(in.Scope)
		switch in.Status {
		case agent.Completed:
			if w.in.State.Finished.Count() == 0 { // else an earlier execution may have it
				require.NotZero(w.t, w.at(agent.NodeFinished, w.lastNode()), "the last node gives the output")
			}
			w.append(agent.RunCompleted, "", "", agent.RunCompletedData{Summary: in.Summary})
		case agent.FailedStatus:
			w.append(agent.RunFailed, in.Error.NodeID, "", agent.RunFailedData{Error: in.Error})
		case agent.Cancelled:
			w.append(agent.RunCancelled, "", "", agent.RunCancelledData{By: in.By, Reason: in.Error.Message})
		default:
			w.t.Errorf("%q is not an end", in.Status)
		}
		w.status = in.Status
		return agent.FinishReply{Status: in.Status, Sequence: int64(len(w.events))}, nil
	}}
}

// lastNode is that of the plan on record.
func (w *world) lastNode() string {
	for _, e := range slices.Backward(w.events) {
		if e.Type == agent.PlanGenerated {
			var d agent.PlanGeneratedData
			require.NoError(w.t, json.Unmarshal(e.Data, &d))
			return d.TaskGraph.Nodes[len(d.TaskGraph.Nodes)-1].ID
		}
	}
	return ""
}

// check refuses what an execution may not write any more.
func (w *world) check(s agent.Scope) error {
	if s.Epoch != w.in.Epoch || s.RunID != w.in.RunID {
		return agent.Failed(agent.CodeStaleEpoch, "run %s is in epoch %d", s.RunID, w.in.Epoch)
	}
	if w.status.Terminal() {
		return agent.Failed(agent.CodeStaleEpoch, "run %s has ended", s.RunID)
	}
	return nil
}

// facts appends those that are not on record yet.
func (w *world) facts(s agent.Scope) {
	for _, f := range s.Facts {
		if f.No > w.lastFact {
			require.Equal(w.t, w.lastFact+1, f.No, "facts are numbered without a gap")
			w.lastFact = f.No
			w.append(f.Type, f.NodeID, "", f.Data)
		}
	}
}

func (w *world) append(typ agent.EventType, nodeID, commandID string, data any) {
	raw, err := json.Marshal(data)
	require.NoError(w.t, err)
	w.events = append(w.events, agent.Event{Sequence: int64(len(w.events) + 1), Type: typ, NodeID: nodeID, CommandID: commandID,
		Data: raw, Epoch: w.in.Epoch})
}

func replyOf(row *agent.CommandRow) agent.Reply {
	r := agent.Reply{Sequence: row.Sequence, DispatchNo: row.DispatchNo, Error: row.Error, Outcome: agent.OutcomeUnknown}
	switch row.State {
	case agent.Committed:
		r.Outcome, r.Tokens = agent.OutcomeCommitted, row.Tokens
	case agent.CommandFailed:
		r.Outcome = agent.OutcomeFailed
	case agent.CommandAborted:
		r.Outcome = agent.OutcomeAborted
	case agent.CommandInDoubt:
		r.Outcome = agent.OutcomeInDoubt
	case agent.CommandWaiting:
		r.Outcome, r.Awaits = agent.OutcomeWaiting, row.Awaits
	default:
	}
	return r
}

// planOf is a plan of that shape.
func planOf(s *agent.Shape) *agent.Plan {
	p := &agent.Plan{Nodes: []agent.Node{}}
	for _, n := range s.Nodes {
		p.Nodes = append(p.Nodes, agent.Node{ID: n.ID, Kind: n.Kind, Tool: n.Tool})
	}
	return p
}

// commands are the commands that were scheduled, in order, again for each scheduling.
func (w *world) commands() []string {
	ids := []string{}
	for _, c := range w.calls {
		switch c.name {
		case string(agent.CallPlanner), string(agent.CallModel), string(agent.CallTool), string(agent.CallWorkflow), string(agent.Retrieve):
			ids = append(ids, c.command)
		}
	}
	return ids
}

// activities are the names of all activities that were scheduled, in order.
func (w *world) activities() []string {
	names := []string{}
	for _, c := range w.calls {
		names = append(names, c.name)
	}
	return names
}

// count is how often an activity was scheduled.
func count[In, Out any](w *world, name agent.Activity[In, Out]) int {
	n := 0
	for _, c := range w.calls {
		if c.name == string(name) {
			n++
		}
	}
	return n
}

// types are the events of a node or command.
func (w *world) types(id string) []agent.EventType {
	types := []agent.EventType{}
	for _, e := range w.events {
		if e.NodeID == id || e.CommandID == id {
			types = append(types, e.Type)
		}
	}
	return types
}

func eventTypes(w *world) (types []agent.EventType) {
	for _, e := range w.events {
		types = append(types, e.Type)
	}
	return types
}

// at is the place of an event of a node or command in the record, 0 when there is none.
func (w *world) at(typ agent.EventType, id string) int64 {
	i := slices.IndexFunc(w.events, func(e agent.Event) bool { return e.Type == typ && (e.NodeID == id || e.CommandID == id) })
	if i < 0 {
		return 0
	}
	return w.events[i].Sequence
}

// fold is where the record stands.
func (w *world) fold() agent.State {
	w.t.Helper()
	state, err := agent.Fold(w.events)
	require.NoError(w.t, err)
	return state
}

// snapshot asks the execution where it stands.
func (w *world) snapshot() workflows.Snapshot {
	w.t.Helper()
	value, err := w.env.QueryWorkflow(agent.StateQuery)
	require.NoError(w.t, err)
	var s workflows.Snapshot
	require.NoError(w.t, value.Get(&s))
	return s
}

// failure is the code with which the execution failed.
func (w *world) failure() agent.Code {
	w.t.Helper()
	var app *temporal.ApplicationError
	require.ErrorAs(w.t, w.err, &app)
	return agent.Code(app.Type())
}

// requireCancelled says that the execution ended as cancelled.
func (w *world) requireCancelled() {
	w.t.Helper()
	require.Error(w.t, w.err)
	require.True(w.t, temporal.IsCanceledError(w.err), "%v", w.err)
	require.Equal(w.t, agent.Cancelled, w.finish.Status)
}

// resolve is what a person's answer to a command in doubt does: the record says so at once, the signal comes when it comes.
func (w *world) resolve(commandID string, outcome agent.Outcome, after time.Duration) {
	intent := w.answer(commandID, outcome)
	w.env.RegisterDelayedCallback(func() {
		w.env.SignalWorkflow(agent.ResolvedSignal, intent)
		w.env.SignalWorkflow(agent.ResolvedSignal, intent) // the outbox delivers at least once
	}, after)
}

// answer is what the record holds of a person's answer, and the intent that tells of it.
func (w *world) answer(commandID string, outcome agent.Outcome) agent.Intent {
	row := w.rows[commandID]
	require.Equal(w.t, agent.CommandInDoubt, row.State)
	w.append(agent.CommandResolved, row.NodeID, commandID, agent.CommandResolvedData{Outcome: outcome, By: "me"})
	switch outcome {
	case agent.OutcomeCommitted:
		w.decide(row, agent.Committed, nil)
		w.append(agent.CommandCommitted, row.NodeID, commandID, agent.CommandCommittedData{Kind: row.Kind})
	case agent.OutcomeFailed:
		w.decide(row, agent.CommandFailed, &agent.Error{Code: agent.CodeToolFailed, Message: "resolved"})
	default:
		row.State, row.Error = agent.Released, nil
	}
	if w.status == agent.InDoubt {
		w.status = agent.Running
	}
	w.intents++
	return agent.Intent{ID: w.intents, CommandID: commandID, DispatchNo: row.DispatchNo}
}

// cancel is what a user's cancellation does: the record says so at once, the signal comes when it comes.
func (w *world) cancel(after time.Duration, intents ...agent.Intent) {
	w.status = agent.Cancelling
	if len(intents) == 0 {
		intents = []agent.Intent{{ID: 1, By: "me", Reason: "enough"}}
	}
	w.env.RegisterDelayedCallback(func() {
		for _, intent := range intents {
			w.env.SignalWorkflow(agent.CancelSignal, intent)
		}
	}, after)
}

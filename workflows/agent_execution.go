package workflows

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
)

// AgentExecution executes a run: plan, execute, finish. Registered as agent.WorkflowName.
//
// It ends as the run ends: a failed run fails the workflow with the run's error code as its type, a cancelled one cancels it.
func AgentExecution(ctx workflow.Context, in agent.RunInput) (agent.RunOutput, error) {
	ctx, cancel := workflow.WithCancel(ctx)
	e := newExecution(in, cancel)
	e.logger = workflow.GetLogger(ctx)
	if err := workflow.SetQueryHandler(ctx, agent.StateQuery, e.query); err != nil {
		return agent.RunOutput{}, err
	}
	e.subscribe(ctx)
	workflow.Go(ctx, e.listen)
	workflow.Go(ctx, e.watchTime)
	workflow.Go(ctx, e.watchRest)
	workflow.Go(ctx, e.watchLength)

	failure := e.run(ctx)
	if e.handsOver(ctx, failure) {
		return e.handOver(ctx)
	}
	return e.finish(ctx, failure)
}

func newExecution(in agent.RunInput, cancel workflow.CancelFunc) *execution {
	e := &execution{in: in, plan: in.Plan, state: in.State, limits: in.Limits, heard: in.Heard, pausedBy: in.PausedBy, calls: slices.Clone(in.Calls), cancel: cancel,
		resolved: map[string]agent.Intent{}, told: map[string]int{}, taken: map[string]int64{}, loops: map[string]*loop{},
		ahead: map[string]shared{}, left: map[string]bool{}}
	if c := in.Carried; c != nil {
		e.lastFact, e.schedule, e.spent, e.calls = c.LastFact, c.Schedule, time.Duration(c.Spent), c.Calls
		if c.Taken != nil {
			e.taken = maps.Clone(c.Taken)
		}
		for _, met := range c.Met {
			e.met = append(e.met, metLimit{met.Limit, met.Most})
		}
	} else {
		for _, id := range in.Walked {
			if atWorkBefore(in.State, id) {
				e.due = append(e.due, id)
			}
		}
	}
	return e
}

// execution is one execution of a run. Its fields are touched by the workflow's coroutines only, one at a time.
type execution struct {
	in    agent.RunInput
	plan  *agent.Shape
	state agent.State
	// cursorAt is the number of the event that the state's cursor goes by.
	cursorAt int64
	cancel   workflow.CancelFunc
	logger   interface {
		Warn(msg string, keyvals ...interface{})
	}

	// facts are those that no activity has acknowledged yet, lastFact the number of the newest.
	facts    []agent.Fact
	lastFact int
	// schedule counts the activities scheduled for commands.
	schedule int

	// working are the indexes of the nodes at work, waiting those of them that wait for a person. busy counts the coroutines of
	// nodes and tool calls that can go on by themselves, parked those that cannot.
	working agent.Bits
	waiting agent.Bits
	// goingOn are waiting nodes that have a place again, of which the scheduler has not heard yet. queued counts those that wait
	// for a place.
	goingOn agent.Bits
	queued  int
	busy    int
	parked  int
	// parkedFor counts the parked ones by what they wait for.
	parkedFor [parkReasons]int
	// doubts are the commands that wait for a resolution; resolved is, by command, the last word that nothing has gone on by
	// yet.
	doubts   []string
	resolved map[string]agent.Intent
	// told counts the news for commands that wait, by what they wait for, and waits are those that do.
	told  map[string]int
	waits []WaitSnapshot
	// signals are the channels of the outbox, taken the newest intent of each.
	signals []inbox
	taken   map[string]int64
	// pausedBy is the newest intent that has paused the run, unpausedBy the newest that has let it go on.
	pausedBy, unpausedBy int64
	// heard is the number of the newest message that was said to the run while it was at work.
	heard int64
	// limits are those in force. spent is the time that counts against them up to workingSince, which is zero while the clock
	// stands; timeUp is set when it is more than they allow.
	limits       agent.Limits
	spent        time.Duration
	workingSince time.Time
	timeUp       bool
	// met are the limits that were told of.
	met []metLimit
	// calling are the tool calls at work, calls those that came last, by what they were called with. due are those that were at work
	// before a resume and that their turn has not come to yet.
	calling int
	due     []string
	calls   []agent.RepeatedCall
	// ahead are the replies of calls that a segment has executed and nobody has taken up, by command; left are the calls that go in the
	// normal lane since a segment had nothing to say of them. segments counts them, packed is how many more nodes are in them than can be
	// at work at once.
	ahead    map[string]shared
	left     map[string]bool
	segments int
	packed   int
	// loops tell, by node, the turn or the try that it is in.
	loops map[string]*loop
	// moved: a command has got its outcome here, or a signal was taken.
	moved bool
	// handing: a new execution is to continue this one, and nothing begins here any more. leaving: it is being handed over, and
	// what is parked stays so. recording counts the facts on their way to the ledger with no command.
	handing, leaving bool
	recording        int
	// failure is set when the run cannot go on: the first node that failed and that its plan does not go on without.
	failure *agent.Error
	// news tells the scheduler of the plan's nodes what became of one.
	news workflow.Channel
	// over is set when the run's end is being written.
	over bool

	cancelled *agent.Intent
	// exceeded: the run has gone beyond a limit that ends it.
	exceeded *agent.Error
	// forbidden: a replay has reached a command that it must not execute.
	forbidden *agent.Error
	// replaced: another execution has taken the run over, or it has ended; nothing may be written any more.
	replaced *agent.Error
}

// run plans and executes. A nil result means that the final node has finished.
func (e *execution) run(ctx workflow.Context) *agent.Error {
	if e.plan == nil && e.in.RequirePlan {
		return agent.Failed(agent.CodePlanRequired, "the agent has to be given its plan, and there is none on record")
	}
	if e.plan == nil {
		if failure := e.makePlan(ctx); failure != nil {
			return failure
		}
	}
	// A failure that ended an earlier execution is not the node's last word.
	for i, n := range e.plan.Nodes {
		if !n.OnError.Handled() {
			e.state.Failed = e.state.Failed.Without(i)
		}
	}
	return e.runNodes(ctx)
}

func (e *execution) makePlan(ctx workflow.Context) *agent.Error {
	ctx = WithNode(ctx, e.node(agent.PlanNodeID))
	e.show(ctx)
	call := agent.Call{CommandID: agent.PlanNodeID, NodeID: agent.PlanNodeID, Timeout: agent.DefaultModelTimeout}
	e.busy++
	reply := e.callPlanner(ctx, call)
	e.busy--
	switch reply.Outcome {
	case agent.OutcomeCommitted:
		if e.plan = reply.Plan; e.plan == nil || len(e.plan.Nodes) == 0 {
			return agent.Failed(agent.CodeInternal, "the planner's command is committed, and there is no plan on record")
		}
		return nil
	case agent.OutcomeFailed:
		return reply.Error
	default:
		untilStopped(ctx)
	}
	return &agent.Error{Code: agent.CodeCancelled, Message: "stopped before there was a plan"}
}

// finish writes the end of the run. It runs after every node has come to rest, on a context that no cancellation reaches.
func (e *execution) finish(ctx workflow.Context, failure *agent.Error) (agent.RunOutput, error) {
	e.over = true
	if e.replaced != nil {
		return agent.RunOutput{}, temporal.NewNonRetryableApplicationError(e.replaced.Message, string(e.replaced.Code), nil)
	}
	call := agent.FinishCall{Scope: e.scope(), Status: agent.Completed, Summary: e.summary()}
	refused := refusedEffect(ctx)
	switch {
	case refused != nil:
		call.Status, call.Error = agent.FailedStatus, refused
	case e.forbidden != nil:
		call.Status, call.Error = agent.FailedStatus, e.forbidden
	case e.exceeded != nil:
		call.Status, call.Error = agent.FailedStatus, e.exceeded
	case ctx.Err() != nil:
		call.Status, call.Error = agent.Cancelled, &agent.Error{Code: agent.CodeCancelled, Message: "cancelled in Temporal"}
		if e.cancelled != nil {
			call.By, call.Error.Message = e.cancelled.By, e.cancelled.Reason
		}
	case failure != nil:
		call.Status, call.Error = agent.FailedStatus, failure
	}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	reply, err := e.writeEnd(ctx, call)
	if err != nil && call.Status == agent.Completed && asAgentError(err).Code == agent.CodeInternal {
		// The record holds no answer that could be given. That is a failure of the run, and must not leave it without an end.
		call.Status, call.Error = agent.FailedStatus, asAgentError(err)
		reply, err = e.writeEnd(ctx, call)
	}
	if err != nil {
		return agent.RunOutput{}, err
	}
	e.state.Status = reply.Status
	workflow.SetCurrentDetails(ctx, e.details())
	out := agent.RunOutput(reply)
	switch reply.Status {
	case agent.FailedStatus:
		if call.Error == nil { // somebody else has ended the run
			call.Error = &agent.Error{Code: agent.CodeExecutionLost, Message: "the run had ended as failed"}
		}
		return out, temporal.NewNonRetryableApplicationError(call.Error.Error(), string(call.Error.Code), nil)
	case agent.Cancelled:
		return out, temporal.NewCanceledError()
	default:
		return out, nil
	}
}

// endsLocally is the change by which all runs write their end without an activity of Temporal's, not only those of the fast lane.
const endsLocally = "ends-locally"

// writeEnd writes the end of the run: within the last workflow task, or if that does not succeed soon, by an activity.
func (e *execution) writeEnd(ctx workflow.Context, call agent.FinishCall) (agent.FinishReply, error) {
	summary := "finish: " + string(call.Status)
	if e.segments > 0 || workflow.GetVersion(ctx, endsLocally, workflow.DefaultVersion, 1) == 1 {
		if reply, err := doLocally(ctx, agent.Finish, call, heartbeatTimeout, summary); err == nil {
			return reply, nil
		}
	}
	return do(ctx, agent.Finish, call, housekeeping(summary))
}

// fact puts something that only the workflow knows on its way to the ledger, with the next activity.
func (e *execution) fact(typ agent.EventType, nodeID string, data any) {
	//workflowcheck:ignore the payloads are plain structs and maps of strings, which marshal the same every time
	raw, err := json.Marshal(data)
	if err != nil {
		// The payloads of facts are plain structs of this package's making; they always marshal.
		panic(fmt.Sprintf("fact %s: %v", typ, err))
	}
	e.lastFact++
	e.facts = append(e.facts, agent.Fact{No: e.lastFact, Type: typ, NodeID: nodeID, Data: raw})
}

// scope gives an activity this execution's name and all facts that nobody has acknowledged. Activities at work at the same
// time carry the same facts; the ledger writes each once.
func (e *execution) scope() agent.Scope {
	facts := make([]agent.Fact, len(e.facts))
	copy(facts, e.facts)
	return agent.Scope{RunID: e.in.RunID, Epoch: e.in.Epoch, Facts: facts}
}

func (e *execution) acknowledge(carried []agent.Fact) {
	for len(carried) > 0 && len(e.facts) > 0 && e.facts[0].No <= carried[len(carried)-1].No {
		e.facts = e.facts[1:]
	}
}

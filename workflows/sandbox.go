package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/policy"
)

// This file is the sandbox: how the three kinds of operation map onto Temporal, live and on replay.
//
//	class          on replay or recovery              live                              default for
//	deterministic  may run again                      workflow code; a pure tool is     references, conditions, scheduling;
//	                                                  an activity that may repeat       tools that say so
//	idempotent     never again once committed; until  an activity behind the commit     plan, llm, workflow, agent; tools
//	               then repeated with the same key    gate                              that say so
//	external       never again once dispatched,       an activity behind the commit     tools unless they say otherwise
//	               unless nothing can have happened   gate; in doubt when it is lost
//
// What is asked before every command, and what its answer leads to:
//
//	decision  when                                       live                                in an audit replay
//	execute   nothing on record, no rule against it      activity: gate, effect, commit      deterministic commands only
//	inject    the outcome is on record                   activity: the gate gives the record  the record, nothing else
//	forbid    a rule, or an audit without a record       activity: the gate records refusal  REPLAY_FORBIDDEN, run and node
//	ask       a rule or the tool wants an approval       activity: the gate records the      as forbid
//	                                                     question; again when it is answered
//
// Rules that go by a call's arguments are left to the activity, which knows them.
//
// A live workflow does not know the record (it holds no content): whether a command is on record is for the gate to know,
// with the command's row locked, in agent.Admit.

// classOf is the effect class of commands whose class no tool gives.
func classOf(kind agent.CommandKind) agent.EffectClass {
	switch kind {
	case agent.PlanCommand, agent.ModelCommand, agent.WorkflowCommand, agent.RetrievalCommand:
		return agent.Idempotent
	case agent.WaitCommand:
		return agent.Deterministic
	case agent.ToolCommand:
	}
	return agent.External
}

// permit asks the policy before a command and puts its answer into the call. It gives an error when the command must not
// even be scheduled.
func (e *execution) permit(call *agent.Call, asked policy.Command) *agent.Error {
	asked.RunID, asked.Agent, asked.NodeID, asked.CommandID = e.in.RunID, e.in.Agent, call.NodeID, call.CommandID
	asked.Recorded = slices.Contains(e.in.Recorded, call.CommandID)
	refusal := policy.Decide(e.in.Policy, asked).Refusal()
	if refusal == nil {
		return nil
	}
	if e.in.Policy.Replay == agent.LiveRun {
		call.Refusal = refusal
		return nil
	}
	refused := agent.Failed(agent.CodeForbidden, "run %s, node %s, command %s: %s", e.in.RunID, call.NodeID, call.CommandID, refusal.Reason)
	refused.NodeID, refused.CommandID = call.NodeID, call.CommandID
	return refused
}

const (
	// heartbeatTimeout is how soon Temporal notices a lost worker. The lease of its command is over by then.
	heartbeatTimeout = 20 * time.Second
	// commitGrace is what an activity has, beyond its effect, to begin and commit.
	commitGrace = 60 * time.Second
	// maxFences bounds how often a command is scheduled anew because its activity ended before it began.
	maxFences = 3
)

// retryPolicy is the one of all activities of all classes: no limit of attempts. What limits the executions of an effect is
// the gate.
func retryPolicy() *temporal.RetryPolicy {
	return &temporal.RetryPolicy{InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second}
}

// effectOptions are the options of the activity of a command.
func effectOptions(call agent.Call, summary string) workflow.ActivityOptions {
	return workflow.ActivityOptions{
		StartToCloseTimeout: time.Duration(call.Timeout) + commitGrace,
		HeartbeatTimeout:    heartbeatTimeout,
		RetryPolicy:         retryPolicy(),
		// What became of an effect that was cancelled is worth waiting for.
		WaitForCancellation: true,
		Summary:             summary,
	}
}

// housekeeping are the options of activities without an effect: one transaction. One that takes longer than a lost worker is
// given is better tried again, elsewhere.
func housekeeping(summary string) workflow.ActivityOptions {
	return workflow.ActivityOptions{StartToCloseTimeout: heartbeatTimeout, RetryPolicy: retryPolicy(), Summary: summary}
}

// settling are the options of SettleCommand, which may ask a tool.
func settling(commandID string) workflow.ActivityOptions {
	return workflow.ActivityOptions{StartToCloseTimeout: commitGrace, HeartbeatTimeout: heartbeatTimeout, RetryPolicy: retryPolicy(),
		Summary: "settle " + commandID}
}

package api

import (
	"encoding/json"
	"net/http"
	"time"

	"runledger/agent"
)

const (
	// maxTraceEvents bounds what a trace is made from, and with it its size.
	maxTraceEvents = 5000
	traceNotice    = "A debugging aid made from the run's events. It promises nothing: names, shapes and contents change without notice, " +
		"and nothing reads it. Recovery, replay and audits go by the events."
)

// getTrace plays a run back for somebody who looks for what went wrong.
func (a *API) getTrace(w http.ResponseWriter, r *http.Request) error {
	run, err := a.run(r)
	if err != nil {
		return err
	}
	t := newTrace(run.RunID)
	scope := agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}
	for after := run.StartSequence - 1; !t.Truncated; {
		events, err := a.cfg.Ledger.Events(r.Context(), scope, after, eventsPage)
		if err != nil {
			return err
		}
		for _, e := range events {
			t.add(e)
			after = e.Sequence
		}
		if len(events) < eventsPage {
			break
		}
	}
	return writeJSON(w, http.StatusOK, t)
}

// trace shows a run as spans, what was at work and when, and as the line of its events. Both stand in the order of the
// events' numbers. What an event does not say, or says in a way that cannot be read, is left out.
type trace struct {
	Notice string `json:"notice"`
	RunID  string `json:"run_id"`
	// Origin is when the first event was written; times in milliseconds count from there.
	Origin *time.Time `json:"origin"`
	Events int        `json:"events"`
	// Truncated says that more events follow, which this trace does not know.
	Truncated bool `json:"truncated"`
	// Runs are the run and then its child runs.
	Runs     []*tracedRun  `json:"runs"`
	Timeline []tracedEvent `json:"timeline"`

	runs     map[string]*tracedRun
	nodes    map[[2]string]*tracedNode
	commands map[[2]string]*tracedCommand
}

// span is a stretch of time. What is still at work, or left no event of its beginning, lacks one side.
type span struct {
	Start   *time.Time `json:"start"`
	End     *time.Time `json:"end"`
	StartMS *int64     `json:"start_ms"`
	EndMS   *int64     `json:"end_ms"`
}

type tracedRun struct {
	RunID string `json:"run_id"`
	State string `json:"state"`
	span
	// QueuedMS is the time until a worker first wrote something.
	QueuedMS *int64 `json:"queued_ms,omitempty"`
	// Executions counts the first one and every resume.
	Executions int           `json:"executions"`
	Error      *agent.Error  `json:"error,omitempty"`
	Nodes      []*tracedNode `json:"nodes"`

	reopened time.Time
	plan     map[string][]string // what each node waits for
	planned  time.Time
}

type tracedNode struct {
	NodeID string `json:"node_id"`
	Kind   string `json:"kind,omitempty"`
	Tool   string `json:"tool,omitempty"`
	State  string `json:"state"`
	span
	// QueuedMS is the time between the end of the last node that this one waited for, and its start.
	QueuedMS *int64           `json:"queued_ms,omitempty"`
	Starts   int              `json:"starts,omitempty"`
	Reason   string           `json:"reason,omitempty"`
	Error    *agent.Error     `json:"error,omitempty"`
	Commands []*tracedCommand `json:"commands"`
}

type tracedCommand struct {
	CommandID string            `json:"command_id"`
	Kind      agent.CommandKind `json:"kind,omitempty"`
	Tool      string            `json:"tool,omitempty"`
	Effect    agent.EffectClass `json:"effect_class,omitempty"`
	State     string            `json:"state"`
	span
	// OpenMS is the time between emitted and decided, EffectMS what the effect itself took of it in the last attempt.
	OpenMS     *int64           `json:"open_ms,omitempty"`
	EffectMS   int64            `json:"effect_ms,omitempty"`
	Dispatches int              `json:"dispatches"`
	Reason     string           `json:"reason,omitempty"`
	Error      *agent.Error     `json:"error,omitempty"`
	Attempts   []*tracedAttempt `json:"attempts"`
	// ReusedFrom is where the outcome comes from, when the run has not executed the command.
	ReusedFrom *agent.ForkedFrom `json:"reused_from,omitempty"`

	nodeID   string
	earliest *time.Time // when the next attempt can begin
}

// tracedAttempt is one dispatch. Only the first leaves an event when it begins; of the others the earliest time at which
// they can have begun is shown.
type tracedAttempt struct {
	Attempt int    `json:"attempt"`
	State   string `json:"state"`
	span
	StartEstimated bool   `json:"start_estimated,omitempty"`
	Reason         string `json:"reason,omitempty"`
	RetryAfterMS   int64  `json:"retry_after_ms,omitempty"`
}

// tracedEvent is an event in a line: where something starts or ends, or a point in between.
type tracedEvent struct {
	Sequence  int64           `json:"sequence_number"`
	MS        int64           `json:"ms"`
	Kind      string          `json:"kind"`
	Type      agent.EventType `json:"event_type"`
	RunID     string          `json:"run_id,omitempty"`
	NodeID    string          `json:"node_id,omitempty"`
	CommandID string          `json:"command_id,omitempty"`
	Attempt   int             `json:"attempt,omitempty"`
	// Detail holds the small values of the event's data.
	Detail map[string]json.RawMessage `json:"detail,omitempty"`
}

func newTrace(runID string) *trace {
	return &trace{Notice: traceNotice, RunID: runID, Runs: []*tracedRun{}, Timeline: []tracedEvent{},
		runs: map[string]*tracedRun{}, nodes: map[[2]string]*tracedNode{}, commands: map[[2]string]*tracedCommand{}}
}

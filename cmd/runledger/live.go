package main

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"time"

	"runledger/agent"
	"runledger/client"
)

// redrawEvery is how often a view is drawn that nothing happens to, for its clocks and for a window that changes its size.
const redrawEvery = 200 * time.Millisecond

// liveView shows a run on a terminal as it stands: its nodes, what it waits for, and the answer as it arrives. It draws over what it has
// drawn, and leaves the last picture with the whole answer under it.
type liveView struct {
	out   io.Writer
	size  func() (columns, rows int)
	color bool
	now   func() time.Time
	runID string

	mu     sync.Mutex
	began  time.Time
	ended  time.Time // while end is set
	title  string
	status string
	nodes  []*liveNode
	// notices are what somebody has to act on, by command, in their order.
	notices []liveNotice
	texts   map[string]string
	// speaking is the command whose text came last.
	speaking string
	end      agent.EventType
	outcome  string
	answer   string
	// drawn are the widths of the lines that the terminal shows of this view.
	drawn []int
	// broken is that the terminal could not be written to.
	broken error
}

type liveNode struct {
	id, what, state, note string
	began, ended          time.Time
}

type liveNotice struct{ commandID, text string }

func newLiveView(out io.Writer, size func() (columns, rows int), color bool, runID string) *liveView {
	return &liveView{out: out, size: size, color: color, now: time.Now, runID: runID, began: time.Now(), status: "queued", texts: map[string]string{}}
}

// follow draws while frames come, and once more at the end.
func (v *liveView) follow(updates iter.Seq2[client.Update, error]) (err error) {
	over, drawn := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drawn)
		clock := time.NewTicker(redrawEvery)
		defer clock.Stop()
		for {
			select {
			case <-clock.C:
				v.draw(false)
			case <-over:
				return
			}
		}
	}()
	for u, failed := range updates {
		if err = failed; err == nil {
			err = v.update(u)
		}
		if err != nil {
			break
		}
	}
	close(over)
	<-drawn
	v.draw(true)
	if err == nil {
		err = v.broken
	}
	return err
}

// update takes in what comes next. Events are drawn at once; what a model says comes quickly, and the clock draws it.
func (v *liveView) update(u client.Update) error {
	v.mu.Lock()
	if u.Output != nil {
		v.hear(u.Output)
	}
	var err error
	if u.Event != nil {
		err = v.event(u.Event.Event)
	}
	if err == nil {
		err = v.broken
	}
	v.mu.Unlock()
	if u.Event != nil {
		v.draw(false)
	}
	return err
}

func (v *liveView) event(e agent.Event) error {
	var d frameData
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return fmt.Errorf("event %d %s: %w", e.Sequence, e.Type, err)
	}
	v.take(e, &d)
	return nil
}

func (v *liveView) take(e agent.Event, d *frameData) {
	switch e.Type {
	case agent.RunStarted:
		v.status, v.began = "running", e.CreatedAt
		v.title = d.Mode + " mode"
		if d.Offline {
			v.title += ", offline model"
		}
	case "plan_created":
		for _, n := range d.Nodes {
			v.node(n.ID).what = strings.TrimSpace(n.Kind + " " + n.Tool)
		}
	case "step_started":
		n := v.node(e.NodeID)
		n.what, n.state, n.began, n.ended, n.note = strings.TrimSpace(d.Kind+" "+d.Tool), "running", e.CreatedAt, time.Time{}, ""
	case "step_completed":
		v.ends(e, "done", "")
	case "step_failed":
		v.ends(e, "failed", errorText(d.Error))
	case agent.NodeSkipped:
		v.ends(e, "skipped", d.Reason)
	case "tool_invoked":
		v.settle(e.CommandID)
		v.note(e, d.Tool+" "+shown(d.Input))
	case "tool_completed":
		v.settle(e.CommandID)
		v.note(e, shown(d.Output))
	case "command_failed":
		v.settle(e.CommandID)
		v.note(e, errorText(d.Error))
	case "attempt_discarded":
		v.note(e, fmt.Sprintf("attempt %d does not count: %s", e.Attempt, d.Reason))
	case "command_in_doubt":
		v.needs(e.CommandID, e.CommandID+" is in doubt: "+d.Reason)
	case agent.CommandResolved:
		v.settle(e.CommandID)
	case agent.ApprovalRequested:
		v.needs(e.CommandID, fmt.Sprintf("%s would call %s %s: approval %s is waited for", e.CommandID, d.Tool, shown(d.Arguments), d.ApprovalID))
	case agent.ApprovalResolved:
		v.settle(e.CommandID)
		v.note(e, string(d.Outcome))
	case agent.LimitReachedType:
		if d.Parked {
			v.status = "limit reached"
			v.needs("", d.Limit+" is reached: the run waits for more")
		}
	case agent.LimitsChanged:
		v.settle("")
		v.status = "running"
	case agent.RunPaused:
		v.status = "paused by " + d.By
	case agent.RunUnpaused:
		v.status = "running"
	case agent.RunReopened:
		v.status, v.outcome, v.answer, v.end = "running", "", "", ""
	case agent.RunCompleted:
		v.over(e, "completed", "", d.FinalOutput)
	case agent.RunFailed:
		v.over(e, "failed", errorText(d.Error), "")
	case agent.RunCancelled:
		v.over(e, "cancelled", d.Reason, "")
	default:
		// The rest is for `runledger events`.
	}
}

// hear keeps the words of an answer, on record or not.
func (v *liveView) hear(o *client.Output) {
	switch {
	case o.State == client.Discarded:
		delete(v.texts, o.CommandID)
	case o.State == client.Committed && v.texts[o.CommandID] == "": // nobody has seen it arrive, and the end shows it
	case o.Channel == "text":
		v.texts[o.CommandID], v.speaking = o.Text, o.CommandID
	}
}

func (v *liveView) node(id string) *liveNode {
	for _, n := range v.nodes {
		if n.id == id {
			return n
		}
	}
	n := &liveNode{id: id, state: "pending"}
	v.nodes = append(v.nodes, n)
	return n
}

func (v *liveView) ends(e agent.Event, state, note string) {
	n := v.node(e.NodeID)
	n.state, n.ended = state, e.CreatedAt
	if note != "" || state == "failed" {
		n.note = note
	}
}

// note says something of the node of a command, if that is one of the plan.
func (v *liveView) note(e agent.Event, text string) {
	for _, n := range v.nodes {
		if n.id == e.NodeID {
			n.note = text
		}
	}
}

func (v *liveView) needs(commandID, text string) {
	v.settle(commandID)
	v.notices = append(v.notices, liveNotice{commandID, text})
}

func (v *liveView) settle(commandID string) {
	kept := v.notices[:0]
	for _, n := range v.notices {
		if n.commandID != commandID {
			kept = append(kept, n)
		}
	}
	v.notices = kept
}

func (v *liveView) over(e agent.Event, status, why, answer string) {
	if e.RunID != v.runID {
		return
	}
	v.end, v.ended, v.status, v.outcome, v.answer = e.Type, e.CreatedAt, status, why, answer
	v.notices = nil
	for _, n := range v.nodes {
		if n.state == "running" {
			n.state, n.ended = "stopped", e.CreatedAt
		}
	}
}

func errorText(e *agent.Error) string {
	if e == nil {
		return ""
	}
	return e.Error()
}

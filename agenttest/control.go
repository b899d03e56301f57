package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"runledger/agent"
)

// input is what somebody has sent to a run for a wait node.
type input struct {
	agent.Input
	sequence  int64
	commandID string // that has taken it
}

// signal keeps an input.
func (m *memory) signal(runID string, in agent.Input) error {
	return m.write(scope{runID: runID, anyEpoch: true}, func(t *txn) error {
		refused := t.mayAsk()
		var conflict *agent.ConflictError
		if refused != nil && (!errors.As(refused, &conflict) || conflict.Reason != agent.ConflictRunEnded) {
			return refused
		}
		untaken := 0 // a run may have ended because of this very input, whose answer was lost
		for _, i := range t.run.inputs {
			if i.Name == in.Name && i.InputID == in.InputID {
				if agent.ArgumentsHash(i.Value) != agent.ArgumentsHash(in.Value) {
					return &agent.ConflictError{Reason: agent.ConflictInputReused, Detail: "input " + in.Name + " " + in.InputID + " came with another value before"}
				}
				return nil
			}
			if i.commandID == "" {
				untaken++
			}
		}
		if refused != nil {
			return refused
		}
		if untaken >= agent.MaxInputs {
			return &agent.ConflictError{Reason: agent.ConflictInputs, Detail: fmt.Sprintf("%d inputs of the run wait for a node that takes them", untaken)}
		}
		err := t.event(agent.InputReceived, "", "", 0,
			agent.InputReceivedData{Name: in.Name, InputID: in.InputID, By: in.By, Value: agent.ShowValue(in.Value), Hash: agent.ValueHash(in.Value)})
		if err != nil {
			return err
		}
		t.run.inputs = append(t.run.inputs, input{Input: in, sequence: t.last})
		t.tell(agent.InputSignal, agent.Intent{Name: in.Name})
		return nil
	})
}

// steer says something to the loop of a run. said is false when the loop has ended.
func (m *memory) steer(runID, messageID, text string) (said bool, err error) {
	err = m.write(scope{runID: runID, anyEpoch: true}, func(t *txn) error {
		if t.mayAsk() != nil || t.run.state.Step() > 0 {
			return nil
		}
		said = true
		if err := t.event(agent.MessageAdded, agent.MainNodeID, "", 0, agent.MessageAddedData{Role: agent.UserMessage, Content: text, Steers: true}); err != nil {
			return err
		}
		t.message(agent.Message{MessageID: messageID, Role: agent.UserMessage, Content: text, Steers: true})
		t.tell(agent.MessageSignal, agent.Intent{Sequence: t.last})
		return nil
	})
	return said, err
}

// mayAsk refuses what cannot be asked of a run any more.
func (t *txn) mayAsk() error {
	if t.run.Status.Terminal() || t.run.Status == agent.Cancelling {
		return &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + t.run.RunID + " is " + string(t.run.Status)}
	}
	return nil
}

// tell brings an intent to the run's execution once the transaction has happened.
func (t *txn) tell(signal string, i agent.Intent) {
	if ask := t.run.ask; ask != nil {
		i.ID = t.last
		t.after = append(t.after, func() { ask(signal, i) })
	}
}

// Await lets a wait node begin, and go on.
func (m *memory) Await(_ context.Context, w agent.Wait) (begun agent.Begun, err error) {
	err = m.write(scope{runID: w.RunID, epoch: w.Epoch, commandID: w.CommandID, facts: w.Facts}, func(t *txn) error {
		switch {
		case t.run.Status.Terminal():
			return t.ended()
		case t.run.Status == agent.Cancelling:
			return agent.Failed(agent.CodeCancelled, "run %s is being cancelled", w.RunID)
		}
		if row := t.decided(false).Row; row != nil {
			if err := w.Check(row); err != nil {
				return err
			}
		}
		begun = agent.Begun{Verdict: agent.MustAwait}
		awaits, err := t.await(w, &begun)
		if err != nil {
			return err
		}
		begun.Row = t.decided(false).Row
		begun.Row.Awaits = awaits
		return nil
	})
	return begun, err
}

func (t *txn) await(w agent.Wait, begun *agent.Begun) (*agent.Awaited, error) {
	switch c := t.command; {
	case c != nil && c.State == agent.Committed:
		if w.Ends && !t.run.state.Finished.Has(w.NodeIndex) {
			return nil, t.finishNode(w.Call, c.Kind, c.Result)
		}
		return nil, nil
	case c != nil && (c.State == agent.CommandFailed || c.State == agent.CommandAborted && c.Owner.Epoch == w.Epoch):
		return nil, nil
	case c != nil && c.State == agent.CommandWaiting:
	case w.Refusal != nil:
		return nil, t.refuse(w.Begin(), begun)
	default:
		if err := t.beginWait(w); err != nil {
			return nil, err
		}
	}
	if at := t.inputFor(w); at >= 0 {
		t.run.inputs[at].commandID = w.CommandID
		return nil, t.commitWait(w, t.run.inputs[at].Value)
	}
	over := !t.command.Deadline.IsZero() && !t.now.Before(t.command.Deadline)
	switch {
	case over && w.Signal == "":
		result, err := agent.TimerValue(t.now)
		if err != nil {
			return nil, err
		}
		return nil, t.commitWait(w, result)
	case over:
		t.goesOnWaiting()
		return nil, t.decide(w.Dispatch, agent.CommandFailed, w.Late(), 0)
	}
	return w.Awaits(t.now, t.command.Deadline), nil
}

func (t *txn) beginWait(w agent.Wait) (err error) {
	b := w.Begin()
	var deadline time.Time
	if w.For > 0 {
		deadline = t.now.Add(time.Duration(w.For))
	}
	switch {
	case t.command == nil || t.command.DispatchNo == 0:
		err = t.emit(b, deadline)
	case t.command.State == agent.CommandAborted:
		err = t.event(agent.CommandReopened, b.NodeID, b.CommandID, t.command.DispatchNo, agent.CommandReopenedData{Reason: "it was aborted in an earlier epoch"})
	}
	if err != nil {
		return err
	}
	t.run.emitted = slices.DeleteFunc(t.run.emitted, func(id string) bool { return id == w.CommandID })
	t.writeRow(b, 1, deadline)
	t.command.State, t.command.LeaseUntil, t.command.emittedAt = agent.CommandWaiting, time.Time{}, t.now
	for _, r := range t.run.rows {
		if r.Kind == agent.WaitCommand && r.State == agent.CommandWaiting && r != t.command && !r.emittedAt.Before(t.command.emittedAt) {
			t.command.emittedAt = r.emittedAt.Add(time.Microsecond)
		}
	}
	return nil
}

// inputFor finds the input that a wait may take, -1 when there is none: the oldest is for the wait that has begun first.
func (t *txn) inputFor(w agent.Wait) int {
	if w.Signal == "" {
		return -1
	}
	before := 0
	for _, r := range t.run.rows {
		var asked struct {
			Signal string `json:"signal"`
		}
		if r.Kind == agent.WaitCommand && r.State == agent.CommandWaiting && r != t.command && json.Unmarshal(r.input, &asked) == nil &&
			asked.Signal == w.Signal && (r.emittedAt.Before(t.command.emittedAt) || r.emittedAt.Equal(t.command.emittedAt) && r.CommandID < w.CommandID) {
			before++
		}
	}
	for at, i := range t.run.inputs {
		if i.Name != w.Signal || i.commandID != "" {
			continue
		}
		if before == 0 {
			return at
		}
		before--
	}
	return -1
}

func (t *txn) commitWait(w agent.Wait, result json.RawMessage) error {
	t.goesOnWaiting()
	t.command.Owner = w.Dispatch
	return t.commit(agent.Commit{Call: w.Call, Dispatch: w.Dispatch, DispatchNo: t.command.DispatchNo, Result: result,
		Event: agent.CommandCommittedData{Kind: agent.WaitCommand, Output: agent.ShowOutput(agent.WaitCommand, result)}}, nil)
}

// goesOnWaiting says that a run which has stood still is at work again.
func (t *txn) goesOnWaiting() {
	switch t.run.Status {
	case agent.Waiting, agent.InDoubt, agent.LimitReached:
		t.run.Status = agent.Running
	}
}

// Steered lists what was said to a run while it was at work, and up to which number each begun turn of its loop has heard it.
func (m *memory) Steered(_ context.Context, runID string) (messages []agent.Message, heard map[string]int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.runs[runID]
	if !ok {
		return nil, nil, &agent.NotFoundError{What: "run", ID: runID}
	}
	messages = slices.DeleteFunc(slices.Clone(m.messages), func(msg agent.Message) bool { return msg.RunID != runID || !msg.Steers })
	if len(messages) == 0 {
		return nil, nil, nil
	}
	heard = map[string]int64{}
	for id, c := range r.rows {
		if c.Kind == agent.ModelCommand && c.DispatchNo > 0 {
			heard[id] = c.heard
		}
	}
	return messages, heard, nil
}

// hear keeps an answer from ending its loop when something was said to the run that the answer does not know of.
func (t *txn) hear(c *agent.Commit) error {
	if c.Turn == 0 || !c.Ends || !agent.EndsNode(t.command.Kind, c.Result) {
		return nil
	}
	for _, msg := range t.messages {
		if msg.RunID == c.RunID && msg.Steers && msg.Sequence > c.Heard {
			c.Said = msg.Sequence
		}
	}
	if c.Said == 0 {
		return nil
	}
	text, err := agent.AnswerText(agent.ModelCommand, c.Result)
	if err != nil {
		return err
	}
	c.Event.GoesOn, c.Ends, c.Checkpoint = true, false, agent.LLMComplete
	c.Message = &agent.Message{Role: agent.AssistantMessage, Content: text, CommandID: c.CommandID}
	return nil
}

// signalName says what is wrong with the name of an input.
func signalName(name string) error {
	if !agent.ValidNodeID(name) {
		return errors.New("the name of a signal is 1 to 64 of A-Z a-z 0-9 _ -, not " + strings.ToValidUTF8(name, "?"))
	}
	return nil
}

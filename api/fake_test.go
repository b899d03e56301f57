package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// fakeLedger is a ledger in memory, with a hand that moves runs instead of a worker.
type fakeLedger struct {
	mu            sync.Mutex
	runs          map[string]*fakeRun
	order         []string
	conversations map[string]*fakeConversation
	keys          map[string]agent.Acceptance
	tools         []agent.ToolRef
	documents     map[string]agent.Document // by owner and id
	subscribers   map[chan struct{}]string
	watchers      map[*func(string)]struct{}
	accepted      []agent.Acceptance
	failure       error
	pingFailure   error
	panics        bool
	commands      map[string][]agent.Command
	checkpoints   map[string][]agent.Checkpoint
	cancels       []string
	behind        map[string][]agent.RunAhead
	resolutions   []string
	forks         []agent.Fork
	stopped       []agent.StoppedCommand
	atWork        []agent.WorkingCommand
	controls      []string
	chunks        []agent.OutputChunk
	inputs        map[string][]agent.Input
	waits         map[string][]agent.OpenWait
	steered       int64 // what a steering message is answered with, 0 when it is not possible
	now           time.Time
}

type fakeRun struct {
	agent.Run
	owner string
	plan  *agent.Plan
}

type fakeConversation struct {
	agent.Conversation
	owner    string
	events   []agent.Event
	messages []agent.Message
	oldest   int64
}

func newFakeLedger() *fakeLedger {
	return &fakeLedger{runs: map[string]*fakeRun{}, conversations: map[string]*fakeConversation{}, keys: map[string]agent.Acceptance{},
		subscribers: map[chan struct{}]string{}, watchers: map[*func(string)]struct{}{}, inputs: map[string][]agent.Input{}, waits: map[string][]agent.OpenWait{}, behind: map[string][]agent.RunAhead{}, commands: map[string][]agent.Command{}, checkpoints: map[string][]agent.Checkpoint{}, documents: map[string]agent.Document{},
		now:   time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC),
		tools: []agent.ToolRef{{Name: "calculator", Description: "Adds", InputSchema: json.RawMessage(`{"type":"object"}`), Effect: agent.Deterministic}}}
}

func owns(asked, owner string) bool { return asked == owner || asked == agent.AnyOwner }

func (l *fakeLedger) event(c *fakeConversation, run *agent.Run, e agent.Event, data any) {
	l.now = l.now.Add(time.Second)
	raw, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	c.LastSequence++
	e.Sequence, e.ConversationID, e.RunID, e.RootRunID = c.LastSequence, c.ConversationID, run.RunID, run.RootRunID
	e.MessageID, e.CreatedAt, e.Data = run.MessageID, l.now, raw
	c.events = append(c.events, e)
}

func (l *fakeLedger) Accept(_ context.Context, a agent.Acceptance) (agent.Run, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.panics {
		panic("the ledger fell over")
	}
	if l.failure != nil {
		return agent.Run{}, false, l.failure
	}
	if before, ok := l.keys[a.Owner+a.Key]; ok && a.Key != "" {
		if before.RequestHash != a.RequestHash {
			return agent.Run{}, false, &agent.ConflictError{Reason: agent.ConflictKeyReused, Detail: "the Idempotency-Key came with another request before"}
		}
		return l.runs[before.Run.RunID].Run, false, nil
	}
	c := l.conversations[a.Run.ConversationID]
	if a.NewConversation {
		c = &fakeConversation{owner: a.Owner, oldest: 1}
		c.ConversationID, c.Title, c.CreatedAt, c.UpdatedAt = a.Run.ConversationID, a.Run.Input, l.now, l.now
	}
	if c == nil || !owns(a.Owner, c.owner) {
		return agent.Run{}, false, &agent.NotFoundError{What: "conversation", ID: a.Run.ConversationID}
	}
	for _, m := range c.messages {
		if m.MessageID == a.Run.MessageID {
			return agent.Run{}, false, &agent.ConflictError{Reason: agent.ConflictMessageID, Detail: "message_id " + m.MessageID + " is taken"}
		}
	}
	ahead := l.ahead(a.Run.ConversationID)
	switch {
	case len(ahead) == 0:
	case a.Strategy == agent.Reject:
		return agent.Run{}, false, &agent.ConflictError{Reason: agent.ConflictRunOpen, Detail: "the conversation has a run at work", RunID: ahead[0].RunID}
	case a.Strategy == agent.Steer && l.steered > 0:
		run := l.runs[ahead[0].RunID].Run
		run.Steered = l.steered
		return run, false, nil
	case a.Strategy == agent.Steer:
		return agent.Run{}, false, &agent.ConflictError{Reason: agent.ConflictSteer, Detail: "a run cannot be steered yet", RunID: ahead[0].RunID}
	}
	run := a.Run
	run.StartSequence, run.CreatedAt = c.LastSequence+1, l.now
	l.accepted = append(l.accepted, a)
	l.conversations[c.ConversationID] = c
	l.runs[run.RunID] = &fakeRun{run, c.owner, a.Plan}
	l.order = append(l.order, run.RunID)
	if a.Key != "" {
		l.keys[a.Owner+a.Key] = a
	}
	if len(ahead) > 0 && a.Strategy != agent.SideBySide {
		l.behind[run.RunID] = ahead
	} else {
		l.begin(run.RunID)
	}
	return run, true, nil
}

// begin writes a run's first events, when it is accepted or when its turn comes.
func (l *fakeLedger) begin(runID string) {
	run := l.runs[runID]
	c := l.conversations[run.ConversationID]
	run.StartSequence = c.LastSequence + 1
	delete(l.behind, runID)
	l.event(c, &run.Run, agent.Event{Type: agent.RunStarted}, agent.RunStartedData{Input: run.Input, Agent: run.Definition.Agent, Mode: run.Definition.Mode, Epoch: 1})
	l.event(c, &run.Run, agent.Event{Type: agent.MessageAdded}, agent.MessageAddedData{Role: agent.UserMessage, Content: run.Input})
	c.messages = append(c.messages, agent.Message{MessageID: run.MessageID, RunID: run.RunID, Role: agent.UserMessage, Content: run.Input, Sequence: c.LastSequence, CreatedAt: l.now})
	l.wake(c.ConversationID)
}

// release lets a run begin that waits.
func (l *fakeLedger) release(runID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begin(runID)
}

// ahead are the runs of a conversation that have not ended.
func (l *fakeLedger) ahead(conversationID string) (ahead []agent.RunAhead) {
	for _, id := range l.order {
		if r := l.runs[id]; r.ConversationID == conversationID && !r.Status.Terminal() {
			ahead = append(ahead, agent.RunAhead{RunID: id, Status: r.Status})
		}
	}
	return ahead
}

func (l *fakeLedger) open(conversationID string) bool { return len(l.ahead(conversationID)) > 0 }

func (l *fakeLedger) QueuedBehind(_ context.Context, runID string) ([]agent.RunAhead, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.behind[runID], l.failure
}

func (l *fakeLedger) wake(conversationID string) {
	for news := range l.watchers {
		go (*news)(conversationID) // whoever watches may be about to ask for something
	}
	for ch, id := range l.subscribers {
		if id == conversationID {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}

// write commits an event of a run.
func (l *fakeLedger) write(runID string, e agent.Event, data any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.runs[runID]
	l.event(l.conversations[r.ConversationID], &r.Run, e, data)
	l.wake(r.ConversationID)
}

// end ends a run with its terminal event.
func (l *fakeLedger) end(runID string, status agent.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.runs[runID]
	c := l.conversations[r.ConversationID]
	switch status {
	case agent.Completed:
		out := "42"
		r.FinalOutput = &out
		l.event(c, &r.Run, agent.Event{Type: agent.RunCompleted}, agent.RunCompletedData{FinalOutput: out, Summary: "one step"})
	case agent.FailedStatus:
		r.Error = agent.Failed(agent.CodeToolFailed, "no")
		l.event(c, &r.Run, agent.Event{Type: agent.RunFailed}, agent.RunFailedData{Error: r.Error})
	default:
		l.event(c, &r.Run, agent.Event{Type: agent.RunCancelled}, agent.RunCancelledData{By: "local"})
	}
	at := l.now
	r.Status, r.FinishedAt = status, &at
	l.wake(r.ConversationID)
}

func (l *fakeLedger) RequestCancel(_ context.Context, owner, runID, by, reason string) (agent.Run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.runs[runID]
	if r.Status.Terminal() {
		return agent.Run{}, &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + runID + " has ended: " + string(r.Status)}
	}
	l.cancels = append(l.cancels, owner+" "+by+" "+reason)
	r.Status = agent.Cancelling
	return r.Run, nil
}

func (l *fakeLedger) Resume(_ context.Context, r agent.Resume) (agent.Resumed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	run := l.runs[r.RunID]
	if !run.Status.Terminal() || run.Status == agent.Completed {
		return agent.Resumed{}, &agent.ConflictError{Reason: agent.ConflictRunOpen, Detail: "run " + r.RunID + " is " + string(run.Status)}
	}
	step := len(l.checkpoints[r.RunID])
	data := agent.RunReopenedData{Epoch: run.Epoch + 1, Status: run.Status, By: r.By, Reason: r.Reason, Step: step}
	run.Epoch, run.Status, run.FinishedAt, run.Error = run.Epoch+1, agent.Queued, nil, nil
	l.event(l.conversations[run.ConversationID], &run.Run, agent.Event{Type: agent.RunReopened}, data)
	l.wake(run.ConversationID)
	if r.Limits != nil {
		now := r.Limits.Or(run.Limits())
		run.Granted = &now
	}
	return agent.Resumed{Run: run.Run, Step: step}, nil
}

// Signal keeps the newest value of each input.
func (l *fakeLedger) Signal(_ context.Context, owner, runID string, in agent.Input) (int64, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	run, ok := l.runs[runID]
	if !ok || !owns(owner, run.owner) {
		return 0, false, &agent.NotFoundError{What: "run", ID: runID}
	}
	if run.Status.Terminal() {
		return 0, false, &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "it has ended"}
	}
	for _, had := range l.inputs[runID] {
		if had.Name == in.Name && had.InputID == in.InputID {
			if string(had.Value) != string(in.Value) {
				return 0, false, &agent.ConflictError{Reason: agent.ConflictInputReused, Detail: "another value"}
			}
			return 7, false, nil
		}
	}
	l.inputs[runID] = append(l.inputs[runID], in)
	return 7, true, nil
}

func (l *fakeLedger) Waits(_ context.Context, runID string) ([]agent.OpenWait, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waits[runID], nil
}

// control changes a run that is open.
func (l *fakeLedger) control(runID, what string, change func(*fakeRun) error) (agent.Run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.runs[runID]
	if r.Status.Terminal() || r.Status == agent.Cancelling {
		return agent.Run{}, &agent.ConflictError{Reason: agent.ConflictRunEnded, Detail: "run " + runID + " has ended: " + string(r.Status)}
	}
	l.controls = append(l.controls, what)
	err := change(r)
	return r.Run, err
}

func (l *fakeLedger) Pause(_ context.Context, owner, runID, by, reason string) (agent.Run, error) {
	return l.control(runID, fmt.Sprintf("pause %s %s %s", owner, by, reason), func(r *fakeRun) error {
		if r.Pause == nil {
			r.Status, r.Pause = agent.Paused, &agent.Pause{By: by, Reason: reason, Since: l.now}
		}
		return nil
	})
}

func (l *fakeLedger) Unpause(_ context.Context, owner, runID, by, reason string) (agent.Run, error) {
	return l.control(runID, fmt.Sprintf("unpause %s %s %s", owner, by, reason), func(r *fakeRun) error {
		if r.Pause == nil {
			return &agent.ConflictError{Reason: agent.ConflictNotPaused, Detail: "run " + runID + " is not paused"}
		}
		r.Status, r.Pause = agent.Running, nil
		return nil
	})
}

func (l *fakeLedger) ChangeLimits(_ context.Context, owner, runID string, limits agent.Limits, by, reason string) (agent.Run, error) {
	return l.control(runID, fmt.Sprintf("limits %s %s %s", owner, by, reason), func(r *fakeRun) error {
		now := limits.Or(r.Limits())
		r.Granted = &now
		return nil
	})
}

func (l *fakeLedger) AtWork(context.Context, string) ([]agent.WorkingCommand, error) {
	return l.atWork, l.failure
}

func (l *fakeLedger) LatestRun(_ context.Context, conversationID string) (runID string, checkpoint bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range slices.Backward(l.order) {
		if l.runs[id].ConversationID == conversationID {
			return id, len(l.checkpoints[id]) > 0, nil
		}
	}
	return "", false, &agent.NotFoundError{What: "run", ID: conversationID}
}

func (l *fakeLedger) StoppedCommands(context.Context, string) ([]agent.StoppedCommand, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped, nil
}

func (l *fakeLedger) Resolve(_ context.Context, owner, runID, commandID string, r agent.Resolution) (agent.Command, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range l.commands[runID] {
		switch {
		case c.CommandID != commandID:
		case c.State != agent.CommandInDoubt:
			return agent.Command{}, &agent.ConflictError{Reason: agent.ConflictNotInDoubt, Detail: "command " + commandID + " is not in doubt"}
		default:
			l.resolutions = append(l.resolutions, fmt.Sprintf("%s %s %s %s by %s: %s", owner, commandID, r.Outcome, r.Result, r.By, r.Note))
			c.State, c.Result = agent.Committed, r.Result
			l.commands[runID][i] = c
			return c, nil
		}
	}
	return agent.Command{}, &agent.NotFoundError{What: "command", ID: commandID}
}

func (l *fakeLedger) Run(_ context.Context, owner, runID string) (agent.Run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.runs[runID]
	switch {
	case l.failure != nil:
		return agent.Run{}, l.failure
	case !ok || !owns(owner, r.owner):
		return agent.Run{}, &agent.NotFoundError{What: "run", ID: runID}
	}
	return r.Run, nil
}

func (l *fakeLedger) Runs(_ context.Context, f agent.RunFilter) ([]agent.Run, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var runs []agent.Run
	for _, id := range slices.Backward(l.order) {
		r := l.runs[id]
		if owns(f.Owner, r.owner) && (f.ConversationID == "" || r.ConversationID == f.ConversationID) && (f.Status == "" || r.Status == f.Status) &&
			(f.Agent == "" || r.Definition.Agent == f.Agent) && (f.Before == "" || id < f.Before) {
			runs = append(runs, r.Run)
		}
	}
	return runs[:min(len(runs), f.Limit)], len(runs) > f.Limit, nil
}

func (l *fakeLedger) RunPlan(_ context.Context, runID string) (*agent.Plan, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[runID].plan, nil
}

// RunRecord is what there is of a run, without a chain.
func (l *fakeLedger) RunRecord(ctx context.Context, runID string) (*agent.RunRecord, error) {
	r := &agent.RunRecord{Run: l.runs[runID].Run}
	var err error
	if r.Events, err = l.Events(ctx, agent.LogScope{ConversationID: r.Run.ConversationID, RunID: runID}, 0, 1000); err != nil {
		return nil, err
	}
	for _, e := range r.Events {
		r.Log, r.Last = append(r.Log, agent.Link{Sequence: e.Sequence}), e.Sequence
	}
	return r, nil
}

func (l *fakeLedger) ReplayContext(ctx context.Context, runID string) (*agent.ReplayContext, error) {
	events, err := l.Events(ctx, agent.LogScope{ConversationID: l.runs[runID].ConversationID, RunID: runID}, 0, 1000)
	if err != nil {
		return nil, err
	}
	records := make([]agent.Recorded, len(events))
	for i, e := range events {
		records[i] = agent.Recorded{Event: e, Result: json.RawMessage(`{"text":"42"}`)}
	}
	return agent.BuildFromEvents(records)
}

func (l *fakeLedger) Commands(_ context.Context, runID string) ([]agent.Command, error) {
	return l.commands[runID], nil
}

func (l *fakeLedger) Command(_ context.Context, runID, commandID string) (agent.Command, error) {
	for _, c := range l.commands[runID] {
		if c.CommandID == commandID {
			c.Result = json.RawMessage(`{"text":"<42>"}`)
			return c, nil
		}
	}
	return agent.Command{}, &agent.NotFoundError{What: "command", ID: commandID}
}

func (l *fakeLedger) Checkpoints(_ context.Context, runID string) ([]agent.Checkpoint, error) {
	return l.checkpoints[runID], nil
}

func (l *fakeLedger) Conversation(_ context.Context, owner, id string) (agent.Conversation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.conversations[id]
	if !ok || !owns(owner, c.owner) {
		return agent.Conversation{}, &agent.NotFoundError{What: "conversation", ID: id}
	}
	return c.Conversation, nil
}

func (l *fakeLedger) DeleteConversation(_ context.Context, owner, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.conversations[id]
	ahead := l.ahead(id)
	switch {
	case !ok || !owns(owner, c.owner):
		return &agent.NotFoundError{What: "conversation", ID: id}
	case len(ahead) > 0:
		return &agent.ConflictError{Reason: agent.ConflictRunOpen, RunID: ahead[0].RunID, Detail: "not finished"}
	}
	delete(l.conversations, id)
	for runID, r := range l.runs {
		if r.ConversationID == id {
			delete(l.runs, runID)
		}
	}
	l.order = slices.DeleteFunc(l.order, func(runID string) bool { return l.runs[runID] == nil })
	l.wake(id)
	return nil
}

func (l *fakeLedger) Conversations(_ context.Context, owner, before string, limit int) ([]agent.Conversation, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []agent.Conversation
	for id, c := range l.conversations {
		if owns(owner, c.owner) && (before == "" || id < before) {
			all = append(all, c.Conversation)
		}
	}
	slices.SortFunc(all, func(a, b agent.Conversation) int { return cmp.Compare(b.ConversationID, a.ConversationID) })
	return all[:min(len(all), limit)], len(all) > limit, nil
}

func (l *fakeLedger) Messages(_ context.Context, id string, after int64, limit int) ([]agent.Message, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []agent.Message
	for _, m := range l.conversations[id].messages {
		if m.Sequence > after {
			all = append(all, m)
		}
	}
	return all[:min(len(all), limit)], len(all) > limit, nil
}

func (l *fakeLedger) ExecutionStatus(_ context.Context, id string) (agent.ExecutionStatus, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.conversations[id]
	s := agent.ExecutionStatus{IsRunning: l.open(id), LastSequence: c.LastSequence}
	if len(c.messages) > 0 {
		s.CurrentMessageID = &c.messages[len(c.messages)-1].MessageID
	}
	return s, nil
}

func (l *fakeLedger) AddDocuments(_ context.Context, owner string, documents []agent.Document) ([]agent.Document, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := slices.Clone(documents)
	for i := range kept {
		kept[i].CreatedAt, kept[i].UpdatedAt = l.now, l.now
		l.documents[owner+" "+kept[i].ID] = kept[i]
	}
	return kept, l.failure
}

func (l *fakeLedger) Document(_ context.Context, owner, id string) (agent.Document, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, ok := l.documents[owner+" "+id]
	if !ok {
		return d, &agent.NotFoundError{What: "document", ID: id}
	}
	return d, nil
}

func (l *fakeLedger) DeleteDocument(ctx context.Context, owner, id string) error {
	_, err := l.Document(ctx, owner, id)
	delete(l.documents, owner+" "+id)
	return err
}

func (l *fakeLedger) Tools(context.Context) ([]agent.ToolRef, error) { return l.tools, l.failure }

func (l *fakeLedger) Ping(context.Context) error { return l.pingFailure }

func (l *fakeLedger) Subscribe(id string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribers[ch] = id
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.subscribers, ch)
	}
}

func (l *fakeLedger) scoped(scope agent.LogScope) []agent.Event {
	var events []agent.Event
	for _, e := range l.conversations[scope.ConversationID].events {
		if scope.RunID == "" || e.RunID == scope.RunID || e.RootRunID == scope.RunID {
			events = append(events, e)
		}
	}
	return events
}

func (l *fakeLedger) Events(ctx context.Context, scope agent.LogScope, after int64, limit int) ([]agent.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conversations[scope.ConversationID] == nil {
		return nil, &agent.NotFoundError{What: "conversation", ID: scope.ConversationID}
	}
	var page []agent.Event
	for _, e := range l.scoped(scope) {
		if e.Sequence > after && len(page) < limit {
			page = append(page, e)
		}
	}
	return page, ctx.Err()
}

func (l *fakeLedger) Extent(ctx context.Context, scope agent.LogScope) (agent.Extent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.conversations[scope.ConversationID]
	if c == nil {
		return agent.Extent{}, &agent.NotFoundError{What: "conversation", ID: scope.ConversationID}
	}
	x := agent.Extent{Oldest: c.oldest, Last: c.LastSequence, Open: l.open(scope.ConversationID)}
	if scope.RunID != "" {
		x.Open = !l.runs[scope.RunID].Status.Terminal()
	}
	for _, e := range l.scoped(scope) {
		x.LastInScope = e.Sequence
	}
	return x, ctx.Err()
}

func (l *fakeLedger) Watch(news func(string)) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[&news] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers, &news)
	}
}

func (l *fakeLedger) News(ctx context.Context, from []agent.LogCursor, limit int) ([]agent.LogNews, error) {
	news := make([]agent.LogNews, len(from))
	for i, c := range from {
		if c.Output {
			news[i].Output = l.output(c)
		}
		var err error
		var missing *agent.NotFoundError
		news[i].Events, err = l.Events(ctx, agent.LogScope{ConversationID: c.ConversationID}, c.After, limit)
		if errors.As(err, &missing) {
			news[i] = agent.LogNews{Gone: true}
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return news, nil
}

func (l *fakeLedger) output(from agent.LogCursor) []agent.OutputChunk {
	l.mu.Lock()
	defer l.mu.Unlock()
	var news []agent.OutputChunk
	for _, c := range l.chunks {
		known := slices.ContainsFunc(from.Have, func(h agent.OutputCursor) bool {
			return h.RunID == c.RunID && h.CommandID == c.CommandID && c.Chunk <= h.Chunk
		})
		if !known && c.ConversationID == from.ConversationID {
			news = append(news, c)
		}
	}
	return news
}

// seed accepts a run without the API, of owner "local" unless said otherwise.
func (l *fakeLedger) seed(t testing.TB, owner, conversationID string) agent.Run {
	t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	fresh := conversationID == ""
	if fresh {
		conversationID = uuid.Must(uuid.NewV7()).String()
	}
	run, created, err := l.Accept(t.Context(), agent.Acceptance{Owner: owner, NewConversation: fresh, Plan: agent.ReactPlan(), Run: agent.Run{
		RunID: id, RootRunID: id, ConversationID: conversationID, MessageID: uuid.NewString(), RequestID: "q", Epoch: 1, Status: agent.Queued,
		Input: "what is 6*7?", Attachments: []agent.Attachment{{Name: "a.txt", MediaType: "text/plain", Text: "SECRET"}}, Metadata: json.RawMessage(`{"a":1}`),
		Definition: agent.Definition{Agent: "default", Mode: agent.ModeReact, Instructions: "SECRET", Limits: agent.DefaultLimits(),
			Model: agent.ModelRef{Name: "default", Provider: "scripted", Model: "scripted"}},
	}})
	require.NoError(t, err)
	require.True(t, created)
	l.accepted = nil
	return run
}

func (l *fakeLedger) Approvals(context.Context, agent.ApprovalFilter) ([]agent.Approval, bool, error) {
	return nil, false, l.failure
}

func (l *fakeLedger) Approval(_ context.Context, _, id string) (agent.Approval, error) {
	return agent.Approval{}, &agent.NotFoundError{What: "approval", ID: id}
}

func (l *fakeLedger) DecideApproval(ctx context.Context, owner, id string, _ agent.ApprovalAnswer) (agent.Approval, error) {
	return l.Approval(ctx, owner, id)
}

func (l *fakeLedger) CommandInput(context.Context, string, string) (json.RawMessage, error) {
	return nil, l.failure
}

package agenttest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"runledger/agent"
)

// memory is a ledger of one conversation without a database. What it decides it decides by package agent's rules; what it
// writes, and in which order, is what package ledger writes (TestLedgersAgree compares the two).
type memory struct {
	mu sync.Mutex
	tx agent.Tx

	conversationID string
	runs           map[string]*run
	last           int64 // the number of the newest event
	messages       []agent.Message
	// answers are what a person says of commands in doubt.
	answers map[string]agent.Resolution
	// approvals are what somebody answers when asked about a command, edited checks the arguments of such an answer, and asked
	// counts the questions.
	approvals map[string]agent.ApprovalAnswer
	edited    func(tool string, a agent.ApprovalAnswer) (agent.ApprovalAnswer, error)
	asked     int
	// stops are those who wait for news of a run that is to stop.
	stops map[chan struct{}]string
}

// run is the record of a run.
type run struct {
	agent.Run
	plan        *agent.Plan
	events      []agent.Event
	state       agent.State // the fold of events
	checkpoints []agent.Checkpoint
	rows        map[string]*row
	lastFact    map[int]int // by epoch
	inputs      []input
	emitted     []string // commands in the order in which they began

	// clock is that of the run's environment, ahead what a test has let pass besides.
	clock func() time.Time
	ahead time.Duration
	// later lets the environment answer for a person, after a while, and send the news.
	later func(signal string, news agent.Intent, answer func() error)
	// ask brings an intent to the execution, nil where there is none.
	ask func(signal string, i agent.Intent)
}

// row is a command, with what only its readers need.
type row struct {
	agent.CommandRow
	input     json.RawMessage
	heard     int64
	model     string
	usage     json.RawMessage
	latencyMS int64
	emittedAt time.Time
	decidedAt *time.Time
	askedNo   int // which question of the ledger its approval is
	// edited are the arguments of the answer, as they may be shown; nil when it has left them as they were.
	edited json.RawMessage
}

func newMemory(tx agent.Tx) *memory {
	return &memory{tx: tx, conversationID: newID(), runs: map[string]*run{}, answers: map[string]agent.Resolution{}, approvals: map[string]agent.ApprovalAnswer{},
		stops: map[chan struct{}]string{}}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// txn is one write transaction: everything or nothing of it happens.
type txn struct {
	*memory
	run     *run
	command *row // nil when there is none
	now     time.Time
	// after is done when the transaction has happened.
	after []func()
}

// scope says what a transaction is about, as in package ledger.
type scope struct {
	runID     string
	epoch     int
	commandID string
	facts     []agent.Fact
	// anyEpoch admits an execution that has been replaced; what it may write is for the caller to decide.
	anyEpoch bool
}

func (m *memory) write(s scope, decide func(*txn) error) error {
	m.mu.Lock()
	r, ok := m.runs[s.runID]
	if !ok {
		m.mu.Unlock()
		return &agent.NotFoundError{What: "run", ID: s.runID}
	}
	before, last, messages := r.clone(), m.last, m.messages
	t := &txn{memory: m, run: r, command: r.rows[s.commandID], now: r.clock().Add(r.ahead).UTC()}
	err := t.open(s)
	if err == nil {
		err = decide(t)
	}
	if err != nil {
		m.runs[s.runID], m.last, m.messages = before, last, messages
		t.after = nil
	}
	m.mu.Unlock()
	for _, do := range t.after {
		do()
	}
	return err
}

// clone copies a run as far as transactions change it.
func (r *run) clone() *run {
	c := *r
	c.rows, c.lastFact = maps.Clone(r.rows), maps.Clone(r.lastFact)
	for id, row := range c.rows {
		copied := *row
		c.rows[id] = &copied
	}
	c.events, c.checkpoints, c.emitted = slices.Clip(r.events), slices.Clip(r.checkpoints), slices.Clip(r.emitted)
	c.inputs = slices.Clone(r.inputs)
	return &c
}

func (t *txn) open(s scope) error {
	if t.run.Epoch != s.epoch && !s.anyEpoch {
		return staleEpoch(s.runID, t.run.Epoch, s.epoch)
	}
	for _, f := range s.facts {
		if f.No <= t.run.lastFact[t.run.Epoch] {
			continue
		}
		if t.run.Status.Terminal() {
			return t.ended()
		}
		t.run.lastFact[t.run.Epoch] = f.No
		if err := t.append(agent.Event{Type: f.Type, NodeID: f.NodeID, Data: f.Data}); err != nil {
			return err
		}
	}
	return nil
}

func staleEpoch(runID string, is, was int) error {
	return agent.Failed(agent.CodeStaleEpoch, "run %s is in epoch %d, this execution is of epoch %d", runID, is, was)
}

// ended is the refusal of everything that comes after a run's terminal event.
func (t *txn) ended() error {
	return agent.Failed(agent.CodeStaleEpoch, "run %s has ended: %s", t.run.RunID, t.run.Status)
}

func (t *txn) event(typ agent.EventType, nodeID, commandID string, attempt int, data any) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("%s: %w", typ, err)
	}
	return t.append(agent.Event{Type: typ, NodeID: nodeID, CommandID: commandID, Attempt: attempt, Data: raw})
}

func (t *txn) append(e agent.Event) error {
	if e.Data == nil {
		e.Data = json.RawMessage("{}")
	}
	r := t.run
	t.last++
	e.Sequence, e.CreatedAt, e.Epoch = t.last, t.now, r.Epoch
	e.ConversationID, e.RunID, e.RootRunID, e.MessageID = r.ConversationID, r.RunID, r.RootRunID, r.MessageID
	state, err := agent.Apply(r.state, e)
	if err != nil {
		return err
	}
	r.events, r.state = append(r.events, e), state
	return nil
}

func (t *txn) checkpoint(typ agent.CheckpointType, nodeID, commandID string) error {
	c := agent.Checkpoint{CheckpointID: newID(), RunID: t.run.RunID, Type: typ, Step: t.run.state.Step(), Epoch: t.run.Epoch,
		State: t.run.state, CreatedAt: t.now}
	err := t.event(agent.CheckpointSaved, nodeID, commandID, 0, agent.CheckpointSavedData{CheckpointID: c.CheckpointID, Type: typ, Step: c.Step})
	c.Sequence = t.last
	t.run.checkpoints = append(t.run.checkpoints, c)
	return err
}

// message keeps a message of the conversation under the number of the newest event.
func (t *txn) message(m agent.Message) {
	if m.MessageID == "" {
		m.MessageID = newID()
	}
	m.RunID, m.Sequence, m.CreatedAt = t.run.RunID, t.last, t.now
	t.messages = append(t.messages, m)
}

// accept makes a run, as it stands when its execution starts, and gives the input of that.
func (m *memory) accept(r agent.Run, plan *agent.Plan, source string, clock func() time.Time, later func(string, agent.Intent, func() error)) (agent.RunInput, error) {
	m.mu.Lock()
	r.ConversationID, r.Status, r.StartSequence, r.CreatedAt = m.conversationID, agent.Running, m.last+1, clock().UTC()
	m.runs[r.RunID] = &run{Run: r, plan: plan, rows: map[string]*row{}, lastFact: map[int]int{}, clock: clock, later: later}
	m.mu.Unlock()
	var in agent.RunInput
	err := m.write(scope{runID: r.RunID, epoch: r.Epoch}, func(t *txn) error {
		d := r.Definition
		err := t.event(agent.RunStarted, "", "", 0, agent.RunStartedData{Input: r.Input, Agent: d.Agent, Mode: d.Mode, Model: d.Model, Epoch: r.Epoch,
			RequestID: r.RequestID, SessionID: r.SessionID, Limits: d.Limits, Metadata: r.Metadata})
		if err != nil {
			return err
		}
		if err := t.event(agent.MessageAdded, "", "", 0, agent.MessageAddedData{Role: agent.UserMessage, Content: r.Input}); err != nil {
			return err
		}
		t.message(agent.Message{MessageID: r.MessageID, Role: agent.UserMessage, Content: r.Input})
		in = agent.RunInput{RunID: r.RunID, ConversationID: t.conversationID, Epoch: r.Epoch, Agent: d.Agent, Mode: d.Mode, Limits: d.Limits, Policy: d.Policy}
		if plan != nil {
			in.Plan = plan.Shape(&d)
			if err := t.event(agent.PlanStarted, agent.PlanNodeID, "", 0, agent.PlanStartedData{Source: source}); err != nil {
				return err
			}
			raw, err := json.Marshal(plan)
			if err != nil {
				return err
			}
			generated := agent.PlanGeneratedData{Source: source, TaskGraph: plan, Hash: resultHash(raw)}
			if err := t.event(agent.PlanGenerated, agent.PlanNodeID, "", 0, generated); err != nil {
				return err
			}
		}
		in.State = t.run.state
		return nil
	})
	return in, err
}

// reach says how intents come to the execution of a run.
func (m *memory) reach(runID string, ask func(signal string, i agent.Intent)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs[runID].ask = ask
}

// cancel asks a run to stop and reports whether that is news.
func (m *memory) cancel(runID string) (asked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.runs[runID]
	if r == nil || r.Status.Terminal() || r.Status == agent.Cancelling {
		return false
	}
	r.Status = agent.Cancelling
	for ch, id := range m.stops {
		if id == runID {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
	return true
}

// SubscribeStops gives a channel that is sent to when the run is being cancelled.
func (m *memory) SubscribeStops(runID string) (news <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stops[ch] = runID
	return ch, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.stops, ch)
	}
}

// expire lets time pass until the lease of a command is over, which is what it takes Temporal to notice a lost worker.
func (m *memory) expire(runID, commandID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.runs[runID]
	if c := r.rows[commandID]; c != nil && c.State == agent.Dispatched {
		r.ahead += max(0, c.LeaseUntil.Sub(r.clock().Add(r.ahead)))
	}
}

// answer keeps a person's word on a command in doubt.
func (m *memory) answer(commandID string, r agent.Resolution) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers[commandID] = r
}

// CommitTx lets work give the result together with its commit. There is no transaction that could be undone.
func (m *memory) CommitTx(ctx context.Context, c agent.Commit, work func(context.Context, agent.Tx) (agent.Commit, error)) (agent.Decided, error) {
	var decided agent.Decided
	owned := false
	err := m.write(scope{runID: c.RunID, epoch: c.Epoch, commandID: c.CommandID, anyEpoch: true}, func(t *txn) error {
		may, _, err := t.speaks(c.Call, c.Dispatch, c.DispatchNo, false)
		if err != nil {
			return err
		}
		if owned = may && t.command.State == agent.Dispatched; !owned {
			decided = t.decided(t.command.State == agent.Committed && t.command.Owner == c.Dispatch)
		}
		return nil
	})
	if err != nil || !owned {
		return decided, err
	}
	if m.tx == nil {
		return decided, agent.Failed(agent.CodeToolFailed, "the tool works in a transaction: set Config.Tx")
	}
	result, err := work(ctx, m.tx)
	if err != nil {
		return decided, err
	}
	return m.Commit(ctx, result)
}

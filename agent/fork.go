package agent

import (
	"encoding/json"
	"fmt"
	"slices"
)

// ForkEffect says what a fork does about the commands of an effect class.
type ForkEffect string

const (
	// ForkReuse takes the recorded results. It is the default.
	ForkReuse ForkEffect = "reuse"
	// ForkRerun executes the commands again, and everything that goes by what they give. It is not for external ones.
	ForkRerun ForkEffect = "rerun"
)

// Fork asks for a new run that begins with a part of another run's record.
type Fork struct {
	// Owner is whose run the source has to be; AnyOwner for everybody's. What is made belongs to the source's owner.
	Owner string
	// Source is the run, Sequence the number of its last event in the part, 0 for its end. A CheckpointID in its place means the
	// number of that checkpoint.
	Source       string
	Sequence     int64
	CheckpointID string
	// Effects are for whole classes; a class that is left out is reused. Rerun names commands that are to be executed again,
	// whatever their class, with the effects inside of them.
	Effects map[EffectClass]ForkEffect
	Rerun   []string
	// Run is the new one: its ids, and its definition, input and metadata with the changes. Changes name what is not the source's:
	// "input", "agent", "model", "instructions", "limits", "metadata".
	Run     Run
	Changes []string
	// Limits are those that the caller names; what it leaves out is as it was in force at the number.
	Limits  Limits
	By      string
	Offline bool
	// Key and RequestHash make a repeated request give the same run.
	Key         string
	RequestHash string
}

// ForkCheckpoint is the Field of a ForkError whose checkpoint is not there.
const ForkCheckpoint = "checkpoint_id"

// ForkError says which value of a Fork the source's record contradicts. Field is ForkCheckpoint, "sequence_number" or, with the
// place in the list, "rerun/2".
type ForkError struct {
	Field  string
	Detail string
}

func (e *ForkError) Error() string { return e.Field + ": " + e.Detail }

// ForkedFrom names a place in the record of another run.
type ForkedFrom struct {
	RunID    string `json:"run_id"`
	Sequence int64  `json:"sequence_number"`
}

// RunForkedData says what a run's record was begun with. The events that follow, up to Through, are those of the source.
type RunForkedData struct {
	RunID          string                     `json:"from_run_id"`
	ConversationID string                     `json:"from_conversation_id"`
	Sequence       int64                      `json:"from_sequence_number"`
	CheckpointID   string                     `json:"from_checkpoint_id,omitempty"`
	Changes        []string                   `json:"changes,omitempty"`
	Effects        map[EffectClass]ForkEffect `json:"effects,omitempty"`
	Rerun          []string                   `json:"rerun,omitempty"`
	By             string                     `json:"by,omitempty"`
	// Reused counts the commands whose outcome is the source's, Kept those that are asked about when the run makes the same call.
	Reused  int   `json:"reused"`
	Kept    int   `json:"kept,omitempty"`
	Through int64 `json:"through_sequence_number"`
}

// ForkDecision is what becomes of a command of the source.
type ForkDecision string

const (
	// ForkReused: the fork has its outcome and does not execute it.
	ForkReused ForkDecision = "reused"
	// ForkRunsAgain: the fork executes it when it comes to it.
	ForkRunsAgain ForkDecision = "would_run_again"
	// ForkInDoubt: nobody knows whether the source's effect took place. The fork asks when it comes to it.
	ForkInDoubt ForkDecision = "in_doubt"
)

// ForkedCommand is a command of the source and what a fork does about it.
type ForkedCommand struct {
	CommandID string       `json:"command_id"`
	NodeID    string       `json:"node_id"`
	Kind      CommandKind  `json:"kind"`
	Tool      string       `json:"tool,omitempty"`
	Effect    EffectClass  `json:"effect_class"`
	Decision  ForkDecision `json:"decision"`
	// IfSame: the decision is for the same call. The fork may come to another one under this id, or to none.
	IfSame bool   `json:"if_same_arguments,omitempty"`
	Reason string `json:"reason"`
}

// ForkNodeDecision is where a node of the source's plan stands when a fork begins.
type ForkNodeDecision string

const (
	// ForkNodeReused: it has ended.
	ForkNodeReused ForkNodeDecision = "reused"
	// ForkNodeGoesOn: some of its commands have an outcome.
	ForkNodeGoesOn ForkNodeDecision = "goes_on"
	// ForkNodeRuns: nothing of it is on record.
	ForkNodeRuns ForkNodeDecision = "would_run"
)

// ForkedNode is a node of the source's plan in a fork.
type ForkedNode struct {
	NodeID   string           `json:"node_id"`
	Kind     NodeKind         `json:"kind"`
	Decision ForkNodeDecision `json:"decision"`
}

// ForkPlan says what a fork would begin with.
type ForkPlan struct {
	RunID string `json:"run_id"`
	// From is the number of the source's last event in the part.
	From     int64           `json:"from_sequence_number"`
	Commands []ForkedCommand `json:"commands"`
	Nodes    []ForkedNode    `json:"nodes"`
	// Record are the source's events that the fork has too, in their order. Those of a command are what began and what decided it.
	Record []Event `json:"-"`
	// Outcomes are the events that decided the reused commands, by command.
	Outcomes map[string]Event `json:"-"`
	// Priors are the commands to ask about when the fork makes the same call.
	Priors []ForkPrior `json:"-"`
	// Limits are those in force at From, nil where they are the definition's.
	Limits *Limits `json:"-"`
}

// ForkPrior is a call with an external effect, and the run that made it.
type ForkPrior struct {
	RunID   string
	Command Command
}

// ForkSource is a run's record as a fork reads it, as of one moment.
type ForkSource struct {
	Run  Run
	Plan *Plan
	// Events are all of the run's own, Commands its rows in the order in which they were emitted, without those that never began.
	Events   []Event
	Commands []Command
	// Priors are those of the run, when it is a fork itself.
	Priors []ForkPrior
}

// PlanFork decides what becomes of every command of the source. Errors: *ForkError, and
// *ConflictError when there is nothing on record.
func PlanFork(src *ForkSource, f *Fork) (*ForkPlan, error) {
	p := &forkPlanner{src: src, ask: f, named: map[string]bool{}, stories: map[string]*forkStory{}, nodes: map[string]*Node{}, broken: map[string]int{}, cut: map[string]string{}}
	if err := p.place(); err != nil {
		return nil, err
	}
	if err := p.read(); err != nil {
		return nil, err
	}
	p.judge()
	p.spread()
	return p.plan()
}

// forkPlanner is the state of one PlanFork.
type forkPlanner struct {
	src     *ForkSource
	ask     *Fork
	at      int64
	named   map[string]bool
	stories map[string]*forkStory
	nodes   map[string]*Node
	// planned is the source of the plan that is on record, "" for none.
	planned string
	// broken is, by node, the place of its first command that is executed again; cut is why a node that begins anew does.
	broken map[string]int
	cut    map[string]string
}

// forkStory is what the part of the record says of a command.
type forkStory struct {
	row *Command
	// begun: it is in the part. emitted, recorded and outcome are its events there, nil for none.
	begun                      bool
	emitted, recorded, outcome *Event
	// again is why it is not reused, "" when it is; asked that somebody wants it so.
	again string
	asked bool
	// failed: it had failed, and ended its node with that.
	failed bool
}

func (p *forkPlanner) place() error {
	events := p.src.Events
	if len(events) == 0 {
		return &ConflictError{Reason: ConflictRunOpen, RunID: p.src.Run.RunID, Detail: "run " + p.src.Run.RunID + " waits for its turn: there is nothing on record of it yet"}
	}
	first, last := events[0].Sequence, events[len(events)-1].Sequence
	p.at = p.ask.Sequence
	if p.at == 0 {
		p.at = last
	}
	if p.at < first || p.at > last {
		return &ForkError{Field: "sequence_number", Detail: fmt.Sprintf("%d: the run's events are those from %d to %d", p.at, first, last)}
	}
	return nil
}

// read goes through the part of the record.
func (p *forkPlanner) read() error {
	for i := range p.src.Commands {
		c := &p.src.Commands[i]
		p.stories[c.CommandID] = &forkStory{row: c}
	}
	if p.src.Plan != nil {
		for i := range p.src.Plan.Nodes {
			p.nodes[p.src.Plan.Nodes[i].ID] = &p.src.Plan.Nodes[i]
		}
	}
	for i := range p.src.Events {
		e := &p.src.Events[i]
		if e.Type == PlanGenerated {
			var d PlanGeneratedData
			if err := decode(*e, &d); err != nil {
				return err
			}
			p.planned = d.Source
		}
		if s := p.stories[e.CommandID]; s != nil && e.Sequence <= p.at {
			if err := s.add(e); err != nil {
				return err
			}
		}
	}
	for i, id := range p.ask.Rerun {
		field := fmt.Sprintf("rerun/%d", i)
		prior := slices.ContainsFunc(p.src.Priors, func(q ForkPrior) bool { return q.Command.CommandID == id })
		if p.stories[id] == nil && !prior {
			return &ForkError{Field: field, Detail: fmt.Sprintf("run %s has no command %q", p.src.Run.RunID, Preview(id, maxPreviewBytes))}
		}
		if owner, inner := OwnerCommandID(id); inner && p.stories[owner] != nil {
			return &ForkError{Field: field, Detail: fmt.Sprintf("%s is an effect inside of command %s: name that one", id, owner)}
		}
		p.named[id] = true
	}
	return nil
}

func (s *forkStory) add(e *Event) error {
	switch e.Type {
	case CommandEmitted:
		s.begun, s.outcome = true, nil
		if s.emitted == nil {
			s.emitted = e
		}
	case ApprovalRequested, PolicyDecided:
		s.begun = true
	case HTTPRecorded:
		s.recorded = e
	case CommandCommitted, CommandFailedType, TimerFired, UUIDRecorded, RandomRecorded:
		s.begun, s.outcome = true, e
	case CommandAbortType, CommandDoubtType, CommandReopened:
		s.outcome = nil
	case CommandResolved:
		var d CommandResolvedData
		if err := decode(*e, &d); err != nil {
			return err
		}
		if d.Outcome == OutcomeRetry {
			s.outcome = nil
		}
	default:
	}
	return nil
}

// judge decides each command by itself.
func (p *forkPlanner) judge() {
	for id, s := range p.stories {
		switch {
		case !s.begun:
			s.again = fmt.Sprintf("it comes after event %d", p.at)
		case p.named[id]:
			s.again, s.asked = "it is named in rerun", true
		case s.row.Effect != External && p.ask.Effects[s.row.Effect] == ForkRerun:
			s.again, s.asked = fmt.Sprintf("%s commands are to run again", s.row.Effect), true
		case s.outcome == nil:
			s.again = fmt.Sprintf("at event %d it had no outcome", p.at)
		case s.outcome.Type == CommandFailedType && !p.answered(s.row):
			s.again, s.failed = "its failure ended its node", true
		}
	}
}

// answered reports whether the run goes on after the failure of a command: the model reads it, the node has another try, or the
// plan goes on.
func (p *forkPlanner) answered(c *Command) bool {
	if _, inner := OwnerCommandID(c.CommandID); inner {
		return true
	}
	if _, _, ofTurn := TurnTool(c.CommandID); ofTurn {
		return true
	}
	n := p.nodes[c.NodeID]
	if n == nil || c.Kind == PlanCommand {
		return false
	}
	return n.OnError.Handled() || n.Retry != nil && commandPlace(c.CommandID) < n.Retry.MaxAttempts
}

// spread carries on what runs again to what has come of it: later commands of the node, nodes that depend on it, effects inside
// of it. What runs again only because the part ends there has nothing after it.
func (p *forkPlanner) spread() {
	for id, s := range p.stories {
		if _, inner := OwnerCommandID(id); inner || !s.begun || s.again == "" {
			continue
		}
		place, node := commandPlace(id), s.row.NodeID
		if at, broken := p.broken[node]; !broken || place < at {
			p.broken[node] = place
		}
	}
	if _, again := p.broken[PlanNodeID]; again {
		for id := range p.nodes {
			p.cut[id] = "the plan is made again"
		}
	}
	if p.src.Plan != nil {
		for _, n := range p.src.Plan.Nodes { // dependencies come first
			for _, dep := range n.DependsOn {
				_, again := p.broken[dep]
				if (again || p.cut[dep] != "") && p.cut[n.ID] == "" {
					p.cut[n.ID] = fmt.Sprintf("node %s, on which its node depends, runs again", dep)
				}
			}
		}
	}
	for id, s := range p.stories {
		if _, inner := OwnerCommandID(id); inner || !s.begun {
			continue
		}
		place, broken := p.broken[s.row.NodeID]
		why := p.cut[s.row.NodeID]
		if why == "" && broken && commandPlace(id) > place {
			why = "what its node did before it runs again"
		}
		if why == "" {
			continue
		}
		if s.asked = true; s.again == "" {
			s.again = why
		}
	}
	for id, s := range p.stories {
		if owner, inner := OwnerCommandID(id); inner && s.begun {
			p.spreadInner(s, owner)
		}
	}
}

// spreadInner: the effects inside of a command that was not over are kept, as when the command is tried again.
func (p *forkPlanner) spreadInner(s *forkStory, ownerID string) {
	owner := p.stories[ownerID]
	if owner == nil { // of a node's workflow code
		if cut := p.cut[s.row.NodeID]; cut != "" && s.again == "" {
			s.again = cut
		}
		return
	}
	switch {
	case owner.again == "": // it is not come to
		s.again = ""
		if s.outcome == nil {
			s.again = fmt.Sprintf("command %s, which asked for it, does not run again", ownerID)
		}
	case s.again != "":
	case owner.asked, owner.failed && s.outcome.Type == CommandFailedType:
		s.again = fmt.Sprintf("command %s, which asked for it, runs again", ownerID)
	}
}

// commandPlace orders the commands of a node: tries of a node by their number; in a loop a turn's model call, its tool calls,
// which are side by side, the next turn.
func commandPlace(commandID string) int {
	rest := commandID[len(CommandNodeID(commandID)):]
	var n int
	if rest == "" {
		return 1
	}
	if _, err := fmt.Sscanf(rest[1:], "%d", &n); err != nil {
		return 1
	}
	if rest[0] == '~' {
		return n
	}
	if _, _, ofTurn := TurnTool(commandID); ofTurn {
		return 2*n + 1
	}
	return 2 * n
}

func (s *forkStory) reused() bool { return s.begun && s.again == "" && s.outcome != nil }

// intact reports whether the part of the record that is of a node stands as it is.
func (p *forkPlanner) intact(nodeID string) bool {
	_, broken := p.broken[nodeID]
	return !broken && p.cut[nodeID] == ""
}

func (p *forkPlanner) plan() (*ForkPlan, error) {
	out := &ForkPlan{RunID: p.src.Run.RunID, From: p.at, Commands: []ForkedCommand{}, Nodes: []ForkedNode{}, Outcomes: map[string]Event{}}
	goesOn := map[string]bool{}
	for i := range p.src.Commands {
		c := &p.src.Commands[i]
		s := p.stories[c.CommandID]
		if s.reused() {
			out.Outcomes[c.CommandID] = *s.outcome
			goesOn[c.NodeID] = true
		}
		f := p.decide(s)
		out.Commands = append(out.Commands, f)
		if f.IfSame {
			out.Priors = append(out.Priors, ForkPrior{RunID: p.src.Run.RunID, Command: *c})
		}
	}
	p.inherit(out)
	ended, err := p.record(out, goesOn)
	if err != nil {
		return nil, err
	}
	if p.src.Plan != nil && p.keepsPlan() {
		for _, n := range p.src.Plan.Nodes {
			f := ForkedNode{NodeID: n.ID, Kind: n.Kind, Decision: ForkNodeRuns}
			switch {
			case ended[n.ID]:
				f.Decision = ForkNodeReused
			case goesOn[n.ID]:
				f.Decision = ForkNodeGoesOn
			}
			out.Nodes = append(out.Nodes, f)
		}
	}
	return out, nil
}

// inherit takes over what the source, a fork itself, has still to ask about.
func (p *forkPlanner) inherit(out *ForkPlan) {
	for _, prior := range p.src.Priors {
		c := &prior.Command
		if _, reused := out.Outcomes[c.CommandID]; reused {
			continue
		}
		f := p.decide(&forkStory{row: c, again: "the run has not come to it with the same arguments"})
		if p.stories[c.CommandID] == nil {
			out.Commands = append(out.Commands, f)
		}
		if f.IfSame {
			out.Priors = append(out.Priors, prior)
		}
	}
}

// keepsPlan: a plan that the planner did not make is the run's from its beginning.
func (p *forkPlanner) keepsPlan() bool {
	planner := p.stories[PlanNodeID]
	return p.planned != "" && (planner == nil || planner.reused())
}

// decide tells of a command what the fork does about it.
func (p *forkPlanner) decide(s *forkStory) ForkedCommand {
	c := s.row
	f := ForkedCommand{CommandID: c.CommandID, NodeID: c.NodeID, Kind: c.Kind, Tool: c.Tool, Effect: c.Effect, Decision: ForkRunsAgain, Reason: s.again}
	if s.reused() {
		f.Decision, f.Reason = ForkReused, fmt.Sprintf("its result is on record, event %d", s.outcome.Sequence)
		if s.outcome.Type == CommandFailedType {
			f.Reason = fmt.Sprintf("its failure is on record, event %d, and the run went on", s.outcome.Sequence)
		}
		return f
	}
	owner, _ := OwnerCommandID(c.CommandID)
	if c.Effect != External || p.named[c.CommandID] || p.named[owner] {
		return f
	}
	switch c.State {
	case Committed:
		f.Decision, f.IfSame = ForkReused, true
		f.Reason += "; its effect took place, and its result is given for the same arguments"
	case CommandInDoubt, Dispatched:
		f.Decision, f.IfSame = ForkInDoubt, true
		f.Reason += "; whether the effect took place is not known, and somebody has to say so when the fork comes to it with the same arguments"
	case CommandFailed, CommandAborted, Released, Fenced, CommandWaiting:
		f.Reason += "; it is known that the effect did not take place"
	}
	return f
}

// record collects the events that the fork has too, and the nodes that have ended by them.
func (p *forkPlanner) record(out *ForkPlan, goesOn map[string]bool) (ended map[string]bool, err error) {
	ended = map[string]bool{}
	opened := map[string]bool{}
	for i := range p.src.Events {
		e := &p.src.Events[i]
		if e.Type == PlanStarted || e.Type == PlanGenerated {
			if p.keepsPlan() {
				out.Record = append(out.Record, *e)
			}
			continue
		}
		if e.Sequence > p.at {
			continue
		}
		s := p.stories[e.CommandID]
		keep := false
		switch e.Type {
		case NodeStarted:
			keep = goesOn[e.NodeID] && !opened[e.NodeID]
			opened[e.NodeID] = true
		case CommandEmitted, HTTPRecorded, CommandCommitted, CommandFailedType, TimerFired, UUIDRecorded, RandomRecorded:
			keep = s != nil && s.reused() && (e == s.emitted || e == s.recorded || e == s.outcome)
		case NodeFinished:
			keep = goesOn[e.NodeID] && p.intact(e.NodeID)
			ended[e.NodeID] = ended[e.NodeID] || keep
		case NodeFailed:
			var d NodeFailedData
			if err := decode(*e, &d); err != nil {
				return nil, err
			}
			keep = d.Handled && goesOn[e.NodeID] && p.intact(e.NodeID)
			ended[e.NodeID] = ended[e.NodeID] || keep
		case CheckpointSaved:
			keep = s != nil && s.reused() // those at the end of a node are taken there
		case MessageAdded:
			var d MessageAddedData
			if err := decode(*e, &d); err != nil {
				return nil, err
			}
			keep = d.Steers
		case InputReceived:
			keep = true
		case LimitsChanged:
			var d LimitsChangedData
			if err := decode(*e, &d); err != nil {
				return nil, err
			}
			out.Limits = &d.Limits
		default:
		}
		if keep {
			out.Record = append(out.Record, *e)
		}
	}
	return ended, nil
}

// WithReusedFrom marks the outcome of a command with where it comes from, unless it says so already. It gives that place.
func WithReusedFrom(e Event) (Event, ForkedFrom, error) {
	var data map[string]json.RawMessage
	if err := decode(e, &data); err != nil {
		return e, ForkedFrom{}, err
	}
	from := ForkedFrom{RunID: e.RunID, Sequence: e.Sequence}
	if said, ok := data["reused_from"]; ok {
		if err := json.Unmarshal(said, &from); err != nil {
			return e, from, fmt.Errorf("event %d %s: reused_from: %w", e.Sequence, e.Type, err)
		}
		return e, from, nil
	}
	raw, err := json.Marshal(from)
	if err != nil {
		return e, from, err
	}
	data["reused_from"] = raw
	e.Data, err = json.Marshal(data)
	return e, from, err
}

// Valid reports whether f is one of the two.
func (f ForkEffect) Valid() bool { return slices.Contains([]ForkEffect{ForkReuse, ForkRerun}, f) }

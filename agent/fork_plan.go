package agent

import (
	"fmt"
	"slices"
)

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

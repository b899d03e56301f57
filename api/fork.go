package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"runledger/agent"
)

const (
	// maxRerun bounds how many commands a fork may name, maxCommandID the length of a name.
	maxRerun     = 1000
	maxCommandID = 256
)

// forkBody is the body of a request for a fork. What it leaves out is the source's.
type forkBody struct {
	CheckpointID string                                 `json:"checkpoint_id"`
	Sequence     *int64                                 `json:"sequence_number"`
	Input        *string                                `json:"input"`
	Agent        string                                 `json:"agent"`
	Model        string                                 `json:"model"`
	Instructions *string                                `json:"instructions"`
	Limits       agent.Limits                           `json:"limits"`
	Effects      map[agent.EffectClass]agent.ForkEffect `json:"effects"`
	Rerun        []string                               `json:"rerun"`
	Metadata     json.RawMessage                        `json:"metadata"`
	Wait         *float64                               `json:"wait"`
}

// check looks at each value by itself.
func (b *forkBody) check() faults {
	var f faults
	f.checkID("/checkpoint_id", &b.CheckpointID)
	switch {
	case b.Sequence == nil:
	case b.CheckpointID != "":
		f.add("/sequence_number", "either a checkpoint or a number, not both")
	case *b.Sequence < 1:
		f.add("/sequence_number", "%d: numbers begin at 1", *b.Sequence)
	}
	if b.Input != nil && strings.TrimSpace(*b.Input) == "" {
		f.add("/input", "an input is needed; leave it out to keep the source's")
	}
	for _, class := range slices.Sorted(maps.Keys(b.Effects)) {
		pointer := "/effects/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(agent.Preview(string(class), 64))
		switch effect := b.Effects[class]; {
		case !class.Valid():
			f.add(pointer, "want deterministic, idempotent or external")
		case !effect.Valid():
			f.add(pointer, "%q: want reuse or rerun", agent.Preview(string(effect), 64))
		case class == agent.External && effect == agent.ForkRerun:
			f.add(pointer, "external effects are made again one by one only: name the commands in rerun")
		}
	}
	if len(b.Rerun) > maxRerun {
		f.add("/rerun", "%d commands; there may be %d", len(b.Rerun), maxRerun)
	}
	for i, id := range b.Rerun {
		if id == "" || len(id) > maxCommandID {
			f.add(fmt.Sprintf("/rerun/%d", i), "want the id of a command")
		}
	}
	if len(b.Metadata) > 0 && b.Metadata[0] != '{' {
		f.add("/metadata", "want an object")
	}
	if b.Wait != nil && (*b.Wait < 0 || *b.Wait > maxWait.Seconds()) {
		f.add("/wait", "%v: want 0 to %v seconds", *b.Wait, maxWait.Seconds())
	}
	return f
}

// postFork begins a new run with a part of another one's record; with dry_run it only says what that run would begin with.
func (a *API) postFork(w http.ResponseWriter, r *http.Request) error {
	dry, err := readDryRun(r)
	if err != nil {
		return err
	}
	var body forkBody
	raw, err := a.readBody(w, r, &body)
	if err != nil {
		return err
	}
	if f := body.check(); len(f) > 0 {
		return faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	source, err := a.run(r)
	if err != nil {
		return err
	}
	fork, err := a.forkOf(r, source, &body, raw)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), acceptTimeout)
	defer cancel()
	if dry || slices.Contains(fork.Changes, "agent") {
		plan, err := a.cfg.Ledger.PlanFork(ctx, fork)
		if err != nil {
			return forkProblem(err)
		}
		if err := a.checkForkTools(ctx, fork, plan); err != nil {
			return err
		}
		if dry {
			return writeJSON(w, http.StatusOK, plan)
		}
	}
	run, _, err := a.cfg.Ledger.Fork(ctx, fork)
	if err != nil {
		return forkProblem(err)
	}
	return a.answerRun(w, r, run, body.Wait)
}

// readDryRun refuses every other parameter: somebody who only wanted to ask, and wrote dry-run, must not get a fork.
func readDryRun(r *http.Request) (bool, error) {
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if name != "dry_run" {
			return false, badParameter(agent.Preview(name, 64), "there is no such parameter; want dry_run")
		}
	}
	switch values := query["dry_run"]; {
	case len(values) == 0, len(values) == 1 && values[0] == "false":
		return false, nil
	case len(values) == 1 && values[0] == "true":
		return true, nil
	}
	return false, badParameter("dry_run", "want true or false")
}

// forkOf makes everything that is asked of the ledger from a body whose values have been checked one by one.
func (a *API) forkOf(r *http.Request, source agent.Run, b *forkBody, raw json.RawMessage) (agent.Fork, error) {
	key, err := readKey(r)
	if err != nil {
		return agent.Fork{}, err
	}
	hash, err := requestHash(raw)
	if err != nil {
		return agent.Fork{}, err
	}
	id := newID()
	f := agent.Fork{Owner: caller(r).Owner, Source: source.RunID, CheckpointID: b.CheckpointID, Effects: b.Effects, Rerun: b.Rerun, Limits: b.Limits,
		By: a.by(r, ""), Key: key, RequestHash: "fork of " + source.RunID + " " + hash,
		Run: agent.Run{RunID: id, RootRunID: id, ConversationID: newID(), MessageID: newID(), RequestID: requestID(r), SessionID: source.SessionID,
			Epoch: 1, Status: agent.Queued, Input: source.Input, Attachments: source.Attachments, Metadata: source.Metadata}}
	if b.Sequence != nil {
		f.Sequence = *b.Sequence
	}
	if f.Run.Definition, err = a.forkDefinition(r.Context(), source.Definition, b); err != nil {
		return agent.Fork{}, err
	}
	if b.Input != nil {
		f.Run.Input = *b.Input
	}
	if b.Metadata != nil {
		f.Run.Metadata = b.Metadata
	}
	d := &f.Run.Definition
	f.Offline = d.Model.Provider == offlineProvider
	for _, change := range []struct {
		what    string
		changed bool
	}{
		{"input", f.Run.Input != source.Input},
		{"agent", b.Agent != ""},
		{"model", d.Model != source.Definition.Model},
		{"instructions", d.Instructions != source.Definition.Instructions},
		{"limits", b.Limits != (agent.Limits{})},
		{"metadata", b.Metadata != nil},
	} {
		if change.changed {
			f.Changes = append(f.Changes, change.what)
		}
	}
	return f, nil
}

// forkDefinition is the source's definition with the changes. Another agent works in the source's mode: it goes on with the
// source's plan, or with its loop.
func (a *API) forkDefinition(ctx context.Context, d agent.Definition, b *forkBody) (agent.Definition, error) {
	var f faults
	allowed := d.Limits
	blueprint, configured := a.blueprint(cmp.Or(b.Agent, d.Agent))
	switch {
	case b.Agent != "" && !configured:
		return d, faultyBody(http.StatusUnprocessableEntity, "unknown-agent", []fault{{"/agent", fmt.Sprintf("there is no agent %q", agent.Preview(b.Agent, 64))}})
	case b.Agent != "":
		resolved, err := a.resolve(ctx, blueprint)
		if err != nil {
			return d, err
		}
		resolved.Mode, resolved.Limits = d.Mode, d.Limits
		d = resolved
	}
	if configured {
		allowed = blueprint.Limits.Or(agent.DefaultLimits())
	}
	f.checkLimits("/limits", b.Limits)
	f.checkTighter(b.Limits, allowed)
	if b.Model != "" {
		ref, ok := a.model(b.Model)
		if !ok {
			f.add("/model", "there is no model %q", agent.Preview(b.Model, 64))
		}
		d.Model = ref
	}
	if b.Instructions != nil {
		d.Instructions = *b.Instructions
	}
	if len(f) > 0 {
		return d, faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	return d, nil
}

// model finds a model by its name in the configuration.
func (a *API) model(name string) (agent.ModelRef, bool) {
	for _, ref := range a.cfg.Models {
		if ref.Name == name {
			return ref, true
		}
	}
	for _, b := range a.cfg.Agents {
		if b.Model.Name == name {
			return b.Model, true
		}
	}
	return agent.ModelRef{}, false
}

// checkForkTools refuses an agent that lacks a tool which the rest of the source's plan calls.
func (a *API) checkForkTools(ctx context.Context, f agent.Fork, plan *agent.ForkPlan) error {
	if !slices.Contains(f.Changes, "agent") {
		return nil
	}
	graph, err := a.cfg.Ledger.RunPlan(ctx, f.Source)
	if err != nil || graph == nil {
		return err
	}
	for _, n := range plan.Nodes {
		node, ok := graph.Node(n.NodeID)
		if !ok || node.Kind != agent.ToolNode || n.Decision == agent.ForkNodeReused {
			continue
		}
		if _, has := f.Run.Definition.Tool(node.Tool); !has {
			return faultyBody(http.StatusUnprocessableEntity, "invalid-request",
				[]fault{{"/agent", fmt.Sprintf("node %s of the plan calls tool %s, which agent %s does not have", n.NodeID, node.Tool, f.Run.Definition.Agent)}})
		}
	}
	return nil
}

// forkProblem says which value of the body the source's record contradicts.
func forkProblem(err error) error {
	var wrong *agent.ForkError
	if !errors.As(err, &wrong) {
		return err
	}
	status, kind := http.StatusUnprocessableEntity, "invalid-request"
	if wrong.Field == agent.ForkCheckpoint {
		status, kind = http.StatusNotFound, "not-found"
	}
	return faultyBody(status, kind, []fault{{"/" + wrong.Field, wrong.Detail}})
}

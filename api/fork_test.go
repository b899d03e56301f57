package api

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func (l *fakeLedger) PlanFork(ctx context.Context, f agent.Fork) (*agent.ForkPlan, error) {
	run, err := l.Run(ctx, f.Owner, f.Source)
	if err != nil {
		return nil, err
	}
	if f.CheckpointID != "" {
		for _, c := range l.checkpoints[f.Source] {
			if c.CheckpointID == f.CheckpointID {
				f.Sequence = c.Sequence
			}
		}
		if f.Sequence == 0 {
			return nil, &agent.ForkError{Field: agent.ForkCheckpoint, Detail: "there is no checkpoint " + f.CheckpointID}
		}
	}
	src := &agent.ForkSource{Run: run, Plan: l.runs[f.Source].plan, Commands: l.commands[f.Source]}
	if src.Events, err = l.Events(ctx, agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}, 0, 1000); err != nil {
		return nil, err
	}
	return agent.PlanFork(src, &f)
}

func (l *fakeLedger) Fork(ctx context.Context, f agent.Fork) (agent.Run, bool, error) {
	plan, err := l.PlanFork(ctx, f)
	if err != nil {
		return agent.Run{}, false, err
	}
	f.Run.ForkedFrom = &agent.ForkedFrom{RunID: f.Source, Sequence: plan.From}
	f.Run.Definition.Limits = f.Limits.Or(l.runs[f.Source].Definition.Limits)
	run, created, err := l.Accept(ctx, agent.Acceptance{Owner: l.runs[f.Source].owner, NewConversation: true, Run: f.Run, Offline: f.Offline,
		Plan: l.runs[f.Source].plan, Key: f.Key, RequestHash: f.RequestHash})
	if err == nil && created {
		l.forks = append(l.forks, f)
	}
	return run, created, err
}

// seedTurn gives a react run a turn that has called the calculator, and whose second call is at work.
func seedTurn(t testing.TB, b *bench) (run agent.Run, turn int64) {
	t.Helper()
	run = b.ledger.seed(t, "local", "")
	b.ledger.write(run.RunID, agent.Event{Type: agent.PlanStarted, NodeID: "plan"}, agent.PlanStartedData{Source: "react"})
	b.ledger.write(run.RunID, agent.Event{Type: agent.PlanGenerated, NodeID: "plan"}, agent.PlanGeneratedData{Source: "react", TaskGraph: agent.ReactPlan()})
	b.ledger.write(run.RunID, agent.Event{Type: agent.NodeStarted, NodeID: "main"}, agent.NodeStartedData{Kind: agent.ReactNode})
	command := func(id, tool string, kind agent.CommandKind, effect agent.EffectClass, state agent.CommandState) {
		b.ledger.write(run.RunID, agent.Event{Type: agent.CommandEmitted, NodeID: "main", CommandID: id, Attempt: 1},
			agent.CommandEmittedData{Kind: kind, Tool: tool, Effect: effect, IdempotencyKey: run.RunID + "/" + id})
		if state == agent.Committed {
			b.ledger.write(run.RunID, agent.Event{Type: agent.CommandCommitted, NodeID: "main", CommandID: id, Attempt: 1}, agent.CommandCommittedData{Kind: kind, Tool: tool})
		}
		b.ledger.commands[run.RunID] = append(b.ledger.commands[run.RunID], agent.Command{CommandID: id, NodeID: "main", Kind: kind, Tool: tool, Effect: effect,
			State: state, EmittedAt: b.ledger.now})
	}
	command("main#1", "", agent.ModelCommand, agent.Idempotent, agent.Committed)
	turn = b.ledger.conversations[run.ConversationID].LastSequence
	command("main#1.0", "calculator", agent.ToolCommand, agent.Deterministic, agent.Committed)
	command("main#1.1", "mail", agent.ToolCommand, agent.External, agent.Dispatched)
	b.ledger.checkpoints[run.RunID] = []agent.Checkpoint{{CheckpointID: uuid.NewString(), RunID: run.RunID, Type: agent.LLMComplete, Sequence: turn, CreatedAt: b.ledger.now}}
	return run, turn
}

func TestForkDryRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run, turn := seedTurn(t, b)
	w := b.do("POST", runPath(run.RunID)+"/fork?dry_run=true", `{"rerun": ["main#1.0"], "effects": {"external": "reuse"}}`)
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	require.JSONEq(t, `{"run_id": "`+run.RunID+`", "from_sequence_number": 10, "commands": [
		{"command_id": "main#1", "node_id": "main", "kind": "llm", "effect_class": "idempotent", "decision": "reused", "reason": "its result is on record, event 7"},
		{"command_id": "main#1.0", "node_id": "main", "kind": "tool", "tool": "calculator", "effect_class": "deterministic", "decision": "would_run_again", "reason": "it is named in rerun"},
		{"command_id": "main#1.1", "node_id": "main", "kind": "tool", "tool": "mail", "effect_class": "external", "decision": "in_doubt", "if_same_arguments": true,
			"reason": "at event 10 it had no outcome; whether the effect took place is not known, and somebody has to say so when the fork comes to it with the same arguments"}],
		"nodes": [{"node_id": "main", "kind": "react", "decision": "goes_on"}]}`, w.Body.String())
	require.Len(t, b.ledger.runs, 1, "a dry run writes nothing")

	w = b.do("POST", runPath(run.RunID)+"/fork?dry_run=true", `{"checkpoint_id": "`+b.ledger.checkpoints[run.RunID][0].CheckpointID+`"}`)
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	plan := document[agent.ForkPlan](t, w)
	require.Equal(t, turn, plan.From)
	require.Equal(t, agent.ForkRunsAgain, plan.Commands[1].Decision)
}

func TestFork(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) {
		c.Models = []agent.ModelRef{{Name: "small", Provider: "openai", Model: "gpt-5-mini"}}
	})
	run, turn := seedTurn(t, b)
	body := `{"sequence_number": 7, "input": "what is 7*7?", "instructions": "Be kind.", "model": "small", "limits": {"max_steps": 9},
		"effects": {"idempotent": "reuse", "deterministic": "rerun"}, "rerun": ["main#1.1"], "metadata": {"b": 2}, "wait": 0}`
	w := b.do("POST", runPath(run.RunID)+"/fork", body, "Idempotency-Key: k")
	require.Equal(t, http.StatusAccepted, w.Code, "%s", w.Body)
	require.Len(t, b.ledger.forks, 1)
	f := b.ledger.forks[0]
	require.Equal(t, turn, f.Sequence)
	require.Equal(t, []string{"input", "model", "instructions", "limits", "metadata"}, f.Changes)
	require.Equal(t, map[agent.EffectClass]agent.ForkEffect{agent.Idempotent: agent.ForkReuse, agent.Deterministic: agent.ForkRerun}, f.Effects)
	require.Equal(t, []string{"main#1.1"}, f.Rerun)
	require.Equal(t, "local", f.By)
	require.False(t, f.Offline)
	require.Equal(t, run.Attachments, f.Run.Attachments)
	require.Equal(t, agent.ModeReact, f.Run.Definition.Mode)
	require.Equal(t, "Be kind.", f.Run.Definition.Instructions)
	require.Equal(t, agent.ModelRef{Name: "small", Provider: "openai", Model: "gpt-5-mini"}, f.Run.Definition.Model)
	require.NotContains(t, []string{run.RunID, ""}, f.Run.RunID)
	require.NotContains(t, []string{run.ConversationID, ""}, f.Run.ConversationID)
	object := document[map[string]any](t, w)
	require.Equal(t, f.Run.RunID, object["run_id"])
	require.Equal(t, map[string]any{"run_id": run.RunID, "sequence_number": float64(turn)}, object["forked_from"])
	require.Equal(t, runPath(f.Run.RunID), w.Header().Get("Location"))

	again := b.do("POST", runPath(run.RunID)+"/fork", body, "Idempotency-Key: k")
	require.Equal(t, http.StatusAccepted, again.Code, "%s", again.Body)
	require.Equal(t, f.Run.RunID, document[agent.Run](t, again).RunID)
	require.Len(t, b.ledger.forks, 1)
	requireProblem(t, b.do("POST", runPath(run.RunID)+"/fork", `{"wait": 0}`, "Idempotency-Key: k"), 422, "idempotency-key-reused", "")
	requireProblem(t, b.do("POST", runPath(f.Run.RunID)+"/fork", `{"wait": 0}`, "Idempotency-Key: k"), 422, "idempotency-key-reused", "")

	w = b.do("POST", runPath(run.RunID)+"/fork", `{"wait": 0}`)
	require.Equal(t, http.StatusAccepted, w.Code, "%s", w.Body)
	require.Empty(t, b.ledger.forks[1].Changes, "nothing is changed, and the run is at work")
	require.True(t, b.ledger.forks[1].Offline)
	b.ledger.end(run.RunID, agent.Completed)
	w = b.do("POST", runPath(run.RunID)+"/fork", `{"agent": "researcher", "wait": 0}`)
	require.Equal(t, http.StatusAccepted, w.Code, "%s", w.Body)
	f = b.ledger.forks[2]
	require.Equal(t, []string{"agent", "model", "instructions"}, f.Changes)
	require.Equal(t, "researcher", f.Run.Definition.Agent)
	require.Len(t, f.Run.Definition.Tools, 1)
	require.Equal(t, run.Definition.Limits, f.Run.Definition.Limits, "the run's, not the other agent's")
}

// What contradicts itself, the configuration or the record is named by its place in the body.
func TestForkRefusals(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run, _ := seedTurn(t, b)
	for body, want := range map[string]struct {
		status  int
		kind    string
		pointer string
	}{
		`{"sequence_number": 0}`:                                              {422, "invalid-request", "/sequence_number"},
		`{"sequence_number": 11}`:                                             {422, "invalid-request", "/sequence_number"},
		`{"sequence_number": "7"}`:                                            {422, "invalid-request", "/sequence_number"},
		`{"checkpoint_id": "x"}`:                                              {422, "invalid-request", "/checkpoint_id"},
		`{"checkpoint_id": "` + uuid.NewString() + `"}`:                       {404, "not-found", "/checkpoint_id"},
		`{"checkpoint_id": "` + uuid.NewString() + `", "sequence_number": 3}`: {422, "invalid-request", "/sequence_number"},
		`{"input": " "}`:                                                      {422, "invalid-request", "/input"},
		`{"agent": "nobody"}`:                                                 {422, "unknown-agent", "/agent"},
		`{"model": "none"}`:                                                   {422, "invalid-request", "/model"},
		`{"limits": {"max_steps": 51}}`:                                       {422, "invalid-request", "/limits/max_steps"},
		`{"effects": {"external": "rerun"}}`:                                  {422, "invalid-request", "/effects/external"},
		`{"effects": {"magic/~": "rerun"}}`:                                   {422, "invalid-request", "/effects/magic~1~0"},
		`{"effects": {"idempotent": "again"}}`:                                {422, "invalid-request", "/effects/idempotent"},
		`{"rerun": ["main#1", "main#2"]}`:                                     {422, "invalid-request", "/rerun/1"},
		`{"rerun": [""]}`:                                                     {422, "invalid-request", "/rerun/0"},
		`{"metadata": []}`:                                                    {422, "invalid-request", "/metadata"},
		`{"wait": 601}`:                                                       {422, "invalid-request", "/wait"},
		`{"plan": {}}`:                                                        {400, "invalid-body", "/plan"},
	} {
		for _, query := range []string{"", "?dry_run=true"} {
			w := b.do("POST", runPath(run.RunID)+"/fork"+query, body)
			requireProblem(t, w, want.status, want.kind, want.pointer)
		}
	}
	require.Empty(t, b.ledger.forks)
	for query, parameter := range map[string]string{"dry_run=yes": "dry_run", "dry-run=true": "dry-run", "dry_run=true&wait=0": "wait"} {
		p := requireProblem(t, b.do("POST", runPath(run.RunID)+"/fork?"+query, `{}`), 400, "invalid-parameter", "")
		require.Equal(t, parameter, p.Parameter)
	}
	require.Empty(t, b.ledger.forks)
	requireProblem(t, b.do("POST", runPath(uuid.NewString())+"/fork", `{}`), 404, "not-found", "")
	requireProblem(t, b.do("POST", runPath(run.RunID)+"/fork", `{}`, "Idempotency-Key: \x01"), 400, "invalid-parameter", "")
}

// An agent that lacks a tool of what is left of the plan cannot go on with it.
func TestForkToAnAgentWithoutTheTool(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	plan := &agent.Plan{Nodes: []agent.Node{{ID: "a", Kind: agent.ToolNode, Tool: "mail"}, {ID: "b", Kind: agent.ToolNode, Tool: "calculator"}}}
	b.ledger.runs[run.RunID].plan = plan
	b.ledger.write(run.RunID, agent.Event{Type: agent.PlanGenerated, NodeID: "plan"}, agent.PlanGeneratedData{Source: "caller", TaskGraph: plan})
	at := b.ledger.conversations[run.ConversationID].LastSequence
	p := requireProblem(t, b.do("POST", runPath(run.RunID)+"/fork", `{"agent": "researcher", "wait": 0}`), 422, "invalid-request", "/agent")
	require.Contains(t, p.Detail, "node a of the plan calls tool mail")

	b.ledger.write(run.RunID, agent.Event{Type: agent.NodeStarted, NodeID: "a"}, agent.NodeStartedData{Kind: agent.ToolNode})
	b.ledger.write(run.RunID, agent.Event{Type: agent.CommandEmitted, NodeID: "a", CommandID: "a", Attempt: 1}, agent.CommandEmittedData{Kind: agent.ToolCommand, Tool: "mail"})
	b.ledger.write(run.RunID, agent.Event{Type: agent.CommandCommitted, NodeID: "a", CommandID: "a", Attempt: 1}, agent.CommandCommittedData{Kind: agent.ToolCommand})
	b.ledger.write(run.RunID, agent.Event{Type: agent.NodeFinished, NodeID: "a"}, agent.NodeFinishedData{ResultCommand: "a"})
	b.ledger.commands[run.RunID] = []agent.Command{{CommandID: "a", NodeID: "a", Kind: agent.ToolCommand, Tool: "mail", Effect: agent.External, State: agent.Committed}}
	require.Equal(t, http.StatusAccepted, b.do("POST", runPath(run.RunID)+"/fork", `{"agent": "researcher", "wait": 0}`).Code, "that node has ended")
	requireProblem(t, b.do("POST", runPath(run.RunID)+"/fork", `{"agent": "researcher", "wait": 0, "sequence_number": `+string(mustJSON(t, at))+`}`), 422, "invalid-request", "/agent")
}

func mustJSON(t testing.TB, v any) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return raw
}

// What was said before a fork comes first in its conversation, with numbers up to 0, page after page.
func TestMessagesFromBeforeAFork(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.ledger.seed(t, "local", "")
	c := b.ledger.conversations[run.ConversationID]
	earlier := []agent.Message{}
	for n := int64(-2); n <= 0; n++ {
		earlier = append(earlier, agent.Message{MessageID: uuid.NewString(), RunID: uuid.NewString(), Role: agent.UserMessage, Content: "earlier", Sequence: n, CreatedAt: b.ledger.now})
	}
	c.messages = append(earlier, c.messages...)
	numbers := func(query string) (found []int64) {
		w := b.do("GET", root+"/conversations/"+run.ConversationID+"/messages"+query, "")
		require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
		for _, m := range document[struct{ Messages []agent.Message }](t, w).Messages {
			found = append(found, m.Sequence)
		}
		return found
	}
	own := c.messages[3].Sequence
	require.Equal(t, []int64{-2, -1, 0, own}, numbers(""))
	require.Equal(t, []int64{-2, -1}, numbers("?limit=2"))
	require.Equal(t, []int64{0, own}, numbers("?after=-1&limit=2"))
	require.Equal(t, []int64{own}, numbers("?after=0"))
	require.Equal(t, []int64{-2, -1, 0, own}, numbers("?from_sequence=0"))
}

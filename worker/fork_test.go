package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/tool"
)

// charges is an external tool that counts its executions by key. It takes 0 and 99 badly: 99 is refused, of 0 nobody knows.
type charges struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *charges) tool(t testing.TB) tool.Tool {
	t.Helper()
	c.calls = map[string]int{}
	charge, err := tool.New(tool.Spec{Name: "charge", Description: "takes money", Effect: agent.External},
		func(_ context.Context, in number, call tool.Call) (number, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.calls[call.Key]++
			switch in.N {
			case 99:
				return number{}, agent.Failed(agent.CodeToolFailed, "no funds")
			case 0:
				return number{}, agent.Unknown(agent.CodeToolFailed, "the connection broke after the request was sent")
			}
			return in, nil
		})
	require.NoError(t, err)
	return charge
}

// of are the calls of one run, by command.
func (c *charges) of(run agent.Run) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string]int{}
	for key, n := range c.calls {
		if id, ok := strings.CutPrefix(key, run.RunID+"/"); ok {
			found[id] = n
		}
	}
	return found
}

// forkOf asks for a fork of a run, with nothing changed.
func forkOf(run agent.Run, at int64) agent.Fork {
	id := func() string { return uuid.Must(uuid.NewV7()).String() }
	f := agent.Fork{Owner: "local", Source: run.RunID, Sequence: at, By: "ada", Run: agent.Run{RunID: id(), ConversationID: id(), MessageID: id(),
		RequestID: id(), Epoch: 1, Input: run.Input, Definition: run.Definition}}
	f.Run.RootRunID = f.Run.RunID
	return f
}

func (s *stack) fork(t testing.TB, f agent.Fork) agent.Run {
	t.Helper()
	run, created, err := s.ledger.Fork(t.Context(), f)
	require.NoError(t, err)
	require.True(t, created)
	return run
}

// counts are the executions of a run's commands, tools and models.
type counts struct {
	mu    sync.Mutex
	asked map[string]int
}

func (c *counts) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[key]++
}

// executed tells which commands of a run were executed, by their idempotency keys.
func (s *stack) executed(run agent.Run, c *counts, external *charges) map[string]int {
	found := external.of(run)
	add := func(mu *sync.Mutex, calls map[string]int) {
		mu.Lock()
		defer mu.Unlock()
		for key, n := range calls {
			if id, ok := strings.CutPrefix(key, run.RunID+"/"); ok {
				found[id] += n
			}
		}
	}
	add(&c.mu, c.asked)
	add(&s.counting.mu, s.counting.calls)
	return found
}

// dump is every row of the ledger that is of a run, as text.
func (s *stack) dump(t testing.TB, run agent.Run) string {
	t.Helper()
	db, err := pgx.Connect(t.Context(), s.url)
	require.NoError(t, err)
	defer func() { _ = db.Close(context.WithoutCancel(t.Context())) }()
	var all string
	err = db.QueryRow(t.Context(), `SELECT concat_ws(E'\n',
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM agent_executions r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM conversations r WHERE id = $2),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM agent_execution_events r WHERE conversation_id = $2),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM commands r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM execution_checkpoints r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM intents r WHERE run_id = $1),
		(SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM messages r WHERE conversation_id = $2))`, run.RunID, run.ConversationID).Scan(&all)
	require.NoError(t, err)
	return all
}

// requireForks forks a run that has ended at every number of its record, with nothing changed. Every fork ends as the run has,
// executes what it says that it would and nothing else, and makes no external call.
func requireForks(t *testing.T, s *stack, run agent.Run, c *counts, external *charges, during func(fork agent.Run, from int64)) {
	t.Helper()
	events := s.events(t, run)
	end := events[len(events)-1]
	history := s.history(t, run) // its execution has closed, so that nothing more is written of it
	requireClosed(t, history, end.Type)
	before := s.dump(t, run)
	var wait sync.WaitGroup
	for _, e := range events {
		wait.Add(1)
		t.Run(fmt.Sprintf("%d %s %s", e.Sequence, e.Type, e.CommandID), func(t *testing.T) {
			defer wait.Done()
			f := forkOf(run, e.Sequence)
			plan, err := s.ledger.PlanFork(t.Context(), f)
			require.NoError(t, err)
			require.Equal(t, e.Sequence, plan.From)
			fork := s.fork(t, f)
			require.Equal(t, &agent.ForkedFrom{RunID: run.RunID, Sequence: e.Sequence}, fork.ForkedFrom)
			if during != nil {
				during(fork, e.Sequence)
			}
			forked := s.events(t, fork)
			last := forked[len(forked)-1]
			require.Equal(t, end.Type, last.Type, "%s", last.Data)
			require.JSONEq(t, string(end.Data), strings.ReplaceAll(string(last.Data), fork.RunID, run.RunID))
			executed := s.executed(fork, c, external)
			for _, command := range plan.Commands {
				again := 0
				if command.Decision == agent.ForkRunsAgain && command.Kind != agent.WaitCommand { // a wait has no effect to count
					again = 1
				}
				require.Equal(t, again, min(executed[command.CommandID], 1), "%+v", command)
			}
			s.history(t, fork)
			requireAudits(t, s, fork)
			s.requireVerifies(t, fork)
		})
	}
	wait.Wait()
	require.Equal(t, before, s.dump(t, run), "the source is only read")
}

// A react run can be forked from every number of its record: the turns up to there are reused, failed calls and all, and the
// rest is as it was, with no external call made twice.
func TestForkOfReactAtEveryNumber(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		asked.add(req.Key)
		turns := 0
		for _, m := range req.Messages {
			if len(m.ToolCalls) > 0 {
				turns++
			}
		}
		calls := [][]model.ToolCall{
			{{ID: "a", Name: "double", Arguments: `{"n": 21}`}, {ID: "b", Name: "charge", Arguments: `{"n": 5}`}, {ID: "c", Name: "double", Arguments: `{"n": 13}`}},
			{{ID: "d", Name: "charge", Arguments: `{"n": 6}`}, {ID: "e", Name: "charge", Arguments: `{"n": 7}`}},
		}
		if turns < len(calls) {
			return model.Reply{Finish: model.FinishTools, Text: "working", ToolCalls: calls[turns]}, nil
		}
		return model.Reply{Finish: model.FinishStop, Text: "charged 5, 6 and 7"}, nil
	}), external.tool(t))
	run := s.accept(t, agent.ModeReact, "charge me", nil)
	requireForks(t, s, run, asked, external, nil)
}

// The same for a planned run with nodes side by side, a node that fails and is tried again, and one whose failure the plan goes
// on after.
func TestForkOfAPlanAtEveryNumber(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	s := start(t, replies(func(req model.Request) (model.Reply, error) {
		asked.add(req.Key)
		if req.SchemaName == "plan" {
			return model.Reply{Finish: model.FinishStop, Text: `{"nodes": [
				{"id": "a", "kind": "tool", "tool": "double", "args": {"n": 2}},
				{"id": "b", "kind": "tool", "tool": "charge", "args": {"n": {"$from": "/nodes/a/output/n"}}},
				{"id": "c", "kind": "tool", "tool": "charge", "args": {"n": 10}},
				{"id": "d", "kind": "tool", "tool": "double", "args": {"n": 13}, "on_error": "continue"},
				{"id": "e", "kind": "tool", "tool": "double", "args": {"n": 13}, "on_error": "skip_dependents"},
				{"id": "f", "kind": "tool", "tool": "double", "args": {"n": 3}, "depends_on": ["e"]},
				{"id": "say", "kind": "llm", "prompt": "say", "inputs": {"b": {"$from": "/nodes/b/output"}}, "depends_on": ["c", "d"]}]}`}, nil
		}
		return model.Reply{Finish: model.FinishStop, Text: "charged 4 and 10"}, nil
	}), external.tool(t))
	run := s.accept(t, agent.ModePlan, "charge me", nil)
	requireForks(t, s, run, asked, external, nil)
}

// The same for a run that was sent an input: forks from before it are sent another one, the others have it, taken or not.
func TestForkOfAWaitAtEveryNumber(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	s := start(t, chargeLoop(asked, nil), external.tool(t))
	run := s.accept(t, agent.ModePlan, "", &agent.Plan{Nodes: []agent.Node{
		{ID: "pay", Kind: agent.ToolNode, Tool: "charge", Args: raw(`{"n": 7}`)},
		{ID: "go", Kind: agent.WaitNode, Signal: "go", DependsOn: []string{"pay"}},
		{ID: "more", Kind: agent.ToolNode, Tool: "charge", Args: raw(`{"n": {"$from": "/nodes/go/output/n"}}`)}}})
	s.awaitLog(t, run, func(events []agent.Event) bool { return slices.Contains(types(events, "go"), agent.CommandEmitted) })
	signal := func(run agent.Run) {
		_, _, err := s.ledger.Signal(t.Context(), "local", run.RunID, agent.Input{Name: "go", InputID: "1", Value: raw(`{"n": 8}`), By: "ada"})
		require.NoError(t, err)
	}
	signal(run)
	came := at(t, s.events(t, run), agent.InputReceived, "")
	requireForks(t, s, run, asked, external, func(fork agent.Run, from int64) {
		if from < came {
			signal(fork)
		}
	})
}

// chargeLoop is a react model that charges the amounts that the user names, one a turn, and then says what it was told to say.
func chargeLoop(asked *counts, seen func(model.Request)) replies {
	return func(req model.Request) (model.Reply, error) {
		asked.add(req.Key)
		if seen != nil {
			seen(req)
		}
		said, turns := "", 0
		var amounts []string
		for _, m := range req.Messages {
			switch {
			case m.Role == model.System:
				said = m.Text
			case m.Role == model.User && strings.HasPrefix(m.Text, "charge "):
				amounts, turns = strings.Fields(m.Text)[1:], 0
			case len(m.ToolCalls) > 0:
				turns++
			}
		}
		if turns < len(amounts) {
			return model.Reply{Finish: model.FinishTools, ToolCalls: []model.ToolCall{{ID: fmt.Sprint(turns), Name: "charge", Arguments: `{"n": ` + amounts[turns] + `}`}}}, nil
		}
		return model.Reply{Finish: model.FinishStop, Text: strings.TrimSpace("done " + said)}, nil
	}
}

func output(t testing.TB, events []agent.Event) string {
	t.Helper()
	last := events[len(events)-1]
	require.Equal(t, agent.RunCompleted, last.Type, "%s", last.Data)
	var d agent.RunCompletedData
	require.NoError(t, json.Unmarshal(last.Data, &d))
	return d.FinalOutput
}

// at is the number of a run's first event of that type and command.
func at(t testing.TB, events []agent.Event, typ agent.EventType, commandID string) int64 {
	t.Helper()
	for _, e := range events {
		if e.Type == typ && e.CommandID == commandID {
			return e.Sequence
		}
	}
	t.Fatalf("no %s of %q", typ, commandID)
	return 0
}

// decisions are what a fork would do, by command.
func (s *stack) decisions(t testing.TB, f agent.Fork) map[string]agent.ForkDecision {
	t.Helper()
	plan, err := s.ledger.PlanFork(t.Context(), f)
	require.NoError(t, err)
	found := map[string]agent.ForkDecision{}
	for _, c := range plan.Commands {
		found[c.CommandID] = c.Decision
	}
	return found
}

// A fork in the middle of a loop, with other instructions: its prompts are made of its own record and of what was said in the
// source's conversation before. A later run in its conversation knows all of that.
func TestForkWithOtherInstructions(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	prompts := map[string]model.Request{}
	var mu sync.Mutex
	s := start(t, chargeLoop(asked, func(req model.Request) {
		mu.Lock()
		defer mu.Unlock()
		prompts[req.Key] = req
	}), external.tool(t))
	earlier := s.accept(t, agent.ModeReact, "charge 1", nil)
	s.events(t, earlier)
	run := s.acceptBy(t, agent.ModeReact, "charge 2 3", nil, func(a *agent.Acceptance) {
		a.NewConversation, a.Run.ConversationID = false, earlier.ConversationID
	})
	events := s.events(t, run)
	checkpoints, err := s.ledger.Checkpoints(t.Context(), run.RunID)
	require.NoError(t, err)
	f := forkOf(run, 0)
	for _, c := range checkpoints {
		if c.Type == agent.ToolComplete && f.CheckpointID == "" {
			f.CheckpointID = c.CheckpointID
		}
	}
	f.Changes, f.Run.Definition.Instructions = []string{"instructions"}, "and be kind"
	fork := s.fork(t, f)
	forked := s.events(t, fork)
	require.Equal(t, "done and be kind", output(t, forked))
	require.Empty(t, external.of(fork), "3 was charged after the checkpoint, by the source")
	require.Equal(t, map[string]int{"main#2": 1, "main#3": 1}, s.executed(fork, asked, external))
	var said agent.RunForkedData
	require.NoError(t, json.Unmarshal(forked[2].Data, &said))
	require.Equal(t, agent.RunForkedData{RunID: run.RunID, ConversationID: run.ConversationID, Sequence: at(t, events, agent.CommandCommitted, "main#1.0") + 1, CheckpointID: f.CheckpointID,
		Changes: []string{"instructions"}, By: "ada", Reused: 2, Kept: 1, Through: said.Through}, said)
	var texts []string
	for _, m := range prompts[fork.RunID+"/main#3"].Messages {
		texts = append(texts, string(m.Role)+": "+m.Text)
	}
	require.Equal(t, []string{"system: and be kind", "user: charge 1", "assistant: ", `tool: {"n":1}`, "assistant: done",
		"user: charge 2 3", "assistant: ", `tool: {"n":2}`, "assistant: ", `tool: {"n":3}`}, texts)

	later := s.acceptBy(t, agent.ModeReact, "charge 4", nil, func(a *agent.Acceptance) {
		a.NewConversation, a.Run.ConversationID = false, fork.ConversationID
	})
	require.Equal(t, "done", output(t, s.events(t, later)))
	texts = nil
	for _, m := range prompts[later.RunID+"/main#1"].Messages {
		texts = append(texts, string(m.Role)+": "+m.Text)
	}
	require.Equal(t, []string{"user: charge 1", "assistant: ", `tool: {"n":1}`, "assistant: done",
		"user: charge 2 3", "assistant: ", `tool: {"n":2}`, "assistant: ", `tool: {"n":3}`, "assistant: done and be kind", "user: charge 4"}, texts)
	for _, r := range []agent.Run{earlier, run, fork, later} {
		s.history(t, r)
		s.requireVerifies(t, r)
		requireAudits(t, s, r)
	}
}

// Another input asks for other calls: what the source has charged under the same id and with the same arguments is given, other
// arguments are another call. What is named is made again.
func TestForkWithAnotherInput(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	s := start(t, chargeLoop(asked, nil), external.tool(t))
	run := s.accept(t, agent.ModeReact, "charge 2 3", nil)
	events := s.events(t, run)
	begin := at(t, events, agent.PlanGenerated, "")
	f := forkOf(run, begin)
	f.Changes, f.Run.Input = []string{"input"}, "charge 2 5 6"
	fork := s.fork(t, f)
	require.Equal(t, "done", output(t, s.events(t, fork)))
	require.Equal(t, map[string]int{"main#2.0": 1, "main#3.0": 1}, external.of(fork), "2 is on record")
	s.history(t, fork)
	s.requireVerifies(t, fork)
	requireAudits(t, s, fork)

	// A fork of the fork is given what the fork has charged, and what the source has.
	second := forkOf(fork, begin)
	second.Run.Input = "charge 2 3 6"
	require.Equal(t, map[string]agent.ForkDecision{"main#1": agent.ForkRunsAgain, "main#2": agent.ForkRunsAgain, "main#3": agent.ForkRunsAgain, "main#4": agent.ForkRunsAgain,
		"main#1.0": agent.ForkReused, "main#2.0": agent.ForkReused, "main#3.0": agent.ForkReused}, s.decisions(t, second))
	again := s.fork(t, second)
	require.Equal(t, "done", output(t, s.events(t, again)))
	require.Empty(t, external.of(again))
	command, err := s.ledger.Command(t.Context(), again.RunID, "main#2.0")
	require.NoError(t, err)
	require.Equal(t, &agent.ForkedFrom{RunID: run.RunID, Sequence: at(t, events, agent.CommandCommitted, "main#2.0")}, command.ReusedFrom)
	s.history(t, again)
	s.requireVerifies(t, again)

	named := forkOf(run, 0)
	named.Rerun = []string{"main#1.0"}
	require.Equal(t, map[string]agent.ForkDecision{"main#1": agent.ForkReused, "main#1.0": agent.ForkRunsAgain, "main#2": agent.ForkRunsAgain,
		"main#2.0": agent.ForkReused, "main#3": agent.ForkRunsAgain}, s.decisions(t, named))
	fork = s.fork(t, named)
	require.Equal(t, "done", output(t, s.events(t, fork)))
	require.Equal(t, map[string]int{"main#1.0": 1}, external.of(fork))
	require.Equal(t, map[string]int{"main#1.0": 1, "main#2": 1, "main#3": 1}, s.executed(fork, asked, external))
	s.history(t, fork)
	s.requireVerifies(t, fork)
	requireAudits(t, s, fork)
}

// A class that is to run again takes along what depends on it, and no more. External calls are not part of it: their results are
// given where the arguments are the same, and where they are not the call is made.
func TestForkRerunsAClass(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	drawn := 0
	draw, err := tool.New(tool.Spec{Name: "draw", Description: "draws a number", Effect: agent.Deterministic},
		func(_ context.Context, _ struct{}, call tool.Call) (number, error) {
			asked.add(call.Key)
			drawn++
			return number{N: drawn}, nil
		})
	require.NoError(t, err)
	s := start(t, chargeLoop(asked, nil), external.tool(t), draw)
	run := s.accept(t, agent.ModePlan, "", &agent.Plan{Nodes: []agent.Node{
		{ID: "n", Kind: agent.ToolNode, Tool: "draw", Args: raw(`{}`)},
		{ID: "fix", Kind: agent.ToolNode, Tool: "charge", Args: raw(`{"n": 7}`), DependsOn: []string{"n"}},
		{ID: "pay", Kind: agent.ToolNode, Tool: "charge", Args: raw(`{"n": {"$from": "/nodes/n/output/n"}}`)},
		{ID: "other", Kind: agent.ToolNode, Tool: "double", Args: raw(`{"n": 4}`)}}})
	s.events(t, run)
	f := forkOf(run, 0)
	f.Effects = map[agent.EffectClass]agent.ForkEffect{agent.Deterministic: agent.ForkRerun}
	require.Equal(t, map[string]agent.ForkDecision{"n": agent.ForkRunsAgain, "fix": agent.ForkReused, "pay": agent.ForkReused, "other": agent.ForkReused,
		agent.AnswerNodeID: agent.ForkRunsAgain}, s.decisions(t, f))
	fork := s.fork(t, f)
	require.Equal(t, "done", output(t, s.events(t, fork)))
	require.Equal(t, map[string]int{"n": 1, "pay": 1, agent.AnswerNodeID: 1}, s.executed(fork, asked, external), "pay has other arguments")
	s.history(t, fork)
	s.requireVerifies(t, fork)
	requireAudits(t, s, fork)
}

// A call of the source of which nobody knows waits in the fork, too, under the key that the source has used. What somebody says
// there is for the fork alone.
func TestForkOfADoubt(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	s := start(t, chargeLoop(asked, nil), external.tool(t))
	run := s.accept(t, agent.ModeReact, "charge 0 3", nil)
	s.await(t, run, func(typ agent.EventType) bool { return typ == agent.CommandDoubtType })
	s.awaitActivity(t, run, string(agent.Record))
	f := forkOf(run, 0)
	require.Equal(t, map[string]agent.ForkDecision{"main#1": agent.ForkReused, "main#1.0": agent.ForkInDoubt}, s.decisions(t, f))
	before := s.dump(t, run)
	forks := map[agent.Outcome]agent.Run{}
	for _, outcome := range []agent.Outcome{agent.OutcomeCommitted, agent.OutcomeRetry} {
		fork := s.fork(t, forkOf(run, 0))
		events := s.await(t, fork, func(typ agent.EventType) bool { return typ == agent.CommandDoubtType })
		var d agent.CommandInDoubtData
		require.NoError(t, json.Unmarshal(events[len(events)-1].Data, &d))
		require.Equal(t, run.RunID+"/main#1.0", d.IdempotencyKey)
		require.Contains(t, d.Reason, run.RunID)
		r := agent.Resolution{Outcome: outcome, By: "ada"}
		if outcome == agent.OutcomeCommitted {
			r.Result = raw(`{"n": 0}`)
		}
		s.resolve(t, fork, "main#1.0", r)
		forks[outcome] = fork
	}
	require.Equal(t, "done", output(t, s.events(t, forks[agent.OutcomeCommitted])))
	require.Equal(t, map[string]int{"main#2.0": 1}, external.of(forks[agent.OutcomeCommitted]))
	s.history(t, forks[agent.OutcomeCommitted])
	s.requireVerifies(t, forks[agent.OutcomeCommitted])
	requireAudits(t, s, forks[agent.OutcomeCommitted])
	doubts := 0
	s.awaitLog(t, forks[agent.OutcomeRetry], func(events []agent.Event) bool { // the fork's own call is in doubt now
		doubts = 0
		for _, e := range events {
			if e.Type == agent.CommandDoubtType {
				doubts++
			}
		}
		return doubts == 2
	})
	require.Equal(t, map[string]int{"main#1.0": 1}, external.of(forks[agent.OutcomeRetry]))
	require.Equal(t, before, s.dump(t, run))

	s.resolve(t, run, "main#1.0", agent.Resolution{Outcome: agent.OutcomeFailed, By: "ada"})
	require.Equal(t, "done", output(t, s.events(t, run)), "the source goes on by itself")
	s.cancel(t, forks[agent.OutcomeRetry])
	s.events(t, forks[agent.OutcomeRetry])
}

// A run at work can be forked, and a fork that is lost can be resumed. A run that failed goes on from where it failed; what has
// failed for good runs again.
func TestForkOfARunAtWorkAndOfAFailedOne(t *testing.T) {
	t.Parallel()
	asked, external := &counts{asked: map[string]int{}}, &charges{}
	working, release := make(chan struct{}, 8), make(chan struct{})
	var failing sync.Map
	slow, err := tool.New(tool.Spec{Name: "slow", Description: "takes its time", Effect: agent.Idempotent},
		func(_ context.Context, in number, call tool.Call) (number, error) {
			asked.add(call.Key)
			working <- struct{}{}
			<-release
			if _, fails := failing.LoadAndDelete("slow"); fails {
				return number{}, agent.Failed(agent.CodeToolFailed, "not today")
			}
			return in, nil
		})
	require.NoError(t, err)
	s := start(t, chargeLoop(asked, nil), external.tool(t), slow)
	run := s.accept(t, agent.ModePlan, "", &agent.Plan{Nodes: []agent.Node{
		{ID: "pay", Kind: agent.ToolNode, Tool: "charge", Args: raw(`{"n": 7}`)},
		{ID: "wait", Kind: agent.ToolNode, Tool: "slow", Args: raw(`{"n": 7}`), DependsOn: []string{"pay"}},
		{ID: "more", Kind: agent.ToolNode, Tool: "charge", Args: raw(`{"n": 8}`), DependsOn: []string{"wait"}}}})
	<-working
	fork := s.fork(t, forkOf(run, 0))
	<-working
	failing.Store("slow", true)
	release <- struct{}{}
	release <- struct{}{}
	first, second := s.events(t, run), s.events(t, fork)
	ends := []agent.EventType{first[len(first)-1].Type, second[len(second)-1].Type}
	require.ElementsMatch(t, []agent.EventType{agent.RunCompleted, agent.RunFailed}, ends, "each goes its own way")
	require.Equal(t, 1, external.of(run)["pay"])
	require.Zero(t, external.of(fork)["pay"])
	failed := run
	if ends[1] == agent.RunFailed {
		failed = fork
	}
	close(release)

	from := s.fork(t, forkOf(failed, 0)) // at its end
	require.Equal(t, "done", output(t, s.events(t, from)))
	require.Equal(t, map[string]int{"wait": 1, "more": 1, agent.AnswerNodeID: 1}, s.executed(from, asked, external))
	_, err = s.ledger.Resume(t.Context(), agent.Resume{Owner: "local", RunID: failed.RunID, By: "ada"})
	require.NoError(t, err)
	s.await(t, failed, func(typ agent.EventType) bool { return typ == agent.RunCompleted })
	resumed := s.fork(t, forkOf(failed, 0))
	require.Equal(t, "done", output(t, s.events(t, resumed)))
	require.Empty(t, s.executed(resumed, asked, external))
	for _, r := range []agent.Run{from, resumed} {
		s.history(t, r)
		requireAudits(t, s, r)
		s.requireVerifiesAny(t, r)
	}
}

// requireVerifiesAny is requireVerifies of a run that may have had nothing to execute.
func (s *stack) requireVerifiesAny(t testing.TB, run agent.Run) {
	t.Helper()
	v := s.verify(t, run)
	require.Empty(t, v.Differences)
	require.True(t, v.OK)
}

func raw(doc string) json.RawMessage { return json.RawMessage(doc) }

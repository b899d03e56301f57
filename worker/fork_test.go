package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
func requireForks(t *testing.T, s *stack, run agent.Run, c *counts, external *charges) {
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
			forked := s.events(t, fork)
			last := forked[len(forked)-1]
			require.Equal(t, end.Type, last.Type, "%s", last.Data)
			require.JSONEq(t, string(end.Data), strings.ReplaceAll(string(last.Data), fork.RunID, run.RunID))
			executed := s.executed(fork, c, external)
			for _, command := range plan.Commands {
				again := 0
				if command.Decision == agent.ForkRunsAgain {
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
	requireForks(t, s, run, asked, external)
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
	requireForks(t, s, run, asked, external)
}

func keys(m map[string]int) map[string]int { return maps.Clone(m) }

func raw(doc string) json.RawMessage { return json.RawMessage(doc) }

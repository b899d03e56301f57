package workflows_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
)

// give is what somebody's other limits do: the record says so at once, and so does the signal.
func (w *world) give(limits agent.Limits) {
	w.in.Limits = limits.Or(w.in.Limits)
	now := w.in.Limits
	w.append(agent.LimitsChanged, "", "", agent.LimitsChangedData{Limits: now, By: "ada"})
	w.intents++
	w.tell(agent.LimitsSignal, agent.Intent{ID: w.intents, Limits: &now}, 0)
}

// reached are the limits that the record tells of, as "name used/most".
func (w *world) reached() (told []string) {
	for _, e := range w.events {
		if e.Type == agent.LimitReachedType {
			var d agent.LimitReachedData
			require.NoError(w.t, json.Unmarshal(e.Data, &d))
			require.Equal(w.t, w.in.Limits.OnLimit == agent.OnLimitPark, d.Parked)
			told = append(told, fmt.Sprintf("%s %d/%d", d.Limit, d.Used, d.Most))
		}
	}
	return told
}

// parksWith makes a run park at its limits, ends makes it fail.
func parksWith(in agent.RunInput, limits agent.Limits) agent.RunInput {
	in.Limits = limits.Or(agent.Limits{OnLimit: agent.OnLimitPark}.Or(in.Limits))
	return in
}

func ends(in agent.RunInput, limits agent.Limits) agent.RunInput {
	limits.OnLimit = agent.OnLimitFail
	return parksWith(in, limits)
}

// same is a turn that makes the same call n times.
func same(n int, digest string) effect {
	e := asks(n)
	for i := range e.tools {
		e.tools[i].Digest = digest
	}
	return e
}

func uses(tokens int, e effect) effect { e.tokens = tokens; return e }

type limitCase struct {
	in     agent.RunInput
	script script
	// want are the commands when the run has met the limit, more what it is given then, last all commands.
	want  []string
	told  string
	more  agent.Limits
	last  []string
	error string
	// failed are the commands of a run that fails at the limit, where what is scheduled with the one that meets it does not begin.
	failed []string
}

// limitCases are runs that meet a limit, each once.
func limitCases() map[string]limitCase {
	slow := script{"a": {{takes: 2 * time.Hour}}, "b": {{takes: 2 * time.Hour}}}
	return map[string]limitCase{
		"turns": {parksWith(react(), agent.Limits{MaxSteps: 1}), script{"main#1": {asks(1)}}, []string{"main#1", "main#1.0"},
			"max_steps 1/1", agent.Limits{MaxSteps: 2}, []string{"main#1", "main#1.0", "main#2"}, "max_steps", nil},
		"tool calls of a turn": {parksWith(react(), agent.Limits{MaxToolCalls: 2}), script{"main#1": {asks(3)}}, []string{"main#1", "main#1.0", "main#1.1"},
			"max_tool_calls 2/2", agent.Limits{MaxToolCalls: 3}, []string{"main#1", "main#1.0", "main#1.1", "main#1.2", "main#2"}, "max_tool_calls of 2", []string{"main#1"}},
		"tool calls of a plan": {parksWith(input(graph(work("a"), work("b", "a"), say("c", "b"))), agent.Limits{MaxToolCalls: 1}), nil, []string{"a"},
			"max_tool_calls 1/1", agent.Limits{MaxToolCalls: 2}, []string{"a", "b", "c"}, "max_tool_calls of 1", nil},
		"tokens": {parksWith(react(), agent.Limits{MaxTokens: 100}), script{"main#1": {uses(150, asks(1))}}, []string{"main#1", "main#1.0"},
			"max_tokens 150/100", agent.Limits{MaxTokens: 151}, []string{"main#1", "main#1.0", "main#2"}, "max_tokens of 100", nil},
		"tokens of the planner": {parksWith(input(nil), agent.Limits{MaxTokens: 100}), script{"plan": {uses(100, effect{plan: graph(work("a"), say("b", "a"))})}},
			[]string{"plan", "a"}, "max_tokens 100/100", agent.Limits{MaxTokens: 200}, []string{"plan", "a", "b"}, "max_tokens of 100", nil},
		"repeats": {parksWith(react(), agent.Limits{MaxRepeats: 2}), script{"main#1": {same(2, "x")}, "main#2": {same(1, "x")}},
			[]string{"main#1", "main#1.0", "main#1.1", "main#2"}, "max_repeats 2/2", agent.Limits{MaxRepeats: 3},
			[]string{"main#1", "main#1.0", "main#1.1", "main#2", "main#2.0", "main#3"}, "tool idempotent was called 2 times", nil},
		"time": {parksWith(input(graph(work("a"), work("b", "a"), say("c", "b"))), agent.Limits{Timeout: agent.Duration(3 * time.Hour)}), slow,
			[]string{"a", "b"}, "timeout 10800000/10800000", agent.Limits{Timeout: agent.Duration(9 * time.Hour)}, []string{"a", "b", "c"}, "3h0m0s (timeout)", nil},
	}
}

func TestRunParksAtItsLimit(t *testing.T) {
	t.Parallel()
	for name, c := range limitCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.in, c.script)
			w.later(1000*time.Hour, func(w *world) {
				require.Equal(w.t, c.want, w.commands(), "what is at work ends, and nothing begins")
				require.Equal(w.t, agent.LimitReached, w.status)
				require.Equal(w.t, []string{c.told}, w.reached())
				for i, call := range w.calls {
					if call.status == agent.LimitReached {
						require.Empty(w.t, call.facts, "what the run has met is on record before it says that it stands: %v", w.calls[:i+1])
					}
				}
				w.give(c.more)
			})
			w.run()
			require.NoError(t, w.err)
			require.Equal(t, c.last, w.commands())
			require.Equal(t, []string{c.told}, w.reached(), "once")
			state, fold := w.snapshot().State, w.fold()
			require.Equal(t, []any{fold.Finished, fold.ToolCalls, fold.Tokens}, []any{state.Finished, state.ToolCalls, state.Tokens})
		})
	}
}

func TestRunFailsAtItsLimit(t *testing.T) {
	t.Parallel()
	for name, c := range limitCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := run(t, ends(c.in, c.in.Limits), c.script)
			require.Equal(t, agent.CodeLimit, w.failure())
			require.Contains(t, w.finish.Error.Message, c.error)
			if c.failed != nil {
				c.want = c.failed
			}
			require.Equal(t, c.want, w.commands())
			require.Equal(t, []string{c.told}, w.reached())
			require.Equal(t, agent.RunFailed, w.events[len(w.events)-1].Type)
		})
	}
}

// Records from before there was a choice have no on_limit: they fail, and tell of no limit.
func TestLimitOfAnOldRecord(t *testing.T) {
	t.Parallel()
	in := react()
	in.Limits.MaxSteps = 1
	w := run(t, in, script{"main#1": {asks(1)}})
	require.Equal(t, agent.CodeLimit, w.failure())
	require.Empty(t, w.reached())
}

func TestLimitGivenTooLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parksWith(react(), agent.Limits{MaxTokens: 100}), script{"main#1": {uses(500, asks(1))}})
	look := func(after time.Duration, told []string, more agent.Limits) {
		w.later(after, func(w *world) {
			require.Equal(w.t, agent.LimitReached, w.status, "at %s", after)
			require.Equal(w.t, told, w.reached())
			w.give(more)
		})
	}
	look(100*time.Hour, []string{"max_tokens 500/100"}, agent.Limits{MaxTokens: 400})
	look(200*time.Hour, []string{"max_tokens 500/100", "max_tokens 500/400"}, agent.Limits{MaxSteps: 60}) // of no use to it
	look(300*time.Hour, []string{"max_tokens 500/100", "max_tokens 500/400"}, agent.Limits{MaxTokens: 400})
	look(400*time.Hour, []string{"max_tokens 500/100", "max_tokens 500/400"}, agent.Limits{MaxTokens: 500})
	look(500*time.Hour, []string{"max_tokens 500/100", "max_tokens 500/400", "max_tokens 500/500"}, agent.Limits{MaxTokens: 501})
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, 5, int(w.intents), "it has waited for each")
}

// A run that is parked may be told to fail at its limits instead.
func TestParkedRunThatMayNotPark(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parksWith(react(), agent.Limits{MaxToolCalls: 1}), script{"main#1": {asks(2)}})
	w.later(100*time.Hour, func(w *world) { w.cancel(0) })
	w.run()
	w.requireCancelled()
	require.Equal(t, []string{"main#1", "main#1.0"}, w.commands())
}

func TestSeveralNodesParkAtALimit(t *testing.T) {
	t.Parallel()
	plan := graph(work("a"), work("b"), work("c"), work("d"), say("e"), say("f", "a", "b", "c", "d", "e"))
	w := newWorld(t, parksWith(input(plan), agent.Limits{MaxToolCalls: 2}), nil)
	w.later(100*time.Hour, func(w *world) {
		require.ElementsMatch(w.t, []string{"a", "b", "e"}, w.commands(), "what does not need more goes on")
		w.give(agent.Limits{MaxToolCalls: 3})
	})
	w.later(200*time.Hour, func(w *world) {
		require.Len(w.t, w.commands(), 4, "one of them may go on")
		require.Equal(w.t, agent.LimitReached, w.status)
		w.give(agent.Limits{MaxToolCalls: 100})
	})
	w.run()
	require.NoError(t, w.err)
	require.Len(t, w.commands(), 6)
	require.Equal(t, []string{"max_tool_calls 2/2", "max_tool_calls 3/3"}, w.reached())
	require.LessOrEqual(t, w.most, 3)
}

// The plan goes on after nodes that fail, but not beyond a limit of the run.
func TestLimitEndsAPlanThatGoesOnAfterFailures(t *testing.T) {
	t.Parallel()
	for _, then := range []agent.OnError{agent.OnErrorContinue, agent.OnErrorSkip} {
		plan := graph(work("a").onError(then), work("b", "a").onError(then).tries(3), say("c", "b"))
		w := run(t, ends(input(plan), agent.Limits{MaxToolCalls: 1}), nil)
		require.Equal(t, agent.CodeLimit, w.failure())
		require.Equal(t, []string{"a"}, w.commands())
		require.Equal(t, "b", w.finish.Error.NodeID)
	}
}

// What is at work when another node fails the run at a limit is stopped, and settled by the end.
func TestLimitStopsWhatIsAtWork(t *testing.T) {
	t.Parallel()
	w := run(t, ends(input(graph(work("a"), work("b"), work("c", "b"), say("d", "a", "c"))), agent.Limits{MaxToolCalls: 2}),
		script{"a": {{takes: 500 * time.Hour, ends: aborts}}})
	require.Equal(t, agent.CodeLimit, w.failure())
	require.Equal(t, []string{"a", "b"}, w.commands())
	require.Equal(t, "c", w.finish.Error.CommandID)
}

func TestTimeThatIsWaitedDoesNotCount(t *testing.T) {
	t.Parallel()
	in := ends(input(graph(send("a"), say("b", "a"))), agent.Limits{Timeout: agent.Duration(150 * time.Minute)})
	w := run(t, in, script{"a": {{ends: doubts, begun: func(w *world) {
		w.later(500*time.Hour, func(w *world) { w.resolve("a", agent.OutcomeRetry, 0) })
	}}, {}}})
	require.Equal(t, agent.CodeLimit, w.failure(), "two hours for a, and b would take a third")
	require.Equal(t, []string{"a", "a", "b"}, w.commands())
	in.Limits.Timeout = agent.Duration(200 * time.Minute)
	require.NoError(t, run(t, in, script{"a": {{ends: doubts, begun: func(w *world) {
		w.later(500*time.Hour, func(w *world) { w.resolve("a", agent.OutcomeRetry, 0) })
	}}, {}}}).err)
}

func TestTimeRaisedInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parksWith(input(graph(work("a"), say("b", "a"))), agent.Limits{Timeout: agent.Duration(90 * time.Minute)}), nil)
	w.later(time.Hour, func(w *world) { w.give(agent.Limits{Timeout: agent.Duration(9 * time.Hour)}) })
	w.run()
	require.NoError(t, w.err)
	require.Empty(t, w.reached())
}

func TestParallelismRaisedOnTheFly(t *testing.T) {
	t.Parallel()
	plan := graph(work("a"), work("b"), work("c"), work("d"), say("e", "a", "b", "c", "d"))
	w := newWorld(t, parksWith(parallel(input(plan), 1), agent.Limits{}), nil)
	w.later(30*time.Minute, func(w *world) { w.give(agent.Limits{MaxParallel: 3}) })
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, 3, w.most)
}

// Only the same tool with the same arguments is a repetition, and an answer from before there were digests is none.
func TestRepetitions(t *testing.T) {
	t.Parallel()
	other := same(1, "x")
	other.tools = append(other.tools, same(1, "y").tools...)
	for name, s := range map[string]script{
		"different calls": {"main#1": {other}, "main#2": {other}},
		"no digests":      {"main#1": {asks(5)}, "main#2": {asks(5)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, run(t, ends(react(), agent.Limits{MaxRepeats: 2}), s).err)
		})
	}
	// Between two of the same there are more different ones than are remembered.
	s := script{"main#1": {same(1, "x")}, "main#2": {{}}, "main#3": {same(1, "x")}}
	for i := range 64 {
		s["main#2"][0].tools = append(s["main#2"][0].tools, same(1, fmt.Sprint(i)).tools...)
	}
	require.NoError(t, run(t, ends(react(), agent.Limits{MaxRepeats: 1}), s).err)
	s["main#2"][0].tools = s["main#2"][0].tools[:63]
	w := run(t, ends(react(), agent.Limits{MaxRepeats: 1}), s)
	require.Equal(t, agent.CodeLimit, w.failure())
	require.Equal(t, "main#3.0", w.finish.Error.CommandID)
}

// Whoever resumes a run again and again gets no further than its limits let it.
func TestResumeDoesNotLiftALimit(t *testing.T) {
	t.Parallel()
	in := parksWith(react(), agent.Limits{MaxToolCalls: 3})
	state := agent.State{Sequence: 2, Started: bits(0), Turns: map[string]int{"main": 2}, ToolCalls: 3}
	again := resumed(in, state)
	again.Walked = []string{"main#2.0"}
	w := newWorld(t, again, script{"main#2": {asks(3)}})
	for _, id := range []string{"main#2", "main#2.0"} {
		w.rows[id] = &agent.CommandRow{CommandID: id, NodeID: "main", InputHash: id, Kind: agent.ToolCommand, State: agent.Committed, Sequence: 2, Tokens: 7}
	}
	w.later(100*time.Hour, func(w *world) {
		require.Equal(w.t, []string{"main#2", "main#2.0"}, w.commands(), "what is on record is met, the rest of the turn has to wait")
		require.Equal(w.t, agent.LimitReached, w.status)
		require.Equal(w.t, []string{"max_tool_calls 3/3"}, w.reached())
		w.give(agent.Limits{MaxToolCalls: 5})
	})
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, []string{"main#2", "main#2.0", "main#2.1", "main#2.2", "main#3"}, w.commands())
	require.Equal(t, 5, w.snapshot().State.ToolCalls, "those on record were counted before")
	require.Zero(t, w.snapshot().State.Tokens)
}

// Calls that were let begin before a resume count before the turn comes to them: one of that turn which waited at another limit then
// does not take their room.
func TestCallsAtWorkBeforeAResumeCount(t *testing.T) {
	t.Parallel()
	in := resumed(parksWith(react(), agent.Limits{MaxToolCalls: 2}), agent.State{Sequence: 2, Started: bits(0), Turns: map[string]int{"main": 1},
		Open: []string{"main#1.1"}, InDoubt: []string{"main#1.2"}})
	in.Walked = []string{"main#1.1", "main#1.2"}
	w := newWorld(t, in, script{"main#1": {asks(3)}})
	w.rows["main#1"] = &agent.CommandRow{CommandID: "main#1", NodeID: "main", InputHash: "main#1", Kind: agent.ModelCommand, State: agent.Committed, Sequence: 2}
	for _, id := range in.Walked {
		w.rows[id] = &agent.CommandRow{CommandID: id, NodeID: "main", InputHash: id, Kind: agent.ToolCommand, State: agent.Released, DispatchNo: 1}
	}
	w.later(100*time.Hour, func(w *world) {
		require.Equal(w.t, []string{"main#1", "main#1.1", "main#1.2"}, w.commands())
		require.Equal(w.t, []string{"max_tool_calls 2/2"}, w.reached())
		w.give(agent.Limits{MaxToolCalls: 3})
	})
	w.run()
	require.NoError(t, w.err)
	require.Equal(t, []string{"main#1", "main#1.1", "main#1.2", "main#1.0", "main#2"}, w.commands())
	require.Equal(t, 3, w.snapshot().State.ToolCalls)
}

// A command that is tried again and again is not tried after the run's time. It goes on when the run has been given more.
func TestNothingIsTriedAgainOutOfTime(t *testing.T) {
	t.Parallel()
	plan := graph(send("a"), say("b", "a"))
	for name, early := range map[string]time.Duration{"the clocks agree": time.Second, "the ledger's clock is ahead": -time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, parksWith(input(plan), agent.Limits{Timeout: agent.Duration(2 * time.Hour)}), script{"a": {{ends: again, takes: 2*time.Hour + early}, {}}})
			w.later(90*time.Hour, func(w *world) {
				require.Equal(w.t, []string{"a"}, w.commands())
				require.Equal(w.t, agent.LimitReached, w.status)
				require.Equal(w.t, []string{"timeout 7200000/7200000"}, w.reached())
				w.give(agent.Limits{Timeout: agent.Duration(9 * time.Hour)})
			})
			began := w.env.Now()
			w.run()
			require.NoError(t, w.err)
			require.Equal(t, []string{"a", "a", "b"}, w.commands())
			require.Zero(t, w.until["a"][0].Sub(began.Add(2*time.Hour)))
			require.WithinDuration(t, began.Add((90+7)*time.Hour), w.until["a"][1], 2*time.Hour)
		})
	}
}

// Nor does the loop guard forget what the executions before have called.
func TestResumeKeepsTheLoopGuard(t *testing.T) {
	t.Parallel()
	repeats := same(1, "x")
	again := resumed(parksWith(react(), agent.Limits{MaxRepeats: 3}), agent.State{Sequence: 2, Started: bits(0), Turns: map[string]int{"main": 2}, ToolCalls: 2})
	again.Calls, again.Walked = []agent.RepeatedCall{{Digest: repeats.tools[0].Digest, Count: 1}}, []string{"main#2.0"}
	w := newWorld(t, again, script{"main#2": {repeats}, "main#3": {repeats}, "main#4": {repeats}})
	for _, id := range []string{"main#2", "main#2.0"} {
		w.rows[id] = &agent.CommandRow{CommandID: id, NodeID: "main", InputHash: id, Kind: agent.ToolCommand, State: agent.Committed, Sequence: 2}
	}
	w.later(100*time.Hour, func(w *world) {
		require.Equal(w.t, []string{"main#2", "main#2.0", "main#3", "main#3.0", "main#4"}, w.commands(), "one before, one met again, and one more")
		require.Equal(w.t, []string{"max_repeats 3/3"}, w.reached())
		w.give(agent.Limits{MaxRepeats: 4})
	})
	w.run()
	require.NoError(t, w.err)
}

func TestRequirePlan(t *testing.T) {
	t.Parallel()
	in := input(nil)
	in.RequirePlan = true
	w := run(t, in, nil)
	require.Equal(t, agent.CodePlanRequired, w.failure())
	require.Equal(t, []string{"Finish"}, w.activities())
	in.Plan = graph(say("a"))
	require.NoError(t, run(t, in, nil).err)
}

// Whatever comes in whatever order, no run goes beyond its limits, its counts are those of the record, and one that is given enough
// comes to its end.
func TestNoLoopGoesBeyondItsLimits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := parksWith(parallel(react(), rapid.IntRange(1, 4).Draw(rt, "max_parallel")), agent.Limits{
			MaxToolCalls: rapid.IntRange(1, 6).Draw(rt, "max_tool_calls"), MaxTokens: rapid.IntRange(1, 60).Draw(rt, "max_tokens"),
			MaxRepeats: rapid.IntRange(1, 4).Draw(rt, "max_repeats"), MaxSteps: rapid.IntRange(1, 3).Draw(rt, "max_steps")})
		s := script{}
		turns := rapid.IntRange(1, 4).Draw(rt, "turns")
		for turn := 1; turn < turns; turn++ {
			id := agent.TurnCommandID(agent.MainNodeID, turn)
			e := uses(rapid.IntRange(0, 40).Draw(rt, id+" uses"), effect{})
			for k := range rapid.IntRange(1, 4).Draw(rt, id+" asks for") {
				e.tools = append(e.tools, same(1, rapid.SampledFrom([]string{"x", "y"}).Draw(rt, fmt.Sprintf("%s.%d", id, k))).tools...)
			}
			s[id] = []effect{e}
		}
		w := newWorld(t, in, s)
		most := []agent.Limits{in.Limits}
		for i := range 12 {
			more := agent.Limits{MaxToolCalls: 2 * (i + 4), MaxTokens: 40 * (i + 2), MaxRepeats: 2 * (i + 3), MaxSteps: i + 4}
			w.later(time.Duration(i+1)*100*time.Hour, func(w *world) {
				if w.status.Terminal() {
					return
				}
				begun := 0
				for _, e := range w.events {
					if e.Type == agent.CommandEmitted && e.CommandID != agent.TurnCommandID(agent.MainNodeID, 1) {
						if _, _, tool := agent.TurnTool(e.CommandID); tool {
							begun++
						}
					}
				}
				now := most[len(most)-1]
				require.LessOrEqual(rt, begun, now.MaxToolCalls)
				require.Equal(rt, agent.LimitReached, w.status, "%v", w.reached())
				most = append(most, more.Or(now))
				w.give(more)
			})
		}
		w.run()
		require.NoError(rt, w.err)
		state, fold := w.snapshot().State, w.fold()
		require.Equal(rt, []int{fold.ToolCalls, fold.Tokens}, []int{state.ToolCalls, state.Tokens})
		require.Equal(rt, len(w.reached()) > 0, len(most) > 1)
	})
}

// Calls that wait at a limit are not made, however often the run is handed over meanwhile.
func TestCallsThatWaitAtALimitAreNotCounted(t *testing.T) {
	t.Parallel()
	s := script{"main#1": {same(1, "x")}, "main#2": {same(1, "x")}, "main#3": {same(3, "x")}}
	c := newChain(t, parksWith(react(), agent.Limits{MaxRepeats: 2}), s, soon)
	for i := range 4 { // it hears something, and is handed over
		c.after(time.Duration(i+1)*100*time.Hour, c.signal(agent.UnpauseSignal, agent.Intent{ID: int64(i + 1)}))
	}
	given := 0
	for i, most := range []int{3, 4, 9} {
		c.after(time.Duration(i+1)*1000*time.Hour, func(w *world) {
			require.GreaterOrEqual(t, len(c.worlds), 4)
			require.Equal(t, i+2, w.fold().ToolCalls, "as many as it has been given")
			limits := w.in.Limits
			limits.MaxRepeats = most
			given++
			c.signal(agent.LimitsSignal, agent.Intent{ID: int64(10 + i), Limits: &limits})(w)
		})
	}
	w := c.run()
	require.NoError(t, w.err)
	require.Equal(t, 5, w.fold().ToolCalls)
	require.Equal(t, 3, given, "it has waited for each")
}

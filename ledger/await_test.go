package ledger_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// waiting is a plan of two waits for go, one for an hour, and an answer from all of them.
const waiting = `{"nodes": [{"id": "a", "kind": "wait", "signal": "go", "timeout": "1h"}, {"id": "b", "kind": "wait", "signal": "go"},
	{"id": "c", "kind": "wait", "duration": "10s"}, {"id": "say", "kind": "llm", "prompt": "x", "depends_on": ["a", "b", "c"]}]}`

// wait is how a test asks whether a wait can go on.
func (c command) wait(signal string, longest time.Duration) agent.Wait {
	w := agent.Wait{WaitCall: agent.WaitCall{Call: c.call(), Signal: signal, For: agent.Duration(longest)}, Dispatch: c.dispatch(), InputHash: "wait " + signal,
		Node: &agent.NodeStartedData{Kind: agent.WaitNode, Index: c.index}}
	w.Input, _ = json.Marshal(map[string]any{"signal": signal, "for": w.For})
	return w
}

func (b *bench) await(t testing.TB, w agent.Wait) *agent.CommandRow {
	t.Helper()
	begun, err := b.Await(t.Context(), w)
	require.NoError(t, err)
	require.Equal(t, agent.MustAwait, begun.Verdict)
	return begun.Row
}

func (b *bench) signal(t testing.TB, run agent.Run, name, id, value string) (sequence int64, created bool) {
	t.Helper()
	sequence, created, err := b.Signal(t.Context(), owner, run.RunID, agent.Input{Name: name, InputID: id, Value: json.RawMessage(value), By: "ada"})
	require.NoError(t, err)
	return sequence, created
}

func (b *bench) differences(t testing.TB, run agent.Run) []agent.Difference {
	t.Helper()
	record, err := b.RunRecord(t.Context(), run.RunID)
	require.NoError(t, err)
	return agent.VerifyRun(record, agent.Testimony{Absent: agent.WitnessNotConfigured}).Differences
}

// TestInputsAreKeptOnce: those that come before anybody waits too, each for one wait, the oldest for the one that has waited longest.
func TestInputsAreKeptOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, compiled(t, waiting))
	a, other := command{run: run, id: "a"}.wait("go", time.Hour), command{run: run, id: "b", index: 1, schedule: 2}.wait("go", 0)
	first, created := b.signal(t, run, "go", "1", `{"n": 1}`)
	require.True(t, created)
	require.Equal(t, b.last(t, run), first)
	again, created := b.signal(t, run, "go", "1", ` {"n":1} `)
	require.False(t, created)
	require.Equal(t, first, again)
	_, _, err := b.Signal(t.Context(), owner, run.RunID, agent.Input{Name: "go", InputID: "1", Value: json.RawMessage(`{"n": 2}`)})
	requireConflict(t, err, agent.ConflictInputReused)
	_, created = b.signal(t, run, "stop", "1", `null`)
	require.True(t, created, "an id is one of its name")
	for id, who := range map[string]string{run.RunID: "a stranger", newID(): owner, "x": owner} {
		_, _, err := b.Signal(t.Context(), who, id, agent.Input{Name: "go", InputID: "2", Value: json.RawMessage(`1`)})
		var missing *agent.NotFoundError
		require.ErrorAs(t, err, &missing)
	}
	require.Equal(t, 2, value[int](t, b, `SELECT count(*) FROM inputs`))
	require.Equal(t, 2, value[int](t, b, `SELECT count(*) FROM intents WHERE kind = 'input'`))

	row := b.await(t, a)
	require.Equal(t, agent.Committed, row.State)
	require.Equal(t, `{"n": 1}`, string(row.Result))
	require.Equal(t, row, orWitness(b.await(t, a), row), "asked again, since the reply was lost")
	require.Equal(t, agent.CommandWaiting, b.await(t, other).State)
	waits, err := b.Waits(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Len(t, waits, 1)
	require.Equal(t, "b", waits[0].NodeID)
	require.Equal(t, "go", waits[0].Signal)
	require.Nil(t, waits[0].Until)
	b.signal(t, run, "go", "2", `"`+strings.Repeat("x", 100<<10)+`"`)
	require.Equal(t, agent.Committed, b.await(t, other).State)
	for _, e := range b.events(t, run) {
		if e.Type == agent.CommandCommitted || e.Type == agent.NodeFinished {
			require.NotContains(t, string(e.Data), `"json"`, "what was sent is shown where it came in, and only there")
			require.NotContains(t, string(e.Data), `preview`)
		}
	}
	b.requireVerifies(t, run)
	b.finish(t, run, agent.Cancelled)
	_, _, err = b.Signal(t.Context(), owner, run.RunID, agent.Input{Name: "go", InputID: "3", Value: json.RawMessage(`1`)})
	requireConflict(t, err, agent.ConflictRunEnded)
	before := value[int64](t, b, `SELECT sequence_number FROM inputs WHERE run_id = $1 AND name = 'go' AND input_id = '1'`, run.RunID)
	for sent, reason := range map[string]string{`{"n":1}`: "", `3`: agent.ConflictInputReused} {
		number, created, err := b.Signal(t.Context(), owner, run.RunID, agent.Input{Name: "go", InputID: "1", Value: json.RawMessage(sent)})
		if reason != "" {
			requireConflict(t, err, reason)
			continue
		}
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, before, number)
	}
	b.requireVerifies(t, run)
}

// orWitness takes the one thing of a row that is the moment's.
func orWitness(row, of *agent.CommandRow) *agent.CommandRow {
	row.Witness = of.Witness
	return row
}

// TestInputsAreBounded: a name that nobody waits for fills no disk.
func TestInputsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, compiled(t, waiting))
	b.exec(t, `INSERT INTO inputs (run_id, name, input_id, value, sequence_number, created_at)
		SELECT $1, 'nobody', n::text, '1', n + 1000000, now() FROM generate_series(1, $2::int) n`, run.RunID, agent.MaxInputs-1)
	b.signal(t, run, "go", "1", `1`)
	_, _, err := b.Signal(t.Context(), owner, run.RunID, agent.Input{Name: "go", InputID: "2", Value: json.RawMessage(`1`)})
	requireConflict(t, err, agent.ConflictInputs)
	require.Equal(t, agent.Committed, b.await(t, command{run: run, id: "a"}.wait("go", time.Hour)).State)
	b.signal(t, run, "go", "2", `1`)
}

// TestInputsOfARunThatIsQueued are kept behind its first events.
func TestInputsOfARunThatIsQueued(t *testing.T) {
	t.Parallel()
	for name, cancelled := range map[string]bool{"its turn comes": false, "it is taken back": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ahead := b.accepted(t, twoStep(t))
			a := acceptance(compiled(t, waiting))
			a.NewConversation, a.Run.ConversationID, a.Strategy = false, ahead.ConversationID, agent.Enqueue
			run, _, err := b.Accept(t.Context(), a)
			require.NoError(t, err)
			for id := range 3 {
				sequence, created := b.signal(t, run, "go", fmt.Sprint(id), fmt.Sprint(id))
				require.Zero(t, sequence)
				require.True(t, created)
			}
			_, created := b.signal(t, run, "go", "1", "1")
			require.False(t, created)
			require.Empty(t, b.events(t, run))
			b.requireVerifies(t, run)
			require.Zero(t, value[int](t, b, `SELECT count(*) FROM intents WHERE run_id = $1`, run.RunID))
			if cancelled {
				_, err := b.RequestCancel(t.Context(), owner, run.RunID, "me", "enough")
				require.NoError(t, err)
				b.requireVerifies(t, run)
				return
			}
			b.finish(t, ahead, agent.FailedStatus)
			require.Equal(t, 1, b.release(t))
			types := b.types(t, run, 0)
			require.Equal(t, []agent.EventType{agent.RunStarted, agent.MessageAdded, agent.PlanStarted, agent.PlanGenerated, agent.InputReceived, agent.InputReceived, agent.InputReceived}, types)
			b.requireVerifies(t, run)
			require.Equal(t, "0", string(b.await(t, command{run: run, id: "a"}.wait("go", time.Hour)).Result))
			require.Equal(t, "1", string(b.await(t, command{run: run, id: "b", index: 1}.wait("go", 0)).Result))
			b.requireVerifies(t, run)
		})
	}
}

// TestWaitsShareFairly: whoever is asked first, the wait that has begun first takes the oldest input.
func TestWaitsShareFairly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, compiled(t, waiting))
	z, a := command{run: run, id: "b", index: 1}.wait("go", 0), command{run: run, id: "a", schedule: 2}.wait("go", time.Hour)
	require.Equal(t, agent.CommandWaiting, b.await(t, z).State)
	require.Equal(t, agent.CommandWaiting, b.await(t, a).State)
	b.signal(t, run, "go", "1", `1`)
	require.Equal(t, agent.CommandWaiting, b.await(t, a).State, "it is for the other one")
	b.signal(t, run, "go", "2", `2`)
	require.Equal(t, `2`, string(b.await(t, a).Result))
	require.Equal(t, `1`, string(b.await(t, z).Result))
	b.requireVerifies(t, run)
}

// TestInputsAreTakenOnceAtTheSameTime: many waits, many inputs, all at once, by workers who repeat themselves.
func TestInputsAreTakenOnceAtTheSameTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 12
	nodes := make([]string, n)
	for i := range nodes {
		nodes[i] = fmt.Sprintf(`{"id": "w%d", "kind": "wait", "signal": "go"}`, i)
	}
	run := b.accepted(t, compiled(t, `{"nodes": [`+strings.Join(nodes, ",")+`]}`))
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			for range 2 {
				_, _, err := b.Signal(t.Context(), owner, run.RunID, agent.Input{Name: "go", InputID: fmt.Sprint(i), Value: json.RawMessage(fmt.Sprint(i))})
				if err != nil {
					t.Error(err)
				}
			}
		})
		for worker := range 2 {
			group.Go(func() {
				w := command{run: run, id: fmt.Sprintf("w%d", i), index: i, schedule: i + 1, attempt: int32(worker + 1)}.wait("go", 0)
				for {
					begun, err := b.Await(t.Context(), w)
					if err != nil {
						t.Error(err)
						return
					}
					if begun.Row.State == agent.Committed {
						return
					}
				}
			})
		}
	}
	group.Wait()
	require.Equal(t, n, value[int](t, b, `SELECT count(DISTINCT command_id) FROM inputs WHERE command_id <> ''`))
	require.Equal(t, n, value[int](t, b, `SELECT count(DISTINCT convert_from(result, 'UTF8')) FROM commands WHERE state = 'committed'`))
	b.requireVerifies(t, run)
}

// TestTimeOfAWaitIsTheDatabases: what remains is computed there, and an input that is there in the last moment counts.
func TestTimeOfAWaitIsTheDatabases(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, compiled(t, waiting))
	a, other, timer := command{run: run, id: "a"}.wait("go", time.Hour), command{run: run, id: "b", index: 1}.wait("go", 0), command{run: run, id: "c", index: 2}.wait("", 400*24*time.Hour)
	row := b.await(t, a)
	require.Equal(t, agent.ForSignal, row.Awaits.For)
	require.Equal(t, agent.Duration(time.Hour), row.Awaits.Remaining)
	require.Zero(t, b.await(t, other).Awaits.Remaining, "for ever")
	require.Equal(t, agent.ForTimer, b.await(t, timer).Awaits.For)
	over := func(id string) {
		b.exec(t, `UPDATE commands SET deadline = now() - interval '1 microsecond' WHERE run_id = $1 AND command_id = $2`, run.RunID, id)
	}
	_, err := b.Record(t.Context(), agent.RecordCall{Scope: a.Scope, Status: agent.Waiting})
	require.NoError(t, err)
	require.Equal(t, agent.Waiting, b.status(t, run))
	over("c")
	row = b.await(t, timer)
	require.Equal(t, agent.Committed, row.State)
	require.Contains(t, string(row.Result), `"fired_at":"20`)
	require.Equal(t, agent.Running, b.status(t, run))
	over("a")
	b.signal(t, run, "go", "1", `1`)
	require.Equal(t, agent.Committed, b.await(t, a).State, "nobody had said yet that the time was over")
	_, err = b.Record(t.Context(), agent.RecordCall{Scope: a.Scope, Status: agent.Waiting})
	require.NoError(t, err)
	over("b")
	row = b.await(t, other)
	require.Equal(t, agent.CommandFailed, row.State)
	require.Equal(t, agent.CodeTimeout, row.Error.Code)
	require.Equal(t, agent.Running, b.status(t, run))
	b.signal(t, run, "go", "2", `2`)
	require.Equal(t, agent.CommandFailed, b.await(t, other).State, "too late")
	b.requireVerifies(t, run)
}

// TestNoWaitBeginsInAPausedRun, nor in one that is being cancelled; one that has begun goes on waiting.
func TestNoWaitBeginsInAPausedRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, compiled(t, waiting))
	a, other := command{run: run, id: "a"}.wait("go", time.Hour), command{run: run, id: "b", index: 1}.wait("go", 0)
	require.Equal(t, agent.CommandWaiting, b.await(t, a).State)
	_, err := b.Pause(t.Context(), owner, run.RunID, "ada", "")
	require.NoError(t, err)
	begun, err := b.Await(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, agent.IsPaused, begun.Verdict)
	require.Positive(t, begun.PausedBy)
	require.Equal(t, agent.CommandWaiting, b.await(t, a).State)
	b.signal(t, run, "go", "1", `1`)
	require.Equal(t, agent.Committed, b.await(t, a).State, "it was at work, and has ended")
	_, err = b.Unpause(t.Context(), owner, run.RunID, "ada", "")
	require.NoError(t, err)
	require.Equal(t, agent.CommandWaiting, b.await(t, other).State)
	_, err = b.RequestCancel(t.Context(), owner, run.RunID, "ada", "enough")
	require.NoError(t, err)
	_, err = b.Await(t.Context(), other)
	requireCode(t, err, agent.CodeCancelled)
	_, _, err = b.Signal(t.Context(), owner, run.RunID, agent.Input{Name: "go", InputID: "2", Value: json.RawMessage(`1`)})
	requireConflict(t, err, agent.ConflictRunEnded)
	b.finish(t, run, agent.Cancelled)
	require.Equal(t, agent.CommandAborted, b.row(t, command{run: run, id: "b"}).State)
	stopped, err := b.StoppedCommands(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []agent.StoppedCommand{{CommandID: "b", NodeID: "b", Kind: agent.WaitCommand, Effect: agent.Deterministic, Outcome: agent.NeverStarted}}, stopped)
	b.requireVerifies(t, run)
}

// TestWaitsOfAResumedRun: one that was aborted or has failed begins anew; one whose execution was lost waits on, for what remains of
// its time, and takes what has come meanwhile.
func TestWaitsOfAResumedRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends func(t *testing.T, b *bench, run agent.Run)
		anew bool
	}{
		"cancelled": {anew: true, ends: func(t *testing.T, b *bench, run agent.Run) { b.finish(t, run, agent.Cancelled) }},
		"timed out": {anew: true, ends: func(t *testing.T, b *bench, run agent.Run) {
			b.exec(t, `UPDATE commands SET deadline = now() WHERE run_id = $1 AND command_id = 'a'`, run.RunID)
			require.Equal(t, agent.CommandFailed, b.await(t, command{run: run, id: "a"}.wait("go", time.Hour)).State)
			_, err := b.Finish(t.Context(), agent.FinishCall{Scope: agent.Scope{RunID: run.RunID, Epoch: 1, Facts: []agent.Fact{{No: 1, Type: agent.NodeFailed, NodeID: "a",
				Data: json.RawMessage(`{"node_index": 0, "error": {"code": "TIMEOUT", "message": "late"}}`)}}}, Status: agent.FailedStatus,
				Error: &agent.Error{Code: agent.CodeTimeout, NodeID: "a", CommandID: "a", Message: "late"}})
			require.NoError(t, err)
		}},
		"lost": {ends: func(t *testing.T, b *bench, run agent.Run) { b.signal(t, run, "go", "1", `1`) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, compiled(t, waiting))
			require.Equal(t, agent.CommandWaiting, b.await(t, command{run: run, id: "a"}.wait("go", time.Hour)).State)
			b.exec(t, `UPDATE commands SET deadline = deadline - interval '59 minutes' WHERE run_id = $1`, run.RunID)
			c.ends(t, b, run)
			asked := agent.Resume{Owner: owner, RunID: run.RunID, By: "ada"}
			if !c.anew {
				asked.Lost = 1
			}
			_, err := b.Resume(t.Context(), asked)
			require.NoError(t, err)
			_, err = b.Await(t.Context(), command{run: run, id: "a"}.wait("go", time.Hour))
			requireCode(t, err, agent.CodeStaleEpoch)
			again := command{run: run, id: "a", epoch: 2}.wait("go", time.Hour)
			again.Node = nil // it has been started
			row := b.await(t, again)
			if c.anew {
				require.Equal(t, agent.CommandWaiting, row.State)
				require.Equal(t, agent.Duration(time.Hour), row.Awaits.Remaining)
				b.signal(t, run, "go", "1", `1`)
				row = b.await(t, again)
			}
			require.Equal(t, agent.Committed, row.State)
			require.Equal(t, 2, row.Owner.Epoch)
			b.requireVerifies(t, run)
		})
	}
}

// TestTamperedInputsAreFound changes what is on record of inputs, one thing at a time.
func TestTamperedInputsAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql   string
		check agent.Check
	}{
		"another value":            {`UPDATE inputs SET value = '2' WHERE input_id = '1'`, agent.CheckInput},
		"another id":               {`UPDATE inputs SET input_id = '7' WHERE input_id = '1'`, agent.CheckInput},
		"another name":             {`UPDATE inputs SET name = 'stop' WHERE input_id = '1'`, agent.CheckInput},
		"gone":                     {`DELETE FROM inputs WHERE input_id = '3'`, agent.CheckInput},
		"taken by nobody":          {`UPDATE inputs SET command_id = '' WHERE input_id = '1'`, agent.CheckInput},
		"taken by another wait":    {`UPDATE inputs SET command_id = 'b' WHERE input_id = '1'`, agent.CheckInput},
		"taken by what waits":      {`UPDATE inputs SET command_id = 'c' WHERE input_id = '3'`, agent.CheckInput},
		"the wait's result":        {`UPDATE commands SET result = '2' WHERE command_id = 'a'`, agent.CheckResult},
		"both values":              {`UPDATE inputs SET value = '5' WHERE input_id = '1'; UPDATE commands SET result = '5', result_hash = encode(sha256('5'), 'hex') WHERE command_id = 'a'`, agent.CheckRow},
		"taken before it came":     {`UPDATE inputs SET sequence_number = 1000 WHERE input_id = '1'`, agent.CheckInput},
		"one that nobody has sent": {`INSERT INTO inputs SELECT run_id, name, '9', value, sequence_number + 1, '', now() FROM inputs WHERE input_id = '1'`, agent.CheckInput},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.accepted(t, compiled(t, waiting))
			for i := range 3 {
				b.signal(t, run, "go", fmt.Sprint(i+1), fmt.Sprint(i+1))
			}
			b.await(t, command{run: run, id: "a"}.wait("go", time.Hour))
			b.await(t, command{run: run, id: "b", index: 1}.wait("go", 0))
			b.await(t, command{run: run, id: "c", index: 2}.wait("", time.Hour))
			b.requireVerifies(t, run)
			for _, statement := range strings.Split(c.sql, ";") {
				b.exec(t, statement)
			}
			found := b.differences(t, run)
			require.NotEmpty(t, found)
			require.True(t, containsCheck(found, c.check), "%v", found)
		})
	}
}

func containsCheck(found []agent.Difference, check agent.Check) bool {
	for _, d := range found {
		if d.Check == check {
			return true
		}
	}
	return false
}

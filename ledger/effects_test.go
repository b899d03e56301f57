package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/ledger"
)

// newValue asks for a value of a kind under a command of node a.
func newValue(run agent.Run, epoch int, kind agent.CommandKind, id, value string) agent.NewValue {
	v := agent.NewValue{EffectCall: agent.EffectCall{Scope: agent.Scope{RunID: run.RunID, Epoch: epoch}, NodeID: "a", CommandID: id, Kind: kind}}
	if value != "" {
		v.Value = json.RawMessage(value)
	}
	return v
}

func (b *bench) recordEffect(t testing.TB, v agent.NewValue) agent.EffectReply {
	t.Helper()
	reply, err := b.RecordEffect(t.Context(), v)
	require.NoError(t, err)
	return reply
}

// R2-15 to R2-17: a value is recorded once, by one event, and given again ever after.
func TestRecordedValues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	for _, c := range []struct {
		kind          agent.CommandKind
		typ           agent.EventType
		value, second string
	}{
		{agent.NowCommand, agent.TimerFired, "", ""},
		{agent.UUIDCommand, agent.UUIDRecorded, `"f2a0ab37-6a3c-4e8e-8b4e-0a6a4f0f8d11"`, `"00000000-0000-4000-8000-000000000000"`},
		{agent.RandomCommand, agent.RandomRecorded, `0.30000000000000004`, `0.5`},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			id := "a/" + string(c.kind) + "-1"
			from := b.last(t, run) + 1
			first := b.recordEffect(t, newValue(run, 1, c.kind, id, c.value))
			require.Equal(t, from, first.Sequence)
			if c.value != "" {
				require.Equal(t, c.value, string(first.Value))
			}
			require.Equal(t, first, b.recordEffect(t, newValue(run, 1, c.kind, id, c.second)), "what is on record stands")
			require.Equal(t, []agent.EventType{c.typ}, b.types(t, run, from), "one event, and no command_emitted")

			events := b.events(t, run)
			e := events[len(events)-1]
			require.Equal(t, "a", e.NodeID)
			require.Equal(t, id, e.CommandID)
			d := data[agent.ValueRecordedData](t, e)
			require.Equal(t, string(first.Value), string(d.Value))
			require.Equal(t, ledger.ResultHash(first.Value), d.Hash)
			row, err := b.Command(t.Context(), run.RunID, id)
			require.NoError(t, err)
			require.Equal(t, agent.Committed, row.State)
			require.Equal(t, c.kind, row.Kind)
			require.Equal(t, agent.Deterministic, row.Effect)
			require.Equal(t, string(first.Value), string(row.Result))
			require.Equal(t, from, row.Sequence)
			if c.kind == agent.NowCommand {
				var at time.Time
				require.NoError(t, json.Unmarshal(first.Value, &at))
				require.Equal(t, e.CreatedAt.UTC(), at, "the clock of a run is the database's")
			}
		})
	}
	// An audit and a worker that takes the run over find them.
	rc, err := b.ReplayContext(t.Context(), run.RunID)
	require.NoError(t, err)
	require.Equal(t, []string{"a/now-1", "a/uuid-1", "a/random-1"}, rc.CompletedCommandIDs)
	require.Equal(t, `0.30000000000000004`, string(rc.CommandResults["a/random-1"]))
	require.Equal(t, 3, rc.State.Committed)
}

// R2-16: two that ask at once get one value.
func TestRecordedValueOfTwoWriters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	from := b.last(t, run) + 1
	const writers = 8
	release := b.hold(t, run.ConversationID)
	values := make([]string, writers)
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			reply, err := b.RecordEffect(context.Background(), newValue(run, 1, agent.UUIDCommand, "a/uuid-1", `"`+newID()+`"`))
			if err == nil {
				values[i] = string(reply.Value)
			}
		})
	}
	b.awaitBlocked(t, writers)
	release()
	group.Wait()
	require.NotEmpty(t, values[0])
	for _, v := range values {
		require.Equal(t, values[0], v)
	}
	require.Equal(t, []agent.EventType{agent.UUIDRecorded}, b.types(t, run, from))
}

// R2-15: a resumed execution gets what an earlier one has recorded; the earlier one gets nothing any more.
func TestRecordedValueInANewEpoch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	first := b.recordEffect(t, newValue(run, 1, agent.RandomCommand, "a/random-1", `0.25`))
	b.exec(t, `UPDATE agent_executions SET epoch = 2 WHERE run_id = $1`, run.RunID)
	last := b.last(t, run)
	require.Equal(t, first, b.recordEffect(t, newValue(run, 2, agent.RandomCommand, "a/random-1", `0.75`)))
	require.Equal(t, last, b.last(t, run))
	_, err := b.RecordEffect(t.Context(), newValue(run, 1, agent.RandomCommand, "a/random-1", `0.75`))
	requireCode(t, err, agent.CodeStaleEpoch)

	b.exec(t, `UPDATE agent_executions SET epoch = 1 WHERE run_id = $1`, run.RunID)
	b.finish(t, run, agent.FailedStatus)
	_, err = b.RecordEffect(t.Context(), newValue(run, 1, agent.NowCommand, "a/now-9", ""))
	requireCode(t, err, agent.CodeStaleEpoch)
}

func TestRecordedValueThatIsSomethingElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	b.recordEffect(t, newValue(run, 1, agent.UUIDCommand, "a/x", `"u"`))
	_, err := b.RecordEffect(t.Context(), newValue(run, 1, agent.RandomCommand, "a/x", `0.5`))
	requireCode(t, err, agent.CodeMismatch)
	b.begins(t, command{run: run, id: "a/y", inner: true})
	_, err = b.RecordEffect(t.Context(), newValue(run, 1, agent.UUIDCommand, "a/y", `"u"`))
	requireCode(t, err, agent.CodeMismatch)
	last := b.last(t, run)
	for name, v := range map[string]agent.NewValue{
		"not a value": newValue(run, 1, agent.ToolCommand, "a/z", `1`),
		"not JSON":    newValue(run, 1, agent.UUIDCommand, "a/z", `{`),
	} {
		_, err := b.RecordEffect(t.Context(), v)
		require.Error(t, err, name)
	}
	require.Equal(t, last, b.last(t, run), "nothing is written")
	var missing *agent.NotFoundError
	_, err = b.RecordEffect(t.Context(), newValue(agent.Run{RunID: newID()}, 1, agent.NowCommand, "a/now-1", ""))
	require.True(t, errors.As(err, &missing), "%v", err)
}

// What a tool asks for belongs to the dispatch of the tool: a worker that was given up puts nothing on record.
func TestEffectsOfADispatchThatLostItsCommand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	owner := command{run: run, id: "a"}
	b.begins(t, owner)
	within := &agent.Within{CommandID: "a", DispatchNo: 1, Dispatch: owner.dispatch()}
	value := func(w *agent.Within, id string) error {
		v := newValue(run, 1, agent.UUIDCommand, id, `"u"`)
		v.Within = w
		_, err := b.RecordEffect(t.Context(), v)
		return err
	}
	request := func(w *agent.Within, id string) error {
		begin := command{run: run, id: id, inner: true}.begin()
		begin.Kind, begin.Within = agent.HTTPCommand, w
		_, err := b.Begin(t.Context(), begin)
		return err
	}
	require.NoError(t, value(within, "a/uuid-1"))
	require.NoError(t, request(within, "a/get"))

	b.expire(t, owner)
	again := owner
	again.attempt = 2
	require.Equal(t, 2, b.begins(t, again))
	last := b.last(t, run)
	requireCode(t, value(within, "a/uuid-1"), agent.CodeSuperseded)
	requireCode(t, value(within, "a/uuid-2"), agent.CodeSuperseded)
	requireCode(t, request(within, "a/put"), agent.CodeSuperseded)
	require.Equal(t, last, b.last(t, run), "nothing is written")

	newer := &agent.Within{CommandID: "a", DispatchNo: 2, Dispatch: again.dispatch()}
	require.NoError(t, value(newer, "a/uuid-1"))
	decided, err := b.Conclude(t.Context(), again.conclude(2, agent.CommandInDoubt, &agent.Error{Code: agent.CodeInDoubt, Message: "lost"}))
	require.NoError(t, err)
	require.True(t, decided.Mine)
	require.NoError(t, value(newer, "a/uuid-2"), "a late result may still come")
	b.commits(t, again, 2, `{}`)
	requireCode(t, value(newer, "a/uuid-3"), agent.CodeSuperseded)
}

// R2-18: http_recorded stands right before the commit of its command.
func TestHTTPRecordedBeforeItsCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.accepted(t, twoStep(t))
	from := b.last(t, run) + 1
	c := command{run: run, id: "a/get", inner: true}
	begin := c.begin()
	begin.Kind, begin.Tool, begin.Node = agent.HTTPCommand, "", nil
	begun, err := b.Begin(t.Context(), begin)
	require.NoError(t, err)
	commit := c.commit(begun.DispatchNo, `{"status": 200, "headers": {}, "bytes": 0}`)
	commit.HTTP = &agent.HTTPRecordedData{Kind: agent.HTTPCommand, Request: agent.HTTPExchange{Method: "GET", URL: "http://h/"},
		Response: agent.HTTPExchange{Status: 200}}
	decided, err := b.Commit(t.Context(), commit)
	require.NoError(t, err)
	require.True(t, decided.Mine)
	require.Equal(t, []agent.EventType{agent.CommandEmitted, agent.HTTPRecorded, agent.CommandCommitted}, b.types(t, run, from))
	recorded := data[agent.HTTPRecordedData](t, b.events(t, run)[from])
	require.Equal(t, *commit.HTTP, recorded)
}

// A tool that is given up while a request of its is at work cannot have failed: nobody knows what the request did.
func TestSettleOfAToolWithARequestAtWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, c := range map[string]struct {
		effect agent.EffectClass
		inner  string // the command of the request
		state  agent.CommandState
	}{
		"external":           {agent.External, "a/pay", agent.CommandInDoubt},
		"idempotent":         {agent.Idempotent, "a/pay", agent.CommandFailed},
		"of another command": {agent.External, "a~2/pay", agent.CommandFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := b.accepted(t, twoStep(t))
			asking := command{run: run, id: "a"}
			b.begins(t, asking)
			request := command{run: run, id: c.inner, inner: true, effect: c.effect, kind: agent.HTTPCommand}
			b.begins(t, request)
			call := agent.SettleCall{Call: asking.call(), Reason: agent.Failed(agent.CodeTimeout, "gone")}
			row, err := b.Settle(t.Context(), call)
			require.NoError(t, err)
			require.Equal(t, c.state, row.State)
			if c.state != agent.CommandInDoubt {
				require.Equal(t, agent.Dispatched, b.row(t, request).State)
				return
			}
			require.Equal(t, "a", row.CommandID)
			require.Equal(t, c.inner, row.Error.CommandID)
			require.Equal(t, agent.CommandInDoubt, b.row(t, request).State)
			last := b.last(t, run)
			again, err := b.Settle(t.Context(), call)
			require.NoError(t, err)
			require.Equal(t, row.State, again.State)
			require.Equal(t, last, b.last(t, run), "once")

			_, err = b.Resolve(t.Context(), owner, run.RunID, c.inner, agent.Resolution{Outcome: agent.OutcomeRetry, By: "me"})
			require.NoError(t, err)
			require.Equal(t, agent.Released, b.row(t, asking).State, "the tool goes on with it")
		})
	}
}

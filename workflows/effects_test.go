package workflows_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"runledger/agent"
	"runledger/workflows"
)

// effectRecord is a ledger in memory for the effects of workflow code.
type effectRecord struct {
	values  map[string]json.RawMessage
	epoch   int
	asked   []string
	calls   []agent.HTTPCall
	settled []agent.SettleCall
	// answer and settle are what the gate says, by the number of the call, from 1.
	answer func(n int, in agent.HTTPCall) (agent.HTTPReply, error)
	settle func(n int) agent.SettleReply
}

// recorded is the value that a record gives to a command that it does not have yet.
func recorded(kind agent.CommandKind, n int) json.RawMessage {
	switch kind {
	case agent.NowCommand:
		return agent.TimeValue(time.Date(2026, 1, 1, 0, 0, n, 5, time.UTC))
	case agent.UUIDCommand:
		return json.RawMessage(`"uuid"`)
	}
	return json.RawMessage(`0.125`)
}

// perform runs workflow code that has effects. Its error is that of the code.
func (r *effectRecord) perform(t testing.TB, code func(ctx workflow.Context) error) error {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	if r.values == nil {
		r.values = map[string]json.RawMessage{}
	}
	stale := func(s agent.Scope) error {
		if s.Epoch != max(r.epoch, 1) {
			return temporal.NewNonRetryableApplicationError("another epoch", string(agent.CodeStaleEpoch), nil)
		}
		return nil
	}
	env.RegisterActivityWithOptions(func(_ context.Context, in agent.EffectCall) (agent.EffectReply, error) {
		if err := stale(in.Scope); err != nil {
			return agent.EffectReply{}, err
		}
		r.asked = append(r.asked, in.CommandID)
		if r.values[in.CommandID] == nil {
			r.values[in.CommandID] = recorded(in.Kind, len(r.values))
		}
		return agent.EffectReply{Value: r.values[in.CommandID]}, nil
	}, activity.RegisterOptions{Name: string(agent.RecordEffect)})
	env.RegisterActivityWithOptions(func(_ context.Context, in agent.HTTPCall) (agent.HTTPReply, error) {
		if err := stale(in.Scope); err != nil {
			return agent.HTTPReply{}, err
		}
		r.calls = append(r.calls, in)
		return r.answer(len(r.calls), in)
	}, activity.RegisterOptions{Name: string(agent.CallHTTP)})
	env.RegisterActivityWithOptions(func(_ context.Context, in agent.SettleCall) (agent.SettleReply, error) {
		r.settled = append(r.settled, in)
		return r.settle(len(r.settled)), nil
	}, activity.RegisterOptions{Name: string(agent.SettleCommand)})
	var failure error
	env.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		failure = code(ctx)
		return nil
	}, workflow.RegisterOptions{Name: "code"})
	env.ExecuteWorkflow("code")
	require.True(t, env.IsWorkflowCompleted())
	require.NoError(t, env.GetWorkflowError())
	return failure
}

func nodeA() workflows.Node { return workflows.Node{RunID: "run-1", Epoch: 1, NodeID: "a"} }

// took is what code got from its effects.
type took struct {
	At, Later time.Time
	ID        string
	X         float64
}

func take(ctx workflow.Context, n workflows.Node) (a took, err error) {
	fx := workflows.NewEffects(n)
	if a.At, err = fx.Now(ctx); err != nil {
		return a, err
	}
	if a.ID, err = fx.UUID(ctx); err != nil {
		return a, err
	}
	if a.X, err = fx.Random(ctx); err != nil {
		return a, err
	}
	a.Later, err = fx.Now(ctx)
	return a, err
}

// R2-14 to R2-17: a second execution of the run has the values of the first.
func TestEffectsAreTheSameInANewExecution(t *testing.T) {
	t.Parallel()
	r := &effectRecord{}
	var first, second took
	require.NoError(t, r.perform(t, func(ctx workflow.Context) (err error) { first, err = take(ctx, nodeA()); return err }))
	require.Equal(t, []string{"a/now-1", "a/uuid-1", "a/random-1", "a/now-2"}, r.asked)
	require.Equal(t, took{time.Date(2026, 1, 1, 0, 0, 0, 5, time.UTC), time.Date(2026, 1, 1, 0, 0, 3, 5, time.UTC), "uuid", 0.125}, first)
	r.epoch = 2
	n := nodeA()
	n.Epoch = 2
	require.NoError(t, r.perform(t, func(ctx workflow.Context) (err error) { second, err = take(ctx, n); return err }))
	require.Equal(t, first, second)
	// The execution that was replaced gets nothing.
	err := r.perform(t, func(ctx workflow.Context) error { _, err := take(ctx, nodeA()); return err })
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeStaleEpoch})
}

// Coroutines that ask at once get their numbers in the order of their asking, however the answers come back.
func TestEffectsOfCoroutines(t *testing.T) {
	t.Parallel()
	r := &effectRecord{}
	got := make([]time.Time, 3)
	require.NoError(t, r.perform(t, func(ctx workflow.Context) error {
		fx := workflows.NewEffects(nodeA())
		group := workflow.NewWaitGroup(ctx)
		for i := range got {
			group.Add(1)
			workflow.Go(ctx, func(ctx workflow.Context) {
				defer group.Done()
				at, err := fx.Now(ctx)
				require.NoError(t, err)
				got[i] = at
			})
		}
		group.Wait(ctx)
		return nil
	}))
	for i, id := range []string{"a/now-1", "a/now-2", "a/now-3"} {
		require.Equal(t, r.values[id], agent.TimeValue(got[i]))
	}
}

// R2-8, R2-19: an audit replay reaches an effect that the record does not hold.
func TestEffectsInAnAuditReplay(t *testing.T) {
	t.Parallel()
	n := nodeA()
	n.Policy, n.Recorded = &agent.Policy{Replay: agent.AuditReplay}, []string{"a/now-1", "a/uuid-1", "a/random-1", "a/get"}
	r := &effectRecord{answer: func(int, agent.HTTPCall) (agent.HTTPReply, error) {
		return agent.HTTPReply{Reply: agent.Reply{Outcome: agent.OutcomeCommitted}, Response: &agent.HTTPResponse{Status: 200}}, nil
	}}
	err := r.perform(t, func(ctx workflow.Context) error { _, err := take(ctx, n); return err })
	requireForbidden(t, err, "a/now-2")
	require.Equal(t, []string{"a/now-1", "a/uuid-1", "a/random-1"}, r.asked, "what is on record is given")

	request := func(id string) error {
		return r.perform(t, func(ctx workflow.Context) error {
			_, err := workflows.NewEffects(n).HTTP(ctx, id, agent.HTTPRequest{Method: "GET", URL: "http://h/"})
			return err
		})
	}
	require.NoError(t, request("get"))
	requireForbidden(t, request("put"), "a/put")
	require.Len(t, r.calls, 1)
}

func requireForbidden(t testing.TB, err error, commandID string) {
	t.Helper()
	failure, ok := agent.AsError(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, agent.CodeForbidden, failure.Code)
	require.Equal(t, "a", failure.NodeID)
	require.Equal(t, commandID, failure.CommandID)
	for _, id := range []string{"run run-1", "node a", commandID} {
		require.Contains(t, failure.Message, id)
	}
}

// A live run's rules stop requests and put that on record; they have nothing to say of the time.
func TestEffectsUnderALivePolicy(t *testing.T) {
	t.Parallel()
	n := nodeA()
	n.Policy = &agent.Policy{Rules: []agent.PolicyRule{{Effects: []agent.EffectClass{agent.Idempotent, agent.Deterministic, agent.External}, Decision: "forbid", Reason: "closed"}}}
	r := &effectRecord{answer: func(_ int, in agent.HTTPCall) (agent.HTTPReply, error) {
		require.Equal(t, &agent.Refusal{Decision: "forbid", Reason: "closed"}, in.Refusal)
		return agent.HTTPReply{Reply: agent.Reply{Outcome: agent.OutcomeFailed, Error: &agent.Error{Code: agent.CodeRefused, Message: in.Refusal.Reason}}}, nil
	}}
	err := r.perform(t, func(ctx workflow.Context) error {
		if _, err := take(ctx, n); err != nil {
			return err
		}
		_, err := workflows.NewEffects(n).HTTP(ctx, "get", agent.HTTPRequest{Method: "GET", URL: "http://h/"})
		return err
	})
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeRefused})
	require.ErrorContains(t, err, "closed")
}

func TestHTTPOfWorkflowCode(t *testing.T) {
	t.Parallel()
	gone := func(code agent.Code) error {
		return temporal.NewNonRetryableApplicationError("gone", string(code), nil)
	}
	committed := agent.HTTPReply{Reply: agent.Reply{Outcome: agent.OutcomeCommitted}, Response: &agent.HTTPResponse{Status: 200, Text: new("hello")}}
	outcome := func(o agent.Outcome, code agent.Code) agent.SettleReply {
		return agent.SettleReply{Reply: agent.Reply{Outcome: o, Error: &agent.Error{Code: code, Message: "so it is on record"}}}
	}
	for name, c := range map[string]struct {
		id        string
		answer    func(n int, in agent.HTTPCall) (agent.HTTPReply, error)
		settle    func(n int) agent.SettleReply
		code      agent.Code // "" when the response comes
		schedules []int
		settles   int
	}{
		"committed": {
			answer:    func(int, agent.HTTPCall) (agent.HTTPReply, error) { return committed, nil },
			schedules: []int{1},
		},
		"failed": {
			answer: func(int, agent.HTTPCall) (agent.HTTPReply, error) {
				return agent.HTTPReply{Reply: outcome(agent.OutcomeFailed, agent.CodeToolFailed).Reply}, nil
			},
			code: agent.CodeToolFailed, schedules: []int{1},
		},
		"in doubt": {
			answer: func(int, agent.HTTPCall) (agent.HTTPReply, error) {
				return agent.HTTPReply{Reply: outcome(agent.OutcomeInDoubt, agent.CodeToolFailed).Reply}, nil
			},
			code: agent.CodeInDoubt, schedules: []int{1},
		},
		"another request": {
			answer: func(int, agent.HTTPCall) (agent.HTTPReply, error) { return agent.HTTPReply{}, gone(agent.CodeMismatch) },
			code:   agent.CodeMismatch, schedules: []int{1},
		},
		"the reply was lost": {
			answer: func(n int, _ agent.HTTPCall) (agent.HTTPReply, error) {
				if n == 1 {
					return agent.HTTPReply{}, gone(agent.CodeSuperseded)
				}
				return committed, nil
			},
			settle:    func(int) agent.SettleReply { return agent.SettleReply{Reply: committed.Reply} },
			schedules: []int{1, 2}, settles: 1,
		},
		"never began": {
			answer: func(n int, _ agent.HTTPCall) (agent.HTTPReply, error) {
				if n < 3 {
					return agent.HTTPReply{}, gone(agent.CodeInternal)
				}
				return committed, nil
			},
			settle:    func(int) agent.SettleReply { return outcome(agent.OutcomeUnknown, agent.CodeInternal) },
			schedules: []int{1, 2, 3}, settles: 2,
		},
		"never begins": {
			answer: func(int, agent.HTTPCall) (agent.HTTPReply, error) { return agent.HTTPReply{}, gone(agent.CodeInternal) },
			settle: func(int) agent.SettleReply { return outcome(agent.OutcomeUnknown, agent.CodeInternal) },
			code:   agent.CodeInternal, schedules: []int{1, 2, 3, 4}, settles: 4,
		},
		"settled as failed": {
			answer: func(int, agent.HTTPCall) (agent.HTTPReply, error) { return agent.HTTPReply{}, gone(agent.CodeInternal) },
			settle: func(int) agent.SettleReply { return outcome(agent.OutcomeFailed, agent.CodeTimeout) },
			code:   agent.CodeTimeout, schedules: []int{1}, settles: 1,
		},
		"no id": {id: "a b", code: agent.CodeInvalidArguments},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &effectRecord{answer: c.answer, settle: c.settle}
			var response agent.HTTPResponse
			err := r.perform(t, func(ctx workflow.Context) (err error) {
				id := c.id
				if id == "" {
					id = "get"
				}
				response, err = workflows.NewEffects(nodeA()).HTTP(ctx, id, agent.HTTPRequest{Method: "GET", URL: "http://h/", Timeout: agent.Duration(time.Second)})
				return err
			})
			schedules := []int(nil)
			for _, in := range r.calls {
				require.Equal(t, "a/get", in.CommandID)
				require.Equal(t, agent.Duration(time.Second), in.Timeout)
				schedules = append(schedules, in.Schedule)
			}
			require.Equal(t, c.schedules, schedules)
			require.Len(t, r.settled, c.settles)
			if c.code == "" {
				require.NoError(t, err)
				require.Equal(t, "hello", string(response.Body()))
				return
			}
			require.ErrorIs(t, err, &agent.Error{Code: c.code}, "%v", err)
			require.ErrorContains(t, err, "run run-1, node a")
		})
	}
}

// Temporal would refuse a request that is too large with its workflow task, again and again.
func TestHTTPRequestThatIsTooLarge(t *testing.T) {
	t.Parallel()
	r := &effectRecord{}
	err := r.perform(t, func(ctx workflow.Context) error {
		_, err := workflows.NewEffects(nodeA()).HTTP(ctx, "put", agent.HTTPRequest{Method: "PUT", URL: "http://h/", Body: new(strings.Repeat("b", 2<<20))})
		return err
	})
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeTooLarge}, "%v", err)
	require.Empty(t, r.calls)
}

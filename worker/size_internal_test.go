package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"runledger/agent"
)

// What an activity would tell Temporal is looked at once more: a reply that is too large is an error that is not tried again.
func TestRepliesThatAreTooLarge(t *testing.T) {
	t.Parallel()
	in := agent.ToolCall{Tool: "put", Call: agent.Call{Scope: agent.Scope{RunID: "r"}, CommandID: "main#1.0"}}
	reply := func(bytes int) func(context.Context, agent.ToolCall) (agent.Reply, error) {
		return func(context.Context, agent.ToolCall) (agent.Reply, error) {
			return agent.Reply{Outcome: agent.OutcomeCommitted, Preview: strings.Repeat("x", bytes)}, nil
		}
	}
	out, err := sized(agent.CallTool, reply(agent.MaxPayloadBytes-100))(t.Context(), in)
	require.NoError(t, err)
	require.Len(t, out.Preview, agent.MaxPayloadBytes-100)
	out, err = sized(agent.CallTool, reply(agent.MaxPayloadBytes))(t.Context(), in)
	require.Empty(t, out)
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.True(t, app.NonRetryable())
	require.Equal(t, string(agent.CodeTooLarge), app.Type())
	require.Equal(t, "CallTool of run r, command main#1.0, tool put: its reply has 524324 bytes; at most 524288 go through Temporal", app.Message())
}

func TestErrorsThatAreTooLong(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3<<20)
	failing := func(err error) error {
		_, err = sized(agent.Record, func(context.Context, agent.RecordCall) (agent.RecordReply, error) { return agent.RecordReply{}, err })(t.Context(), agent.RecordCall{})
		return err
	}
	require.Less(t, len(failing(errors.New(long)).Error()), 5000)
	short := errors.New("short")
	require.Equal(t, short, failing(short))

	var app *temporal.ApplicationError
	require.ErrorAs(t, failing(fmt.Errorf("%s: %w", long, temporal.NewApplicationErrorWithOptions(long, "CODE",
		temporal.ApplicationErrorOptions{NextRetryDelay: time.Second, Category: temporal.ApplicationErrorCategoryBenign}))), &app)
	require.Less(t, len(app.Message()), 5000)
	require.Equal(t, "CODE", app.Type())
	require.Equal(t, time.Second, app.NextRetryDelay())
	require.Equal(t, temporal.ApplicationErrorCategoryBenign, app.Category())
	require.False(t, app.NonRetryable())
}

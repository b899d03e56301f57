package tool_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

func TestMemoryEffectsGiveTheSameAgain(t *testing.T) {
	t.Parallel()
	served := 0
	fx := &tool.MemoryEffects{Serve: func(_ context.Context, req tool.HTTPRequest) (tool.HTTPResponse, error) {
		served++
		return tool.HTTPResponse{Status: 200, Text: new(req.Method)}, nil
	}}
	type got struct {
		first, second time.Time
		id            string
		x             float64
		body          string
	}
	ask := func() (g got) {
		t.Helper()
		var err error
		g.first, err = fx.Now(t.Context())
		require.NoError(t, err)
		g.id, err = fx.UUID(t.Context())
		require.NoError(t, err)
		g.x, err = fx.Random(t.Context())
		require.NoError(t, err)
		g.second, err = fx.Now(t.Context())
		require.NoError(t, err)
		response, err := fx.HTTP(t.Context(), "ask", tool.HTTPRequest{Method: "GET", URL: "http://h/"})
		require.NoError(t, err)
		g.body = string(response.Body())
		return g
	}
	first := ask()
	require.Equal(t, got{time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 1, 1, 12, 0, 1, 0, time.UTC),
		"00000000-0000-4000-8000-000000000001", first.x, "GET"}, first)
	require.True(t, first.x >= 0 && first.x < 1)
	next, err := fx.Now(t.Context())
	require.NoError(t, err)
	require.True(t, next.After(first.second))
	fx.Again()
	require.Equal(t, first, ask())
	require.Equal(t, 1, served)
}

func TestMemoryEffectsOfRequests(t *testing.T) {
	t.Parallel()
	answers := []error{agent.Transient(agent.CodeToolFailed, "busy"), agent.Failed(agent.CodeToolFailed, "404")}
	served := 0
	fx := &tool.MemoryEffects{Serve: func(context.Context, tool.HTTPRequest) (tool.HTTPResponse, error) {
		served++
		return tool.HTTPResponse{}, answers[served-1]
	}}
	ask := func(id, method string) error {
		_, err := fx.HTTP(t.Context(), id, tool.HTTPRequest{Method: method, URL: "http://h/"})
		return err
	}
	require.ErrorContains(t, ask("x", "GET"), "busy")
	for range 2 { // the definite failure is on record
		require.ErrorContains(t, ask("x", "GET"), "404")
	}
	require.Equal(t, 2, served)
	require.ErrorIs(t, ask("x", "POST"), &agent.Error{Code: agent.CodeMismatch})
	require.ErrorIs(t, ask("x/y", "GET"), &agent.Error{Code: agent.CodeInvalidArguments})
	_, err := (&tool.MemoryEffects{}).HTTP(t.Context(), "x", tool.HTTPRequest{Method: "GET", URL: "http://h/"})
	require.ErrorContains(t, err, "Serve")
}

// An effect is a value on record: a tool that is executed again gets the same.
func ExampleMemoryEffects() {
	ticket := tool.MustNew(tool.Spec{Name: "ticket", Description: "Opens a ticket.", Effect: agent.External},
		func(ctx context.Context, _ struct{}, call tool.Call) (string, error) {
			id, err := call.Effects.UUID(ctx)
			if err != nil {
				return "", err
			}
			response, err := call.Effects.HTTP(ctx, "open", tool.HTTPRequest{Method: "PUT", URL: "https://tickets.example.org/" + id})
			if err != nil {
				return "", err
			}
			return string(response.Body()), nil
		})
	effects := &tool.MemoryEffects{Serve: func(_ context.Context, req tool.HTTPRequest) (tool.HTTPResponse, error) {
		fmt.Println(req.Method, req.URL)
		return tool.HTTPResponse{Status: 201, Text: new("opened")}, nil
	}}
	for range 2 { // as after a lost worker
		output, err := ticket.Call(context.Background(), tool.Call{Effects: effects})
		fmt.Println(string(output), err)
		effects.Again()
	}
	// Output:
	// PUT https://tickets.example.org/00000000-0000-4000-8000-000000000001
	// "opened" <nil>
	// "opened" <nil>
}

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"runledger/model"
	"runledger/tool"
)

// callerModel calls tools in so many turns, each call another one, and answers.
type callerModel struct {
	turns, calls int

	mu      sync.Mutex
	largest int
}

// Generate knows its turn by the newest call's id, since the prompt need not hold them all.
func (m *callerModel) Generate(_ context.Context, req model.Request, _ func(model.Delta)) (model.Reply, error) {
	turn, bytes, loop := 1, 0, false
	for _, said := range req.Messages {
		bytes += len(said.Text)
		loop = loop || said.Role == model.User && strings.HasPrefix(said.Text, "Add all")
		for _, c := range said.ToolCalls {
			bytes += len(c.Arguments)
			done, _, _ := strings.Cut(c.ID, "-")
			n, _ := strconv.Atoi(done)
			turn = n + 1
		}
	}
	m.mu.Lock()
	m.largest = max(m.largest, bytes/4)
	m.mu.Unlock()
	reply := model.Reply{Model: "bench", Usage: model.Usage{InputTokens: bytes / 4, OutputTokens: 20}}
	if turn > m.turns || !loop || len(req.Tools) == 0 {
		reply.Text, reply.Finish = "They are added.", model.FinishStop
		return reply, nil
	}
	reply.Finish = model.FinishTools
	for k := range m.calls {
		reply.ToolCalls = append(reply.ToolCalls, model.ToolCall{ID: fmt.Sprintf("%d-%d", turn, k), Name: "add", Arguments: fmt.Sprintf(`{"a": %d, "b": %d}`, turn, k)})
	}
	return reply, nil
}

func (m *callerModel) largestPrompt() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.largest
}

type numbers struct {
	A int `json:"a"`
	B int `json:"b"`
}

type sum struct {
	Sum int `json:"sum"`
}

func add(_ context.Context, in numbers, _ tool.Call) (sum, error) { return sum{in.A + in.B}, nil }

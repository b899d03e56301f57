package agenttest

import (
	"context"
	"encoding/json"
	"slices"

	"runledger/agent"
	"runledger/tool"
)

// ToolCall is an execution of a tool.
type ToolCall struct {
	Tool      string
	CommandID string
	// Key is the idempotency key that the tool got, Attempt the number of this execution of the command.
	Key       string
	Attempt   int
	Arguments json.RawMessage
	// Output or Err is what the tool returned.
	Output json.RawMessage
	Err    error
}

// watch lets the harness see the calls of a tool. What the tool can do beyond being called, it still can.
func (h *Harness) watch(t tool.Tool) tool.Tool {
	w := watched{Tool: t, h: h}
	if inTx, ok := t.(tool.TxTool); ok {
		return watchedTx{watched: w, tx: inTx}
	}
	reconciler, reconciles := t.(tool.Reconciler)
	sender, sends := t.(tool.HTTPSender)
	switch {
	case sends && reconciles:
		return struct {
			watchedSender
			tool.Reconciler
		}{watchedSender{watched: w, sender: sender}, reconciler}
	case sends:
		return watchedSender{watched: w, sender: sender}
	case reconciles:
		return struct {
			watched
			tool.Reconciler
		}{w, reconciler}
	}
	return w
}

type watched struct {
	tool.Tool
	h *Harness
}

// EffectOf implements [tool.EffectOf], for tools that have it and for those that do not.
func (w watched) EffectOf(arguments json.RawMessage) agent.EffectClass {
	return tool.ClassOf(w.Tool, arguments)
}

func (w watched) Call(ctx context.Context, call tool.Call) (json.RawMessage, error) {
	return w.see(call, func() (json.RawMessage, error) { return w.Tool.Call(ctx, call) })
}

// see notes a call when it begins, since a call that is lost has been made too.
func (w watched) see(call tool.Call, do func() (json.RawMessage, error)) (json.RawMessage, error) {
	w.h.mu.Lock()
	at := len(w.h.calls)
	runID := w.h.runID
	w.h.calls = append(w.h.calls, ToolCall{Tool: w.Spec().Name, CommandID: call.CommandID, Key: call.Key, Attempt: call.Attempt,
		Arguments: slices.Clone(call.Arguments)})
	w.h.mu.Unlock()
	output, err := do()
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	if w.h.runID == runID { // else it is a call that outlived its run
		w.h.calls[at].Output, w.h.calls[at].Err = output, err
	}
	return output, err
}

type watchedSender struct {
	watched
	sender tool.HTTPSender
}

// Send makes the request of an HTTP effect. It is no call of the tool; the record has it as a command of its own.
func (w watchedSender) Send(ctx context.Context, key string, req tool.HTTPRequest) (tool.HTTPResponse, error) {
	return w.sender.Send(ctx, key, req)
}

type watchedTx struct {
	watched
	tx tool.TxTool
}

func (w watchedTx) CallTx(ctx context.Context, tx tool.Tx, call tool.Call) (json.RawMessage, error) {
	return w.see(call, func() (json.RawMessage, error) { return w.tx.CallTx(ctx, tx, call) })
}

package scripted

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"runledger/model"
)

// Step is one prepared answer of a [Script].
type Step struct {
	// Match says which requests the step is for; nil means any.
	Match func(model.Request) bool
	// Reply is the answer. Its texts are streamed word by word. Usage, Finish and Model are filled in where they are empty.
	Reply model.Reply
	// Err, when set, is returned once the texts of Reply have been streamed.
	Err error
	// Wait, when set, holds the answer back until it is closed. The end of the context ends the wait.
	Wait <-chan struct{}
	// Always keeps the step for further requests; otherwise it answers one.
	Always bool
}

// Text is a step that answers in text.
func Text(text string) Step { return Step{Reply: model.Reply{Text: text}} }

// JSON is a step that answers with a value as JSON, as to a request with a schema. It panics if the value has no JSON form.
func JSON(value any) Step {
	raw, err := json.Marshal(value)
	if err != nil {
		panic("scripted: " + err.Error())
	}
	return Text(string(raw))
}

// Calls is a step that calls tools. Calls without an id get one.
func Calls(calls ...model.ToolCall) Step { return Step{Reply: model.Reply{ToolCalls: calls}} }

// Call is a tool call for [Calls]. Arguments may be a string, taken as it is, or any value, written as JSON.
func Call(name string, arguments any) model.ToolCall {
	text, ok := arguments.(string)
	if !ok {
		text = JSON(arguments).Reply.Text
	}
	return model.ToolCall{Name: name, Arguments: text}
}

// Fail is a step that fails, as with agent.Transient or agent.Failed.
func Fail(err error) Step { return Step{Err: err} }

// When limits the step to requests that match.
func (s Step) When(match func(model.Request) bool) Step {
	s.Match = match
	return s
}

// After holds the step's answer back until the channel is closed.
func (s Step) After(wait <-chan struct{}) Step {
	s.Wait = wait
	return s
}

// Forever keeps the step for every request that it matches.
func (s Step) Forever() Step {
	s.Always = true
	return s
}

// Script is a model that gives prepared replies. It is safe for concurrent use.
type Script struct {
	mu       sync.Mutex
	steps    []Step
	requests []model.Request
}

var _ model.Client = (*Script)(nil)

// Replies makes a model that answers each request with the first step left that is for it, and uses the step up. A request
// that no step is for fails for good, and says so.
func Replies(steps ...Step) *Script { return &Script{steps: slices.Clone(steps)} }

// Requests are the requests so far, in the order in which they came, with their keys.
func (s *Script) Requests() []model.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Left is the number of steps that have not been used and do not stay for ever.
func (s *Script) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := 0
	for _, step := range s.steps {
		if !step.Always {
			left++
		}
	}
	return left
}

// Generate implements [model.Client].
func (s *Script) Generate(ctx context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	if ctx.Err() != nil {
		return model.Reply{}, model.ContextError(ctx)
	}
	step, number, ok := s.take(req)
	if !ok {
		return model.Reply{}, failed("the script has no reply for request %d: %s", number, clip(lastUser(req), 200))
	}
	if step.Wait != nil {
		select {
		case <-step.Wait:
		case <-ctx.Done():
			return model.Reply{}, model.ContextError(ctx)
		}
	}
	out := delivery{reply: step.Reply, err: step.Err, after: -1}
	out.reply.ToolCalls = slices.Clone(step.Reply.ToolCalls)
	for i := range out.reply.ToolCalls {
		if out.reply.ToolCalls[i].ID == "" {
			out.reply.ToolCalls[i].ID = "call_" + itoa(number) + "_" + itoa(i)
		}
	}
	if out.reply.Finish == "" {
		out.reply.Finish = model.FinishStop
		if len(out.reply.ToolCalls) > 0 {
			out.reply.Finish = model.FinishTools
		}
	}
	if out.reply.Model == "" {
		out.reply.Model = "scripted"
	}
	if out.reply.Usage == (model.Usage{}) {
		out.reply.Usage = countUsage(req, out.reply)
	}
	return out.deliver(ctx, emit)
}

// take records the request and finds its step. Requests are counted from 1.
func (s *Script) take(req model.Request) (Step, int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, copyRequest(req))
	for i, step := range s.steps {
		if step.Match != nil && !step.Match(req) {
			continue
		}
		if !step.Always {
			s.steps = slices.Delete(s.steps, i, i+1)
		}
		return step, len(s.requests), true
	}
	return Step{}, len(s.requests), false
}

// copyRequest keeps a request from changes that its sender makes later.
func copyRequest(req model.Request) model.Request {
	req.Messages = slices.Clone(req.Messages)
	for i := range req.Messages {
		req.Messages[i].ToolCalls = slices.Clone(req.Messages[i].ToolCalls)
	}
	req.Tools = slices.Clone(req.Tools)
	req.Schema = slices.Clone(req.Schema)
	return req
}

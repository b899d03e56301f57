package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"runledger/agent"
	"runledger/tool"
)

const (
	// keyPlace and argumentsPlace are what the arguments of a lookup may hold; argumentsPlace goes on with a pointer and a }.
	keyPlace       = "{key}"
	argumentsPlace = "{arguments"

	lookupTimeout = 30 * time.Second
)

// Reconcile says how to find out, by its idempotency key, what became of a call whose answer was lost: by asking another
// tool of the same server.
type Reconcile struct {
	// Tool is the server's own name of the tool that is asked. It must only read: by its readOnlyHint, or by a class other
	// than external in Effects.
	Tool string `yaml:"tool"`
	// Arguments are what it is called with. In every text {key} is replaced by the idempotency key of the call that was
	// lost. The texts "{arguments}" and "{arguments/a/b}" stand for the arguments of that call, and for what a JSON Pointer
	// leads to in them.
	Arguments map[string]any `yaml:"arguments"`
	// Found is a JSON Pointer into the answer: its structured content, or else its text, which is then JSON. With nothing
	// there, or null, the call was not found. Empty, every answer means found. An answer that the server marks as an error
	// always means not found.
	Found string `yaml:"found"`
	// Output is a JSON Pointer to what the call would have answered, the whole answer when empty.
	Output string `yaml:"output"`
	// Conclusive is the word of whoever writes this that a call which is not found did not take place and no longer can. It is
	// then made again. It holds for answers with nothing at Found, never for errors: those may come from anything.
	Conclusive bool `yaml:"conclusive"`
}

// check says what is wrong with r as far as that shows without the server.
func (r Reconcile) check() error {
	if r.Tool == "" {
		return errors.New("tool: missing")
	}
	asked, err := json.Marshal(r.Arguments)
	if err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	if !bytes.Contains(asked, []byte(keyPlace)) {
		return fmt.Errorf("arguments: %s stands nowhere in them", keyPlace)
	}
	if _, err := fill(r.Arguments, "key", func([]string) (any, error) { return nil, nil }); err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	if _, err := agent.ParsePointer(r.Found); err != nil {
		return fmt.Errorf("found: %w", err)
	}
	if _, err := agent.ParsePointer(r.Output); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	if r.Conclusive && r.Found == "" {
		return errors.New("conclusive: needs found: an error of the server is no proof that the call did not take place")
	}
	return nil
}

// fill replaces the places in a value of the arguments. argument gives what stands at a pointer in those of the lost call.
func fill(value any, key string, argument func(path []string) (any, error)) (any, error) {
	switch v := value.(type) {
	case string:
		rest, is := strings.CutPrefix(v, argumentsPlace)
		if !is {
			if strings.Contains(v, argumentsPlace) {
				return nil, fmt.Errorf("%q: {arguments...} stands for a whole value, not for a part of a text", v)
			}
			return strings.ReplaceAll(v, keyPlace, key), nil
		}
		pointer, closed := strings.CutSuffix(rest, "}")
		path, err := agent.ParsePointer(pointer)
		if !closed || err != nil {
			return nil, fmt.Errorf("%q: want {arguments} or {arguments/pointer}", v)
		}
		return argument(path)
	case []any:
		filled := make([]any, len(v))
		for i, item := range v {
			var err error
			if filled[i], err = fill(item, key, argument); err != nil {
				return nil, err
			}
		}
		return filled, nil
	case map[string]any:
		filled := make(map[string]any, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			var err error
			if filled[name], err = fill(v[name], key, argument); err != nil {
				return nil, err
			}
		}
		return filled, nil
	}
	return value, nil
}

// reconcilingTool is a tool whose calls can be looked up.
type reconcilingTool struct {
	*remoteTool
	how    Reconcile
	lookup *remoteTool
}

// reconcilers gives the tools that the configuration names the power to reconcile. own are all tools of the server by its
// own names. The error names what the server does not have, or has but cannot be asked.
func (s *Server) reconcilers(tools []tool.Tool, own map[string]*sdk.Tool) error {
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Reconcile)) {
		if own[name] == nil {
			return fmt.Errorf("reconcile: the server has no tool %q", name)
		}
		how := s.cfg.Reconcile[name]
		lookup, err := s.lookup(how, own[how.Tool])
		if err != nil {
			return fmt.Errorf("reconcile: %s: %w", name, err)
		}
		for i, t := range tools {
			if remote, ok := t.(*remoteTool); ok && remote.name == name {
				tools[i] = &reconcilingTool{remoteTool: remote, how: how, lookup: lookup}
			}
		}
	}
	return nil
}

// lookup makes the tool that is asked. What the arguments will hold is not known yet, so they are checked like a plan.
func (s *Server) lookup(how Reconcile, t *sdk.Tool) (*remoteTool, error) {
	if t == nil {
		return nil, fmt.Errorf("the server has no tool %q", how.Tool)
	}
	if !readOnly(s.cfg.Effects, t) {
		return nil, fmt.Errorf("%s may change something: want a tool with readOnlyHint, or name it in effects", how.Tool)
	}
	lookup, err := s.remote(t)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be used: %w", how.Tool, err)
	}
	example, err := fill(how.Arguments, agent.IdempotencyKey("00000000-0000-7000-8000-000000000000", "node"), func([]string) (any, error) {
		return map[string]any{"$from": "/input"}, nil
	})
	if err != nil {
		return nil, err
	}
	arguments, err := json.Marshal(example)
	if err != nil {
		return nil, err
	}
	validator, err := tool.CompileSchema(lookup.spec)
	if err != nil {
		return nil, err
	}
	if err := validator.ValidatePlan(arguments); err != nil {
		return nil, fmt.Errorf("arguments for %s: %w", how.Tool, err)
	}
	return lookup, nil
}

// readOnly reports whether a tool may be called to learn something. That it may be repeated is not enough.
func readOnly(configured map[string]agent.EffectClass, t *sdk.Tool) bool {
	if class, ok := configured[t.Name]; ok {
		return class != agent.External
	}
	return t.Annotations != nil && t.Annotations.ReadOnlyHint
}

// Reconcile implements tool.Reconciler. All its errors are of fault unknown: they leave open what became of the call.
func (t *reconcilingTool) Reconcile(ctx context.Context, call tool.Call) (tool.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	arguments, err := t.arguments(call)
	if err != nil {
		return tool.Finding{}, t.unlearned("%w: %s", tool.ErrNotReconcilable, err.Error())
	}
	raw, err := t.lookup.exchange(ctx, &sdk.CallToolParams{Name: t.lookup.name, Arguments: arguments})
	if err != nil {
		failure, typed := agent.AsError(err)
		if !typed {
			failure = t.unlearned("%w", err)
		}
		failure.Fault = agent.FaultUnknown // whatever is known of the lookup, nothing is of the call
		return tool.Finding{}, failure
	}
	return t.read(raw)
}

func (t *reconcilingTool) unlearned(format string, args ...any) *agent.Error {
	return agent.Unknown(agent.CodeToolFailed, t.spec.Name+": reconcile: "+format, args...)
}

func (t *reconcilingTool) arguments(call tool.Call) (json.RawMessage, error) {
	if call.Key == "" {
		return nil, errors.New("it has no key")
	}
	filled, err := fill(t.how.Arguments, call.Key, func(path []string) (any, error) {
		return agent.Follow(call.Arguments, path)
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(filled)
}

// read makes a finding of the answer of a lookup.
func (t *reconcilingTool) read(raw json.RawMessage) (tool.Finding, error) {
	var r result
	raw = bytes.ToValidUTF8(raw, []byte("\ufffd"))
	if err := json.Unmarshal(raw, &r); err != nil {
		return tool.Finding{}, t.unlearned("the result of %s cannot be read: %w", t.lookup.name, err)
	}
	switch {
	case r.ResultType == "input_required":
		return tool.Finding{}, t.unlearned("%s asks for input, which a run cannot give", t.lookup.name)
	case r.IsError:
		return tool.Finding{}, nil
	}
	document := bytes.TrimSpace(r.StructuredContent)
	if len(document) == 0 || bytes.Equal(document, []byte("null")) {
		document = []byte(simplify(r.Content, math.MaxInt).Text)
	}
	if (t.how.Found != "" || t.how.Output != "") && !json.Valid(document) {
		return tool.Finding{}, t.unlearned("the result of %s is not JSON", t.lookup.name)
	}
	if t.how.Found != "" {
		if at := follow(document, t.how.Found); at == nil || bytes.Equal(at, []byte("null")) {
			return tool.Finding{Conclusive: t.how.Conclusive}, nil
		}
	}
	limit := t.server.cfg.MaxOutputBytes
	if t.how.Output == "" {
		out, err := output(t.lookup.spec.Name, raw, limit)
		if err != nil {
			return tool.Finding{}, t.unlearned("%w", err)
		}
		return tool.Finding{Found: true, Output: out}, nil
	}
	at := follow(document, t.how.Output)
	if at == nil {
		return tool.Finding{}, t.unlearned("the result of %s has nothing at %s", t.lookup.name, t.how.Output)
	}
	out, err := within(at, limit)
	if err != nil {
		return tool.Finding{}, t.unlearned("%w", err)
	}
	return tool.Finding{Found: true, Output: out}, nil
}

// follow returns what stands at a pointer that has been checked, nil where nothing does.
func follow(document json.RawMessage, pointer string) json.RawMessage {
	path, err := agent.ParsePointer(pointer)
	if err != nil {
		return nil
	}
	at, err := agent.Follow(document, path)
	if err != nil {
		return nil
	}
	return bytes.TrimSpace(at)
}

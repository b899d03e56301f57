package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"runledger/agent"
	"runledger/tool"
)

const (
	// KeyMeta is the field of a call's _meta that carries the idempotency key.
	KeyMeta = "runledger/idempotency_key"

	maxTools    = 1000
	maxProgress = 500
	maxNameSize = 64
)

// list asks for the server's tools and makes them ours. A tool that cannot be used is left out, with a warning.
func (s *Server) list(ctx context.Context, current *session) ([]tool.Tool, error) {
	tools := []tool.Tool{} // not nil: it was asked, and may have none
	public, own := map[string]bool{}, map[string]*sdk.Tool{}
	for t, err := range current.client.Tools(ctx, nil) {
		if err != nil {
			return nil, fmt.Errorf("list the tools: %w", err)
		}
		if len(own) == maxTools {
			return nil, fmt.Errorf("has more than %d tools", maxTools)
		}
		own[t.Name] = t
		remote, err := s.remote(t)
		if err == nil && public[remote.spec.Name] {
			err = errors.New("two tools have this name")
		}
		if err != nil {
			s.cfg.Log.Warn("mcp tool left out", "tool", t.Name, "error", err)
			continue
		}
		public[remote.spec.Name] = true
		tools = append(tools, remote)
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Effects)) {
		if own[name] == nil {
			// A slip here could leave a tool that only claims to be harmless with the class it claims.
			return nil, fmt.Errorf("effects: the server has no tool %q", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Approve)) {
		if own[name] == nil {
			// Nobody would be asked about the tool that was meant.
			return nil, fmt.Errorf("approve: the server has no tool %q", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Lane)) {
		if own[name] == nil {
			return nil, fmt.Errorf("lane: the server has no tool %q", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Timeout)) {
		if own[name] == nil {
			return nil, fmt.Errorf("timeout: the server has no tool %q", name)
		}
	}
	return tools, s.reconcilers(tools, own)
}

// remoteTool is a tool of a server.
type remoteTool struct {
	server *Server
	name   string // as the server calls it
	spec   tool.Spec
}

func (s *Server) remote(t *sdk.Tool) (*remoteTool, error) {
	schema, err := json.Marshal(t.InputSchema)
	if err != nil {
		return nil, err
	}
	if t.InputSchema == nil {
		schema = json.RawMessage(`{"type": "object"}`)
	}
	spec := tool.Spec{
		Name: s.cfg.Name + "/" + publicName(t.Name), Description: describe(s.cfg.Name, t), InputSchema: schema, Effect: effect(s.cfg.Effects, t),
		Approve: s.cfg.Approve[t.Name], Lane: s.cfg.Lane[t.Name], Limit: s.cfg.limit(),
		Timeout: time.Duration(s.cfg.Timeout[t.Name]),
	}
	if !tool.ValidName(spec.Name) {
		return nil, errors.New("the name is empty")
	}
	if _, err := tool.CompileSchema(spec); err != nil {
		return nil, err
	}
	return &remoteTool{server: s, name: t.Name, spec: spec}, nil
}

// publicName fits a tool's name to what models and plans accept; MCP allows dots and 128 characters.
func publicName(name string) string {
	fitted := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
	return fitted[:min(len(fitted), maxNameSize)]
}

func describe(server string, t *sdk.Tool) string {
	switch {
	case strings.TrimSpace(t.Description) != "":
		return t.Description
	case t.Title != "":
		return t.Title
	case t.Annotations != nil && t.Annotations.Title != "":
		return t.Annotations.Title
	}
	return fmt.Sprintf("The tool %s of %s.", t.Name, server)
}

// effect is the configured class, else what the annotations say. A tool without annotations may do anything: MCP's own
// defaults are "destructive" and "not idempotent".
func effect(configured map[string]agent.EffectClass, t *sdk.Tool) agent.EffectClass {
	if class, ok := configured[t.Name]; ok {
		return class
	}
	if t.Annotations != nil && (t.Annotations.ReadOnlyHint || t.Annotations.IdempotentHint) {
		return agent.Idempotent
	}
	return agent.External
}

// Spec implements tool.Tool.
func (t *remoteTool) Spec() tool.Spec { return t.spec }

// Call implements tool.Tool. A result that the server marks as an error, and a request that it refuses as malformed, are
// definite. A call that never left this process is transient; any other failure is unknown.
func (t *remoteTool) Call(ctx context.Context, call tool.Call) (json.RawMessage, error) {
	params := &sdk.CallToolParams{Name: t.name, Meta: sdk.Meta{KeyMeta: call.Key}, Arguments: json.RawMessage(`{}`)}
	if len(bytes.TrimSpace(call.Arguments)) > 0 {
		if !json.Valid(call.Arguments) {
			return nil, &tool.ArgumentError{Message: "not valid JSON"}
		}
		params.Arguments = call.Arguments
	}
	if call.Progress != nil {
		token, done := t.server.progress.open(call.Progress)
		defer done()
		params.SetProgressToken(token)
	}
	raw, err := t.exchange(ctx, params)
	if err != nil {
		return nil, err
	}
	return output(t.spec.Name, raw, t.server.cfg.MaxOutputBytes)
}

// exchange makes a call and returns its result as the server wrote it.
func (t *remoteTool) exchange(ctx context.Context, params *sdk.CallToolParams) (json.RawMessage, error) {
	current, err := t.server.acquire(ctx)
	if err != nil {
		return nil, err
	}
	raw, final, err := t.ask(ctx, current, params)
	if err == nil || final || ctx.Err() != nil {
		return raw, err
	}
	// The server died, or forgot the session, after its last call, and this one was the first to notice: it has a second chance
	// with a new one.
	timer := time.NewTimer(t.server.cfg.grace)
	defer timer.Stop()
	select {
	case <-current.gone:
	case <-timer.C:
		return nil, err // it was something else
	case <-ctx.Done():
		return nil, err
	}
	if current, err = t.server.acquire(ctx); err != nil {
		return nil, err
	}
	raw, _, err = t.ask(ctx, current, params)
	return raw, err
}

// ask makes the call on a session. final tells that another session would change nothing: the call has left this process, or
// there is nobody to take it.
func (t *remoteTool) ask(ctx context.Context, current *session, params *sdk.CallToolParams) (raw json.RawMessage, final bool, err error) {
	followed := &request{}
	if current.conn != nil {
		defer current.conn.forget(followed)
	}
	asking, cancel := context.WithCancel(withRequest(ctx, followed))
	defer cancel()
	defer context.AfterFunc(t.server.life, cancel)()
	_, err = current.client.CallTool(asking, params)
	if raw := followed.answered(); raw != nil {
		// The answer counts, also when the SDK cannot read it or the context ended just now: the effect has taken place.
		t.server.failures.Store(0)
		return raw, true, nil
	}
	sent := followed.wasSent()
	if status, sessionLost, wait := followed.refusal(); status != 0 && ctx.Err() == nil {
		if sessionLost { // by the protocol: begin another one
			go current.stop(t.server.cfg.grace)
			return nil, false, agent.Transient(agent.CodeToolFailed, "%s: the server has forgotten the session", t.spec.Name)
		}
		if refusal, ok := errors.AsType[*jsonrpc.Error](err); !ok || refusal.Code == codeRejected {
			return nil, true, t.refusedOverHTTP(status, wait)
		}
	}
	if refusal, ok := errors.AsType[*jsonrpc.Error](err); ok && sent {
		t.server.failures.Store(0)
		return nil, true, t.refused(refusal)
	}
	code, failure := agent.CodeToolFailed, agent.Transient
	if sent {
		failure = agent.Unknown
	}
	switch ctx.Err() {
	case context.DeadlineExceeded:
		code, err = agent.CodeTimeout, ctx.Err()
	case context.Canceled:
		code, err = agent.CodeCancelled, ctx.Err()
	}
	return nil, sent || followed.wasTried(), failure(code, "%s: the server gave no answer: %w", t.spec.Name, withoutURL(err))
}

// codeRejected is the SDK's own code for what a transport did not send or got refused, which no server has said.
const codeRejected = -32005

// refusedOverHTTP reads a status that came without a protocol error, as the gate reads those of http_request.
func (t *remoteTool) refusedOverHTTP(status int, wait time.Duration) error {
	failure := agent.Failed
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		failure = agent.Unknown
	default:
		if status >= 500 {
			failure = agent.Unknown
		}
	}
	err := failure(agent.CodeToolFailed, "%s: the server answered with status %d", t.spec.Name, status)
	err.RetryAfter = wait
	return err
}

// refused reads a protocol error. Those that speak of the request are certain that it was not executed; an internal error
// is not.
func (t *remoteTool) refused(e *jsonrpc.Error) error {
	failure := agent.Unknown
	switch e.Code {
	case jsonrpc.CodeParseError, jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidParams,
		sdk.CodeURLElicitationRequired, sdk.CodeMissingRequiredClientCapabilities, sdk.CodeUnsupportedProtocolVersion:
		failure = agent.Failed
	}
	return failure(agent.CodeToolFailed, "%s: %s", t.spec.Name, clip(e.Message, maxErrorText))
}

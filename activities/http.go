package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"go.temporal.io/sdk/temporal"

	"runledger/agent"
	"runledger/tool"
)

// maxHistoryResponse bounds a response that goes back to workflow code: Temporal keeps it in the workflow's history.
const maxHistoryResponse = 384 << 10

// pausedPoll is how soon a request of workflow code is tried again that a pause has kept from beginning.
const pausedPoll = 10 * time.Second

// CallHTTP makes one HTTP request of workflow code.
func (a *Activities) CallHTTP(ctx context.Context, in agent.HTTPCall) (agent.HTTPReply, error) {
	row, err := a.pass(ctx, a.httpCommand(in.Call, in.Request))
	var refused *temporal.ApplicationError
	if errors.As(err, &refused) && refused.Type() == string(agent.CodePaused) {
		// Workflow code of a user's is not told of pauses, so Temporal comes back for it. That holds no worker.
		return agent.HTTPReply{}, retryLater(agent.CodePaused, pausedPoll, "%s", refused.Message())
	}
	if err != nil {
		return agent.HTTPReply{}, err
	}
	reply := agent.HTTPReply{Reply: ReplyOf(&row)}
	if reply.Outcome != agent.OutcomeCommitted {
		return reply, nil
	}
	if len(row.Result) > maxHistoryResponse {
		return agent.HTTPReply{}, final(agent.CodeLimit, "command %s: the response is on record, but its %d bytes are more than workflow code can take; read it in a tool",
			in.CommandID, len(row.Result))
	}
	response, err := responseOf(&row)
	if err != nil {
		return agent.HTTPReply{}, crossing(err)
	}
	reply.Response = &response
	return reply, nil
}

// httpCommand is an HTTP request on its way through the gate. What is wrong with the request goes on record as its failure.
func (a *Activities) httpCommand(call agent.Call, req agent.HTTPRequest) command {
	c := command{call: call, begin: agent.Begin{Kind: agent.HTTPCommand, Effect: agent.External}}
	sender, _ := a.lookup(tool.HTTPTool).(tool.HTTPSender)
	fault := checkRequest(req)
	switch {
	case fault != nil:
	case sender == nil:
		fault = agent.Failed(agent.CodeToolUnknown, "this worker has no %s tool, whose configuration HTTP effects go by", tool.HTTPTool)
	default:
		c.begin.Effect = tool.HTTPClass(sender, req)
	}
	// Secrets stay out of the record, and out of the hash with it: a token may be another one at the next try.
	public := req.Public()
	c.begin.Input, c.begin.Shown = requestJSON(public), shownRequest(req)
	public.Timeout, public.Effect = 0, ""
	c.begin.InputHash = inputHash(string(agent.HTTPCommand), requestJSON(public))
	c.effect = func(ctx context.Context, d dispatch) (effectResult, error) {
		if fault != nil {
			return effectResult{}, fault
		}
		response, err := sender.Send(ctx, d.key, req)
		if err != nil {
			return effectResult{}, err
		}
		result, err := json.Marshal(response)
		if err != nil { // the request has arrived
			return effectResult{}, agent.Unknown(agent.CodeToolFailed, "write the response down: %w", err)
		}
		return httpResult(req, response, result), nil
	}
	if r, ok := sender.(tool.Reconciler); ok && fault == nil && c.begin.Effect == agent.External {
		c.reconcile = httpFinding(r, call, req)
	}
	return c
}

// httpResult is what a response means for the record.
func httpResult(req agent.HTTPRequest, response agent.HTTPResponse, result json.RawMessage) effectResult {
	return effectResult{result: result,
		event: agent.CommandCommittedData{Kind: agent.HTTPCommand, Output: agent.ShowValue(result)},
		http:  &agent.HTTPRecordedData{Kind: agent.HTTPCommand, Request: req.Exchange(), Response: response.Exchange()}}
}

// httpFinding makes the question what became of a lost request, to the tool that sends it: its arguments are a request.
func httpFinding(r tool.Reconciler, call agent.Call, req agent.HTTPRequest) func(context.Context, dispatch) (finding, error) {
	return func(ctx context.Context, d dispatch) (finding, error) {
		found, err := r.Reconcile(ctx, tool.Call{Key: d.key, RunID: call.RunID, CommandID: call.CommandID, Attempt: d.no,
			Arguments: requestJSON(req), Progress: func(string) {}, Effects: noEffects{"when it reconciles"}})
		if err != nil || !found.Found {
			return finding{conclusive: found.Conclusive}, err
		}
		var response agent.HTTPResponse
		if err := json.Unmarshal(found.Output, &response); err != nil {
			return finding{}, fmt.Errorf("what was found is no response: %w", err)
		}
		return finding{found: true, result: httpResult(req, response, found.Output)}, nil
	}
}

// checkRequest says what is wrong with a request that could not be recorded as it is.
func checkRequest(req agent.HTTPRequest) error {
	texts := []string{req.Method, req.URL}
	if req.Body != nil {
		texts = append(texts, *req.Body)
	}
	switch {
	case !utf8.ValidString(strings.Join(texts, "")):
		return agent.Failed(agent.CodeInvalidArguments, "HTTP request: the method, the URL and the body must be UTF-8 text")
	case req.JSON != nil && !json.Valid(req.JSON):
		return agent.Failed(agent.CodeInvalidArguments, "HTTP request: json is not JSON")
	case req.Effect != "" && req.Effect != agent.Idempotent && req.Effect != agent.External:
		return agent.Failed(agent.CodeInvalidArguments, "HTTP request: effect class %q: want idempotent or external", req.Effect)
	}
	return nil
}

func requestJSON(req agent.HTTPRequest) json.RawMessage {
	if req.JSON != nil && !json.Valid(req.JSON) {
		req.JSON = recordable(req.JSON)
	}
	doc, err := json.Marshal(req)
	if err != nil { // nothing in it but texts and a JSON value
		return json.RawMessage("null")
	}
	return doc
}

// shownRequest is what events tell of a request.
func shownRequest(req agent.HTTPRequest) json.RawMessage {
	if req.JSON != nil && !json.Valid(req.JSON) {
		req.JSON = recordable(req.JSON)
	}
	doc, err := json.Marshal(req.Exchange())
	if err != nil {
		return json.RawMessage("null")
	}
	return doc
}

func responseOf(row *agent.CommandRow) (agent.HTTPResponse, error) {
	var response agent.HTTPResponse
	if err := json.Unmarshal(row.Result, &response); err != nil {
		return response, agent.Failed(agent.CodeInternal, "recorded response of command %s: %w", row.CommandID, err)
	}
	return response, nil
}

// endOf is why an effect has to stop when the context that it was given has ended, nil when that is no reason. An effect
// within a tool stops with the tool's; a failed heartbeat, which ends the activity's context, stops nothing.
func endOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if temporal.IsCanceledError(cause) {
		return errCancelled
	}
	if ctx.Value(withinTool{}) != nil {
		return cause
	}
	return nil
}

// withinTool marks the context of an effect that a tool asks for.
type withinTool struct{}

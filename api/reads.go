package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"

	"runledger/agent"
	"runledger/sse"
)

// eventsPage is how many events are read at once to make a run's object.
const eventsPage = 1000

// pathValue is a path parameter as it was meant. chi matches the encoded path where there is one.
func pathValue(r *http.Request, name string) string {
	value := chi.URLParam(r, name)
	if r.URL.RawPath == "" {
		return value
	}
	plain, err := url.PathUnescape(value)
	if err != nil {
		return value // the URL has been parsed, so this does not happen; the name is unknown then
	}
	return plain
}

// commandID reads a command's id from the path. What the ledger could not even look up names nothing.
func commandID(r *http.Request) (string, error) {
	id := pathValue(r, "command_id")
	if !text(id) {
		return "", &agent.NotFoundError{What: "command", ID: agent.Preview(id, 64)}
	}
	return id, nil
}

// text reports whether the database can hold what stood in a URL: UTF-8 without NUL.
func text(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// run finds the run that a path names, for its owner.
func (a *API) run(r *http.Request) (agent.Run, error) {
	id, err := pathID(r, "run_id", "run")
	if err != nil {
		return agent.Run{}, err
	}
	return a.cfg.Ledger.Run(r.Context(), caller(r).Owner, id)
}

// conversation finds the conversation that a path names, for its owner.
func (a *API) conversation(r *http.Request) (agent.Conversation, error) {
	id, err := pathID(r, "conversation_id", "conversation")
	if err != nil {
		return agent.Conversation{}, err
	}
	return a.cfg.Ledger.Conversation(r.Context(), caller(r).Owner, id)
}

// pathID reads an id from the path. What is no id names nothing.
func pathID(r *http.Request, name, what string) (string, error) {
	id := pathValue(r, name)
	var f faults
	if f.checkID("", &id); len(f) > 0 || id == "" {
		return "", &agent.NotFoundError{What: what, ID: agent.Preview(id, 64)}
	}
	return id, nil
}

// readLimit reads the limit of a page.
func readLimit(r *http.Request, fallback, most int) (int, error) {
	text := r.URL.Query().Get("limit")
	if !r.URL.Query().Has("limit") {
		return fallback, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > most {
		return 0, badParameter("limit", "%q: want 1 to %d", agent.Preview(text, 32), most)
	}
	return limit, nil
}

// readIDParameter reads an optional id from the query.
func readIDParameter(r *http.Request, name string) (string, error) {
	id := r.URL.Query().Get(name)
	var f faults
	if f.checkID(name, &id); len(f) > 0 {
		return "", badParameter(name, "%s", f[0].Message)
	}
	return id, nil
}

func (a *API) getRuns(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	f := agent.RunFilter{Owner: caller(r).Owner, Status: agent.Status(query.Get("status")), Agent: query.Get("agent")}
	if f.Status != "" && !slices.Contains(statuses(), f.Status) {
		return badParameter("status", "there is no status %q", agent.Preview(string(f.Status), 64))
	}
	if !text(f.Agent) {
		return badParameter("agent", "there is no agent %q", agent.Preview(f.Agent, 64))
	}
	switch value := query.Get("in_doubt"); value {
	case "true":
		f.InDoubt = true
	case "", "false":
	default:
		return badParameter("in_doubt", "%q: want true or false", agent.Preview(value, 64))
	}
	var err error
	if f.Limit, err = readLimit(r, 50, 500); err != nil {
		return err
	}
	if f.Before, err = readIDParameter(r, "before"); err != nil {
		return err
	}
	if f.ConversationID, err = readIDParameter(r, "conversation_id"); err != nil {
		return err
	}
	runs, more, err := a.cfg.Ledger.Runs(r.Context(), f)
	if err != nil {
		return err
	}
	heads := make([]runHead, len(runs))
	for i, run := range runs {
		heads[i] = headOf(run)
	}
	return writeJSON(w, http.StatusOK, struct {
		Runs    []runHead `json:"runs"`
		HasMore bool      `json:"has_more"`
	}{heads, more})
}

func statuses() []agent.Status {
	return []agent.Status{agent.Queued, agent.Running, agent.Waiting, agent.Paused, agent.InDoubt, agent.LimitReached, agent.Stuck,
		agent.Cancelling, agent.Completed, agent.FailedStatus, agent.Cancelled}
}

func (a *API) getRun(w http.ResponseWriter, r *http.Request) error {
	run, err := a.run(r)
	if err != nil {
		return err
	}
	object, err := a.runObject(r.Context(), run)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, object)
}

// runObject reads what a run's events say of it.
func (a *API) runObject(ctx context.Context, run agent.Run) (runObject, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	plan, err := a.cfg.Ledger.RunPlan(ctx, run.RunID)
	if err != nil {
		return runObject{}, fmt.Errorf("read the plan of run %s: %w", run.RunID, err)
	}
	view := newRunView(run, plan)
	if view.object.Approvals, err = a.openApprovals(ctx, run); err != nil {
		return runObject{}, err
	}
	if run.Status == agent.Queued {
		if view.object.QueuedBehind, err = a.cfg.Ledger.QueuedBehind(ctx, run.RunID); err != nil {
			return runObject{}, fmt.Errorf("read what run %s waits for: %w", run.RunID, err)
		}
	}
	if view.mayWait() {
		if view.object.WaitsFor, err = a.cfg.Ledger.Waits(ctx, run.RunID); err != nil {
			return runObject{}, fmt.Errorf("read what run %s waits for: %w", run.RunID, err)
		}
	}
	if withoutEvents(run) {
		return view.object, nil
	}
	scope := agent.LogScope{ConversationID: run.ConversationID, RunID: run.RunID}
	for after := run.StartSequence - 1; ; {
		events, err := a.cfg.Ledger.Events(ctx, scope, after, eventsPage)
		if err != nil {
			return runObject{}, fmt.Errorf("read the events of run %s: %w", run.RunID, err)
		}
		for _, e := range events {
			view.add(e)
			after = e.Sequence
		}
		if len(events) < eventsPage {
			return a.settled(ctx, view.finish())
		}
	}
}

// settled takes out of a run's doubts what was said of them after its end. Nothing is appended then: only the rows know.
func (a *API) settled(ctx context.Context, object runObject) (runObject, error) {
	if !object.Status.Terminal() || len(object.InDoubt) == 0 {
		return object, nil
	}
	commands, err := a.cfg.Ledger.Commands(ctx, object.RunID)
	if err != nil {
		return runObject{}, fmt.Errorf("read the commands of run %s: %w", object.RunID, err)
	}
	stands := map[string]agent.CommandState{}
	for _, c := range commands {
		stands[c.CommandID] = c.State
	}
	object.InDoubt = slices.DeleteFunc(object.InDoubt, func(d doubt) bool { return stands[d.CommandID] != agent.CommandInDoubt })
	says := map[agent.CommandState]string{agent.Committed: "completed", agent.CommandFailed: "failed", agent.Released: "aborted"}
	for i := range object.ToolCalls {
		call := &object.ToolCalls[i]
		if now, ok := says[stands[call.CommandID]]; ok && call.Status == "in_doubt" {
			call.Status = now
		}
	}
	return object, nil
}

func (a *API) getCommands(w http.ResponseWriter, r *http.Request) error {
	run, err := a.run(r)
	if err != nil {
		return err
	}
	commands, err := a.cfg.Ledger.Commands(r.Context(), run.RunID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Commands []agent.Command `json:"commands"`
		HasMore  bool            `json:"has_more"`
	}{orEmpty(commands), false})
}

func (a *API) getCommand(w http.ResponseWriter, r *http.Request) error {
	run, err := a.run(r)
	if err != nil {
		return err
	}
	id, err := commandID(r)
	if err != nil {
		return err
	}
	command, err := a.cfg.Ledger.Command(r.Context(), run.RunID, id)
	if err != nil {
		return err
	}
	if withoutPayloads(run) { // another run's result may have the same bytes
		command.Input, command.Result = nil, nil
	}
	return writeJSON(w, http.StatusOK, command)
}

func (a *API) getCheckpoints(w http.ResponseWriter, r *http.Request) error {
	run, err := a.run(r)
	if err != nil {
		return err
	}
	if withoutEvents(run) {
		return &agent.GoneError{RunID: run.RunID}
	}
	checkpoints, err := a.cfg.Ledger.Checkpoints(r.Context(), run.RunID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Checkpoints []agent.Checkpoint `json:"checkpoints"`
		HasMore     bool               `json:"has_more"`
	}{orEmpty(checkpoints), false})
}

func (a *API) getReplayContext(w http.ResponseWriter, r *http.Request) error {
	run, err := a.run(r)
	if err != nil {
		return err
	}
	rc, err := a.cfg.Ledger.ReplayContext(r.Context(), run.RunID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, rc)
}

// getVerification answers 200 whatever was found: that the record has been changed is what was asked for.
func (a *API) getVerification(w http.ResponseWriter, r *http.Request) error {
	run, err := a.run(r)
	if err != nil {
		return err
	}
	if a.cfg.Verifier != nil {
		verification, err := a.cfg.Verifier.Verify(r.Context(), run.RunID)
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, verification)
	}
	record, err := a.cfg.Ledger.RunRecord(r.Context(), run.RunID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, agent.VerifyRun(record, agent.Testimony{Absent: agent.WitnessNotConfigured}))
}

func (a *API) getConversations(w http.ResponseWriter, r *http.Request) error {
	limit, err := readLimit(r, 50, 500)
	if err != nil {
		return err
	}
	before, err := readIDParameter(r, "before")
	if err != nil {
		return err
	}
	conversations, more, err := a.cfg.Ledger.Conversations(r.Context(), caller(r).Owner, before, limit)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Conversations []agent.Conversation `json:"conversations"`
		HasMore       bool                 `json:"has_more"`
	}{orEmpty(conversations), more})
}

func (a *API) getConversation(w http.ResponseWriter, r *http.Request) error {
	conversation, err := a.conversation(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, conversation)
}

func (a *API) getExecutionStatus(w http.ResponseWriter, r *http.Request) error {
	conversation, err := a.conversation(r)
	if err != nil {
		return err
	}
	status, err := a.cfg.Ledger.ExecutionStatus(r.Context(), conversation.ConversationID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, status)
}

func (a *API) getMessages(w http.ResponseWriter, r *http.Request) error {
	limit, err := readLimit(r, 1000, 10000)
	if err != nil {
		return err
	}
	conversation, err := a.conversation(r)
	if err != nil {
		return err
	}
	after, err := messagesAfter(r, conversation.LastSequence)
	if err != nil {
		return err
	}
	messages, more, err := a.cfg.Ledger.Messages(r.Context(), conversation.ConversationID, after, limit)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Messages []agent.Message `json:"messages"`
		HasMore  bool            `json:"has_more"`
	}{orEmpty(messages), more})
}

// messagesAfter reads after which number a page of messages begins. What was said before a fork has numbers up to 0, and comes
// first.
func messagesAfter(r *http.Request, last int64) (int64, error) {
	query := r.URL.Query()
	if after := query["after"]; len(after) == 1 && !query.Has("from_sequence") {
		if n, err := strconv.ParseInt(after[0], 10, 64); err == nil && n <= 0 {
			return n, nil
		}
	}
	position, err := sse.ReadPosition(nil, query)
	if err != nil {
		return 0, err
	}
	after, err := position.Resolve(agent.Extent{Oldest: 1, Last: last})
	if after == 0 {
		after = math.MinInt64
	}
	return after, err
}

// orEmpty makes a list that JSON writes as [] and not as null.
func orEmpty[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

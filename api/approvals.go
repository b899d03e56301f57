package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"runledger/agent"
)

// Approver takes people's answers to whether calls may be made.
type Approver interface {
	// Approvals lists approvals, newest first. hasMore is exact.
	Approvals(ctx context.Context, f agent.ApprovalFilter) (approvals []agent.Approval, hasMore bool, err error)
	Approval(ctx context.Context, owner, approvalID string) (agent.Approval, error)
	// DecideApproval takes an answer, once. The same answer again changes nothing; another one is an *agent.ConflictError.
	DecideApproval(ctx context.Context, owner, approvalID string, answer agent.ApprovalAnswer) (agent.Approval, error)
	// CommandInput is what a command is to be called with, its secrets too.
	CommandInput(ctx context.Context, runID, commandID string) (json.RawMessage, error)
}

// approvalObject is an approval as it is shown.
type approvalObject struct {
	agent.Approval
	// ApprovalURL is where the answer goes.
	ApprovalURL string `json:"approval_url"`
}

func objectOf(a agent.Approval) approvalObject {
	a.RequestedAt, a.ExpiresAt, a.DecidedAt = a.RequestedAt.UTC(), a.ExpiresAt.UTC(), utc(a.DecidedAt)
	return approvalObject{a, root + "/approvals/" + a.ApprovalID}
}

func objectsOf(approvals []agent.Approval) []approvalObject {
	objects := make([]approvalObject, len(approvals))
	for i, one := range approvals {
		objects[i] = objectOf(one)
	}
	return objects
}

// allApprovals is the state that selects approvals of every state.
const allApprovals = "all"

func approvalStates() []agent.ApprovalState {
	return []agent.ApprovalState{agent.ApprovalOpen, agent.ApprovalApproved, agent.ApprovalDenied, agent.ApprovalExpired, agent.ApprovalWithdrawn}
}

func (a *API) getApprovals(w http.ResponseWriter, r *http.Request) (err error) {
	f := agent.ApprovalFilter{Owner: caller(r).Owner, State: agent.ApprovalOpen}
	if query := r.URL.Query(); query.Has("state") {
		f.State = agent.ApprovalState(query.Get("state"))
	}
	switch {
	case f.State == allApprovals:
		f.State = ""
	case !slices.Contains(approvalStates(), f.State):
		return badParameter("state", "%q: want open, approved, denied, expired, withdrawn or all", agent.Preview(string(f.State), 64))
	}
	if f.Limit, err = readLimit(r, 50, 500); err != nil {
		return err
	}
	if f.Before, err = readIDParameter(r, "before"); err != nil {
		return err
	}
	if f.RunID, err = readIDParameter(r, "run_id"); err != nil {
		return err
	}
	approvals, more, err := a.cfg.Ledger.Approvals(r.Context(), f)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Approvals []approvalObject `json:"approvals"`
		HasMore   bool             `json:"has_more"`
	}{objectsOf(approvals), more})
}

// mostShown is how many open approvals the object of a run shows.
const mostShown = 100

// openApprovals are those that a run waits for, the oldest first.
func (a *API) openApprovals(ctx context.Context, run agent.Run) ([]approvalObject, error) {
	if run.Status.Terminal() {
		return []approvalObject{}, nil
	}
	approvals, _, err := a.cfg.Ledger.Approvals(ctx, agent.ApprovalFilter{Owner: agent.AnyOwner, RunID: run.RunID, State: agent.ApprovalOpen, Limit: mostShown})
	if err != nil {
		return nil, fmt.Errorf("read the approvals of run %s: %w", run.RunID, err)
	}
	slices.Reverse(approvals)
	return objectsOf(approvals), nil
}

// approval finds the approval that a path names, of the run that it names, if it names one.
func (a *API) approval(r *http.Request) (agent.Approval, error) {
	runID := pathValue(r, "run_id")
	if runID != "" {
		run, err := a.run(r)
		if err != nil {
			return agent.Approval{}, err
		}
		runID = run.RunID
	}
	id, err := pathID(r, "approval_id", "approval")
	if err != nil {
		return agent.Approval{}, err
	}
	found, err := a.cfg.Ledger.Approval(r.Context(), caller(r).Owner, id)
	if err == nil && runID != "" && found.RunID != runID {
		return agent.Approval{}, &agent.NotFoundError{What: "approval", ID: id}
	}
	return found, err
}

func (a *API) getApproval(w http.ResponseWriter, r *http.Request) error {
	found, err := a.approval(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, objectOf(found))
}

type approvalBody struct {
	Decision  string          `json:"decision"`
	Arguments json.RawMessage `json:"arguments"`
	By        string          `json:"by"`
	Note      string          `json:"note"`
}

func (b *approvalBody) check() (f faults) {
	switch b.Decision {
	case "approve":
	case "deny":
		if b.Arguments != nil {
			f.add("/arguments", "only a call that is approved has arguments")
		}
	default:
		f.add("/decision", "%q: want approve or deny", agent.Preview(b.Decision, 64))
	}
	if len(b.By) > maxResolver {
		f.add("/by", "longer than %d bytes", maxResolver)
	}
	if len(b.Note) > maxNote {
		f.add("/note", "longer than %d bytes", maxNote)
	}
	return f
}

// postApproval takes somebody's answer and gives the approval as it is then.
func (a *API) postApproval(w http.ResponseWriter, r *http.Request) error {
	var body approvalBody
	if _, err := a.readBody(w, r, &body); err != nil {
		return err
	}
	if f := body.check(); len(f) > 0 {
		return faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	asked, err := a.approval(r)
	if err != nil {
		return err
	}
	answer := agent.ApprovalAnswer{Approve: body.Decision == "approve", By: a.by(r, body.By), Note: body.Note}
	if body.Arguments != nil {
		if answer.Arguments, answer.Shown, err = a.edited(r, asked, body.Arguments); err != nil {
			return err
		}
	}
	answered, err := a.cfg.Ledger.DecideApproval(r.Context(), caller(r).Owner, asked.ApprovalID, answer)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, objectOf(answered))
}

// edited checks arguments against the schema that the run's definition has for the tool.
func (a *API) edited(r *http.Request, asked agent.Approval, by json.RawMessage) (edited, shown json.RawMessage, err error) {
	run, err := a.cfg.Ledger.Run(r.Context(), caller(r).Owner, asked.RunID)
	if err != nil {
		return nil, nil, err
	}
	tool, known := run.Definition.Tool(asked.Tool)
	if !known {
		return nil, nil, fmt.Errorf("approval %s: agent %s has no tool %q", asked.ApprovalID, run.Definition.Agent, asked.Tool)
	}
	was, err := a.cfg.Ledger.CommandInput(r.Context(), asked.RunID, asked.CommandID)
	if err != nil {
		return nil, nil, err
	}
	edited, shown, found, err := a.cfg.EditArguments(tool, was, by)
	if err != nil {
		return nil, nil, err
	}
	if len(found) == 0 {
		return edited, shown, nil
	}
	faults := make([]fault, len(found))
	for i, f := range found {
		faults[i] = fault{"/arguments" + f.Pointer, f.Message}
	}
	return nil, nil, faultyBody(http.StatusUnprocessableEntity, "invalid-request", faults)
}

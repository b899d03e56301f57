package api

import (
	"net/http"

	"runledger/agent"
)

// agentObject is an agent that a request may name. Its instructions stay inside.
type agentObject struct {
	Name   string         `json:"name"`
	Mode   agent.Mode     `json:"mode"`
	Model  agent.ModelRef `json:"model"`
	Tools  []string       `json:"tools"`
	Limits agent.Limits   `json:"limits"`
	// RequirePlan: a run of it has to bring its plan.
	RequirePlan bool `json:"require_plan"`
}

func (a *API) getAgents(w http.ResponseWriter, _ *http.Request) error {
	agents := make([]agentObject, len(a.cfg.Agents))
	for i, b := range a.cfg.Agents {
		agents[i] = agentObject{b.Name, b.Mode, b.Model, orEmpty(b.Tools), b.Limits.Or(agent.DefaultLimits()), b.RequirePlan}
	}
	return writeJSON(w, http.StatusOK, struct {
		Agents  []agentObject `json:"agents"`
		HasMore bool          `json:"has_more"`
	}{agents, false})
}

func (a *API) getTools(w http.ResponseWriter, r *http.Request) error {
	tools, err := a.cfg.Ledger.Tools(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Tools   []agent.ToolRef `json:"tools"`
		HasMore bool            `json:"has_more"`
	}{orEmpty(tools), false})
}

type statusObject struct {
	Status string `json:"status"`
}

// getHealth says that the process answers.
func (a *API) getHealth(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, statusObject{"ok"})
}

// getMetrics answers with what the process counts.
func (a *API) getMetrics(w http.ResponseWriter, r *http.Request) error {
	if a.cfg.Metrics == nil {
		return newProblem(http.StatusNotFound, "not-found", "this process shows no metrics")
	}
	w.Header().Set("Cache-Control", "no-store")
	a.cfg.Metrics.ServeHTTP(w, r)
	return nil
}

// getReady says that a run can be accepted: the ledger is there, and a worker has said what it can do.
func (a *API) getReady(w http.ResponseWriter, r *http.Request) error {
	if err := a.cfg.Ledger.Ping(r.Context()); err != nil {
		a.log.WarnContext(r.Context(), "not ready", "error", err)
		return unavailable("ledger-unavailable", "the ledger cannot be reached")
	}
	tools, err := a.cfg.Ledger.Tools(r.Context())
	if err != nil {
		return err
	}
	if len(tools) == 0 {
		return unavailable("no-worker", "no worker has published its tools yet")
	}
	return writeJSON(w, http.StatusOK, statusObject{"ready"})
}

func (a *API) getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openAPI)
	return nil
}

package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"runledger/agent"
	"runledger/auth"
)

// limitsBody gives a run other limits. Those that are left out stay.
type limitsBody struct {
	MaxSteps     int            `json:"max_steps"`
	MaxToolCalls int            `json:"max_tool_calls"`
	MaxTokens    int            `json:"max_tokens"`
	MaxRepeats   int            `json:"max_repeats"`
	MaxParallel  int            `json:"max_parallel"`
	Timeout      agent.Duration `json:"timeout"`
	OnLimit      agent.OnLimit  `json:"on_limit"`
	Reason       string         `json:"reason"`
}

func (b *limitsBody) limits() agent.Limits {
	return agent.Limits{MaxSteps: b.MaxSteps, MaxToolCalls: b.MaxToolCalls, MaxTokens: b.MaxTokens, MaxRepeats: b.MaxRepeats,
		MaxParallel: b.MaxParallel, Timeout: b.Timeout, OnLimit: b.OnLimit}
}

// postLimits gives a run other limits. One that is parked at a limit goes on when it has more.
func (a *API) postLimits(w http.ResponseWriter, r *http.Request) error {
	var body limitsBody
	if _, err := a.readBody(w, r, &body); err != nil {
		return err
	}
	limits := body.limits()
	var f faults
	f.checkReason(body.Reason)
	f.checkLimits("", limits)
	if limits == (agent.Limits{}) {
		f.add("", "no limit is named: want at least one of max_steps, max_tool_calls, max_tokens, max_repeats, max_parallel, timeout and on_limit")
	}
	if len(f) > 0 {
		return faultyBody(http.StatusUnprocessableEntity, "invalid-request", f)
	}
	run, err := a.run(r)
	if err != nil {
		return err
	}
	if err := a.mayGrant(caller(r), &run, limits); err != nil {
		return err
	}
	if run, err = a.cfg.Ledger.ChangeLimits(r.Context(), caller(r).Owner, run.RunID, limits, a.by(r, ""), body.Reason); err != nil {
		return err
	}
	return a.writeAccepted(w, r, run)
}

// mayGrant lets users give a run what its agent has by the configuration, and operators anything. Of an agent that is no longer
// configured, the run's own definition counts.
func (a *API) mayGrant(who auth.Caller, run *agent.Run, limits agent.Limits) error {
	if who.Role.Includes(auth.Operator) {
		return nil
	}
	allowed := run.Definition.Limits
	if b, ok := a.blueprint(run.Definition.Agent); ok {
		allowed = b.Limits.Or(agent.DefaultLimits())
	}
	beyond := limits.Beyond(allowed)
	if len(beyond) == 0 {
		return nil
	}
	most := make([]string, len(beyond))
	for i, name := range beyond {
		most[i] = fmt.Sprintf("%s %s", name, allowed.Show(name))
	}
	return newProblem(http.StatusForbidden, "operator-role-needed", "agent %s has %s; more needs a token of role operator, this one has role %s",
		run.Definition.Agent, strings.Join(most, ", "), who.Role)
}

// checkLimits looks at each limit by itself. at is where they stand in the body.
func (f *faults) checkLimits(at string, limits agent.Limits) {
	limits.Check(func(field, message string) { f.add(at+"/"+field, "%s", message) })
}

// checkTighter lets a caller tighten the agent's limits, not loosen them.
func (f *faults) checkTighter(asked, allowed agent.Limits) {
	for _, name := range asked.Beyond(allowed) {
		f.add("/limits/"+string(name), "%s: the agent's own limit is %s", asked.Show(name), allowed.Show(name))
	}
}

// metLimit is a limit that a run has met and that has not been raised since. A run may be parked at several.
type metLimit struct {
	agent.LimitReachedData
	Since time.Time `json:"since"`
}

// meet takes in that a limit was met, changed limits, or a new execution, which tells anew.
func (o *runObject) meet(e agent.Event) {
	switch e.Type {
	case agent.LimitReachedType:
		d := read[agent.LimitReachedData](e)
		if !slices.Contains(agent.MetLimits(), d.Limit) {
			return // of a later version
		}
		o.LimitsReached = slices.DeleteFunc(o.LimitsReached, func(m metLimit) bool { return m.Limit == d.Limit })
		o.LimitsReached = append(o.LimitsReached, metLimit{d, e.CreatedAt.UTC()})
	case agent.LimitsChanged:
		now := read[agent.LimitsChangedData](e).Limits
		o.LimitsReached = slices.DeleteFunc(o.LimitsReached, func(m metLimit) bool {
			return now.Number(m.Limit) > m.Used
		})
	default:
		o.LimitsReached = []metLimit{}
	}
}

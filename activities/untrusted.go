package activities

import (
	"math"
	"slices"

	"runledger/agent"
	"runledger/model"
)

// present gives a request as the model is to see it: what tools gave is marked as data, and cut where it is more than half of what the
// run's prompts may tell.
//
// The command's input hash is that of the request before: what is asked does not change with how it is put. So a command that is at work
// while workers are replaced by ones that put it otherwise is still the same command.
func present(request model.Request, run *agent.Run) model.Request {
	limit := math.MaxInt
	if budget := budgetOf(run); budget > 0 {
		limit = newWindow(budget).resultBytes()
	}
	if i := slices.IndexFunc(request.Messages, func(m model.Message) bool { return m.Untrusted > limit }); i >= 0 {
		request.Messages = slices.Clone(request.Messages)
		m := &request.Messages[i] // the inputs of a node: there is one such message
		at := len(m.Text) - m.Untrusted
		data := cutText(m.Text[at:], m.Untrusted, limit)
		m.Text, m.Untrusted = m.Text[:at]+data, len(data)
	}
	return model.MarkUntrusted(request)
}

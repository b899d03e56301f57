package activities

import (
	"context"
	"crypto/rand"
	"encoding/json"

	"go.temporal.io/sdk/activity"

	"runledger/agent"
)

// Await asks whether a wait node can go on. It waits for nothing itself: when it is asked too early, its reply says for what,
// and the workflow asks again when there is news.
func (a *Activities) Await(ctx context.Context, in agent.WaitCall) (agent.Reply, error) {
	info := activity.GetInfo(ctx)
	input, err := json.Marshal(struct {
		Signal string         `json:"signal,omitempty"`
		For    agent.Duration `json:"for,omitempty"`
	}{in.Signal, in.For})
	if err != nil {
		return agent.Reply{}, err
	}
	w := agent.Wait{WaitCall: in, Input: input, InputHash: inputHash(string(agent.WaitCommand), json.RawMessage(input)),
		Dispatch: agent.Dispatch{Epoch: in.Epoch, Schedule: in.Schedule, Attempt: info.Attempt, Token: rand.Text()}}
	if in.Opens {
		w.Node = &agent.NodeStartedData{Kind: agent.WaitNode, Index: in.NodeIndex}
	}
	begun, err := a.ledger.Await(ctx, w)
	if err != nil {
		return agent.Reply{}, crossing(err)
	}
	if begun.Verdict == agent.IsPaused {
		return agent.Reply{}, pausedBy(in.RunID, begun.PausedBy)
	}
	return ReplyOf(begun.Row), nil
}

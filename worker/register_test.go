package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"runledger/activities"
	"runledger/agent"
	"runledger/worker"
)

// registry notes the names of what is registered.
type registry struct {
	sdkworker.Registry
	activities, workflows []string
}

func (r *registry) RegisterActivityWithOptions(_ any, options activity.RegisterOptions) {
	r.activities = append(r.activities, options.Name)
}

func (r *registry) RegisterWorkflowWithOptions(_ any, options workflow.RegisterOptions) {
	r.workflows = append(r.workflows, options.Name)
}

// The guard lets workflow code call the activities of this list, and no others.
func TestActivityNamesAreThoseThatAreRegistered(t *testing.T) {
	t.Parallel()
	r := &registry{}
	worker.Register(r, &activities.Activities{})
	require.ElementsMatch(t, agent.ActivityNames(), r.activities)
	require.Equal(t, []string{agent.WorkflowName}, r.workflows)
}

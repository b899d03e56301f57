package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"

	"runledger/agent"
)

// Whatever a run is at when its worker dies, another worker goes on with it soon: what writes to the ledger only does not make
// a run wait longer than a lost effect does. The end is written within a workflow task, of which Temporal notices sooner.
func TestALostWorkerIsNoticedSoon(t *testing.T) {
	t.Parallel()
	const soon = 20 * time.Second
	noticed := map[string]time.Duration{}
	w := newWorld(t, input(graph(work("f").onError(agent.OnErrorSkip), work("s", "f"), work("a"), say("answer", "a", "s"))),
		script{"f": {{ends: fails}}, "a": {{ends: unheard}}})
	w.env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
		within := info.StartToCloseTimeout
		if info.HeartbeatTimeout > 0 {
			within = min(within, info.HeartbeatTimeout)
		}
		noticed[info.ActivityType.Name] = max(noticed[info.ActivityType.Name], within)
	})
	w.run()
	require.NoError(t, w.err)
	for _, name := range []string{string(agent.CallTool), string(agent.CallModel), string(agent.SettleCommand), string(agent.Record)} {
		require.Contains(t, noticed, name)
		require.LessOrEqual(t, noticed[name], soon, name)
	}
}

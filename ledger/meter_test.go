package ledger_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/pgtest"
	"runledger/ledger"
)

// counted is a meter that keeps what it was told.
type counted struct {
	mu   sync.Mutex
	told []string
}

func (c *counted) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, fmt.Sprintf(format, args...))
}

func (c *counted) Gate(call ledger.GateCall, took time.Duration, err error) {
	c.note("gate %s %t %t", call, took > 0, err == nil)
}
func (c *counted) RunAccepted()                 { c.note("accepted") }
func (c *counted) RunEnded(status agent.Status) { c.note("ended %s", status) }
func (c *counted) CommandDecided(kind agent.CommandKind, effect agent.EffectClass, outcome agent.CommandState) {
	c.note("command %s %q %s", kind, effect, outcome)
}
func (c *counted) IntentTried(kind ledger.IntentKind, delivered bool) {
	c.note("intent %s %t", kind, delivered)
}

func TestMeterHearsWhatIsDurable(t *testing.T) {
	t.Parallel()
	url, meter := pgtest.Database(t), &counted{}
	l, err := ledger.Open(t.Context(), url, ledger.Options{Meter: meter})
	require.NoError(t, err)
	t.Cleanup(l.Close)
	b := &bench{Ledger: l, url: url, db: rawPool(t, url)}
	a := acceptance(twoStep(t))
	run, _, err := b.Accept(t.Context(), a)
	require.NoError(t, err)
	standing, err := b.Standing(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[agent.Status]int64{agent.Queued: 1}, standing.Open)
	require.EqualValues(t, 1, standing.Pending)

	intents, err := b.ClaimIntents(t.Context(), 10)
	require.NoError(t, err)
	require.NoError(t, b.IntentFailed(t.Context(), intents[0], time.Millisecond, fmt.Errorf("away")))
	require.NoError(t, b.IntentDelivered(t.Context(), intents[0]))
	b.runs(t, command{run: run, id: "a"}, `1`)
	pay := command{run: run, id: "b", index: 1, effect: agent.External}
	_, err = b.Conclude(t.Context(), pay.conclude(b.begins(t, pay), agent.CommandInDoubt, agent.Failed(agent.CodeInDoubt, "who knows")))
	require.NoError(t, err)
	stale := command{run: run, id: "b", epoch: 7}.begin()
	_, err = b.Begin(t.Context(), stale)
	requireCode(t, err, agent.CodeStaleEpoch)
	standing, err = b.Standing(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, standing.InDoubt)
	require.Zero(t, standing.Pending)
	b.finish(t, run, agent.FailedStatus)

	require.Equal(t, []string{"accepted", "intent start false", "intent start true", "gate begin true true", `command tool "idempotent" committed`,
		"gate commit true true", "gate begin true true", `command tool "external" in_doubt`, "gate conclude true true", "gate begin true false", "ended failed"},
		meter.told)
	stats := b.Stats()
	require.EqualValues(t, 16, stats.MaxConns)
	require.Positive(t, stats.Acquired)
}

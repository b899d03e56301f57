package activities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/tool"
)

func TestWhatCannotBeLookedUpIsAskedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		asks int
	}{
		"a failure":              {errors.New("status 503"), reconcileTries},
		"not a call of any rule": {agent.Unknown(agent.CodeToolFailed, "reconcile: %w", tool.ErrNotReconcilable), 1},
		"found":                  {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asks := 0
				ask := command{reconcile: func(_ context.Context, d dispatch) (finding, error) {
					asks++
					require.Equal(t, dispatch{no: 2, key: "run/a"}, d)
					return finding{found: c.err == nil}, c.err
				}}
				ask.call.RunID, ask.call.CommandID = "run", "a"
				f, err := (&Activities{log: slog.New(slog.DiscardHandler)}).find(t.Context(), &ask, 2)
				require.Equal(t, fmt.Sprint(c.err), fmt.Sprint(err))
				require.Equal(t, c.err == nil, f.found)
				require.Equal(t, c.asks, asks)
			})
		})
	}
}

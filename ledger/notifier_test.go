package ledger

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"runledger/internal/pgtest"
)

// News that comes in one go is told in few notifications, none is left when the notifier has stopped, and a conversation
// is named once for all its news since the last time.
func TestNotifierCoalesces(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), "LISTEN "+eventsChannel+"; LISTEN "+intentsChannel)
	require.NoError(t, err)

	n := startNotifier(pool, &tally{}, slog.New(slog.DiscardHandler))
	const conversations = 450
	want := map[string]bool{}
	for range 3 {
		for i := range conversations {
			id := "00000000-0000-0000-0000-000000000" + string([]byte{'0' + byte(i/100), '0' + byte(i/10%10), '0' + byte(i%10)})
			want[id] = true
			n.news(id, true)
		}
	}
	n.stop()
	n.stop()
	named, intents, notifications := map[string]int{}, 0, 0
	for len(named) < conversations || intents == 0 {
		got, err := conn.WaitForNotification(t.Context())
		require.NoError(t, err)
		require.Less(t, len(got.Payload), 8000)
		if got.Channel == intentsChannel {
			intents++
			continue
		}
		notifications++
		for _, id := range strings.Split(got.Payload, ",") {
			require.True(t, want[id])
			named[id]++
		}
	}
	require.Less(t, notifications, conversations/10)
}

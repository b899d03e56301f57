package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/internal/stacktest"
	"runledger/ledger"
)

type object = stacktest.Object

// client and servers are those of stacktest, with what the tests of this package do with them.
type (
	client  struct{ *stacktest.Client }
	servers struct{ *stacktest.Servers }
)

func startServers(t testing.TB, config string, settings ...string) *servers {
	t.Helper()
	return &servers{stacktest.StartServers(t, config, settings...)}
}

func (s *servers) startAPI(t testing.TB, port int) (*stacktest.Process, *client) {
	t.Helper()
	p, c := s.StartAPI(t, port)
	return p, &client{c}
}

func (s *servers) open(t testing.TB) *ledger.Ledger {
	t.Helper()
	store, err := ledger.Open(t.Context(), s.DatabaseURL, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

// Package stacktest gives end-to-end tests what they play on: the programs, built once, as processes that can be killed and frozen; a
// Postgres, a Temporal, workers and APIs of a test's own; and a client that talks to the API as any program would.
//
//	func TestMain(m *testing.M) { os.Exit(stacktest.Main(m)) }
//
//	func TestWorkerKilled(t *testing.T) {
//		t.Parallel()
//		s := stacktest.StartServers(t, config)
//		worker := s.StartWorker(t)
//		_, c := s.StartAPI(t, 0)
//		run := c.Post(t, stacktest.Object{"input": "What is 17 * 23?"})
//		...
//	}
//
// For test files only.
package stacktest

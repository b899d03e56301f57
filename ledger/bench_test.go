package ledger_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

// BenchmarkGate is a command's begin and commit, five events together, at several writers on runs of their own.
func BenchmarkGate(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprint("writers=", writers), func(b *testing.B) {
			bench := setup(b)
			l := open(b, bench.url, int32(writers))
			b.SetParallelism((writers + 1) / 2)
			if writers == 1 {
				b.SetParallelism(1)
			}
			var n atomic.Int64
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				run := bench.accepted(b, twoStep(b))
				for pb.Next() {
					c := command{run: run, id: fmt.Sprint("n", n.Add(1)), index: 0}
					begun, err := l.Begin(b.Context(), c.begin())
					require.NoError(b, err)
					require.Equal(b, agent.MayExecute, begun.Verdict)
					_, err = l.Commit(b.Context(), c.commit(begun.DispatchNo, `{"v":1}`))
					require.NoError(b, err)
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

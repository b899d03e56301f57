// Package bench holds benchmarks of whole runs on real servers: `go run ./bench/history` and what else stands in its folders, one
// program each. The package itself is what they have in common, a Postgres, a Temporal and a worker.
//
// It may import the packages that a worker is made of and devstack, and is imported by its own programs only.
package bench

// Package devstack starts the two servers that Runledger stands on, Postgres and Temporal, on one machine: for
// `runledger dev`, for tests and for benchmarks.
//
// # What it promises
//
// A server belongs to a data folder. The folder is locked while a process uses it, so that two cannot share it
// ([ErrInUse]). Data, password and ports are kept there and found again at the next start. Servers listen on 127.0.0.1
// only; Postgres asks for a random password and never runs as root.
//
// Start returns when the server answers, Stop when it has ended; stopping twice is fine. A start that fails says what
// the server said last. The servers run in process groups of their own, so that Ctrl-C in a terminal reaches the
// program alone and it can stop them in order. A program that was killed leaves its servers running; the next start
// with the same folder adopts them where they are healthy and were started the same way, and ends them otherwise. They
// are known by process id and time of birth together, so that a stranger who was given the same id is never touched.
//
// # The data folder
//
//	postgres.json postgres.log postgres.lock   process, ports and password; what the server said; who uses it
//	postgres/                                  the database
//	temporal.json temporal.log temporal.lock
//	temporal/                                  the state of the Temporal server
//
// Started by root, Postgres runs under an unprivileged user. Where that user cannot reach the data folder, as in a
// closed home directory, the database stands in a folder of the system's temporary directory whose name follows from
// the path of the data folder; the log says where, and [Reset] removes it too.
//
// # Imports
//
// The standard library, the Temporal client (to ask for health), embedded-postgres (to download server binaries) and
// errgroup. No other package of this module, and no database driver. It runs where processes have groups and owners: Linux,
// macOS and other Unix systems.
package devstack

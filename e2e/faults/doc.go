// Package faults holds commands of every class at every boundary of the commit gate, breaks what they depend on, and writes down in
// docs/faults.md what becomes of them. It holds tests only.
package faults

// Package tool holds what an agent can call: the [Tool] interface, typed tools made from Go functions ([New]), sets of
// tools ([Set]) and the check of arguments against a tool's JSON Schema ([Validator]), before and after the references of
// a plan are resolved.
//
// A tool says by its effect class what repeating a call would mean, and by the fault of its error what is known about a
// call that failed. The commit gate acts on nothing else, so a tool needs to know neither the ledger nor Temporal.
//
// The package may import runledger/agent, the standard library and github.com/google/jsonschema-go. Its subpackages are
// the built-in tools and the client of MCP servers; it imports neither.
package tool

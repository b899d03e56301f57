// Package mcp makes the tools of Model Context Protocol servers callable by agents, through the official Go SDK.
//
// A [Server] is a command that speaks MCP over its standard input and output, or an address that speaks it over streamable
// HTTP. A command runs in a process group of its own, is started again when it has died, and ends, with everything it has
// started, at Close; over HTTP a session that is lost is followed by another one. What other servers do has no influence on it.
//
// A server that announces other tools is asked for them, and [Server.Changed] tells. A call whose context ends is cancelled at
// the server, and what the server says of a call's progress is reported.
//
// A server's annotations decide the effect class of its tools unless the configuration does. They are the server's own
// word: connect servers that you would let act for you, and configure the class where a wrong one would cost something.
//
// The configuration can name, for a tool that changes something, another tool of the server that looks a call up by its
// idempotency key ([Reconcile]); only such a tool is a tool.Reconciler.
//
// The package may import runledger/agent, runledger/tool, the standard library and github.com/modelcontextprotocol/go-sdk.
package mcp

// Package replay runs AgentExecution again and compares it with what is on record. Nothing is executed: no model is asked, no
// tool is called, nothing is written.
//
//   - [History] holds a Temporal history to the workflow as it is now. It answers whether runs that are under way can go on
//     after a deploy, and where the first one leaves its history if not. [ReadHistory] reads a history from a file,
//     [FetchHistory] and [Started] find histories on a server.
//
// Package agenttest offers the same to users' tests.
package replay

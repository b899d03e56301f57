// Package replay runs AgentExecution again and compares it with what is on record. Nothing is executed: no model is asked, no
// tool is called, nothing is written.
//
//   - [History] holds a Temporal history to the workflow as it is now. It answers whether runs that are under way can go on
//     after a deploy, and where the first one leaves its history if not. [ReadHistory] reads a history from a file,
//     [FetchHistory] and [Started] find histories on a server.
//
//   - [Ledger] audits a run that has ended: it runs it again with its ledger as the only source, under the audit policy. It answers
//     whether the record alone gives the run: the same output, the same end of every node, and nothing that is not on record.
//
// Package agenttest offers the same to users' tests.
package replay

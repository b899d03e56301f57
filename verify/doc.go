// Package verify asks two witnesses what a run did: the ledger, which holds the events and the bytes, and Temporal, whose
// histories hold what every activity said of them. It reads both and judges nothing itself: agent.VerifyRun does.
package verify

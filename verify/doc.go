// Package verify asks two witnesses what a run did: the ledger, which holds the events and the bytes, and Temporal, whose
// histories hold what every activity said of them. It reads both and judges nothing itself: agent.VerifyRun does.
//
// What is found, by whom: the ledger's own rules find a record that contradicts itself. The hash chain finds any change of an
// event, by whoever did not write the chain anew as well. Temporal finds that too, up to the last number that an activity has
// told it of, while it keeps the history. Nobody finds a change that is consistent in itself and lies behind that number, or
// that has outlived the history; nor one of what no event and no activity tells of, as a row's input bytes, usage and times.
package verify

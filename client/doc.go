// Package client follows conversations and runs over Runledger's API, as a program that shows them must: it asks how the
// conversation stands, replays its log in pages, goes on live from the next number, and comes back to where it was when
// the connection breaks. Every event is given once and in order, and model output while it arrives is put together.
//
// clients/typescript does the same for browsers and Node.
//
// The package knows the API and the words of package agent; it imports nothing else of this module.
package client

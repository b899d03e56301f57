// Package wire holds what the clients of vendors share in talking to one over HTTP: the address and the key, the names that
// tools may have there, and the errors, which become [agent.Error] and never show the key.
//
// It knows no vendor's API and no SDK. It imports agent, model and the standard library.
package wire

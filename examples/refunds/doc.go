// Command refunds is an agent with tools of its own: it looks an order up and pays it back. It runs offline, with the scripted model
// and a shop and a payment provider that are structs in this process; with your model and your services the worker is the same.
//
// The module is one of its own: it uses nothing of Runledger that yours could not.
package main

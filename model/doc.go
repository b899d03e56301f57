// Package model defines what Runledger asks of a language model: one request, one reply, and the pieces of the reply while
// they arrive. A provider is a package of its own below this one that implements [Client], one method, and passes
// modeltest.Run; nothing else in Runledger knows a vendor.
//
// Clients never retry. They classify: a transient error says that a later try can help and, when the vendor named one, how
// long to wait; Temporal and the commit gate decide about the rest. [StatusError] and [ContextError] keep that classification
// the same for every vendor.
//
// The package imports agent and the standard library. Vendors' SDKs stay in the packages below it.
package model

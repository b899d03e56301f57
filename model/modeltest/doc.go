// Package modeltest holds what the tests of models share.
//
// [Run] is the conformance suite: every [model.Client] passes it, each provider from a test of a few lines. [NewVendor] plays
// a vendor's recorded HTTP answers to a client, with the accidents of a network on request. [NewEndpoint] is a server that
// behaves like an OpenAI-compatible one and lets any [model.Client] do the talking, so that the real client can be driven
// over real HTTP without a vendor.
//
// It imports agent, model and the standard library, so that a benchmark can use it too.
package modeltest

// Package predicate evaluates the conditions on a call that policies and tools are configured with:
//
//	args.amount > 100
//	args.method in ["POST", "DELETE"] && not (args.url startsWith "https://api.example.org/")
//	effect == "external" && metadata.tenant != "internal"
//	any(args.recipients, not (# endsWith "@example.org"))
//	args.note matches "(?i)refund" or args.note == nil
//
// The language is that of github.com/expr-lang/expr. What a predicate may look at are the fields of [Call]. An argument that is
// not there is nil: `args.amount == nil` holds then, and `args.amount > 100` cannot be evaluated, which whoever asks has to take
// for the graver answer; package policy does.
//
// A predicate gives the same answer for the same call every time, and costs a bounded time, whatever a model has put into the
// arguments: it has no clock, only functions whose cost is in proportion to what they are given, regular expressions that are
// written in the predicate itself, and at most so many steps of loops.
package predicate

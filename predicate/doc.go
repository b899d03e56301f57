// Package predicate evaluates the conditions on a call that policies and tools are configured with, as in
// `args.amount > 100 && args.currency != "EUR"`. The language is that of github.com/expr-lang/expr, without its clock: a
// predicate gives the same answer for the same call every time.
package predicate

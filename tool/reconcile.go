package tool

import "errors"

// ErrNotReconcilable is in the chain of the error of [Reconciler.Reconcile] when the tool has no way to look this call up and
// never will have, so that there is no use in asking again.
var ErrNotReconcilable = errors.New("the call cannot be looked up")

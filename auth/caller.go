package auth

import "slices"

// Role is how much a caller may do. Each includes those before it.
type Role string

// The roles, weakest first.
const (
	// Viewer reads.
	Viewer Role = "viewer"
	// User works with runs: starts, cancels, answers.
	User Role = "user"
	// Operator looks into what is not shown to users, and steers what is at work.
	Operator Role = "operator"
)

// Roles are all there are, weakest first.
func Roles() []Role { return []Role{Viewer, User, Operator} }

// Includes reports whether r may do what needs the other role. Nobody may do what needs a role that does not exist.
func (r Role) Includes(needed Role) bool {
	at := slices.Index(Roles(), needed)
	return at >= 0 && slices.Index(Roles(), r) >= at
}

// Caller is who a request is from.
type Caller struct {
	// Owner is whose conversations the caller works with; agent.AnyOwner for everybody's.
	Owner string
	// Name is what the record calls the caller.
	Name string
	Role Role
}

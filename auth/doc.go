// Package auth says who is calling. It knows callers by bearer tokens, of which it keeps the SHA-256 only: a [Keyring] maps
// a token to the [Caller] it was given to, and can be replaced while others ask it.
//
// What a role may do stands where the routes are, in package api. It imports the standard library only.
package auth

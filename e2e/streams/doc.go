// Package streams looks at what clients see of a run: programs, devices and a browser that come back over networks that break, to APIs
// that are killed. It holds tests only.
package streams

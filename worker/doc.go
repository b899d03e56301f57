// Package worker runs the Temporal worker of Runledger: it registers the workflow and the activities, publishes its tools
// and dispatches intents. It is a library, so that users run it with tools and models of their own.
package worker

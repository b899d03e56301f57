package tool

import (
	"context"
	"encoding/json"
	"time"

	"runledger/agent"
)

// Effects gives a tool time, identity, chance and the network as the run's record has them. Each call is a command of its
// own, under the tool's: what it gave is on record, and a second execution of the tool, after a lost worker or in a resumed
// run, is given the same again.
//
// Now, UUID and Random are numbered per kind in the order of the calls, so a tool makes them one after the other, and in the
// same order every time. HTTP is named by the caller and may be called from several goroutines. None may be called after the
// tool's Call has returned.
//
// An error is an *agent.Error whose fault says what a tool that has no other effects may say by returning it as it is.
type Effects interface {
	// Now is the time, by the clock of the run's database.
	Now(ctx context.Context) (time.Time, error)
	// UUID is a random UUID (version 4).
	UUID(ctx context.Context) (string, error)
	// Random is a number in [0, 1), with 53 random bits. It seeds a generator where many are needed.
	Random(ctx context.Context) (float64, error)
	// HTTP makes one request, through the commit gate, to the hosts that the worker's http_request tool may call. effectID
	// names it within the tool's command: [A-Za-z0-9_-]{1,64}, other than the names of recorded values (now-1, uuid-1,
	// random-1). The request carries the command's idempotency key and goes out again only when repeating it is harmless; the
	// same effectID with another request is COMMAND_MISMATCH.
	//
	// A status of 400 or more is an error, recorded like a response where it is definite. When nobody knows whether an external
	// request took place, the error is COMMAND_IN_DOUBT and the tool's command is in doubt too, whatever the tool returns.
	HTTP(ctx context.Context, effectID string, req HTTPRequest) (HTTPResponse, error)
}

// The request and response of an HTTP effect.
type (
	HTTPRequest  = agent.HTTPRequest
	HTTPResponse = agent.HTTPResponse
)

// HTTPSender is an optional power of a tool that makes HTTP requests: it makes those of HTTP effects too, by its own
// configuration. The worker uses the tool with the name [HTTPTool].
type HTTPSender interface {
	Tool
	// Send makes one request under an idempotency key and reads the response. It never repeats a request by itself. An error
	// is an *agent.Error or an *ArgumentError, as [Tool] has it.
	Send(ctx context.Context, key string, req HTTPRequest) (HTTPResponse, error)
}

// HTTPTool is the name of the tool whose configuration HTTP effects go by.
const HTTPTool = "http_request"

// HTTPClass is the effect class of a request: the one it names, else by its method, as the sender is configured.
func HTTPClass(sender HTTPSender, req HTTPRequest) agent.EffectClass {
	if req.Effect != "" {
		return req.Effect
	}
	method, err := json.Marshal(map[string]string{"method": req.Method})
	if err != nil {
		return agent.External
	}
	return ClassOf(sender, method)
}

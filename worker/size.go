package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"

	"runledger/agent"
)

// sized refuses an activity's reply that is too large for Temporal, which would otherwise fail and be tried again for ever. The
// replies are small by their making, so this is the last look at what a change, or a tool of a kind that nobody thought of, may
// bring: an error that is not tried again and says whose reply it was. What the activity has put on record stands.
func sized[In, Out any](name agent.Activity[In, Out], fn func(context.Context, In) (Out, error)) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) {
		out, err := fn(ctx, in)
		if err != nil {
			return out, short(err)
		}
		told, err := json.Marshal(out) // as Temporal's converter will
		if err == nil && len(told) > agent.MaxPayloadBytes {
			var nothing Out
			about := string(name)
			if a, ok := any(in).(interface{ About() string }); ok {
				about += " of " + a.About()
			}
			return nothing, temporal.NewNonRetryableApplicationError(fmt.Sprintf("%s: its reply has %d bytes; at most %d go through Temporal",
				about, len(told), agent.MaxPayloadBytes), string(agent.CodeTooLarge), nil)
		}
		return out, err
	}
}

// short cuts an error to what Temporal's history should hold of it. Temporal itself would replace a failure that is too large by
// one without its code.
func short(err error) error {
	const most = 2 * agent.MaxToldErrorBytes // activities have cut their own; this one may wrap it
	if len(err.Error()) <= most {
		return err
	}
	var app *temporal.ApplicationError
	if !errors.As(err, &app) {
		if temporal.IsCanceledError(err) {
			return err
		}
		return errors.New(agent.Preview(err.Error(), most))
	}
	return temporal.NewApplicationErrorWithOptions(agent.Preview(app.Message(), most), app.Type(),
		temporal.ApplicationErrorOptions{NonRetryable: app.NonRetryable(), NextRetryDelay: app.NextRetryDelay(), Category: app.Category()})
}

package activities

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"

	"runledger/agent"
)

// crossing gives an error the form in which it crosses Temporal: the code as the type of an application error. What is
// definite is not retried; anything else, as a ledger that does not answer, is.
func crossing(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := agent.AsError(err); ok && e.Fault == agent.FaultDefinite {
		return final(e.Cut(agent.MaxErrorBytes).Code, "%s", e.Message)
	}
	var missing *agent.NotFoundError
	if errors.As(err, &missing) {
		return final(agent.CodeStaleEpoch, "%s", err.Error())
	}
	return err
}

// final is an error that Temporal does not retry.
func final(code agent.Code, format string, args ...any) error {
	return temporal.NewNonRetryableApplicationError(told(format, args...), string(code), nil)
}

// retryLater is an error after which Temporal comes back in the given time.
func retryLater(code agent.Code, in time.Duration, format string, args ...any) error {
	return temporal.NewApplicationErrorWithOptions(told(format, args...), string(code),
		temporal.ApplicationErrorOptions{NextRetryDelay: max(in, time.Millisecond), Category: temporal.ApplicationErrorCategoryBenign})
}

// pausedBy tells the workflow that a command has not begun, and the intent that has paused the run.
func pausedBy(runID string, intent int64) error {
	return temporal.NewNonRetryableApplicationError("run "+runID+" is paused", string(agent.CodePaused), nil, intent)
}

// told is the message of an error as Temporal keeps it.
func told(format string, args ...any) string {
	return agent.Preview(fmt.Sprintf(format, args...), agent.MaxToldErrorBytes)
}

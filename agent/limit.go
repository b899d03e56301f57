package agent

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// CallLimit bounds the calls of a tool, or of several tools together, over all workers on a database. The zero value is no limit.
type CallLimit struct {
	// Name is what is bounded: the calls of all tools whose limit has the name. Empty is the tool's own name.
	Name string `json:"name,omitempty"`
	// MaxConcurrent is how many calls may be at work at a time; 0 for any number.
	MaxConcurrent int `json:"max_concurrent,omitempty"`
	// Rate is how many calls may begin within a time; the zero value for any number.
	Rate Rate `json:"rate,omitzero"`
}

// None reports whether nothing is bounded.
func (l CallLimit) None() bool { return l.MaxConcurrent == 0 && l.Rate == Rate{} }

// Check says what is wrong with a limit.
func (l CallLimit) Check() error {
	if l.MaxConcurrent < 0 {
		return fmt.Errorf("max_concurrent: %d; want a number of calls", l.MaxConcurrent)
	}
	if l.Rate == (Rate{}) {
		return nil
	}
	return l.Rate.check()
}

// Rate is a number of calls within a time: no stretch of that length sees more of them begin.
type Rate struct {
	Calls int
	Per   time.Duration
}

// Bounds of a rate: what the ledger has to remember of it.
const (
	maxRateCalls = 10_000
	maxRatePer   = 24 * time.Hour
)

func (r Rate) check() error {
	if r.Calls < 1 || r.Calls > maxRateCalls || r.Per < time.Millisecond || r.Per > maxRatePer {
		return fmt.Errorf("rate: %d calls in %s; want 1 to %d, in 1ms to %s", r.Calls, r.Per, maxRateCalls, maxRatePer)
	}
	return nil
}

// String writes a rate as UnmarshalText reads it, "10/1s".
func (r Rate) String() string { return strconv.Itoa(r.Calls) + "/" + r.Per.String() }

// MarshalText writes a rate as [Rate.String] does.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads "10/s", "600/m", "1000/h", or a number of calls and a duration, "5/250ms".
func (r *Rate) UnmarshalText(text []byte) error {
	calls, per, found := strings.Cut(string(text), "/")
	n, err := strconv.Atoi(strings.TrimSpace(calls))
	if per = strings.TrimSpace(per); per == "s" || per == "m" || per == "h" {
		per = "1" + per
	}
	d, badPer := time.ParseDuration(per)
	if !found || errors.Join(err, badPer) != nil {
		return fmt.Errorf(`rate %q: want calls per time, as in "10/s", "600/m" or "5/250ms"`, text)
	}
	*r = Rate{Calls: n, Per: d}
	return r.check()
}

// Slot is leave for one dispatch to make a call that is limited.
type Slot struct {
	Limit     CallLimit
	RunID     string
	CommandID string
	Epoch     int
	// Token is that of the dispatch.
	Token string
	// Attempt is Temporal's, from 1: one that comes again has waited before.
	Attempt int32
}

package builtin

import (
	"context"
	"time"
	_ "time/tzdata" // images without a zone database are common, and the zones a model asks for must not depend on the image

	"runledger/agent"
	"runledger/tool"
)

type clockIn struct {
	Timezone string `json:"timezone,omitempty" jsonschema:"an IANA time zone such as Europe/Berlin; UTC when left out"`
}

type clockOut struct {
	Time     string `json:"time"` // RFC 3339
	Unix     int64  `json:"unix"`
	Timezone string `json:"timezone"`
	Weekday  string `json:"weekday"` // models count weekdays badly
}

// Clock tells the time by now, which is time.Now where nil. It is idempotent, not deterministic: the value that was
// committed is the record of when the run asked. An unknown time zone is a definite failure.
func Clock(now func() time.Time) tool.Tool {
	if now == nil {
		now = time.Now
	}
	return tool.MustNew(tool.Spec{
		Name: "clock",
		Description: "Tells the current date and time, in a time zone if one is given. " +
			`Returns {"time": "2026-11-21T14:05:09+01:00", "unix": 1795266309, "timezone": "Europe/Berlin", "weekday": "Saturday"}.`,
		Effect: agent.Idempotent,
	}, func(_ context.Context, in clockIn, _ tool.Call) (clockOut, error) {
		zone := in.Timezone
		if zone == "" {
			zone = "UTC"
		}
		// "Local" would tell the zone of whichever worker runs the call.
		location, err := time.LoadLocation(zone)
		if err != nil || zone == "Local" {
			return clockOut{}, agent.Failed(agent.CodeToolFailed, "there is no time zone %q; use an IANA name such as Europe/Berlin", zone)
		}
		t := now().In(location)
		return clockOut{Time: t.Format(time.RFC3339), Unix: t.Unix(), Timezone: zone, Weekday: t.Weekday().String()}, nil
	})
}

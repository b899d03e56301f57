package agent

import (
	"encoding/json"
	"fmt"
	"time"
)

// Duration is a time.Duration that is written as text ("90s", "1h30m") in JSON and YAML.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes d as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads, and refuses negative values.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit, as in \"90s\"", text)
	}
	if v < 0 {
		return fmt.Errorf("duration %q: must not be negative", text)
	}
	*d = Duration(v)
	return nil
}

// UnmarshalJSON reads a JSON string; a bare number has no unit and is refused. null changes nothing: planners that must
// write every field write it where they have no timeout to ask for.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("duration %s: want a string with a unit, as in \"90s\"", data)
	}
	return d.UnmarshalText([]byte(s))
}

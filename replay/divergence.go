package replay

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/converter"
)

// Divergence is the first place where the code leaves a history.
type Divergence struct {
	// EventID is the event of the history at which it shows, or the one that is missing there; 0 when the SDK does not tell.
	EventID int64
	// Recorded is what the history has there and Wanted what the code did instead; "" when that is nothing, or not known.
	Recorded string
	Wanted   string
	// Message is what the SDK said, whole.
	Message string
}

// String says in one line where the code leaves the history.
func (d *Divergence) String() string {
	where := "somewhere in the history"
	if d.EventID > 0 {
		where = "event " + strconv.FormatInt(d.EventID, 10)
	}
	switch {
	case d.Recorded != "" && d.Wanted != "":
		return fmt.Sprintf("%s: the history has %s; the code wanted %s", where, d.Recorded, d.Wanted)
	case d.Recorded != "":
		return fmt.Sprintf("%s: the history has %s; the code did not do that", where, d.Recorded)
	case d.Wanted != "":
		return fmt.Sprintf("%s: the code wanted %s, which the history does not have", where, d.Wanted)
	}
	return where + ": " + d.Message
}

// What the SDK says of code that leaves its history comes as text alone. These are its sentences of v1.50; one that they do
// not fit is passed on as it is.
const (
	sdkMismatch = `nondeterministic workflow: history event is (.+), replay command is (.+)$`
	sdkMissing  = `nondeterministic workflow: missing replay command for (.+)$`
	sdkExtra    = `nondeterministic workflow: extra replay command for (.+)$`
	// The position of a command in a history is the id of its event.
	sdkPosition = `a matching \w+ command was expected in history event position (\d+)\.`
	sdkLookup   = `lookup failed for scheduledEventID to activityID: scheduleEventID: (\d+),`
	// An activity or timer has the id of the event that scheduled it.
	sdkID   = `^\w+: \((?:Activity|Timer)Id:(\d+)`
	sdkName = `ActivityType:\(Name:(\w+)\)`
)

func divergence(h *historypb.History, err error) *Divergence {
	d := &Divergence{Message: err.Error()}
	find := func(pattern, text string) []string {
		return regexp.MustCompile("(?s)" + pattern).FindStringSubmatch(text)
	}
	at := func(id string) {
		n, err := strconv.ParseInt(id, 10, 64)
		i := slices.IndexFunc(h.Events, func(e *historypb.HistoryEvent) bool { return e.GetEventId() == n })
		if err != nil {
			return
		}
		if d.EventID = n; i >= 0 {
			d.Recorded = describe(h.Events[i])
		}
	}
	// shorten keeps the kind of an event or command, and the name of its activity.
	shorten := func(text string) string {
		kind, _, _ := strings.Cut(text, ":")
		if name := find(sdkName, text); name != nil {
			kind += " " + name[1]
		}
		return kind
	}
	recorded := func(text string) {
		d.Recorded = shorten(text)
		if id := find(sdkID, text); id != nil {
			at(id[1])
		}
	}
	if m := find(sdkMismatch, d.Message); m != nil {
		recorded(m[1])
		d.Wanted = shorten(m[2])
	} else if m := find(sdkMissing, d.Message); m != nil {
		recorded(m[1])
	} else if m := find(sdkExtra, d.Message); m != nil {
		d.Wanted = shorten(m[1])
		if id := find(sdkID, m[1]); id != nil {
			at(id[1]) // the place that it would have
		}
	} else if m := find(sdkPosition, d.Message); m != nil {
		at(m[1])
	} else if m := find(sdkLookup, d.Message); m != nil {
		at(m[1])
	}
	return d
}

// describe names an event, with the summary that the workflow gave it.
func describe(e *historypb.HistoryEvent) string {
	name := e.GetEventType().String()
	if activity := e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName(); activity != "" {
		name += " " + activity
	}
	var summary string
	if s := e.GetUserMetadata().GetSummary(); s != nil && converter.GetDefaultDataConverter().FromPayload(s, &summary) == nil && summary != "" {
		name += " (" + summary + ")"
	}
	return name
}

// convert reads a single value that crossed Temporal.
func convert(payloads *commonpb.Payloads, into any) error {
	return converter.GetDefaultDataConverter().FromPayloads(payloads, into)
}

package sse

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"runledger/agent"
)

// Position is what a client said about where to begin. The zero value is the oldest event that is kept.
type Position struct {
	// next is the first number that the client wants, 0 for the oldest kept.
	next int64
	// name is the header or parameter that said so.
	name string
}

// PositionError says why a client's position cannot be served.
type PositionError struct {
	// Name is the header or parameter at fault.
	Name string
	// Gone: the position existed and is no longer kept. Otherwise it never existed.
	Gone bool
	// Oldest and Last are the numbers that can be had.
	Oldest, Last int64
	Message      string
}

func (e *PositionError) Error() string { return e.Name + ": " + e.Message }

// LastEventID is the header by which an EventSource that connects again says what it has.
const LastEventID = "Last-Event-ID"

// ReadPosition reads what a client asks for: the header Last-Event-ID, because an EventSource that connects again
// repeats its first URL; else from_sequence, the first number wanted; else after, the last number the client has. 0 means
// the oldest kept. Only the one that counts is looked at. A nil header leaves the header out of it, as for JSON pages.
func ReadPosition(header http.Header, query url.Values) (Position, error) {
	if value := header.Get(LastEventID); value != "" {
		return exclusive(LastEventID, value)
	}
	for _, name := range []string{"from_sequence", "after"} {
		values, given := query[name]
		switch {
		case !given:
			continue
		case len(values) > 1:
			return Position{}, &PositionError{Name: name, Message: "given more than once"}
		case name == "after":
			return exclusive(name, values[0])
		default:
			n, err := number(name, values[0])
			return Position{next: n, name: name}, err
		}
	}
	return Position{}, nil
}

func exclusive(name, value string) (Position, error) {
	n, err := number(name, value)
	if err != nil || n == 0 {
		return Position{name: name}, err
	}
	return Position{next: n + 1, name: name}, nil
}

// number reads plain digits. A sign, a space or a number that no event can have is none.
func number(name, value string) (int64, error) {
	digits := value != ""
	for _, r := range value {
		digits = digits && r >= '0' && r <= '9'
	}
	n, err := strconv.ParseInt(value, 10, 63) // 63 bits: one less than the largest, so that adding 1 stays a number
	if !digits || err != nil {
		return 0, &PositionError{Name: name, Message: fmt.Sprintf("%q is not a sequence number", agent.Preview(value, 40))}
	}
	return n, nil
}

// Resolve gives the number after which to read. The error is a *PositionError: the position is older than what is kept,
// or lies beyond the event that comes next.
func (p Position) Resolve(e agent.Extent) (after int64, err error) {
	oldest := max(e.Oldest, 1)
	switch {
	case p.next == 0:
		return oldest - 1, nil
	case p.next < oldest:
		return 0, &PositionError{Name: p.name, Gone: true, Oldest: oldest, Last: e.Last,
			Message: fmt.Sprintf("event %d is no longer kept; the oldest is %d", p.next, oldest)}
	case p.next > e.Last+1:
		return 0, &PositionError{Name: p.name, Oldest: oldest, Last: e.Last,
			Message: fmt.Sprintf("event %d lies beyond the next one, %d", p.next, e.Last+1)}
	}
	return p.next - 1, nil
}

// Over reports whether nothing can follow after: the log of the scope has ended and holds nothing newer. A stream that is
// over is answered with 204, which tells an EventSource to stay away.
func Over(e agent.Extent, after int64) bool { return !e.Open && e.LastInScope <= after }

package sse

import "sync/atomic"

// counters are what the streams of a server have done together.
type counters struct {
	open, opened, frames, bytes, behind atomic.Int64
}

// Stats are the counts of a server's streams since it was made.
type Stats struct {
	// Open are those that are being written now, Opened all that ever were.
	Open, Opened int64
	// Frames and Bytes are what was sent, heartbeats among the bytes.
	Frames, Bytes int64
	// Behind counts how often a stream lagged so far that it went back to the ledger.
	Behind int64
}

// Stats tells what the server's streams have done.
func (s *Server) Stats() Stats {
	c := &s.count
	return Stats{Open: c.open.Load(), Opened: c.opened.Load(), Frames: c.frames.Load(), Bytes: c.bytes.Load(), Behind: c.behind.Load()}
}

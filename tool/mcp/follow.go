package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"runledger/agent"
	"runledger/tool"
)

// Tools are the server's tools, named "server/tool", in the order the server lists them: those of this moment, nil while a
// server that was opened has not been reached yet.
func (s *Server) Tools() []tool.Tool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tools)
}

// Changed is sent to when Tools has changed since it was last received from.
func (s *Server) Changed() <-chan struct{} { return s.changed }

// isStale has the tools listed again.
func (s *Server) isStale() { notify(s.stale) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // somebody will come by anyway
	}
}

// refreshPause is between two listings at least, so that a server which announces changes without end costs little.
const refreshPause = time.Second

// follow lists the tools again whenever they may be others, until Close.
func (s *Server) follow() {
	defer close(s.following)
	failed := int32(0)
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.stale:
		}
		pause := refreshPause
		if again := s.refresh(failed + 1); again > 0 {
			failed, pause = failed+1, again
			s.isStale()
		} else {
			failed = 0
		}
		timer := time.NewTimer(pause)
		select {
		case <-s.life.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// refresh lists the tools. If that fails, for the so manieth time in a row, it returns when to try again. A new list with which the
// configuration does not agree any more is not taken: a tool that somebody was to be asked about must not come back under
// another name, unasked.
func (s *Server) refresh(tries int32) (again time.Duration) {
	ctx, cancel := context.WithTimeout(s.life, s.cfg.StartTimeout)
	defer cancel()
	current, err := s.toAsk(ctx)
	if err != nil {
		if down, ok := agent.AsError(err); ok && down.RetryAfter > 0 {
			return down.RetryAfter
		}
		return backoff(tries)
	}
	if current == nil {
		return 0
	}
	tools, err := s.list(ctx, current)
	if err != nil {
		again = backoff(tries)
		if s.life.Err() == nil {
			s.cfg.Log.Warn("the tools of an mcp server stay as they were", "error", err, "retry_after", again)
		}
		return again
	}
	s.mu.Lock()
	same := s.tools != nil && slices.EqualFunc(s.tools, tools, sameTool)
	s.tools = tools
	s.mu.Unlock()
	if !same {
		s.cfg.Log.Info("mcp server has other tools now", "tools", len(tools))
		notify(s.changed)
	}
	return 0
}

// toAsk gives the session to ask for the tools. A command that has died is not started for that: its next call does, and then the
// tools are listed. The session is nil then.
func (s *Server) toAsk(ctx context.Context) (*session, error) {
	if s.cfg.URL == "" && s.Tools() != nil {
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		defer func() { <-s.turn }()
		if s.current == nil || !s.current.alive() {
			return nil, nil
		}
		return s.current, nil
	}
	return s.acquire(ctx)
}

// sameTool reports whether two tools look the same to models, plans and the gate.
func sameTool(a, b tool.Tool) bool {
	return sameRef(a.Spec().Ref(), b.Spec().Ref())
}

func sameRef(a, b agent.ToolRef) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

package api

import (
	"net/http"
	"sync"
)

// slots counts the streams that each owner has open.
type slots struct {
	limit int
	mu    sync.Mutex
	taken map[string]int
}

// take reserves a stream for an owner until free is called. The error is a problem that says how many there may be.
func (s *slots) take(owner string) (free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[owner] >= s.limit {
		p := newProblem(http.StatusTooManyRequests, "too-many-streams", "%d streams are open already, which is as many as one client may have", s.limit)
		p.retryAfter = "5"
		return nil, p
	}
	if s.taken == nil {
		s.taken = map[string]int{}
	}
	s.taken[owner]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taken[owner]--; s.taken[owner] == 0 {
			delete(s.taken, owner)
		}
	}, nil
}

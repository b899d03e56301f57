package sse

import (
	"context"
	"slices"
	"sync"
	"time"

	"runledger/agent"
)

// readTogether bounds how many conversations are read at once.
const readTogether = 250

// hub reads for all streams of a server that have caught up with their log. However many there are, it listens once, reads each
// conversation once after each wake-up, those that have news together, and encodes each event once for each profile.
type hub struct {
	cfg *Config

	mu    sync.Mutex
	feeds map[string][]*feed // by conversation, one for each profile that somebody follows
	// dirty holds the feeds that may have news. due is sent to when it no longer is empty.
	dirty map[*feed]struct{}
	due   chan struct{}
	// stop ends the reader, which is at work while there are feeds.
	stop func()
}

func newHub(cfg *Config) *hub {
	return &hub{cfg: cfg, feeds: map[string][]*feed{}, dirty: map[*feed]struct{}{}, due: make(chan struct{}, 1)}
}

// join gives the feed of a conversation in a profile. Everyone who joins leaves it.
func (h *hub) join(conversationID string, p Profile) *feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.feeds[conversationID] {
		if f.profile.Name == p.Name {
			f.followers++
			return f
		}
	}
	f := newFeed(h, conversationID, p)
	f.followers = 1
	h.feeds[conversationID] = append(h.feeds[conversationID], f)
	if h.stop == nil {
		h.start()
	}
	return f
}

func (h *hub) leave(f *feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.followers--; f.followers == 0 {
		h.drop(f)
	}
	if len(h.feeds) == 0 && h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// drop lets nobody join the feed any more. The hub is locked.
func (h *hub) drop(f *feed) {
	delete(h.dirty, f)
	rest := slices.DeleteFunc(h.feeds[f.conversationID], func(g *feed) bool { return g == f })
	if h.feeds[f.conversationID] = rest; len(rest) == 0 {
		delete(h.feeds, f.conversationID)
	}
}

// start begins to listen and to read. The hub is locked; whoever listens must not wait for that.
func (h *hub) start() {
	ctx, cancel := context.WithCancel(context.Background())
	unwatch := h.cfg.Log.Watch(h.news)
	h.stop = func() {
		unwatch()
		cancel()
	}
	go h.read(ctx)
}

// news is what the ledger calls when a conversation may have grown, and with "" when any may have.
func (h *hub) news(conversationID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if conversationID != "" {
		h.mark(h.feeds[conversationID])
		return
	}
	for _, feeds := range h.feeds {
		h.mark(feeds)
	}
}

func (h *hub) mark(feeds []*feed) {
	for _, f := range feeds {
		h.dirty[f] = struct{}{}
	}
	if len(feeds) > 0 {
		select {
		case h.due <- struct{}{}:
		default:
		}
	}
}

func (h *hub) wake(f *feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mark([]*feed{f})
}

// take gives some feeds that may have news, fewer than readTogether when there are no more.
func (h *hub) take() []*feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	var feeds []*feed
	for f := range h.dirty {
		if len(feeds) == readTogether {
			break
		}
		delete(h.dirty, f)
		feeds = append(feeds, f)
	}
	return feeds
}

// read is the reader. A wake-up that is lost is made up for by the poll.
func (h *hub) read(ctx context.Context) {
	poll := time.NewTicker(h.cfg.Poll)
	defer poll.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.due:
		case <-poll.C:
			h.news("")
		}
		for feeds := h.take(); len(feeds) > 0 && ctx.Err() == nil; feeds = h.take() {
			err := h.readFeeds(ctx, feeds)
			if err != nil && ctx.Err() == nil && !failing {
				h.cfg.Logger.WarnContext(ctx, "the streams cannot read the ledger and try again", "conversations", len(feeds), "error", err)
			}
			if failing = err != nil; failing {
				break // the poll tries again
			}
		}
	}
}

// readFeeds reads what is new for some feeds and tells their followers.
func (h *hub) readFeeds(ctx context.Context, feeds []*feed) error {
	from := make([]agent.LogCursor, 0, len(feeds))
	feeds = slices.DeleteFunc(feeds, func(f *feed) bool {
		c, begun := f.cursor()
		if begun {
			from = append(from, c)
		}
		return !begun
	})
	if len(feeds) == 0 {
		return nil
	}
	news, err := h.cfg.Log.News(ctx, from, h.cfg.PageSize)
	for i, f := range feeds {
		switch {
		case err != nil && f.fail(err, h.cfg.Patience):
			h.mu.Lock()
			h.drop(f) // who comes later gets a feed that tries anew
			h.mu.Unlock()
		case err == nil:
			if f.publish(news[i]) {
				h.mu.Lock()
				h.drop(f)
				h.mu.Unlock()
				continue
			}
			if len(news[i].Events) >= h.cfg.PageSize {
				h.wake(f)
			}
		}
	}
	return err
}

package ledger

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Channels of LISTEN and NOTIFY. The payload of eventsChannel is a list of conversation ids, that of stopsChannel one of run
// ids, that of intentsChannel empty.
const (
	eventsChannel  = "runledger_events"
	intentsChannel = "runledger_intents"
	stopsChannel   = "runledger_stops"
)

const (
	// A notifying commit takes a lock that all of the cluster's notifying commits share, so notifications are sent outside
	// the write transaction and at most this often.
	coalesce = 5 * time.Millisecond
	// NOTIFY takes payloads below 8000 bytes; an id and its comma take 37.
	maxIDsPerNotify = 200
)

// notifier tells other processes which conversations have news. One that is lost costs latency, never an event: readers
// poll behind it.
type notifier struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	wake chan struct{}
	done chan struct{}
	once sync.Once
	quit chan struct{}

	mu            sync.Mutex
	conversations map[string]struct{}
	stops         map[string]struct{}
	intents       bool
}

func startNotifier(pool *pgxpool.Pool, log *slog.Logger) *notifier {
	n := &notifier{pool: pool, log: log, wake: make(chan struct{}, 1), done: make(chan struct{}), quit: make(chan struct{}),
		conversations: map[string]struct{}{}, stops: map[string]struct{}{}}
	go n.run()
	return n
}

// news is called after the transaction that wrote has committed; before, a woken reader would read too early.
func (n *notifier) news(conversationID string, intent bool) {
	n.mu.Lock()
	if conversationID != "" {
		n.conversations[conversationID] = struct{}{}
	}
	n.intents = n.intents || intent
	n.mu.Unlock()
	n.due()
}

// stopping is news for a run whose effects have to stop.
func (n *notifier) stopping(runID string) {
	n.mu.Lock()
	n.stops[runID] = struct{}{}
	n.mu.Unlock()
	n.due()
}

func (n *notifier) due() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notifier) run() {
	defer close(n.done)
	for {
		select {
		case <-n.wake:
			n.send()
		case <-n.quit:
			n.send()
			return
		}
		select {
		case <-time.After(coalesce):
		case <-n.quit:
		}
	}
}

func (n *notifier) send() {
	n.mu.Lock()
	events, stops := slices.Collect(maps.Keys(n.conversations)), slices.Collect(maps.Keys(n.stops))
	clear(n.conversations)
	clear(n.stops)
	intents := n.intents
	n.intents = false
	n.mu.Unlock()

	var batch pgx.Batch
	queue := func(channel string, ids []string) {
		for some := range slices.Chunk(ids, maxIDsPerNotify) {
			batch.Queue("SELECT pg_notify($1, $2)", channel, strings.Join(some, ","))
		}
	}
	queue(stopsChannel, stops)
	queue(eventsChannel, events)
	if intents {
		batch.Queue("SELECT pg_notify($1, '')", intentsChannel)
	}
	if batch.Len() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := n.pool.SendBatch(ctx, &batch).Close(); err != nil {
		n.log.WarnContext(ctx, "notify failed; readers will poll", "error", err)
	}
}

func (n *notifier) stop() {
	n.once.Do(func() { close(n.quit) })
	<-n.done
}

// listener holds the one LISTEN connection of a process and wakes who waits. After a lost connection everybody is woken,
// since nobody knows what was missed.
type listener struct {
	cfg    *pgx.ConnConfig
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{}
}

func startListener(cfg *pgx.ConnConfig, log *slog.Logger) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{cfg: cfg, log: log, cancel: cancel, done: make(chan struct{}), waiters: map[string]map[chan struct{}]struct{}{}}
	go l.run(ctx)
	return l
}

func (l *listener) stop() {
	l.cancel()
	<-l.done
}

func (l *listener) run(ctx context.Context) {
	defer close(l.done)
	const slowest = 2 * time.Second
	pause := 50 * time.Millisecond
	for ctx.Err() == nil {
		connected, err := l.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		if connected {
			pause = 50 * time.Millisecond
		}
		l.log.WarnContext(ctx, "listen connection lost; readers poll until it is back", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, slowest)
	}
}

func (l *listener) listen(ctx context.Context) (connected bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, l.cfg)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, channel := range []string{eventsChannel, stopsChannel, intentsChannel} {
		if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
			return false, err
		}
	}
	l.wakeAll()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, err
		}
		if n.Channel == intentsChannel {
			l.wakeKey(intentsChannel)
			continue
		}
		prefix := ""
		if n.Channel == stopsChannel {
			prefix = stopsKey
		}
		for id := range strings.SplitSeq(n.Payload, ",") {
			l.wakeKey(prefix + id)
		}
	}
}

func (l *listener) subscribe(key string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiters[key] == nil {
		l.waiters[key] = map[chan struct{}]struct{}{}
	}
	l.waiters[key][ch] = struct{}{}
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiters[key], ch)
		if len(l.waiters[key]) == 0 {
			delete(l.waiters, key)
		}
	}
}

func (l *listener) wakeKey(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wake(l.waiters[key])
}

func (l *listener) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiters {
		wake(w)
	}
}

func wake(waiters map[chan struct{}]struct{}) {
	for ch := range waiters {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// Subscribe gives a channel that is sent to after a conversation has news. News that comes while nobody looks is one
// wake-up. It may be lost or come for nothing; a reader polls slowly behind it.
func (l *Ledger) Subscribe(conversationID string) (news <-chan struct{}, cancel func()) {
	return l.listener.subscribe(conversationID)
}

// SubscribeIntents is Subscribe for the outbox.
func (l *Ledger) SubscribeIntents() (news <-chan struct{}, cancel func()) {
	return l.listener.subscribe(intentsChannel)
}

// stopsKey stands before the run id in the key of those who wait for a run's stop, whose id may also be a conversation's.
const stopsKey = "stop "

// SubscribeStops is Subscribe for the effects of a run: news comes when they have to stop, since the run is being cancelled or
// has ended. It may come for nothing, and be lost; whoever gets it looks where the run stands.
func (l *Ledger) SubscribeStops(runID string) (news <-chan struct{}, cancel func()) {
	return l.listener.subscribe(stopsKey + runID)
}

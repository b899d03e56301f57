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
	// afterFailure is the pause before notifications that failed are sent again.
	afterFailure = 500 * time.Millisecond
	// NOTIFY takes payloads below 8000 bytes; an id and its comma take 37.
	maxIDsPerNotify = 200
)

// notifier tells other processes which conversations have news. One that is lost costs latency, never an event: readers
// poll behind it.
type notifier struct {
	pool *pgxpool.Pool
	sent *tally
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

func startNotifier(pool *pgxpool.Pool, sent *tally, log *slog.Logger) *notifier {
	n := &notifier{pool: pool, sent: sent, log: log, wake: make(chan struct{}, 1), done: make(chan struct{}), quit: make(chan struct{}),
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
		case <-n.quit:
			n.send()
			return
		}
		pause := coalesce
		if !n.send() {
			pause = afterFailure
			n.due()
		}
		select {
		case <-time.After(pause):
		case <-n.quit:
		}
	}
}

// send tells what is new. It reports false when that failed: all of it is then told the next time.
func (n *notifier) send() bool {
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
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := n.pool.SendBatch(ctx, &batch).Close()
	if err == nil {
		n.sent.notified.Add(1)
		return true
	}
	n.sent.notifyFailed.Add(1)
	n.log.WarnContext(ctx, "notify failed, and is tried again; readers poll meanwhile", "error", err)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range events {
		n.conversations[id] = struct{}{}
	}
	for _, id := range stops {
		n.stops[id] = struct{}{}
	}
	n.intents = n.intents || intents
	return false
}

func (n *notifier) stop() {
	n.once.Do(func() { close(n.quit) })
	<-n.done
}

// listener holds the one LISTEN connection of a process and wakes who waits. After a lost connection everybody is woken,
// since nobody knows what was missed.
type listener struct {
	cfg    *pgx.ConnConfig
	made   *tally
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	waiters  map[string]map[chan struct{}]struct{}
	watchers map[*func(conversationID string)]struct{}
}

func startListener(cfg *pgx.ConnConfig, made *tally, log *slog.Logger) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{cfg: cfg, made: made, log: log, cancel: cancel, done: make(chan struct{}), waiters: map[string]map[chan struct{}]struct{}{},
		watchers: map[*func(string)]struct{}{}}
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
	l.made.listenConnects.Add(1)
	l.wakeAll()
	l.tell("")
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, err
		}
		if n.Channel == intentsChannel {
			l.wakeKey(intentsChannel)
			continue
		}
		for id := range strings.SplitSeq(n.Payload, ",") {
			if n.Channel == stopsChannel {
				l.wakeKey(stopsKey + id)
				continue
			}
			l.wakeKey(id)
			l.tell(id)
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

// tell calls those who watch all conversations, without the lock: they may be about to watch no longer.
func (l *listener) tell(conversationID string) {
	l.mu.Lock()
	watchers := slices.Collect(maps.Keys(l.watchers))
	l.mu.Unlock()
	for _, news := range watchers {
		(*news)(conversationID)
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

// Watch calls news with the id of each conversation that has news, and with "" when that may be any. It must not wait. It may be
// called for nothing and not be called, as above, and once more after cancel.
func (l *Ledger) Watch(news func(conversationID string)) (cancel func()) {
	l.listener.mu.Lock()
	defer l.listener.mu.Unlock()
	l.listener.watchers[&news] = struct{}{}
	return func() {
		l.listener.mu.Lock()
		defer l.listener.mu.Unlock()
		delete(l.listener.watchers, &news)
	}
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

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"runledger/agent"
	"runledger/bench"
	"runledger/ledger"
)

// writer takes the commands of runs through the gate.
type writer struct {
	url      string
	ledger   *ledger.Ledger
	pool     *pgxpool.Pool
	runs     *bench.Accepter
	commands int
}

func newWriter(ctx context.Context, url string, commands int) (*writer, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	w := &writer{url: url, pool: pool, commands: commands}
	if w.ledger, err = ledger.Open(ctx, url, ledger.Options{}); err != nil {
		pool.Close()
		return nil, err
	}
	if w.runs, err = bench.NewAccepter(w.ledger, commands); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *writer) close() {
	w.ledger.Close()
	w.pool.Close()
}

// frame is what all clients are sent after a transaction, up to the event with that number.
type frame struct {
	sequence int64
	bytes    []byte
}

// measureAPI takes a run through its commands while clients follow it. It returns the frames that they got, too.
func (w *writer) measureAPI(ctx context.Context, n int, o options) (m measured, frames []frame, err error) {
	run, err := w.runs.Accept(ctx, "", true)
	if err != nil {
		return m, nil, err
	}
	if err := bench.SetToWork(ctx, w.pool); err != nil {
		return m, nil, err
	}
	path := "/api/v1/agent/runs/" + run.RunID + "/events"
	profile := ""
	if o.profile != "" {
		profile = o.profile + "." + strconv.Itoa(n)
	}
	a, err := gather(ctx, partAPI, w.url+" "+profile, path, n)
	if err != nil {
		return m, nil, err
	}
	defer func() { err = errors.Join(err, a.leave()) }()
	var last []float64
	rest := time.NewTicker(o.pause)
	defer rest.Stop()
	for i := range w.commands {
		c := bench.Addition{Run: run, Index: i}
		for _, transaction := range []func(context.Context, *ledger.Ledger) error{c.Begin, c.Commit} {
			<-rest.C
			if err := transaction(ctx, w.ledger); err != nil {
				return m, nil, err
			}
			committed := time.Now()
			var head int64
			if err := w.pool.QueryRow(ctx, `SELECT last_sequence FROM conversations WHERE id = $1`, run.ConversationID).Scan(&head); err != nil {
				return m, nil, err
			}
			seen, err := a.await(ctx, head)
			if err != nil {
				return m, nil, err
			}
			last = append(last, since(committed, seen))
			frames = append(frames, frame{sequence: head})
		}
	}
	if m, err = a.result(last); err != nil {
		return m, nil, err
	}
	return m, frames, w.fill(ctx, run, frames)
}

// fill reads what the clients were sent.
func (w *writer) fill(ctx context.Context, run agent.Run, frames []frame) error {
	handler, err := bench.NewAPI(w.ledger)
	if err != nil {
		return err
	}
	url, stop, err := bench.Serve(ctx, handler)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/agent/runs/"+run.RunID+"/events", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	// The run is not at its end, so neither is the stream: it is read up to the end of the last frame that is wanted.
	var body []byte
	buf := make([]byte, 32<<10)
	wanted := func(f frame) []byte { return fmt.Appendf(nil, "\nid: %d\n", f.sequence) }
	for last := wanted(frames[len(frames)-1]); ; {
		if _, rest, found := bytes.Cut(body, last); found && bytes.Contains(rest, []byte("\n\n")) {
			break
		}
		n, err := res.Body.Read(buf)
		body = append(body, buf[:n]...)
		if err != nil {
			return err
		}
	}
	at := 0
	for i, f := range frames {
		id := bytes.Index(body[at:], wanted(f))
		if id < 0 {
			return fmt.Errorf("the stream has no event %d", f.sequence)
		}
		end := bytes.Index(body[at+id+1:], []byte("\n\n"))
		if end < 0 {
			return fmt.Errorf("event %d has no end", f.sequence)
		}
		next := at + id + 1 + end + 2
		frames[i].bytes = body[at:next]
		if i == 0 { // what went before the first transaction is not of it
			if start := bytes.LastIndex(body[:at+id], []byte("\n\n")); start >= 0 {
				frames[i].bytes = body[start+2 : next]
			}
		}
		at = next
	}
	return nil
}

// measureBare lets the bare handler send the same frames.
func measureBare(ctx context.Context, n int, frames []frame, o options) (m measured, err error) {
	a, err := gather(ctx, partBare, "", "/", n)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, a.leave()) }()
	var last []float64
	rest := time.NewTicker(o.pause)
	defer rest.Stop()
	for _, f := range frames {
		<-rest.C
		given := time.Now()
		if err := a.server.Tell("send " + base64.StdEncoding.EncodeToString(f.bytes)); err != nil {
			return m, err
		}
		seen, err := a.await(ctx, f.sequence)
		if err != nil {
			return m, err
		}
		last = append(last, since(given, seen))
	}
	return a.result(last)
}

// listen calls do for each line of standard input.
func listen(do func(line string) error) error {
	return lines(os.Stdin, do)
}

// Command replay measures how fast a long conversation is read:
//
//	go run ./bench/replay
//
// A real plan runs once, and its events are copied until the conversation has 100,000. It is then read from its first event to its
// last, as Server-Sent Events over HTTP on loopback, with the API as it is in production. The limits, measured in turns with it: a
// plain SELECT of the same rows with pgx, each column scanned into a Go value, and net/http writing the same bytes from memory.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"runledger/agent"
	"runledger/bench"
	"runledger/model/scripted"
	"runledger/tool"
)

type options struct {
	events, rounds int
	settings       []string
}

func main() {
	var o options
	flag.IntVar(&o.events, "events", 100_000, "how many events the conversation has")
	flag.IntVar(&o.rounds, "rounds", 7, "how often each is measured; the median counts")
	bench.Main(func(ctx context.Context) (*bench.Report, error) { return measure(ctx, o) })
}

func measure(ctx context.Context, o options) (report *bench.Report, err error) {
	sum, err := bench.Adder()
	if err != nil {
		return nil, err
	}
	s, err := bench.Start(ctx, bench.Config{Model: scripted.New(scripted.Options{}), Tools: []tool.Tool{sum}, Progress: os.Stderr, TemporalDynamicConfig: o.settings})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	run, err := s.Do(ctx, bench.Run{Input: "Add all of them.", Mode: agent.ModePlan, Plan: bench.Additions(40)})
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	events, err := copies(ctx, conn, run.ConversationID, o.events)
	if err != nil {
		return nil, fmt.Errorf("copy the events: %w", err)
	}
	handler, err := bench.NewAPI(s.Ledger)
	if err != nil {
		return nil, err
	}
	var body []byte
	mux := http.NewServeMux()
	mux.Handle("/", handler)
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, _ *http.Request) {
		for b := body; len(b) > 0; {
			n := min(len(b), 32<<10)
			if _, err := w.Write(b[:n]); err != nil {
				return
			}
			b = b[n:]
		}
	})
	url, stop, err := bench.Serve(ctx, mux)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	stream := url + "/api/v1/agent/conversations/" + run.ConversationID + "/events?until=idle"
	if body, err = get(ctx, stream); err != nil {
		return nil, err
	}
	if n := bytes.Count(body, []byte("\nid: ")); n != events {
		return nil, fmt.Errorf("%d frames for %d events", n, events)
	}
	var ours, rows, wire []float64
	for range o.rounds {
		for _, m := range []struct {
			into *[]float64
			do   func() error
		}{
			{&ours, func() error { return drain(ctx, stream, len(body)) }},
			{&rows, func() error { return selects(ctx, conn, run.ConversationID, events) }},
			{&wire, func() error { return drain(ctx, url+"/bytes", len(body)) }},
		} {
			began := time.Now()
			if err := m.do(); err != nil {
				return nil, err
			}
			*m.into = append(*m.into, time.Since(began).Seconds())
		}
	}
	report = bench.NewReport(fmt.Sprintf("replay of %d events, %.1f MB", events, float64(len(body))/1e6))
	took := bench.Quantile(ours, 0.5)
	report.Add(bench.Figure{Name: "events", Value: float64(events) / took, Unit: "events/s", Limit: float64(events) / bench.Quantile(rows, 0.5), LimitName: "SELECT with pgx", Floor: 0.5})
	report.Add(bench.Figure{Name: "bytes", Value: float64(len(body)) / took / 1e6, Unit: "MB/s", Limit: float64(len(body)) / bench.Quantile(wire, 0.5) / 1e6, LimitName: "net/http from memory"})
	return report, nil
}

// copies gives the conversation as many events as are wanted, by copying those that it has. Only the numbers differ.
func copies(ctx context.Context, conn *pgx.Conn, conversationID string, wanted int) (int, error) {
	var have int
	if err := conn.QueryRow(ctx, `SELECT last_sequence FROM conversations WHERE id = $1`, conversationID).Scan(&have); err != nil {
		return 0, err
	}
	times := (wanted + have - 1) / have
	for _, statement := range []string{
		`INSERT INTO agent_execution_events (conversation_id, sequence_number, message_id, run_id, root_run_id, epoch, event_type, node_id, command_id, attempt, event_data, created_at)
		SELECT conversation_id, sequence_number + $2::bigint * k, message_id, run_id, root_run_id, epoch, event_type, node_id, command_id, attempt, event_data, created_at
		FROM agent_execution_events, generate_series(1, $3::int - 1) k WHERE conversation_id = $1 ORDER BY k, sequence_number`,
		`UPDATE conversations SET last_sequence = $2::bigint * $3::int WHERE id = $1`,
	} {
		if _, err := conn.Exec(ctx, statement, conversationID, have, times); err != nil {
			return 0, err
		}
	}
	_, err := conn.Exec(ctx, `VACUUM ANALYZE agent_execution_events`)
	return have * times, err
}

func selects(ctx context.Context, conn *pgx.Conn, conversationID string, wanted int) error {
	rows, err := conn.Query(ctx, `SELECT sequence_number, event_type, conversation_id, run_id, root_run_id, message_id, node_id, command_id, attempt, created_at, event_data, epoch
		FROM agent_execution_events WHERE conversation_id = $1 ORDER BY sequence_number`, conversationID)
	if err != nil {
		return err
	}
	n := 0
	var e agent.Event
	_, err = pgx.ForEachRow(rows, []any{&e.Sequence, &e.Type, &e.ConversationID, &e.RunID, &e.RootRunID, &e.MessageID, &e.NodeID, &e.CommandID, &e.Attempt, &e.CreatedAt, &e.Data, &e.Epoch},
		func() error {
			n++
			return nil
		})
	if err == nil && n != wanted {
		err = fmt.Errorf("%d rows for %d events", n, wanted)
	}
	return err
}

func request(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("%s: %s", url, res.Status), res.Body.Close())
	}
	return res, err
}

func get(ctx context.Context, url string) ([]byte, error) {
	res, err := request(ctx, url)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	return body, errors.Join(err, res.Body.Close())
}

// drain reads as a client that throws away what it gets.
func drain(ctx context.Context, url string, wanted int) error {
	res, err := request(ctx, url)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && n != int64(wanted) {
		err = fmt.Errorf("%s: %d bytes for %d", url, n, wanted)
	}
	return errors.Join(err, res.Body.Close())
}

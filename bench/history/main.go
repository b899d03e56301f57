// Command history measures what a long run leaves in Temporal:
//
//	go run ./bench/history
//
// It starts servers of its own, holds a conversation of 200,000 tokens, and then lets a react run of 100 tool calls continue it.
// It prints how large the run's history in Temporal is, all executions of the chain together, and what of it belongs to what. The
// exit code is 1 when that is more than the limit.
//
// The model is a local one that asks for one tool call per turn; the tool gives 2 to 8 KB of text. Everything else is as in
// production: the worker, the ledger with durable writes, Temporal's server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"runledger/agent"
	"runledger/bench"
	"runledger/tool"
)

type options struct {
	calls, tokens, budget, limit int
	timeout                      time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.calls, "calls", 100, "how many tool calls the run makes")
	flag.IntVar(&o.tokens, "tokens", 200_000, "how long the conversation before it is")
	flag.IntVar(&o.budget, "budget", agent.DefaultHistoryTokens, "the agent's history.max_tokens")
	flag.IntVar(&o.limit, "limit", 400_000, "how many bytes its history in Temporal may have")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "when to give up")
	flag.Parse()
	if flag.NArg() > 0 || o.calls < 1 || o.tokens < 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := measure(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "history:", err)
		os.Exit(1)
	}
	r.print()
	if r.Bytes > o.limit || r.ServerBytes > int64(o.limit) {
		fmt.Fprintf(os.Stderr, "history: more than %d bytes\n", o.limit)
		os.Exit(1)
	}
}

// report is what was measured.
type report struct {
	bench.Histories
	conversation      int // tokens before the run
	commands, events  int // of the run, in the ledger
	took              time.Duration
	firstCall, lastly prompt
	largestPrompt     int // tokens
}

// measure does all of it.
func measure(ctx context.Context, o options) (r report, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	reader := &readerModel{}
	read, err := tool.New(tool.Spec{Name: "read_file", Description: "Reads a file.", Effect: agent.Idempotent}, readFile)
	if err != nil {
		return r, err
	}
	s, err := bench.Start(ctx, bench.Config{Model: reader, Tools: []tool.Tool{read}, Progress: os.Stderr})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()

	run := bench.Run{Mode: agent.ModeReact, Limits: agent.Limits{MaxSteps: o.calls + 1}, History: agent.History{MaxTokens: o.budget}}
	for r.conversation < o.tokens {
		run.Input = ask(20)
		earlier, err := s.Do(ctx, run)
		if err != nil {
			return r, err
		}
		run.ConversationID = earlier.ConversationID
		if r.conversation, err = conversationTokens(ctx, s, run.ConversationID); err != nil {
			return r, err
		}
	}
	reader.forget()
	run.Input = ask(o.calls)
	began := time.Now()
	measured, err := s.Do(ctx, run)
	if err != nil {
		return r, err
	}
	r.took = time.Since(began)
	r.firstCall, r.lastly, r.largestPrompt = reader.told()
	commands, err := s.Ledger.Commands(ctx, measured.RunID)
	if err != nil {
		return r, err
	}
	events, err := s.Ledger.Events(ctx, agent.LogScope{ConversationID: measured.ConversationID, RunID: measured.RunID}, 0, 100_000)
	if err != nil {
		return r, err
	}
	r.commands, r.events = len(commands), len(events)
	r.Histories, err = s.Histories(ctx, measured.RunID)
	return r, err
}

// conversationTokens estimates what a conversation holds, a token for four bytes.
func conversationTokens(ctx context.Context, s *bench.Stack, conversationID string) (tokens int, err error) {
	for after := int64(0); ; {
		page, more, err := s.Ledger.Messages(ctx, conversationID, after, 500)
		if err != nil {
			return 0, err
		}
		for _, m := range page {
			tokens += (len(m.Content) + len(m.ToolCalls) + 3) / 4
			after = m.Sequence
		}
		if !more {
			return tokens, nil
		}
	}
}

func (r *report) print() {
	fmt.Printf("conversation before the run  %9d tokens\n", r.conversation)
	fmt.Printf("commands of the run          %9d in %.1f s\n", r.commands, r.took.Seconds())
	fmt.Printf("events in the ledger         %9d\n", r.events)
	fmt.Printf("first prompt                 %9d tokens, %d messages\n", r.firstCall.tokens, r.firstCall.messages)
	fmt.Printf("last prompt                  %9d tokens, %d messages\n", r.lastly.tokens, r.lastly.messages)
	fmt.Printf("largest prompt               %9d tokens\n", r.largestPrompt)
	fmt.Printf("executions in Temporal       %9d\n", r.Executions)
	fmt.Printf("history events               %9d\n", r.Events)
	fmt.Printf("history, events as read      %9d bytes\n", r.Bytes)
	fmt.Printf("history, as the server says  %9d bytes\n", r.ServerBytes)
	fmt.Printf("per command                  %9d bytes\n", r.ServerBytes/int64(max(r.commands, 1)))
	fmt.Printf("largest payload              %9d bytes, in %s\n", r.LargestPayload, r.LargestIn)
	fmt.Println()
	for _, name := range slices.SortedFunc(maps.Keys(r.BytesByType), func(a, b string) int { return r.BytesByType[b] - r.BytesByType[a] }) {
		fmt.Printf("  %-45s %5d events %8d bytes\n", name, r.EventsByType[name], r.BytesByType[name])
	}
}

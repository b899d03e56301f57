package streams_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	follow "runledger/client"
	"runledger/internal/stacktest"
)

// config is the offline model, and a tool.
const config = `
models:
  default: {provider: scripted}
agents:
  default: {mode: plan, tools: [calculator]}
`

// device is one that shows a conversation.
type device struct {
	numbers []int64
	text    string
	state   follow.OutputState
	err     error
}

// show follows a conversation to its end. arriving is told of every piece of an answer.
func (d *device) show(ctx context.Context, url, conversationID string, arriving func(follow.Output)) {
	api := &follow.Client{URL: url}
	for u, err := range api.Follow(ctx, follow.Conversation(conversationID), follow.Options{}) {
		if d.err = err; err != nil {
			return
		}
		if u.Event != nil {
			d.numbers = append(d.numbers, u.Event.Sequence)
		}
		if o := u.Output; o != nil && o.Channel == "text" {
			if d.text += o.Added; o.Replaces {
				d.text = o.Text
			}
			if d.state = o.State; o.Text != d.text {
				d.err = fmt.Errorf("what was added gives %q, the text is %q", d.text, o.Text)
				return
			}
			if o.State == follow.Arriving {
				arriving(*o)
			}
		}
	}
}

// TestClientsComeBack follows a conversation from two devices while the API is killed in the middle of an answer and comes back: each
// has every number once and in order, and the text that is on record, which is too long for its event.
func TestClientsComeBack(t *testing.T) {
	t.Parallel()
	s := stacktest.StartServers(t, config)
	s.StartWorker(t)
	port := stacktest.FreePort(t)
	api, c := s.StartAPI(t, port)
	words := strings.Repeat("three-hundred-and-ninety-one ", 250)
	run := c.Post(t, object{"input": "[[say " + words + "]]", "plan": object{"nodes": []any{
		object{"id": "calculate", "kind": "tool", "tool": "calculator", "args": object{"expression": "17 * 23"}},
		object{"id": "say", "kind": "llm", "prompt": "Say it", "depends_on": []string{"calculate"}},
	}}})
	ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
	defer cancel()
	pieces := make(chan struct{}, 100_000)
	done := make(chan *device, 2)
	for range 2 {
		d := new(device)
		go func() {
			d.show(ctx, c.URL, run.ConversationID, func(follow.Output) { pieces <- struct{}{} })
			done <- d
		}()
	}
	for range 4 {
		select {
		case <-pieces:
		case <-ctx.Done():
			require.Fail(t, "no answer arrives")
		}
	}
	api.Kill(t)
	s.StartAPI(t, port)

	first, second := <-done, <-done
	var late device // one that comes after the end
	late.show(ctx, c.URL, run.ConversationID, func(follow.Output) {})
	var result struct{ Result struct{ Text string } }
	require.Equal(t, http.StatusOK, c.Call(t, http.MethodGet, "/api/v1/agent/runs/"+run.RunID+"/commands/say", nil, &result))
	frames := c.Finished(t, run.RunID)
	for _, d := range []*device{first, second, &late} {
		require.NoError(t, d.err)
		require.Len(t, d.numbers, len(frames))
		for i, n := range d.numbers {
			require.EqualValues(t, i+1, n)
		}
	}
	require.Contains(t, result.Result.Text, strings.TrimSpace(words))
	for _, d := range []*device{first, second} {
		require.Equal(t, follow.Committed, d.state)
		require.Equal(t, result.Result.Text, d.text)
	}
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"runledger/agent"
	"runledger/client"
)

// screen is a terminal of so many columns that knows what a view writes: texts, ends of lines, going up, and clearing what is below.
type screen struct {
	columns int
	rows    []string
	at      int
	colors  int
	fails   error
}

var sequence = regexp.MustCompile(`^\x1b\[([0-9]*)([AJm])`)

func (s *screen) Write(p []byte) (int, error) {
	if s.fails != nil {
		return 0, s.fails
	}
	text := string(p)
	line := ""
	end := func() {
		for _, row := range wrapHard(line, s.columns) {
			s.rows = append(s.rows[:s.at], row)
			s.at++
		}
		line = ""
	}
	for text != "" {
		if m := sequence.FindStringSubmatch(text); m != nil {
			switch m[2] {
			case "A":
				n, _ := strconv.Atoi(m[1])
				s.at -= n
				if s.at < 0 {
					return 0, errors.New("above the screen")
				}
			case "J":
				s.rows = s.rows[:s.at]
			case "m":
				s.colors++
			}
			text = text[len(m[0]):]
			continue
		}
		switch r := []rune(text)[0]; {
		case r == '\n':
			end()
			text = text[1:]
		case r == '\r':
			text = text[1:]
		case r < ' ':
			return 0, fmt.Errorf("control character %q", r)
		default:
			line += string(r)
			text = text[len(string(r)):]
		}
	}
	return len(p), nil
}

// wrapHard breaks a line as a terminal does.
func wrapHard(line string, columns int) (rows []string) {
	for {
		n, cutAt := 0, -1
		for i, r := range line {
			if n += columnsOf(r); n > columns {
				cutAt = i
				break
			}
		}
		if cutAt < 0 {
			return append(rows, line)
		}
		rows, line = append(rows, line[:cutAt]), line[cutAt:]
	}
}

// narrows does what a terminal does whose window becomes narrower: long lines take more rows.
func (s *screen) narrows(columns int) {
	var rows []string
	for _, row := range s.rows {
		rows = append(rows, wrapHard(row, columns)...)
	}
	s.columns, s.rows, s.at = columns, rows, len(rows)
}

func (s *screen) String() string { return strings.Join(s.rows, "\n") + "\n" }

// watched is a view of a run on a screen, with a clock of its own.
type watched struct {
	*liveView
	t      *testing.T
	screen *screen
	height int
	clock  time.Time
	number int64
}

func watch(t *testing.T, columns, height int, color bool) *watched {
	w := &watched{t: t, screen: &screen{columns: columns}, height: height, clock: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
	w.liveView = newLiveView(w.screen, func() (int, int) { return w.screen.columns, w.height }, color, "r")
	w.liveView.now = func() time.Time { return w.clock }
	return w
}

// gets is a frame, half a second after the last one.
func (w *watched) gets(typ agent.EventType, node, command, data string) {
	w.t.Helper()
	w.clock = w.clock.Add(500 * time.Millisecond)
	w.number++
	require.NoError(w.t, w.update(client.Update{Event: &client.Event{Event: agent.Event{Sequence: w.number, Type: typ, RunID: "r", NodeID: node, CommandID: command,
		Attempt: 1, CreatedAt: w.clock, Data: json.RawMessage(data)}}}))
}

// hears is what the command main#1 has said.
func (w *watched) hears(state client.OutputState, channel, text string) {
	w.t.Helper()
	require.NoError(w.t, w.update(client.Update{Output: &client.Output{RunID: "r", CommandID: "main#1", Attempt: 1, Channel: channel, Text: text, State: state}}))
}

func (w *watched) sees(want string) {
	w.t.Helper()
	w.draw(false)
	require.Equal(w.t, strings.TrimPrefix(want, "\n"), w.screen.String())
}

func TestLiveView(t *testing.T) {
	t.Parallel()
	w := watch(t, 72, 24, false)
	w.gets("run_started", "", "", `{"mode":"plan","offline_model":true}`)
	w.gets("plan_created", "plan", "", `{"nodes":[{"id":"fetch","kind":"tool","tool":"http_request"},{"id":"pay","kind":"tool","tool":"bank"},{"id":"say","kind":"llm"}]}`)
	w.gets("step_started", "fetch", "", `{"kind":"tool","tool":"http_request"}`)
	w.gets("tool_invoked", "fetch", "fetch", `{"tool":"http_request","input":{"json":{"url":"https://example.org/a.json"},"bytes":40}}`)
	w.sees(`
running · plan mode, offline model · 0 of 3 nodes · 1.5 s
▶ fetch  tool http_request    0.5 s  http_request {"url":"https://examp…
· pay    tool bank
· say    llm
`)
	w.gets("step_completed", "fetch", "", `{}`)
	w.gets("step_started", "pay", "", `{"kind":"tool","tool":"bank"}`)
	w.gets(agent.ApprovalRequested, "pay", "pay", `{"approval_id":"a1","tool":"bank","arguments":{"json":{"n":1},"bytes":7}}`)
	w.clock = w.clock.Add(time.Minute)
	w.sees(`
running · plan mode, offline model · 1 of 3 nodes · 63.0 s
✓ fetch  tool http_request    1.0 s  http_request {"url":"https://examp…
▶ pay    tool bank           60.5 s
· say    llm
? pay would call bank {"n":1}: approval a1 is waited for
`)
	w.gets(agent.ApprovalResolved, "pay", "pay", `{"approval_id":"a1","outcome":"denied","by":"ada"}`)
	w.gets("step_failed", "pay", "", `{"error":{"code":"APPROVAL_DENIED","message":"no"}}`)
	w.gets(agent.NodeSkipped, "say", "", `{"reason":"pay failed"}`)
	w.gets(agent.RunFailed, "", "", `{"error":{"code":"NODE_FAILED","message":"pay"}}`)
	w.draw(true)
	require.Equal(t, `failed · plan mode, offline model · 3 of 3 nodes · 65.0 s · NODE_FAILED…
✓ fetch  tool http_request    1.0 s  http_request {"url":"https://examp…
✗ pay    tool bank           61.5 s  APPROVAL_DENIED: no
- say    llm                         pay failed
`, w.screen.String())
	require.Equal(t, agent.RunFailed, w.end)
	require.Zero(t, w.screen.colors)
}

// TestLiveViewShowsTheAnswerAsItArrives: what is said again replaces what was said, and the whole of it stands at the end.
func TestLiveViewShowsTheAnswerAsItArrives(t *testing.T) {
	t.Parallel()
	w := watch(t, 24, 24, true)
	w.gets("run_started", "", "", `{"mode":"react"}`)
	w.hears(client.Arriving, "thinking", "hm")
	w.hears(client.Arriving, "text", "Once upon a")
	w.hears(client.Arriving, "text", "Once upon a time there was\x1b[2J a 龍 龍 龍 龍 龍.")
	w.sees(`
running · react mode · …
main#1:
  Once upon a time 
  there was[2J a 龍 龍 
  龍 龍 龍.
`)
	w.hears(client.Arriving, "text", "All of it anew")
	w.sees("\nrunning · react mode · …\nmain#1:\n  All of it anew\n")
	w.hears(client.Discarded, "", "")
	w.sees("\nrunning · react mode · …\n")
	w.gets(agent.RunCompleted, "", "", `{"final_output":"A line that is longer than the screen.\n"}`)
	w.draw(true)
	require.Equal(t, "completed · react mode …\n\nA line that is longer th\nan the screen.\n", w.screen.String())
	require.Positive(t, w.screen.colors)
	require.Equal(t, agent.RunCompleted, w.end)
}

// TestLiveViewFitsTheWindow: a picture is never higher than the screen, which could not be drawn over then, and a window that becomes
// narrower leaves nothing behind.
func TestLiveViewFitsTheWindow(t *testing.T) {
	t.Parallel()
	w := watch(t, 60, 6, false)
	w.gets("run_started", "", "", `{"mode":"plan"}`)
	var nodes []string
	for i := range 9 {
		nodes = append(nodes, fmt.Sprintf(`{"id":"n%d","kind":"tool","tool":"calculator"}`, i))
	}
	w.gets("plan_created", "plan", "", `{"nodes":[`+strings.Join(nodes, ",")+`]}`)
	for i := range 4 {
		w.gets("step_started", fmt.Sprintf("n%d", i), "", `{"kind":"tool","tool":"calculator"}`)
		if i < 3 {
			w.gets("step_completed", fmt.Sprintf("n%d", i), "", `{}`)
		}
	}
	w.sees(`
running · plan mode · 3 of 9 nodes · 4.0 s
▶ n3  tool calculator    0.0 s
· n4  tool calculator
  and 7 more
`)
	w.screen.narrows(20)
	w.sees(`
running · plan mode…
▶ n3  tool calculat…
· n4  tool calculat…
  and 7 more
`)
	w.screen.columns, w.height = 60, 30
	w.draw(false)
	require.Len(t, w.screen.rows, 10)
	w.height = 1
	w.draw(false)
	require.Len(t, w.screen.rows, 1)
}

func TestLiveViewEndsWithItsTerminal(t *testing.T) {
	t.Parallel()
	w := watch(t, 60, 6, false)
	w.screen.fails = errors.New("gone")
	u := client.Update{Event: &client.Event{Event: agent.Event{Type: agent.RunStarted, RunID: "r", Data: json.RawMessage(`{}`)}}}
	err := w.follow(func(yield func(client.Update, error) bool) {
		for yield(u, nil) {
		}
	})
	require.ErrorContains(t, err, "write to the terminal: gone")
}

func TestTerminalSize(t *testing.T) {
	t.Parallel()
	plain, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer func() { require.NoError(t, plain.Close()) }()
	require.Nil(t, terminalSize(plain), "a file is no terminal")

	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	defer func() { require.NoError(t, pty.Close()) }()
	size := terminalSize(pty)
	require.NotNil(t, size)
	set := func(columns, rows uint16) {
		t.Helper()
		require.NoError(t, unix.IoctlSetWinsize(int(pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
	}
	set(100, 30)
	columns, rows := size()
	require.Equal(t, []int{100, 30}, []int{columns, rows})
	set(0, 0)
	columns, rows = size()
	require.Equal(t, []int{80, 24}, []int{columns, rows}, "one that does not know")
}

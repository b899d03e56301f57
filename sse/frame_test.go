package sse

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"runledger/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFrameBytes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		frame Frame
		want  string
	}{
		"whole":              {Frame{7, "run_started", []byte(`{"a":1}`)}, "id: 7\nevent: run_started\ndata: {\"a\":1}\n\n"},
		"no id":              {Frame{0, "chat_delta", []byte(`{}`)}, "event: chat_delta\ndata: {}\n\n"},
		"negative id":        {Frame{-1, "x", []byte(`{}`)}, "event: x\ndata: {}\n\n"},
		"no name":            {Frame{1, "", []byte(`{}`)}, "id: 1\ndata: {}\n\n"},
		"empty data":         {Frame{1, "x", nil}, "id: 1\nevent: x\ndata: \n\n"},
		"line feed":          {Frame{1, "x", []byte("a\nb")}, "id: 1\nevent: x\ndata: a\ndata: b\n\n"},
		"carriage return":    {Frame{1, "x", []byte("a\rid: 9")}, "id: 1\nevent: x\ndata: a\ndata: id: 9\n\n"},
		"both":               {Frame{1, "x", []byte("a\r\nb\r\n")}, "id: 1\nevent: x\ndata: a\ndata: b\ndata: \n\n"},
		"two of each":        {Frame{1, "x", []byte("\n\n\r\r")}, "id: 1\nevent: x\ndata: \ndata: \ndata: \ndata: \ndata: \n\n"},
		"name with breaks":   {Frame{1, "x\nid: 9\r\x00", []byte(`{}`)}, "id: 1\nevent: xid: 9\ndata: {}\n\n"},
		"name of breaks":     {Frame{1, "\r\n", []byte(`{}`)}, "id: 1\ndata: {}\n\n"},
		"separators of text": {Frame{1, "x", []byte("a\u2028b")}, "id: 1\nevent: x\ndata: a\u2028b\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, string(AppendFrame(nil, tc.frame)))
		})
	}
}

func TestCommentAndRetryBytes(t *testing.T) {
	t.Parallel()
	require.Equal(t, ": ok\n\n", string(AppendComment(nil, "ok")))
	require.Equal(t, ": a\n: data: b\n\n", string(AppendComment(nil, "a\rdata: b")))
	require.Equal(t, ": \n\n", string(AppendComment(nil, "")))
	require.Equal(t, "retry: 1500\n\n", string(AppendRetry(nil, 1500*time.Millisecond)))
	require.Equal(t, "retry: 0\n\n", string(AppendRetry(nil, -time.Second)))
	require.Equal(t, "x: ok\n\n", string(AppendComment([]byte("x"), "ok")), "it appends")
}

func TestEncodeEvent(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 12, 30, 0, 5000, time.FixedZone("", 3600))
	whole := agent.Event{Sequence: 3, Type: agent.CommandCommitted, ConversationID: "c", RunID: "r", RootRunID: "r", MessageID: "m",
		NodeID: "sum", CommandID: "sum", Attempt: 2, CreatedAt: at, Data: json.RawMessage("{\n \"text\": \"<a>\\u2028\" }"), Epoch: 4}
	for name, tc := range map[string]struct {
		event agent.Event
		want  string
	}{
		"whole": {whole, `{"sequence_number":3,"event_type":"command_committed","conversation_id":"c","run_id":"r","root_run_id":"r",` +
			`"message_id":"m","node_id":"sum","command_id":"sum","attempt":2,"created_at":"2026-11-20T11:30:00.000005Z","data":{"text":"<a>\u2028"}}`},
		"what does not apply is left out": {agent.Event{Sequence: 1, Type: agent.RunStarted, ConversationID: "c", CreatedAt: at},
			`{"sequence_number":1,"event_type":"run_started","conversation_id":"c","created_at":"2026-11-20T11:30:00.000005Z","data":{}}`},
		"data that is no object": {agent.Event{Sequence: 1, Type: agent.RunStarted, ConversationID: "c", CreatedAt: at, Data: json.RawMessage(`[1]`)},
			`{"sequence_number":1,"event_type":"run_started","conversation_id":"c","created_at":"2026-11-20T11:30:00.000005Z","data":{}}`},
		"data that is no JSON": {agent.Event{Sequence: 1, Type: agent.RunStarted, ConversationID: "c", CreatedAt: at, Data: json.RawMessage("{\nid: 9")},
			`{"sequence_number":1,"event_type":"run_started","conversation_id":"c","created_at":"2026-11-20T11:30:00.000005Z","data":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, string(EncodeEvent(tc.event)))
		})
	}
}

// received is what a client dispatches for one event.
type received struct{ id, event, data string }

// readStream reads a whole stream as the HTML standard says. The last id is carried from event to event.
func readStream(t testing.TB, raw []byte) []received {
	t.Helper()
	var events []received
	var lastID, event string
	var data []string
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(string(raw), "\ufeff"))
	lines := strings.Split(text, "\n")
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			if data != nil {
				events = append(events, received{lastID, event, strings.Join(data, "\n")})
			}
			event, data = "", nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "":
		case "event":
			event = value
		case "data":
			data = append(data, value)
		case "id":
			if !strings.Contains(value, "\x00") {
				lastID = value
			}
		case "retry":
		default:
			t.Fatalf("unknown field %q", field)
		}
	}
	return events
}

func FuzzFrameCreatesNoField(f *testing.F) {
	f.Add(int64(1), "run_started", []byte(`{"a":1}`))
	f.Add(int64(0), "x\nid: 7", []byte("a\r\nid: 8\n\nevent: y"))
	f.Add(int64(9), "", []byte("\r\r\n\n:"))
	f.Add(int64(2), "\ufeff", []byte("\x00\ufeff"))
	f.Fuzz(func(t *testing.T, id int64, name string, data []byte) {
		const sentinel = "id: 41\nevent: before\ndata: x\n\n"
		raw := AppendFrame([]byte(sentinel), Frame{ID: id, Event: name, Data: data})
		events := readStream(t, append(raw, "data: after\n\n"...))
		require.Len(t, events, 3)
		wantID := "41"
		if id > 0 {
			wantID = strconv.FormatInt(id, 10)
		}
		want := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data))
		wantName := strings.NewReplacer("\r", "", "\n", "", "\x00", "").Replace(string([]rune(name)))
		require.Equal(t, received{wantID, wantName, want}, received{events[1].id, string([]rune(events[1].event)), events[1].data})
		require.Equal(t, received{wantID, "", "after"}, events[2])
	})
}

func withData(e agent.Event, data string) agent.Event {
	e.Data = json.RawMessage(data)
	return e
}

func isObject(data []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) }

// decoded has numbers as they are written.
func decoded(t testing.TB, raw []byte) (v any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&v))
	return v
}

func FuzzEventStaysOneFrame(f *testing.F) {
	f.Add("run_started", "c", "node", []byte(`{"a":"\n"}`))
	f.Add("x\n\nid: 5", "c\r\n", "\u2028", []byte("{\"a\":\n\n1}"))
	f.Add("command_committed", "c", "n", []byte(`{"kind":"tool","output":{"bytes":9}}`))
	f.Fuzz(func(t *testing.T, kind, conversation, node string, data []byte) {
		e := agent.Event{Sequence: 12, Type: agent.EventType(kind), ConversationID: conversation, RunID: "r", NodeID: node, CommandID: node, Data: data}
		for _, p := range Profiles() {
			raw := appendEvent(nil, p, e)
			events := readStream(t, raw)
			require.Len(t, events, 1)
			require.Equal(t, "12", events[0].id)
			require.LessOrEqual(t, bytes.Count(raw, []byte("\n")), 4)
			if !json.Valid(data) {
				continue // the ledger holds none
			}
			var object map[string]any
			require.NoError(t, json.Unmarshal([]byte(events[0].data), &object))
			require.IsType(t, map[string]any{}, object["data"])
			if p.Name != "ledger" {
				continue
			}
			want, err := encode(e)
			require.NoError(t, err)
			if !isObject(data) {
				want, err = encode(withData(e, "{}"))
				require.NoError(t, err)
			}
			require.Equal(t, decoded(t, want), decoded(t, []byte(events[0].data)), "as encoding/json has it")
		}
	})
}

// What Postgres gives for jsonb is found in it as encoding/json finds it.
func FuzzMembers(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a": 1}`, ` { "a" : {"b":[1,2,"}"]} , "c":"\"" } `, `{"a":1,}`, `{"a":tru e}`, `{"a":]}`, `{"\u0061":1,"b":-1e9}`, `{"a":1}}`, `{"a":"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, ok := members(nil, data)
		compact := appendCompact(nil, data)
		if !json.Valid(data) {
			return // nothing hangs, nothing is out of bounds
		}
		require.Equal(t, isObject(data), ok)
		if !ok {
			require.Equal(t, "{}", string(compact))
			return
		}
		var want bytes.Buffer
		require.NoError(t, json.Compact(&want, data))
		require.Equal(t, want.String(), string(compact))
		var object map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &object))
		for i, m := range got {
			var name string
			require.NoError(t, json.Unmarshal([]byte(`"`+string(m.name)+`"`), &name))
			require.Contains(t, object, name)
			if len(object) == len(got) {
				require.JSONEq(t, string(object[name]), string(got[i].value)) // of members with the same name encoding/json keeps one
			}
		}
		require.True(t, json.Valid(appendObject(nil, got)))
		list := append(append([]byte(` [ `), data...), " , 1, "...)
		parts, ok := elements(nil, append(append(list, data...), "] "...))
		require.True(t, ok)
		require.Len(t, parts, 3)
		require.Equal(t, bytes.TrimSpace(data), parts[2])
	})
}

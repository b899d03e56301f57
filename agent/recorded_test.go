package agent_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestEffectCommandIDs(t *testing.T) {
	t.Parallel()
	id := agent.EffectCommandID("main#1.0", "charge")
	require.Equal(t, "main#1.0/charge", id)
	require.Equal(t, "main", agent.CommandNodeID(id))
	require.Equal(t, "a", agent.CommandNodeID(agent.EffectCommandID("a", agent.ValueEffectID(agent.NowCommand, 2))))
	require.Equal(t, "uuid-3", agent.ValueEffectID(agent.UUIDCommand, 3))
	for _, good := range []string{"a", "Charge_2-b", strings.Repeat("x", 64)} {
		require.NoError(t, agent.CheckEffectID(good))
	}
	for _, bad := range []string{"", "a/b", "a b", "ä", "a#1", strings.Repeat("x", 65)} {
		require.ErrorIs(t, agent.CheckEffectID(bad), &agent.Error{Code: agent.CodeInvalidArguments}, bad)
	}
}

func TestTimeValue(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 600_700, time.FixedZone("x", 3600))
	require.Equal(t, `"2026-01-02T02:04:05.0006007Z"`, string(agent.TimeValue(at)))
	var back time.Time
	require.NoError(t, json.Unmarshal(agent.TimeValue(at), &back))
	require.True(t, at.Equal(back))
}

func TestExchangeShowsNoSecret(t *testing.T) {
	t.Parallel()
	req := agent.HTTPRequest{Method: "POST", URL: "https://me:SECRET@example.org/pay?key=SECRET#SECRET", Body: new("hello\x00\xff"),
		Headers: map[string]string{"authorization": "SECRET", "X-API-KEY": "SECRET", "Content-Type": "text/plain", "if-match": `"7"`}}
	public := req.Public()
	require.Equal(t, map[string]string{"authorization": "[redacted]", "X-API-KEY": "[redacted]", "Content-Type": "text/plain", "if-match": `"7"`}, public.Headers)
	require.Equal(t, "SECRET", req.Headers["authorization"], "the request itself is not changed")
	x := req.Exchange()
	require.Equal(t, "https://example.org/pay", x.URL)
	require.Equal(t, &agent.Value{Bytes: 7, Preview: "hello\x00\uFFFD"}, x.Body)
	doc, err := json.Marshal(x)
	require.NoError(t, err)
	require.NotContains(t, string(doc), "SECRET")
	require.Nil(t, agent.HTTPRequest{Method: "GET", URL: "http://h/"}.Exchange().Body)
	require.Empty(t, agent.HTTPRequest{Method: "GET", URL: "http://h:port/?SECRET"}.Exchange().URL, "what cannot be read is not shown")
}

func TestResponseBodies(t *testing.T) {
	t.Parallel()
	long := `"` + strings.Repeat("x", 5000) + `"`
	for name, c := range map[string]struct {
		response agent.HTTPResponse
		body     string
		shown    *agent.Value
	}{
		"JSON":      {agent.HTTPResponse{JSON: json.RawMessage(`{"a":1}`), Bytes: 7}, `{"a":1}`, &agent.Value{Bytes: 7, JSON: json.RawMessage(`{"a":1}`)}},
		"long JSON": {agent.HTTPResponse{JSON: json.RawMessage(long), Bytes: 5002}, long, &agent.Value{Bytes: 5002, Preview: agent.Preview(long, 512)}},
		"text":      {agent.HTTPResponse{Text: new("hi"), Bytes: 2}, "hi", &agent.Value{Bytes: 2, Preview: "hi"}},
		"data":      {agent.HTTPResponse{Data: []byte{0, 255}, Bytes: 2}, "\x00\xff", &agent.Value{Bytes: 2}},
		"empty":     {agent.HTTPResponse{Text: new("")}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc, err := json.Marshal(c.response)
			require.NoError(t, err)
			var back agent.HTTPResponse
			require.NoError(t, json.Unmarshal(doc, &back))
			require.Equal(t, c.body, string(back.Body()))
			require.Equal(t, c.shown, back.Exchange().Body)
		})
	}
}

// Recorded values are committed commands: the fold counts them, and a replay has what they gave.
func TestRecordedValuesInTheFold(t *testing.T) {
	t.Parallel()
	value := func(sequence int64, typ agent.EventType, id, doc string) agent.Recorded {
		data, err := json.Marshal(agent.ValueRecordedData{Kind: agent.UUIDCommand, Value: json.RawMessage(doc)})
		require.NoError(t, err)
		return agent.Recorded{Event: agent.Event{Sequence: sequence, Type: typ, NodeID: "a", CommandID: id, Data: data}}
	}
	exact := value(3, agent.RandomRecorded, "a/random-1", `0.1`)
	exact.Result = json.RawMessage(`0.10`)
	records := []agent.Recorded{
		value(1, agent.TimerFired, "a/now-1", `"2026-01-01T00:00:00Z"`),
		value(2, agent.UUIDRecorded, "a/uuid-1", `"u"`),
		exact,
		value(4, agent.TimerFired, "", `"of no command"`),
	}
	rc, err := agent.BuildFromEvents(records)
	require.NoError(t, err)
	require.Equal(t, []string{"a/now-1", "a/uuid-1", "a/random-1"}, rc.CompletedCommandIDs)
	require.Equal(t, map[string]json.RawMessage{"a/now-1": json.RawMessage(`"2026-01-01T00:00:00Z"`), "a/uuid-1": json.RawMessage(`"u"`),
		"a/random-1": json.RawMessage(`0.10`)}, rc.CommandResults)
	require.Equal(t, 3, rc.State.Committed)
	require.Empty(t, rc.State.Open)
	_, err = agent.BuildFromEvents(append(records, value(5, agent.UUIDRecorded, "a/uuid-1", `"v"`)))
	require.ErrorContains(t, err, "recorded twice")
	for _, kind := range []agent.CommandKind{agent.NowCommand, agent.UUIDCommand, agent.RandomCommand, agent.HTTPCommand} {
		output, err := agent.NodeOutput(kind, json.RawMessage(`7`))
		require.NoError(t, err)
		require.Equal(t, `7`, string(output))
	}
}

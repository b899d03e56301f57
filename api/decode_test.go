package api

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzRunBody holds that no body breaks the reader: it is refused with a problem of the caller, or what was read is what
// encoding/json reads too.
func FuzzRunBody(f *testing.F) {
	for _, seed := range []string{``, `{}`, `{"input":"x","wait":0.5,"limits":{"max_steps":3,"timeout":"90s"}}`, `{"plan":` + goodPlan + `}`,
		`{"input":"x","metadata":{"a":[1,{"b":null}]},"attachments":[{"name":"a","media_type":"b","data":"eA=="}]}`, `{"a":1,"a":2}`,
		"{\"input\":\"\\u0000\"}", `[[[[`, `{"limits":null,"plan":null}`, ` {"input" : "x"} `, `{"input":"x","wait":1e999}`} {
		f.Add([]byte(seed))
	}
	b := newBench(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := request("POST", "/api/v1/agent/run", string(raw), "Content-Type: application/json")
		var body runBody
		_, err := b.api.readBody(httptest.NewRecorder(), r, &body)
		var p *problem
		if errors.As(err, &p) {
			require.GreaterOrEqual(t, p.Status, 400)
			require.Less(t, p.Status, 500)
			return
		}
		require.NoError(t, err)
		if len(body.check()) > 0 {
			return
		}
		var plain runBody
		require.NoError(t, json.Unmarshal(raw, &plain))
		require.Equal(t, plain.Input, body.Input)
		require.Equal(t, plain.Wait, body.Wait)
		require.Equal(t, plain.Limits, body.Limits)
		require.Equal(t, plain.Plan == nil, body.Plan == nil)
		if _, err := b.api.acceptance(r, &body, orBraces(raw)); err != nil {
			require.ErrorAs(t, err, &p)
		}
	})
}

func orBraces(raw []byte) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("{}")
	}
	return raw
}

package sse

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func lastEventID(value string) http.Header {
	h := http.Header{}
	h.Set(LastEventID, value)
	return h
}

func TestPosition(t *testing.T) {
	t.Parallel()
	kept := agent.Extent{Oldest: 1, Last: 10, LastInScope: 8}
	pruned := agent.Extent{Oldest: 5, Last: 10, LastInScope: 10}
	empty := agent.Extent{}
	for name, tc := range map[string]struct {
		header, query string
		extent        agent.Extent
		after         int64
		fault         string
		gone          bool
	}{
		"nothing said":                        {extent: kept, after: 0},
		"nothing said, pruned":                {extent: pruned, after: 4},
		"nothing said, empty":                 {extent: empty, after: 0},
		"last id":                             {header: "3", extent: kept, after: 3},
		"last id is the last":                 {header: "10", extent: kept, after: 10},
		"last id beyond":                      {header: "11", extent: kept, fault: "Last-Event-ID"},
		"last id 0 is the oldest":             {header: "0", extent: pruned, after: 4},
		"last id before the oldest":           {header: "4", extent: pruned, after: 4},
		"last id no longer kept":              {header: "3", extent: pruned, fault: "Last-Event-ID", gone: true},
		"last id over from_sequence":          {header: "3", query: "from_sequence=9", extent: kept, after: 3},
		"last id over nonsense":               {header: "3", query: "from_sequence=x&after=y", extent: kept, after: 3},
		"from_sequence":                       {query: "from_sequence=3", extent: kept, after: 2},
		"from_sequence 0":                     {query: "from_sequence=0", extent: kept, after: 0},
		"from_sequence 0 is the oldest":       {query: "from_sequence=0", extent: pruned, after: 4},
		"from_sequence of the next":           {query: "from_sequence=11", extent: kept, after: 10},
		"from_sequence beyond":                {query: "from_sequence=12", extent: kept, fault: "from_sequence"},
		"from_sequence of the oldest":         {query: "from_sequence=5", extent: pruned, after: 4},
		"from_sequence no longer kept":        {query: "from_sequence=4", extent: pruned, fault: "from_sequence", gone: true},
		"from_sequence 1 of an empty log":     {query: "from_sequence=1", extent: empty, after: 0},
		"from_sequence over after":            {query: "from_sequence=3&after=7", extent: kept, after: 2},
		"after":                               {query: "after=3", extent: kept, after: 3},
		"after 0 is the oldest":               {query: "after=0", extent: pruned, after: 4},
		"after the last":                      {query: "after=10", extent: kept, after: 10},
		"after beyond":                        {query: "after=11", extent: kept, fault: "after"},
		"empty header says nothing":           {header: "", query: "after=2", extent: kept, after: 2},
		"empty parameter":                     {query: "from_sequence=", extent: kept, fault: "from_sequence"},
		"twice":                               {query: "after=1&after=2", extent: kept, fault: "after"},
		"negative":                            {query: "after=-1", extent: kept, fault: "after"},
		"plus sign":                           {query: "after=%2B1", extent: kept, fault: "after"},
		"space":                               {query: "after=+1", extent: kept, fault: "after"},
		"hexadecimal":                         {query: "after=0x1", extent: kept, fault: "after"},
		"fraction":                            {query: "from_sequence=1.0", extent: kept, fault: "from_sequence"},
		"word":                                {header: "abc", extent: kept, fault: "Last-Event-ID"},
		"other digits":                        {header: "٣", extent: kept, fault: "Last-Event-ID"},
		"larger than any number":              {header: "99999999999999999999", extent: kept, fault: "Last-Event-ID"},
		"largest number does not wrap around": {header: "9223372036854775807", extent: kept, fault: "Last-Event-ID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			query, err := url.ParseQuery(tc.query)
			require.NoError(t, err)
			p, err := ReadPosition(lastEventID(tc.header), query)
			var after int64
			if err == nil {
				after, err = p.Resolve(tc.extent)
			}
			if tc.fault == "" {
				require.NoError(t, err)
				require.Equal(t, tc.after, after)
				return
			}
			var fault *PositionError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, tc.fault, fault.Name)
			require.Equal(t, tc.gone, fault.Gone)
			if fault.Gone {
				require.Equal(t, tc.extent.Oldest, fault.Oldest)
			}
		})
	}
}

func TestPositionOfAPageIgnoresTheHeader(t *testing.T) {
	t.Parallel()
	p, err := ReadPosition(nil, url.Values{"after": {"4"}})
	require.NoError(t, err)
	after, err := p.Resolve(agent.Extent{Oldest: 1, Last: 10})
	require.NoError(t, err)
	require.EqualValues(t, 4, after)
}

func TestOver(t *testing.T) {
	t.Parallel()
	require.True(t, Over(agent.Extent{Last: 10, LastInScope: 8}, 8))
	require.True(t, Over(agent.Extent{Last: 10, LastInScope: 8}, 9))
	require.False(t, Over(agent.Extent{Last: 10, LastInScope: 8}, 7))
	require.False(t, Over(agent.Extent{Last: 10, LastInScope: 8, Open: true}, 8))
}

func FuzzPosition(f *testing.F) {
	f.Add("3", "4", "5", int64(1), int64(10))
	f.Add("", "0", "", int64(5), int64(10))
	f.Add("x", "", "-1", int64(0), int64(0))
	f.Add("4611686018427387903", "", "", int64(1), int64(10))
	f.Fuzz(func(t *testing.T, header, from, after string, oldest, last int64) {
		if oldest < 0 || last < 0 || oldest > last || last > 1<<61 || (oldest == 0) != (last == 0) {
			return // no log is like that
		}
		query := url.Values{}
		if from != "" {
			query.Set("from_sequence", from)
		}
		if after != "" {
			query.Set("after", after)
		}
		extent := agent.Extent{Oldest: oldest, Last: last}
		p, err := ReadPosition(lastEventID(header), query)
		var got int64
		if err == nil {
			got, err = p.Resolve(extent)
		}
		if err != nil {
			var fault *PositionError
			require.True(t, errors.As(err, &fault))
			require.NotEmpty(t, fault.Name)
			require.True(t, !fault.Gone || oldest > 1)
			return
		}
		require.GreaterOrEqual(t, got, max(oldest, 1)-1, "nothing before the oldest kept")
		require.LessOrEqual(t, got, last, "nothing beyond the next")
		if n, err := strconv.ParseInt(header, 10, 64); header != "" && err == nil && n > 0 {
			require.Equal(t, n, got, "a client that says what it has gets what follows")
		}
	})
}

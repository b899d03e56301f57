package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"runledger/agent"
)

func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	cause := errors.New(strings.Repeat("é", agent.MaxErrorBytes))
	err := agent.Failed(agent.CodeToolFailed, "tool: %w", cause)
	require.LessOrEqual(t, len(err.Message), agent.MaxErrorBytes+len("…"))
	require.True(t, strings.HasSuffix(err.Message, "é…"))
	require.ErrorIs(t, err, cause)

	made := &agent.Error{Code: agent.Code(strings.Repeat("C", 1000)), Message: strings.Repeat("m", 1000), NodeID: "n"}
	cut := made.Cut(100)
	require.Equal(t, strings.Repeat("m", 100)+"…", cut.Message)
	require.Equal(t, strings.Repeat("C", 64)+"…", string(cut.Code))
	require.Equal(t, "n", cut.NodeID)
	require.Len(t, made.Message, 1000, "the error itself stays")
	short := agent.Failed(agent.CodeTimeout, "late")
	require.Same(t, short, short.Cut(100))
	require.Nil(t, (*agent.Error)(nil).Cut(100))
}

func TestShownName(t *testing.T) {
	t.Parallel()
	require.Equal(t, "server-1/some_tool", agent.ShownName("server-1/some_tool"))
	require.Equal(t, "a?b?c?d?e", agent.ShownName("a b<c\x01d\xffe"))
	long := agent.ShownName(strings.Repeat("ä\n", 1<<20))
	require.LessOrEqual(t, len(long), 163)
	require.True(t, utf8.ValidString(long))
	require.True(t, strings.HasSuffix(long, "?…"), "no tool has this name")
}

// What starts a run, or is told of a plan, goes through Temporal however large the plan is.
func TestTheLargestPlanGoesThroughTemporal(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 60)
	plan := &agent.Plan{}
	for i := range agent.MaxPlanNodes {
		n := agent.Node{ID: fmt.Sprintf("%s%04d", long, i), Kind: agent.ToolNode, Tool: long + "1234/" + long + "1234", OnError: agent.OnErrorContinue,
			Retry: &agent.Retry{MaxAttempts: agent.MaxNodeTries}, Timeout: agent.Duration(23*time.Hour + 59*time.Minute + 59*time.Second)}
		for k := range i {
			n.DependsOn = append(n.DependsOn, plan.Nodes[k].ID)
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	told, err := json.Marshal(plan.Shape(&agent.Definition{}))
	require.NoError(t, err)
	require.Less(t, len(told), agent.MaxPayloadBytes/2)
}

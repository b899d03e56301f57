package e2e_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/internal/stacktest"
)

// The tokens of these tests. Whatever has the mark in it, has one of them.
const (
	tokenMark     = "s3cret"
	userToken     = "s3cret-user-of-team-a"
	viewerToken   = "s3cret-viewer-of-team-a"
	operatorToken = "s3cret-operator-of-team-a"
	strangerToken = "s3cret-operator-of-team-b"
	everyToken    = "s3cret-operator-of-all"
)

// authConfig are these tokens, without the one that was revoked.
func authConfig(revoked string) string {
	var b strings.Builder
	b.WriteString("auth:\n  tokens:\n    - {token_env: RUNLEDGER_TOKEN_TEAM_A, owner: team-a, role: user}\n")
	for _, t := range []struct{ token, rest string }{
		{viewerToken, "owner: team-a, role: viewer"}, {operatorToken, "owner: team-a, role: operator"},
		{strangerToken, "owner: team-b, role: operator"}, {everyToken, `owner: "*", role: operator, name: ada`},
	} {
		sum := sha256.Sum256([]byte(t.token))
		if t.token != revoked {
			fmt.Fprintf(&b, "    - {token_sha256: %s, %s}\n", hex.EncodeToString(sum[:]), t.rest)
		}
	}
	return b.String()
}

// as asks with a token and gives the answer.
func (c *client) as(t testing.TB, token, method, path string, body any) (status int, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
	defer cancel()
	res := c.Send(ctx, t, method, path, http.Header{"Authorization": {"Bearer " + token}, "X-Request-Id": {"e2e"}}, body)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NotContains(t, string(raw), tokenMark)
	return res.StatusCode, string(raw)
}

// Owners and roles over real processes; a token that is revoked ends its stream; nobody keeps a token.
func TestTokens(t *testing.T) {
	t.Parallel()
	s := startServers(t, authConfig(""))
	s.StartWorker(t) // without a token in its environment
	p := stacktest.Start(t, s.Dir, append(s.Env, "RUNLEDGER_TOKEN_TEAM_A="+userToken), "api", "--listen", "0.0.0.0:0")
	_, port, found := strings.Cut(p.Line(t, "API is up"), "url=http://")
	require.True(t, found)
	c := &client{&stacktest.Client{URL: "http://127.0.0.1" + port[strings.LastIndex(port, ":"):]}}
	c.Ready(t)

	// The terminal client brings its token.
	cli := func(token string, args ...string) (string, error) {
		out, err := stacktest.Command(t, []string{"RUNLEDGER_URL=" + c.URL, "RUNLEDGER_TOKEN=" + token}, args...).CombinedOutput()
		require.NotContains(t, string(out), tokenMark)
		return string(out), err
	}
	out, err := cli(userToken, "run", "What is 17 * 23?")
	require.NoError(t, err, out)
	require.Contains(t, out, "run completed")
	_, rest, _ := strings.Cut(out, "run ")
	runID, _, _ := strings.Cut(rest, "\n")
	out, err = cli("", "run", "What is 17 * 23?")
	require.Error(t, err)
	require.Contains(t, out, "401 Unauthorized")
	out, err = cli(userToken, "events", runID)
	require.Error(t, err)
	require.Contains(t, out, "role operator")
	out, err = cli(operatorToken, "events", runID)
	require.NoError(t, err)
	require.Contains(t, out, "command_committed")

	const root = "/api/v1/agent"
	path := root + "/runs/" + runID
	status, _ := c.as(t, "s3cret-that-nobody-has", http.MethodGet, path, nil)
	require.Equal(t, http.StatusUnauthorized, status)
	status, _ = c.as(t, viewerToken, http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, status)
	status, answer := c.as(t, viewerToken, http.MethodPost, path+"/cancel", object{})
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, answer, "/problems/user-role-needed")
	status, foreign := c.as(t, strangerToken, http.MethodGet, path, nil)
	require.Equal(t, http.StatusNotFound, status)
	none := strings.Repeat("0", 8) + "-0000-7000-8000-000000000000"
	_, unknown := c.as(t, strangerToken, http.MethodGet, root+"/runs/"+none, nil)
	require.Equal(t, strings.ReplaceAll(unknown, none, runID), foreign)
	_, answer = c.as(t, strangerToken, http.MethodGet, root+"/runs", nil)
	require.JSONEq(t, `{"runs":[],"has_more":false}`, answer)

	// A token for every owner works where something is.
	status, answer = c.as(t, everyToken, http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, status)
	var run agent.Run
	require.NoError(t, json.Unmarshal([]byte(answer), &run))
	status, _ = c.as(t, everyToken, http.MethodPost, root+"/run", object{"input": "What is 1 + 1?"})
	require.Equal(t, http.StatusUnprocessableEntity, status)
	status, answer = c.as(t, everyToken, http.MethodPost, root+"/run", object{"input": "What is 1 + 1?", "conversation_id": run.ConversationID})
	require.Equal(t, http.StatusOK, status, answer)

	// A revoked token ends the stream it opened, which would stay open: a conversation has no end. Others go on.
	ctx, cancel := context.WithTimeout(t.Context(), stacktest.Patience)
	defer cancel()
	follow := func(token string) *bufio.Reader {
		res := c.Send(ctx, t, http.MethodGet, root+"/conversations/"+run.ConversationID+"/events",
			http.Header{"Authorization": {"Bearer " + token}, "Accept": {"text/event-stream"}}, nil)
		t.Cleanup(func() { _ = res.Body.Close() })
		require.Equal(t, http.StatusOK, res.StatusCode)
		in := bufio.NewReader(res.Body)
		_, err := stacktest.ReadFrame(in)
		require.NoError(t, err)
		return in
	}
	gone, stays := follow(operatorToken), follow(viewerToken)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "runledger.yaml"), []byte(authConfig(operatorToken)), 0o600))
	require.NoError(t, p.Cmd.Process.Signal(syscall.SIGHUP))
	for err = error(nil); err == nil; {
		_, err = stacktest.ReadFrame(gone)
	}
	require.Equal(t, io.EOF, err)
	status, _ = c.as(t, operatorToken, http.MethodGet, path, nil)
	require.Equal(t, http.StatusUnauthorized, status)
	status, answer = c.as(t, userToken, http.MethodPost, root+"/run", object{"input": "What is 2 + 2?", "conversation_id": run.ConversationID})
	require.Equal(t, http.StatusOK, status, answer)
	var last agent.Run
	require.NoError(t, json.Unmarshal([]byte(answer), &last))
	for seen := false; !seen; {
		f, err := stacktest.ReadFrame(stays)
		require.NoError(t, err)
		seen = f.Event.RunID == last.RunID
	}

	// No token in what the API printed, and none in the ledger.
	p.Stop(t)
	lines := 0
	for line := range p.Lines {
		require.NotContains(t, line, tokenMark)
		lines++
	}
	require.NotZero(t, lines)
	requireNowhere(t, s.DatabaseURL, tokenMark)
}

// requireNowhere looks for a text in every row of every table.
func requireNowhere(t testing.TB, databaseURL, text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(t.Context(), `SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, tables, "agent_execution_events")
	in := func(table, text string) (n int) {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM `+pgx.Identifier{table}.Sanitize()+` AS t
			WHERE strpos(t::text, $1) > 0 OR strpos(t::text, encode(convert_to($1, 'UTF8'), 'hex')) > 0`, text).Scan(&n))
		return n
	}
	require.NotZero(t, in("agent_execution_events", "17 * 23"), "what is there, is found")
	for _, table := range tables {
		require.Zero(t, in(table, text), "table %s", table)
	}
}

func TestAPIDoesNotStartWithBadTokens(t *testing.T) {
	t.Parallel()
	dir, env := t.TempDir(), []string{"DATABASE_URL=postgres://127.0.0.1:1/none"}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "runledger.yaml"), []byte(authConfig("")), 0o600))
	for name, c := range map[string]struct {
		env  []string
		says string
	}{
		"not set": {nil, "the variable RUNLEDGER_TOKEN_TEAM_A is not set"},
		"short":   {[]string{"RUNLEDGER_TOKEN_TEAM_A=s3cret-too-shor"}, "is too short"},
		"twice":   {[]string{"RUNLEDGER_TOKEN_TEAM_A=" + viewerToken}, "the same token as one before it"},
	} {
		p := stacktest.Start(t, dir, append(env, c.env...), "api", "--listen", "127.0.0.1:0")
		line := p.Line(t, c.says)
		require.NotContains(t, line, tokenMark)
		<-p.Done
		require.Equal(t, 1, p.Cmd.ProcessState.ExitCode(), name)
	}
}

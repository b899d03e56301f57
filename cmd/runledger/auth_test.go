package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/auth"
)

const goodToken = "s3cret-of-sixteen-bytes-and-more"

func sha256Of(token string) string {
	hash := auth.HashOf(token)
	return hex.EncodeToString(hash[:])
}

func TestTokensOfTheConfiguration(t *testing.T) {
	t.Setenv("TOKEN_A", goodToken)
	cfg, err := parseConfig([]byte(`
auth:
  tokens:
    - {token_env: TOKEN_A, owner: team-a, role: user}
    - {token_sha256: ` + sha256Of("another-good-token") + `, owner: "*", role: operator, name: ada}
`))
	require.NoError(t, err)
	keys, err := cfg.keyring()
	require.NoError(t, err)
	caller, _, ok := keys.Find(goodToken)
	require.True(t, ok)
	require.Equal(t, auth.Caller{Owner: "team-a", Name: "team-a", Role: auth.User}, caller)
	caller, _, ok = keys.Find("another-good-token")
	require.True(t, ok)
	require.Equal(t, auth.Caller{Owner: "*", Name: "ada", Role: auth.Operator}, caller)
	_, _, ok = keys.Find(sha256Of("another-good-token"))
	require.False(t, ok, "the hash, which stands in a file, lets nobody in")

	cfg, err = parseConfig(nil)
	require.NoError(t, err)
	keys, err = cfg.keyring()
	require.NoError(t, err)
	require.Nil(t, keys)
}

// The first ones are found by every process that reads the file, the others by those that serve: a worker has no tokens.
func TestBadTokens(t *testing.T) {
	hash := sha256Of(goodToken)
	t.Setenv("TOKEN_A", goodToken)
	t.Setenv("TOKEN_AGAIN", goodToken)
	t.Setenv("TOKEN_SHORT", goodToken[:15])
	t.Setenv("TOKEN_LINE", goodToken+"\n")
	for name, c := range map[string]struct {
		tokens, want string
		later        bool
	}{
		"neither":        {tokens: "{owner: a, role: user}", want: "auth.tokens[0]: want either token_env or token_sha256"},
		"both":           {tokens: "{token_env: TOKEN_A, token_sha256: " + hash + ", owner: a, role: user}", want: "auth.tokens[0]: want either"},
		"not a hash":     {tokens: "{token_sha256: " + goodToken + ", owner: a, role: user}", want: "auth.tokens[0].token_sha256: want 64 hexadecimal digits"},
		"half a hash":    {tokens: "{token_sha256: " + hash[:32] + ", owner: a, role: user}", want: "auth.tokens[0].token_sha256"},
		"no owner":       {tokens: "{token_env: TOKEN_A, role: user}", want: "auth.tokens[0].owner: missing"},
		"blank owner":    {tokens: "{token_env: TOKEN_A, owner: ' ', role: user}", want: "auth.tokens[0].owner: missing"},
		"no role":        {tokens: "{token_env: TOKEN_A, owner: a}", want: `auth.tokens[0].role: ""; want viewer, user or operator`},
		"unknown role":   {tokens: "{token_env: TOKEN_A, owner: a, role: anyone}", want: `auth.tokens[0].role: "anyone"`},
		"every owner":    {tokens: "{token_env: TOKEN_A, owner: '*', role: user}", want: "is for role operator only"},
		"unknown key":    {tokens: "{token: x, owner: a, role: user}", want: "unknown key token"},
		"not set":        {later: true, tokens: "{token_env: TOKEN_NOWHERE, owner: a, role: user}", want: "auth.tokens[0]: the variable TOKEN_NOWHERE is not set"},
		"short":          {later: true, tokens: "{token_env: TOKEN_SHORT, owner: a, role: user}", want: "TOKEN_SHORT is too short for a token: want at least 16 bytes"},
		"line end":       {later: true, tokens: "{token_env: TOKEN_LINE, owner: a, role: user}", want: "TOKEN_LINE has white space"},
		"twice":          {later: true, tokens: "{token_env: TOKEN_A, owner: a, role: user}, {token_env: TOKEN_AGAIN, owner: b, role: user}", want: "auth.tokens[1]: the same token as one before it, of owner a"},
		"twice, by hash": {later: true, tokens: "{token_env: TOKEN_A, owner: a, role: user}, {token_sha256: " + hash + ", owner: b, role: user}", want: "auth.tokens[1]: the same token"},
		"none":           {later: true, tokens: "", want: "auth.tokens: there are none"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := parseConfig([]byte("auth: {tokens: [" + c.tokens + "]}"))
			if c.later {
				require.NoError(t, err)
				_, err = cfg.keyring()
			}
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
}

// With tokens any address will do, without them only one of this machine.
func TestAddressByTokens(t *testing.T) {
	t.Setenv("TOKEN_A", goodToken)
	with, err := parseConfig([]byte("auth: {tokens: [{token_env: TOKEN_A, owner: a, role: user}]}"))
	require.NoError(t, err)
	none, err := parseConfig(nil)
	require.NoError(t, err)
	everywhere := listenFlags{Listen: "0.0.0.0:8080"}
	_, err = everywhere.keyring(with)
	require.NoError(t, err)
	_, err = everywhere.keyring(none)
	require.ErrorContains(t, err, "configure auth.tokens")
	_, err = listenFlags{Listen: "0.0.0.0:8080", InsecureListen: true}.keyring(none)
	require.NoError(t, err)
}

func TestReload(t *testing.T) {
	t.Setenv("TOKEN_A", goodToken)
	path := filepath.Join(t.TempDir(), "runledger.yaml")
	write := func(tokens string) {
		require.NoError(t, os.WriteFile(path, []byte(tokens), 0o600))
	}
	one := "{token_env: TOKEN_A, owner: a, role: user}"
	two := "{token_sha256: " + sha256Of("another-good-token") + ", owner: b, role: viewer}"
	write(fmt.Sprintf("auth: {tokens: [%s]}", one))
	cfg, err := loadConfig(path)
	require.NoError(t, err)
	keys, err := cfg.keyring()
	require.NoError(t, err)
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	good := func(token string) bool { _, _, ok := keys.Find(token); return ok }

	write(fmt.Sprintf("auth: {tokens: [%s, %s]}", one, two))
	reloadTokens(t.Context(), path, keys, log)
	require.True(t, good(goodToken))
	require.True(t, good("another-good-token"))
	require.Contains(t, logged.String(), "tokens=2 revoked=0")

	for name, broken := range map[string]string{"no YAML": "auth: {", "no role": "auth: {tokens: [{token_env: TOKEN_A, owner: a}]}",
		"no variable": "auth: {tokens: [{token_env: TOKEN_NOWHERE, owner: a, role: user}]}"} {
		logged.Reset()
		write(broken)
		reloadTokens(t.Context(), path, keys, log)
		require.Contains(t, logged.String(), "tokens not reloaded", name)
		require.True(t, good(goodToken), "a fault in the file locks nobody out")
	}
	write(fmt.Sprintf("auth: {tokens: [%s]}", two))
	reloadTokens(t.Context(), path, keys, log)
	require.False(t, good(goodToken))
	require.True(t, good("another-good-token"))

	write("models: {default: {provider: scripted}}")
	reloadTokens(t.Context(), path, keys, log)
	require.False(t, good("another-good-token"), "without tokens nobody comes in, rather than everybody")
	require.Contains(t, logged.String(), "nobody is let in")
	require.NotContains(t, logged.String(), goodToken)
}

func TestClientSendsItsToken(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	flags := apiFlags{URL: server.URL}
	for _, token := range []string{"", goodToken} {
		t.Setenv(tokenVariable, token)
		_, err := flags.startRun(t.Context(), map[string]any{})
		require.NoError(t, err)
	}
	require.Equal(t, []string{"", "Bearer " + goodToken}, got)
}

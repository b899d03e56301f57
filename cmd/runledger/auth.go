package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"runledger/agent"
	"runledger/auth"
)

// authConfig says who may call the API. It holds no token, only where one stands or its hash.
type authConfig struct {
	Tokens []tokenConfig `yaml:"tokens"`
}

type tokenConfig struct {
	// TokenEnv is the variable with the token, TokenSHA256 the token's SHA-256 in hexadecimal: one of the two.
	TokenEnv    string    `yaml:"token_env"`
	TokenSHA256 string    `yaml:"token_sha256"`
	Owner       string    `yaml:"owner"`
	Role        auth.Role `yaml:"role"`
	// Name is what the record calls the caller: the owner unless set.
	Name string `yaml:"name"`
}

// minToken is how long a token has to be, in bytes: what is shorter can be guessed.
const minToken = 16

// maxOwner bounds names of owners and tokens, in bytes.
const maxOwner = 200

// check looks at what can be checked without the tokens themselves, which a worker does not have.
func (c *authConfig) check(bad func(format string, args ...any)) {
	if c == nil {
		return
	}
	for i, t := range c.Tokens {
		if (t.TokenEnv == "") == (t.TokenSHA256 == "") {
			bad("auth.tokens[%d]: want either token_env or token_sha256", i)
		}
		if _, err := t.hash(); t.TokenSHA256 != "" && err != nil {
			bad("auth.tokens[%d].token_sha256: %w", i, err)
		}
		if !slices.Contains(auth.Roles(), t.Role) {
			bad("auth.tokens[%d].role: %q; want viewer, user or operator", i, t.Role)
		}
		switch {
		case strings.TrimSpace(t.Owner) == "":
			bad("auth.tokens[%d].owner: missing", i)
		case t.Owner == agent.AnyOwner && t.Role != auth.Operator:
			bad("auth.tokens[%d].owner: %q is for role operator only", i, t.Owner)
		}
		if len(t.Owner) > maxOwner || len(t.Name) > maxOwner {
			bad("auth.tokens[%d]: owner and name may have %d bytes", i, maxOwner)
		}
	}
}

func (t tokenConfig) hash() (h auth.Hash, err error) {
	raw, err := hex.DecodeString(t.TokenSHA256)
	if err != nil || len(raw) != len(h) {
		return h, errors.New("want 64 hexadecimal digits, as sha256sum prints them") // the value is not for a log: it may be a token
	}
	return auth.Hash(raw), nil
}

// resolve finds the token, or its hash. The error tells nothing of it.
func (t tokenConfig) resolve() (auth.Hash, error) {
	if t.TokenSHA256 != "" {
		return t.hash()
	}
	token := os.Getenv(t.TokenEnv)
	switch {
	case token == "":
		return auth.Hash{}, fmt.Errorf("the variable %s is not set", t.TokenEnv)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return auth.Hash{}, fmt.Errorf("the variable %s has white space or other characters that a header cannot carry", t.TokenEnv)
	case len(token) < minToken:
		return auth.Hash{}, fmt.Errorf("the variable %s is too short for a token: want at least %d bytes, as from openssl rand -hex 24", t.TokenEnv, minToken)
	}
	return auth.HashOf(token), nil
}

// tokens are those that the configuration names, none without any. It has been checked.
func (c *authConfig) tokens() ([]auth.Token, error) {
	if c == nil {
		return nil, nil
	}
	var tokens []auth.Token
	var errs []error
	for i, t := range c.Tokens {
		hash, err := t.resolve()
		if err != nil {
			errs = append(errs, fmt.Errorf("auth.tokens[%d]: %w", i, err))
			continue
		}
		if at := slices.IndexFunc(tokens, func(o auth.Token) bool { return o.Hash == hash }); at >= 0 {
			errs = append(errs, fmt.Errorf("auth.tokens[%d]: the same token as one before it, of owner %s", i, tokens[at].Caller.Owner))
		}
		caller := auth.Caller{Owner: t.Owner, Name: t.Name, Role: t.Role}
		if caller.Name == "" {
			caller.Name = t.Owner
		}
		tokens = append(tokens, auth.Token{Hash: hash, Caller: caller})
	}
	return tokens, errors.Join(errs...)
}

// keyring makes the keyring that the API is served with, nil when nobody needs a token.
func (c *config) keyring() (*auth.Keyring, error) {
	if c.Auth == nil {
		return nil, nil
	}
	tokens, err := c.Auth.tokens()
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if len(tokens) == 0 {
		return nil, errors.New("configuration: auth.tokens: there are none, so that nobody could come in; without auth the API serves this machine, without tokens")
	}
	return auth.NewKeyring(tokens), nil
}

// reloadOnHangup reads the tokens anew at every SIGHUP, until ctx ends.
func reloadOnHangup(ctx context.Context, path string, keys *auth.Keyring, log *slog.Logger) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				reloadTokens(ctx, path, keys, log)
			}
		}
	}()
}

// reloadTokens makes the tokens of the configuration the ones that are good. From a configuration that cannot be read it
// takes none: those before stay good. From one without tokens nobody is let in, for that is what it says; serving without
// tokens is decided at the start.
func reloadTokens(ctx context.Context, path string, keys *auth.Keyring, log *slog.Logger) {
	cfg, err := loadConfig(path)
	var tokens []auth.Token
	if err == nil {
		tokens, err = cfg.Auth.tokens()
	}
	if err != nil {
		log.ErrorContext(ctx, "tokens not reloaded: those before stay good", "error", err)
		return
	}
	revoked := keys.Replace(tokens)
	log.InfoContext(ctx, "tokens reloaded", "tokens", len(tokens), "revoked", revoked)
	if len(tokens) == 0 {
		log.WarnContext(ctx, "the configuration has no tokens: nobody is let in")
	}
}

package auth_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/auth"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	for i, has := range auth.Roles() {
		for j, needed := range auth.Roles() {
			require.Equal(t, i >= j, has.Includes(needed), "%s %s", has, needed)
		}
		require.False(t, has.Includes(""), "what no role was given for is for nobody")
		require.False(t, has.Includes("admin"))
	}
	require.False(t, auth.Role("").Includes(auth.Viewer))
	require.False(t, auth.Role("admin").Includes(auth.Viewer))
}

func token(text, owner string, role auth.Role) auth.Token {
	return auth.Token{Hash: auth.HashOf(text), Caller: auth.Caller{Owner: owner, Name: owner, Role: role}}
}

func TestKeyring(t *testing.T) {
	t.Parallel()
	one, two := token("one", "a", auth.User), token("two", "b", auth.Viewer)
	k := auth.NewKeyring([]auth.Token{one, two})
	caller, good, ok := k.Find("one")
	require.True(t, ok)
	require.Equal(t, one.Caller, caller)
	require.NoError(t, good.Err())
	caller, _, ok = k.Find("two")
	require.True(t, ok)
	require.Equal(t, two.Caller, caller)
	for _, wrong := range []string{"", "on", "onee", "One", " one", "three", string(one.Hash[:])} {
		caller, good, ok = k.Find(wrong)
		require.False(t, ok, wrong)
		require.Zero(t, caller)
		require.Nil(t, good)
	}
	_, _, ok = auth.NewKeyring(nil).Find("")
	require.False(t, ok)
}

func TestReplacedTokensAreRevoked(t *testing.T) {
	t.Parallel()
	kept, gone, demoted := token("kept", "a", auth.User), token("gone", "b", auth.User), token("demoted", "c", auth.Operator)
	k := auth.NewKeyring([]auth.Token{kept, gone, demoted})
	until := map[string]context.Context{}
	for _, text := range []string{"kept", "gone", "demoted"} {
		_, good, ok := k.Find(text)
		require.True(t, ok)
		until[text] = good
	}
	lesser := token("demoted", "c", auth.Viewer)
	require.Equal(t, 2, k.Replace([]auth.Token{lesser, token("new", "d", auth.User), kept}))
	require.NoError(t, until["kept"].Err(), "what stays is not disturbed")
	require.Error(t, until["gone"].Err())
	require.Error(t, until["demoted"].Err(), "what began as an operator does not go on as a viewer")

	_, _, ok := k.Find("gone")
	require.False(t, ok)
	caller, good, ok := k.Find("demoted")
	require.True(t, ok)
	require.NoError(t, good.Err())
	require.Equal(t, lesser.Caller, caller)
	_, _, ok = k.Find("new")
	require.True(t, ok)
	require.Equal(t, 3, k.Replace(nil))
	require.Error(t, until["kept"].Err())
}

// Whoever was let in by a keyring that is being replaced hears of the end of the token, whichever came first.
func TestNobodyIsLeftOverByAReplacement(t *testing.T) {
	t.Parallel()
	k := auth.NewKeyring([]auth.Token{token("0", "a", auth.User)})
	var found sync.Map
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() { k.Replace([]auth.Token{token(fmt.Sprint(i%2), "a", auth.User)}) })
		group.Go(func() {
			if _, good, ok := k.Find("0"); ok {
				found.Store(good, true)
			}
		})
	}
	group.Wait()
	k.Replace(nil)
	found.Range(func(good, _ any) bool {
		require.Error(t, good.(context.Context).Err())
		return true
	})
}

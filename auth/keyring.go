package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"sync"
	"sync/atomic"
)

// Hash is the SHA-256 of a token.
type Hash [sha256.Size]byte

// HashOf hashes a token.
func HashOf(token string) Hash { return sha256.Sum256([]byte(token)) }

// Token lets a caller in. No two tokens of a keyring may have the same hash.
type Token struct {
	Hash   Hash
	Caller Caller
}

// Keyring holds the tokens that are good at the moment. It is safe for concurrent use.
type Keyring struct {
	replacing sync.Mutex
	keys      atomic.Pointer[[]*key]
}

// key is a token and the time for which it is good.
type key struct {
	Token
	good   context.Context
	revoke context.CancelFunc
}

// NewKeyring makes a keyring of these tokens. With none, it lets nobody in.
func NewKeyring(tokens []Token) *Keyring {
	k := new(Keyring)
	k.keys.Store(new([]*key))
	k.Replace(tokens)
	return k
}

// Replace makes these tokens the ones that are good. Those that were good before and are not among them, for the same
// caller, are revoked; it returns how many.
func (k *Keyring) Replace(tokens []Token) (revoked int) {
	k.replacing.Lock()
	defer k.replacing.Unlock()
	before := *k.keys.Load()
	after := make([]*key, len(tokens))
	for i, token := range tokens {
		if at := slices.IndexFunc(before, func(b *key) bool { return b.Token == token }); at >= 0 {
			after[i] = before[at]
			continue
		}
		after[i] = &key{Token: token}
		after[i].good, after[i].revoke = context.WithCancel(context.Background())
	}
	k.keys.Store(&after)
	for _, b := range before {
		if !slices.Contains(after, b) {
			b.revoke()
			revoked++
		}
	}
	return revoked
}

// Find gives the caller that a token was given to, and a context that ends when the token is revoked. Ok is false for a
// token that is not good. How long it takes tells nothing of which tokens are.
func (k *Keyring) Find(token string) (caller Caller, good context.Context, ok bool) {
	hash := HashOf(token)
	for _, key := range *k.keys.Load() {
		if subtle.ConstantTimeCompare(hash[:], key.Hash[:]) == 1 {
			caller, good, ok = key.Caller, key.good, true
		}
	}
	return caller, good, ok
}

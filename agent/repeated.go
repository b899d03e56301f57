package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// RepeatedCall counts how often a tool was called with the same arguments.
type RepeatedCall struct {
	Digest string `json:"digest"`
	Count  int    `json:"count"`
}

// CallDigest is short for a tool and what a model calls it with, so that a repetition can be told.
func CallDigest(tool string, arguments json.RawMessage) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(tool), CanonicalJSON(arguments)} {
		_, _ = fmt.Fprintf(h, "%d:", len(part)) // lengths keep ("ab","c") and ("a","bc") apart
		_, _ = h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// maxRemembered bounds how many different calls the loop guard remembers.
const maxRemembered = 64

// RememberCall counts a call of a loop among those before it, which it may change. Of many different calls only the last are
// remembered.
func RememberCall(calls []RepeatedCall, digest string) []RepeatedCall {
	call := RepeatedCall{Digest: digest, Count: 1}
	if at := slices.IndexFunc(calls, func(c RepeatedCall) bool { return c.Digest == digest }); at >= 0 {
		call.Count += calls[at].Count
		calls = slices.Delete(calls, at, at+1)
	}
	calls = append(calls, call)
	return slices.Delete(calls, 0, max(0, len(calls)-maxRemembered))
}

package agent

import (
	"encoding/hex"
	"fmt"
	"math/bits"
)

// Bits is a set of node indexes of a plan. The zero value is the empty set. A Bits value is never changed in place.
type Bits string

// With returns the set with index i in it.
func (b Bits) With(i int) Bits {
	raw := []byte(b)
	for len(raw) <= i/8 {
		raw = append(raw, 0)
	}
	raw[i/8] |= 1 << (i % 8)
	return Bits(raw)
}

// Without returns the set with index i not in it. Trailing empty bytes are cut, so that equal sets are equal values.
func (b Bits) Without(i int) Bits {
	if !b.Has(i) {
		return b
	}
	raw := []byte(b)
	raw[i/8] &^= 1 << (i % 8)
	for len(raw) > 0 && raw[len(raw)-1] == 0 {
		raw = raw[:len(raw)-1]
	}
	return Bits(raw)
}

// Has reports whether index i is in the set.
func (b Bits) Has(i int) bool {
	return i >= 0 && i/8 < len(b) && b[i/8]&(1<<(i%8)) != 0
}

// Count is the number of indexes in the set.
func (b Bits) Count() int {
	n := 0
	for i := range len(b) {
		n += bits.OnesCount8(b[i])
	}
	return n
}

// MarshalText writes the set in hexadecimal, lowest indexes first.
func (b Bits) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString([]byte(b))), nil }

// UnmarshalText reads what MarshalText writes.
func (b *Bits) UnmarshalText(text []byte) error {
	raw, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("node set %q: %w", text, err)
	}
	for len(raw) > 0 && raw[len(raw)-1] == 0 {
		raw = raw[:len(raw)-1]
	}
	*b = Bits(raw)
	return nil
}

package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"runledger/model"
)

// maxName is how long vendors allow the name of a tool or of a schema to be.
const maxName = 64

// Names translates tool names for one request. Runledger calls an MCP tool "server/tool"; vendors allow [a-zA-Z0-9_-]{1,64}.
// The table is made from everything the request names, so no two names meet, and the same request gives the same table.
type Names struct {
	wire     map[string]string
	original map[string]string
}

func NewNames(req model.Request) Names {
	var all []string
	for _, t := range req.Tools {
		all = append(all, t.Name)
	}
	for _, m := range req.Messages {
		for _, call := range m.ToolCalls {
			all = append(all, call.Name)
		}
	}
	return MapNames(all)
}

func MapNames(all []string) Names {
	all = slices.Clone(all)
	slices.Sort(all)
	all = slices.Compact(all)
	n := Names{wire: make(map[string]string, len(all)), original: make(map[string]string, len(all))}
	// Names that are fine as they are come first: nobody may take one away.
	for _, name := range all {
		if SafeName(name) == name {
			n.add(name, name)
		}
	}
	for _, name := range all {
		if _, done := n.wire[name]; !done {
			n.add(name, n.free(name))
		}
	}
	return n
}

func (n Names) add(name, wire string) {
	n.wire[name] = wire
	n.original[wire] = name
}

// free finds a name that no other has: a readable one when it can be had, else one with a hash.
func (n Names) free(name string) string {
	wire := SafeName(name)
	for i := 0; ; i++ {
		if _, taken := n.original[wire]; !taken {
			return wire
		}
		wire = hashedName(name, i)
	}
}

// ToWire gives the vendor's name of a tool.
func (n Names) ToWire(name string) string {
	if wire, ok := n.wire[name]; ok {
		return wire
	}
	return SafeName(name)
}

// FromWire gives Runledger's name of a tool. A name that the model made up stays as it is, so that the caller sees it.
func (n Names) FromWire(wire string) string {
	if name, ok := n.original[wire]; ok {
		return name
	}
	return wire
}

// SafeName is name itself where vendors allow it, else what they allow that is closest to it.
func SafeName(name string) string {
	var b strings.Builder
	for _, r := range name {
		switch {
		case r == '/':
			b.WriteString("__")
		case r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z':
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	if b.Len() == 0 || b.Len() > maxName {
		return hashedName(name, 0)
	}
	return b.String()
}

func hashedName(name string, i int) string {
	const short = 10
	sum := sha256.Sum256([]byte(strconv.Itoa(i) + "\x00" + name))
	readable := strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	return readable[:min(len(readable), maxName-1-short)] + "_" + hex.EncodeToString(sum[:])[:short]
}

package openai

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

// names translates tool names for one request. Runledger calls an MCP tool "server/tool"; vendors allow [a-zA-Z0-9_-]{1,64}.
// The table is made from everything the request names, so no two names meet, and the same request gives the same table.
type names struct {
	wire     map[string]string
	original map[string]string
}

func newNames(req model.Request) names {
	var all []string
	for _, t := range req.Tools {
		all = append(all, t.Name)
	}
	for _, m := range req.Messages {
		for _, call := range m.ToolCalls {
			all = append(all, call.Name)
		}
	}
	return mapNames(all)
}

func mapNames(all []string) names {
	all = slices.Clone(all)
	slices.Sort(all)
	all = slices.Compact(all)
	n := names{wire: make(map[string]string, len(all)), original: make(map[string]string, len(all))}
	// Names that are fine as they are come first: nobody may take one away.
	for _, name := range all {
		if safeName(name) == name {
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

func (n names) add(name, wire string) {
	n.wire[name] = wire
	n.original[wire] = name
}

// free finds a name that no other has: a readable one when it can be had, else one with a hash.
func (n names) free(name string) string {
	wire := safeName(name)
	for i := 0; ; i++ {
		if _, taken := n.original[wire]; !taken {
			return wire
		}
		wire = hashedName(name, i)
	}
}

// toWire gives the vendor's name of a tool.
func (n names) toWire(name string) string {
	if wire, ok := n.wire[name]; ok {
		return wire
	}
	return safeName(name)
}

// fromWire gives Runledger's name of a tool. A name that the model made up stays as it is, so that the caller sees it.
func (n names) fromWire(wire string) string {
	if name, ok := n.original[wire]; ok {
		return name
	}
	return wire
}

// safeName is name itself where vendors allow it, else what they allow that is closest to it.
func safeName(name string) string {
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

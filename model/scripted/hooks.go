package scripted

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"runledger/agent"
	"runledger/model"
)

// scope says at which kind of reply a hook acts.
type scope string

const (
	inAnswer scope = ""
	inPlan   scope = "plan"
	inTurn   scope = "turn"
)

type hook struct {
	scope    scope
	verb     string
	argument string
	from, to int // where it stands in the text
}

var hookStart = regexp.MustCompile(`\[\[(?:(plan|turn) +)?(say|words|fail|unavailable|broken|wait|refuse|garble)\b *`)

// hooks lists the hooks of a text in order.
func hooks(text string) []hook {
	var found []hook
	for at := 0; at < len(text); {
		m := hookStart.FindStringSubmatchIndex(text[at:])
		if m == nil {
			break
		}
		h := hook{verb: text[at+m[4] : at+m[5]], from: at + m[0]}
		if m[2] >= 0 {
			h.scope = scope(text[at+m[2] : at+m[3]])
		}
		start := at + m[1]
		end := strings.Index(text[start:], "]]")
		if strings.HasPrefix(text[start:], "{") {
			end = objectEnd(text[start:]) // JSON may hold brackets of its own
		}
		if end < 0 || !strings.HasPrefix(strings.TrimLeft(text[start+end:], " \n"), "]]") {
			at = start
			continue
		}
		h.argument = strings.TrimSpace(text[start : start+end])
		h.to = start + end + strings.Index(text[start+end:], "]]") + len("]]")
		found = append(found, h)
		at = h.to
	}
	return found
}

// objectEnd is where the JSON object at the start of the text ends, or -1.
func objectEnd(text string) int {
	decoder := json.NewDecoder(strings.NewReader(text))
	var object map[string]json.RawMessage
	if decoder.Decode(&object) != nil {
		return -1
	}
	return int(decoder.InputOffset())
}

func findHook(text string, s scope) (hook, bool) {
	for _, h := range hooks(text) {
		if h.scope == s {
			return h, true
		}
	}
	return hook{}, false
}

// withoutHooks blanks the hooks, keeping every other byte at its place.
func withoutHooks(text string) string {
	b := []byte(text)
	for _, h := range hooks(text) {
		blank(b, h.from, h.to)
	}
	return string(b)
}

func (h hook) apply(d *delivery) {
	switch h.verb {
	case "say":
		d.reply.Text = h.argument
	case "words":
		n, err := strconv.Atoi(h.argument)
		if err != nil {
			n = 1
		}
		d.reply.Text = manyWords(min(n, 100_000))
	case "fail":
		d.err = failed("the text asks the scripted model to fail")
	case "unavailable":
		d.err = agent.Transient(agent.CodeModelUnavailable, "the text asks the scripted model to be unavailable")
	case "broken":
		d.err = agent.Transient(agent.CodeModelStream, "the text asks the scripted model to break off")
		d.after = (len(d.pieces()) + 1) / 2
	case "wait":
		d.silent, d.after = true, 1
	case "refuse":
		d.reply.Finish = model.FinishFiltered
		d.reply.ToolCalls = nil
		d.reply.Text = "I won't do that."
	case "garble":
		d.reply.Text = "{" + d.reply.Text + "]"
		for i := range d.reply.ToolCalls {
			d.reply.ToolCalls[i].Arguments = strings.TrimSuffix(d.reply.ToolCalls[i].Arguments, "}")
		}
	}
}

func manyWords(n int) string {
	words := []string{"one", "step", "after", "the", "other", "is", "written", "down", "and", "kept"}
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[i%len(words)])
	}
	return b.String()
}

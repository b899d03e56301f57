package scripted

import (
	"regexp"
	"slices"
	"strings"

	"runledger/model"
)

// namedTask is a task that the text asks for by the tool's name, and the words that belong to it.
type namedTask struct {
	task
	from, to int
}

const cue = `(?:(?i:use|call|run|invoke|ask|try)(?i: the)?(?i: tool)? +)`

var (
	clauseEnd = regexp.MustCompile(`[.!?;]+(?:\s|$)|\n|\x01` +
		`|(?i:[,\s]\s*(?:(?:and|then|also|plus|please|after that|afterwards|finally)[,\s]+)+(?:compute|calculate|evaluate|work out|what|which|how|tell me|` +
		`fetch|get|read|open|download|use|call|run|invoke|ask|try|add|sum|multiply|divide|subtract|summari[sz]e|answer|explain|post|report|(?:the )?(?:time|date))\b)`)
	quoted  = regexp.MustCompile("\"([^\"]*)\"|“([^”]*)”|`([^`]*)`")
	leading = regexp.MustCompile(`^(?i)(?:[\s:,(-]*(?:tool\b)?[\s:,(-]*)(?:(?:to|and|that|it|please)\s+)*` +
		`(?:(?:say|says|saying|echo|send|sends|print|write|repeat|tell|search for|search|find|look up|shout)\s+)?` +
		`(?:(?:with|using|on|in|for|about)\s+)?(?:the\s+)?(?:(?:message|text|input|query|argument|arguments|word|words)\b[\s:]*)?`)
)

// namedTasks finds the tools that a text calls by name. Built-in tools are asked for by what they do instead.
func namedTasks(text string, tools []model.Tool) []namedTask {
	// An address may hold the name of a tool without calling it.
	b := []byte(text)
	for _, m := range address.FindAllIndex(b, -1) {
		blank(b, m[0], m[1])
	}
	hidden := string(b)
	var found []namedTask
	for _, t := range tools {
		switch t.Name {
		case calculatorTool, clockTool, httpTool:
			continue
		}
		for _, m := range mentions(hidden, t, tools) {
			found = append(found, namedTask{task: task{tool: t.Name, label: t.Name, at: m[0]}, from: m[0], to: m[1]})
		}
	}
	slices.SortStableFunc(found, func(a, b namedTask) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return b.to - a.to
	})
	// Of two names at one place the longer counts.
	kept := found[:0]
	for _, n := range found {
		if len(kept) == 0 || n.from >= kept[len(kept)-1].to {
			kept = append(kept, n)
		}
	}
	for i := range kept {
		n := &kept[i]
		limit := len(text)
		if i+1 < len(kept) {
			limit = kept[i+1].from
		}
		schema := model.Tool{}
		if k := slices.IndexFunc(tools, func(t model.Tool) bool { return t.Name == n.tool }); k >= 0 {
			schema = tools[k]
		}
		var said int
		n.args, said = arguments(text[n.to:limit], readSchema(schema.InputSchema))
		n.to += said
	}
	return kept
}

// mentions finds where a text names a tool: its whole name, or what follows the server's name, if no other tool is called
// that. A name that is a plain word needs a verb before it, "use weather", or the word tool behind it.
func mentions(text string, t model.Tool, tools []model.Tool) [][]int {
	names := []string{t.Name}
	if short := shortName(t.Name); short != t.Name {
		same := 0
		for _, other := range tools {
			if shortName(other.Name) == short || other.Name == short {
				same++
			}
		}
		if same == 1 && short != calculatorTool && short != clockTool && short != httpTool {
			names = append(names, short)
		}
	}
	var all [][]int
	lowered := strings.ToLower(text)
	for _, name := range names {
		parts := strings.FieldsFunc(name, func(r rune) bool { return !plainRune(r) })
		if len(parts) == 0 {
			continue
		}
		if !strings.Contains(lowered, strings.ToLower(parts[0])) {
			continue // most tools are not spoken of, and patterns are dear
		}
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		if len(parts) > 1 {
			// Vendors cannot take a slash, so the same tool may be offered as everything__echo.
			all = append(all, find(text, `(?:`+cue+`)?`+strings.Join(parts, `[^\sA-Za-z0-9]{1,2}`))...)
			continue
		}
		all = append(all, find(text, cue+parts[0])...)
		all = append(all, find(text, `(?i:the +)?`+parts[0]+` tool`)...)
	}
	return all
}

// find gives the places where a pattern stands as words of its own.
func find(text, pattern string) [][]int {
	var found [][]int
	for _, m := range regexp.MustCompile(`(?i)`+pattern).FindAllStringIndex(text, -1) {
		before, after := byte(' '), byte(' ')
		if m[0] > 0 {
			before = text[m[0]-1]
		}
		if m[1] < len(text) {
			after = text[m[1]]
		}
		if !letter(before) && !digit(before) && before != '/' && !letter(after) && !digit(after) && after != '/' {
			found = append(found, m)
		}
	}
	return found
}

// shortName is a tool's name without that of its server.
func shortName(name string) string {
	if i := strings.LastIndex(name, "/"); i >= 0 {
		return name[i+1:]
	}
	if i := strings.LastIndex(name, "__"); i >= 0 {
		return name[i+2:]
	}
	return name
}

func plainRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r >= 0x80
}

// clause is the part of a text that still belongs to a call: up to the end of the sentence, or to the next wish. What is
// quoted ends nothing.
func clause(text string) string {
	hidden := []byte(text)
	for _, m := range quoted.FindAllIndex(hidden, -1) {
		for i := m[0]; i < m[1]; i++ {
			hidden[i] = 'q'
		}
	}
	if m := clauseEnd.FindIndex(hidden); m != nil {
		return text[:m[0]]
	}
	return text
}

// words is what a clause says once the words that only lead to it are taken off.
func words(said string) string {
	said = said[len(leading.FindString(said)):]
	return strings.Trim(strings.TrimSpace(said), " \t.,;:!?()\"“”`'")
}

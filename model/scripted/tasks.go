package scripted

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"runledger/model"
)

// task is one call of a tool that a text asks for.
type task struct {
	tool string
	args json.RawMessage // a JSON object
	// label says in a few words what the task finds out.
	label string
	at    int // where the text asks for it
	// stage counts the "then"s before it: tasks of one stage can run at the same time.
	stage int
}

const (
	calculatorTool = "calculator"
	clockTool      = "clock"
	httpTool       = "http_request"

	// maxTasks and maxText bound what is read out of a text.
	maxTasks = 40
	maxText  = 32 << 10
)

var (
	address = regexp.MustCompile("https?://[^\\s<>\"'`\\x01]+")
	// verbBefore is a method in front of an address: POST to https://..., or, in small letters, only as "post to".
	verbBefore = regexp.MustCompile(`(?:\b(POST|PUT|PATCH|DELETE|HEAD)\b[^.!?\n]{0,40}|(?i:\b(post|put|patch|delete|head)(?: an?)?(?: request)? to(?: the (?:url|address))?)\s*:?\s*)$`)
	bodyAfter  = regexp.MustCompile(`^[\s,]*(?i:with|and|using|sending)?\s*(?i:an?|the)?\s*(?i:json)?\s*(?i:body|payload|data)?\s*:?\s*\{`)
	clockWords = regexp.MustCompile(`(?i)\bwhat(?:'s|’s| is)?(?: the)?(?: current| local| exact)?(?: date and)? (?:time|date|day|weekday|hour)\b` +
		`|\b(?:which|what) (?:day|weekday|date|year|month) (?:is|do)\b|\b(?:current|local|utc|exact) (?:date and time|time|date)\b` +
		`|\btime (?:is it|now|of day)\b|\btoday(?:'s|’s) date\b|\bdate(?: is it)? today\b|\b(?:tell|give|show)(?: me)? (?:the )?(?:time|date)\b` +
		`|\b(?:and|also|plus|then|with) the (?:time|date)\b|\b(?:the|use|a) clock\b|\bwhen is now\b`)
	zoneOrCity = regexp.MustCompile(`(?i)\b(?:tokyo|berlin|london|paris|new york|san francisco|sydney|beijing|delhi)\b|\b(?-i:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)/[A-Za-z_]+(?:/[A-Za-z_]+)?\b`)
	ordered    = regexp.MustCompile(`(?i)\b(?:then|after that|afterwards|finally)\b`)
)

// tasks reads what a text asks of the tools that are offered, in the order of the text.
func tasks(text string, tools []model.Tool) []task {
	text = taskText(text)
	rest := []byte(text)
	offered := func(name string) (model.Tool, bool) {
		i := slices.IndexFunc(tools, func(t model.Tool) bool { return t.Name == name })
		if i < 0 {
			return model.Tool{}, false
		}
		return tools[i], true
	}
	// Tools called by name come first: the words behind the name are theirs, numbers and addresses too.
	found := namedTasks(text, tools)
	for _, n := range found {
		blank(rest, n.from, n.to)
	}
	all := make([]task, 0, len(found))
	for _, n := range found {
		all = append(all, n.task)
	}
	web, haveWeb := offered(httpTool)
	for _, m := range address.FindAllIndex(rest, -1) {
		end := m[0] + len(trimAddress(text[m[0]:m[1]]))
		t, to := webTask(text, m[0], end, web)
		blank(rest, m[0], to)
		if haveWeb {
			all = append(all, t)
		}
	}
	if _, ok := offered(calculatorTool); ok {
		for _, e := range arithmetic(string(rest)) {
			all = append(all, task{tool: calculatorTool, args: object("expression", e.text), label: e.text, at: e.from})
		}
	}
	if clock, ok := offered(clockTool); ok {
		all = append(all, clockTasks(string(rest), clock)...)
	}
	slices.SortStableFunc(all, func(a, b task) int { return a.at - b.at })
	return staged(text, all)
}

// taskText is the part of a message that asks: without hooks, and without texts that were sent along.
func taskText(text string) string {
	text = withoutHooks(text)
	if i := strings.Index(text, "\n\nAttachment "); i >= 0 {
		text = text[:i]
	}
	if len(text) > maxText {
		text = text[:maxText]
	}
	return text
}

// staged drops what is asked twice and numbers the stages.
func staged(text string, all []task) []task {
	var kept []task
	seen := make(map[string]bool)
	stage, from := 0, 0
	for _, t := range all {
		if key := t.tool + string(t.args); !seen[key] && len(kept) < maxTasks {
			seen[key] = true
			if len(kept) > 0 && ordered.MatchString(text[from:t.at]) {
				stage++
			}
			t.stage, from = stage, t.at
			kept = append(kept, t)
		}
	}
	return kept
}

func clockTasks(text string, tool model.Tool) []task {
	m := clockWords.FindStringIndex(text)
	if m == nil {
		return nil
	}
	schema := readSchema(tool.InputSchema)
	zones := zonesIn(text)
	if _, ok := schema.Properties["timezone"]; !ok || len(zones) == 0 {
		return []task{{tool: clockTool, args: json.RawMessage(`{}`), label: "the time", at: m[0]}}
	}
	var all []task
	for _, z := range zones {
		all = append(all, task{tool: clockTool, args: object("timezone", z), label: "the time in " + z, at: m[0]})
	}
	return all
}

// zonesIn finds the time zones that a text names, by their own names or by a well-known city, in the order of the text and
// each once.
func zonesIn(text string) []string {
	var zones []string
	for _, m := range zoneOrCity.FindAllString(text, -1) {
		z := m
		if !strings.Contains(m, "/") {
			z = zoneOf(strings.ToLower(m))
		}
		if !slices.Contains(zones, z) {
			zones = append(zones, z)
		}
	}
	return zones
}

// zoneOf is the time zone of the cities that zoneOrCity knows.
func zoneOf(city string) string {
	switch city {
	case "tokyo":
		return "Asia/Tokyo"
	case "berlin":
		return "Europe/Berlin"
	case "london":
		return "Europe/London"
	case "paris":
		return "Europe/Paris"
	case "new york":
		return "America/New_York"
	case "san francisco":
		return "America/Los_Angeles"
	case "sydney":
		return "Australia/Sydney"
	case "beijing":
		return "Asia/Shanghai"
	case "delhi":
		return "Asia/Kolkata"
	}
	return "Etc/UTC"
}

// webTask reads the request for an address and says where its words end.
func webTask(text string, from, to int, tool model.Tool) (task, int) {
	method := "GET"
	if m := verbBefore.FindStringSubmatch(text[max(0, from-60):from]); m != nil {
		method = strings.ToUpper(m[1] + m[2])
	}
	where := text[from:to]
	args := map[string]any{"method": method, "url": where}
	if m := bodyAfter.FindStringIndex(text[to:]); m != nil && method != "GET" && method != "HEAD" {
		start := to + m[1] - 1
		if end := objectEnd(text[start:]); end > 0 {
			body := text[start : start+end]
			s := readSchema(tool.InputSchema)
			if _, ok := s.Properties["json"]; ok {
				args["json"], to = json.RawMessage(body), start+end
			} else if _, ok := s.Properties["body"]; ok {
				if to = start + end; s.property("body").is("string") {
					args["body"] = body
				} else {
					args["body"] = json.RawMessage(body)
				}
			}
		}
	}
	return task{tool: httpTool, args: encode(args), label: method + " " + where, at: from}, to
}

// trimAddress takes off the punctuation of the sentence that an address stands in.
func trimAddress(where string) string {
	for where != "" {
		last := where[len(where)-1]
		switch {
		case strings.IndexByte(".,;:!?*_", last) >= 0:
		case last == ')' && strings.Count(where, "(") < strings.Count(where, ")"):
		case last == ']' && strings.Count(where, "[") < strings.Count(where, "]"):
		case last == '}' && strings.Count(where, "{") < strings.Count(where, "}"):
		default:
			return where
		}
		where = where[:len(where)-1]
	}
	return where
}

func object(name string, value any) json.RawMessage { return encode(map[string]any{name: value}) }

// encode writes JSON that is meant to be read by people too.
func encode(value any) json.RawMessage {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return json.RawMessage(`{}`) // only strings, numbers and JSON that has been read come here
	}
	return json.RawMessage(strings.TrimSpace(b.String()))
}

package scripted

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"runledger/model"
)

const (
	inputsHeading  = "\n\nInputs:\n"
	requestHeading = "The user's request:\n"

	// maxShown bounds what an answer shows of one result.
	maxShown = 600
)

// answer writes a text from what is known: the results of tools in the transcript, or the inputs within the message.
func answer(req model.Request) string {
	text := lastUser(req)
	var facts []string
	for _, r := range results(sinceUser(req.Messages)) {
		facts = append(facts, fact(callLabel(r.call), r.text))
	}
	request, inputs := splitInputs(text)
	if len(facts) == 0 {
		for _, name := range slices.Sorted(maps.Keys(inputs)) {
			facts = append(facts, fact(name, string(inputs[name])))
		}
	}
	switch len(facts) {
	case 0:
		return smallTalk(request)
	case 1:
		return "Here is the answer: " + facts[0] + "."
	}
	return "Here is what I found:\n- " + strings.Join(facts, "\n- ")
}

// splitInputs takes the inputs of an llm node, a JSON object, from the end of its message.
func splitInputs(text string) (request string, inputs map[string]json.RawMessage) {
	request = text
	at := strings.LastIndex(text, inputsHeading)
	if at >= 0 {
		at += len(inputsHeading)
	} else if at = strings.IndexByte(text, '{'); at < 0 {
		return request, nil
	}
	// Whatever else the message holds in braces, the inputs come last.
	for tries := 0; tries < 1000; tries++ {
		if json.Unmarshal([]byte(text[at:]), &inputs) == nil {
			return strings.TrimSuffix(text[:at], inputsHeading), inputs
		}
		inputs = nil
		next := strings.IndexByte(text[at+1:], '{')
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return request, nil
}

func smallTalk(request string) string {
	if i := strings.Index(request, requestHeading); i >= 0 {
		request = request[i+len(requestHeading):]
	}
	request, _, _ = strings.Cut(request, "\n\nExpected output:\n")
	request = strings.Join(strings.Fields(strings.ReplaceAll(taskText(request), "\x01", "")), " ")
	if request == "" {
		return "You did not say anything, and I have no tool to call for that."
	}
	return "You said: “" + clip(request, maxShown) + "”. I am the scripted model: without a vendor I can do arithmetic, tell the " +
		"time, fetch web addresses and call tools by their names, if I am offered them."
}

// callLabel says what a call was about.
func callLabel(call model.ToolCall) string {
	var args map[string]json.RawMessage
	if json.Unmarshal([]byte(call.Arguments), &args) != nil {
		return call.Name
	}
	field := func(name string) string {
		var text string
		_ = json.Unmarshal(args[name], &text)
		return text
	}
	switch call.Name {
	case calculatorTool:
		if e := field("expression"); e != "" {
			return e
		}
	case clockTool:
		if z := field("timezone"); z != "" {
			return "the time in " + z
		}
		return "the time"
	case httpTool:
		return strings.TrimSpace(field("method") + " " + field("url"))
	}
	return call.Name
}

var arithmeticLabel = regexp.MustCompile(`^[-0-9(a-z][-0-9a-z+*/%^()., ]*$`)

// fact says a result in one line.
func fact(label, text string) string {
	if strings.HasPrefix(text, "The call failed.") {
		return label + " failed: " + clip(strings.TrimSpace(strings.TrimPrefix(text, "The call failed.")), maxShown)
	}
	shown := show(json.RawMessage(text))
	switch {
	case arithmeticLabel.MatchString(label) && strings.ContainsAny(label, "0123456789"):
		return label + " = " + shown
	case strings.HasPrefix(label, "the time"):
		return label + " is " + shown
	}
	return label + ": " + shown
}

// show says a value in words where it knows the form of it, else as compact JSON.
func show(raw json.RawMessage) string {
	text := "null" // which leaves a string as it is
	if json.Unmarshal(raw, &text) == nil {
		return clip(strings.TrimSpace(text), maxShown)
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) == nil && fields != nil {
		if said := showObject(fields); said != "" {
			return said
		}
	}
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return clip(strings.TrimSpace(string(raw)), maxShown) // no JSON: a tool's own words
	}
	return clip(compact.String(), maxShown)
}

func showObject(fields map[string]json.RawMessage) string {
	text := func(name string) string {
		var s string
		_ = json.Unmarshal(fields[name], &s)
		return s
	}
	has := func(name string) bool {
		raw, ok := fields[name]
		return ok && !bytes.Equal(raw, []byte("null"))
	}
	switch {
	case has("error") && len(fields) <= 2:
		return "it failed, " + show(fields["error"])
	case has("result") && has("exact"): // the calculator
		if string(fields["exact"]) == "false" {
			return show(fields["result"]) + " (rounded)"
		}
		return show(fields["result"])
	case text("time") != "" && has("timezone"): // the clock
		return strings.TrimSpace(text("weekday") + " " + text("time"))
	case has("status") && (has("headers") || has("text") || has("json")): // an HTTP answer
		body := text("text")
		if has("json") {
			body = show(fields["json"])
		}
		return strings.TrimSpace("status " + string(fields["status"]) + ", " + clip(strings.Join(strings.Fields(body), " "), maxShown))
	case has("content"): // what an MCP server answers
		var parts []struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(fields["content"], &parts) == nil {
			var all []string
			for _, p := range parts {
				if p.Text != "" {
					all = append(all, p.Text)
				}
			}
			if len(all) > 0 {
				return clip(strings.Join(all, " "), maxShown)
			}
		}
	}
	for _, name := range []string{"result", "value", "text", "message", "output", "answer", "time"} {
		if has(name) && len(fields) == 1 {
			return show(fields[name])
		}
	}
	return ""
}

var thinks = regexp.MustCompile(`(?i)\bthink(?:ing)? (?:aloud|before|first|step)\b`)

// thoughts are what the model shows of its thinking when the text asks it to think.
func thoughts(text string) string {
	if !thinks.MatchString(taskText(text)) {
		return ""
	}
	return "The request has " + itoa(len(strings.Fields(text))) + " words. I look for results in it, and say what I find."
}
